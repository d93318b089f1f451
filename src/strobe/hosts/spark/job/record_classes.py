"""Makes the archive of Java classes that `jvm.class_archive` tells of: runs a small pipeline in a JVM that notes them.

Called by `make setup`. Spark runs without the archive as well, so nothing that goes wrong here is an error.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from strobe.hosts.spark.connectors.delta.sink import DeltaSink
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.jvm.class_archive import archive_path
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import spark_session
from strobe.hosts.spark.pipeline.config import CheckpointConfig
from strobe.hosts.spark.pipeline.pipeline import Pipeline

__all__ = ["is_made", "main", "make_archive"]

_PATIENCE = 300.0  # seconds for the JVM to write it; it takes about ten


def make_archive(java: Path) -> bool:
    """Make it again. False if this Java makes none."""
    archive = archive_path()
    archive.parent.mkdir(parents=True, exist_ok=True)
    fresh = archive.with_name(f"{archive.name}.{os.getpid()}")
    os.environ["JAVA_HOME"] = str(java)
    try:
        _record(fresh)
        if fresh.is_file():
            fresh.replace(archive)
        else:
            archive.unlink(missing_ok=True)
        _mark().write_text(_fingerprint(java))  # also for a Java that makes none: it is not asked again
    finally:
        fresh.unlink(missing_ok=True)
    return archive.is_file()


def is_made(java: Path) -> bool:
    """Whether it was made, or tried, with this Java and this Spark."""
    try:
        return _mark().read_text() == _fingerprint(java)
    except OSError:
        return False


def _mark() -> Path:
    return archive_path().with_suffix(".made-for")


def _fingerprint(java: Path) -> str:
    """Of what a JVM compares with an archive's header, and of what is recorded here."""
    release = java / "release"
    about = release.read_bytes() if release.is_file() else b""
    return hashlib.sha256(b"\0".join((str(java).encode(), about, *_jars(), Path(__file__).read_bytes()))).hexdigest()


def _jars() -> list[bytes]:
    """Spark's, by name, size and time, without importing Spark."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return [
        f"{jar}:{jar.stat().st_size}:{jar.stat().st_mtime_ns}".encode()
        for jar in sorted(Path(found.origin).parent.glob("jars/*.jar"))
    ]


def _record(archive: Path) -> None:
    """Run a pipeline in a JVM that writes the archive as it ends."""
    with tempfile.TemporaryDirectory(prefix="strobe-classes-") as scratch:
        option = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive} -XX:TieredStopAtLevel=1"}
        spark = spark_session("classes", extra=option, log=Path(scratch, "spark.log"))
        rows = f"{scratch}/rows"
        spark.range(100).selectExpr("id", "id % 7 AS key", "timestamp_seconds(id) AS at").write.parquet(rows)
        pipeline = Pipeline("classes", checkpoint=CheckpointConfig(interval=0.5))

        @pipeline.stage(uid="rows", trigger={"availableNow": True})
        def read(spark: Any) -> Any:
            return spark.readStream.schema("id LONG, key LONG, at TIMESTAMP").parquet(rows)

        @pipeline.stage(uid="sums", reads="rows", output_mode="update", to=DeltaSink(f"{scratch}/sums", key="key"))
        def add(rows: Any) -> Any:
            return rows.groupBy("key").agg({"id": "sum"}).withColumnRenamed("sum(id)", "total")

        start_job(pipeline, home=f"{scratch}/home", base=Path(scratch), spark=spark).wait(_PATIENCE)
        gateway: Any = spark.sparkContext._gateway
        jvm = gateway.proc
        spark.stop()
        jvm.stdin.close()  # what ends it
        jvm.wait(_PATIENCE)


def main() -> int:
    """For `make setup`. Spark runs without the archive as well, so nothing that goes wrong here is an error."""
    slower = "Spark will start a little slower than it could"
    try:
        java = find_java()
        if is_made(java):
            return 0
        print(
            "Recording the classes that Spark loads, so that it starts in half of the time. Once, about half a minute."
        )
        if not make_archive(java):
            print(f"{slower}: this Java makes no class archives.", file=sys.stderr)
    except Exception as error:  # Spark's and Java's own, too
        print(f"{slower}: no class archive was made ({type(error).__name__}: {error}).", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
