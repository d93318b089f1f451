"""What it costs to protect a session's ports: authentication and Unix sockets, against Spark's defaults.

    python bench/ports.py                    three rounds, both sides alternately
    python bench/ports.py --quick            one round of a small job

Each side is a new process: a session starts, then a job of two stages reads a fixed set of files. Every row goes to a
Python process and back, and through a shuffle, so that it passes all the sockets that are guarded. Ratios of seconds:
above 1, the guarded side is slower. Processor time is of all processes; use it where the machine has other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPEN = {"spark.authenticate": "false", "spark.python.unix.domain.socket.enabled": "false"}


def side(guarded: bool, work: Path, data: Path) -> None:
    import resource

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql import functions as F

    import strobe
    from strobe.hosts.spark.job.job import start_job
    from strobe.hosts.spark.jvm.session import spark_session

    began = time.perf_counter()
    spark = spark_session("ports", "local[2]", extra={} if guarded else OPEN, log=work / "spark.log")
    up = time.perf_counter() - began
    pipeline = strobe.Pipeline("ports", checkpoint=strobe.CheckpointConfig(interval=2.0))

    @pipeline.stage(uid="numbers", trigger={"availableNow": True})
    def numbers(spark: SparkSession) -> DataFrame:
        def through(frames: Iterator[Any]) -> Iterator[Any]:
            yield from frames

        files = spark.readStream.schema("id BIGINT").option("maxFilesPerTrigger", 1).parquet(str(data))
        return files.mapInArrow(through, "id BIGINT")

    @pipeline.stage(uid="sums", reads="numbers", output_mode="update", to=strobe.DeltaSink("sums", key="k"))
    def sums(numbers: DataFrame) -> DataFrame:
        return numbers.groupBy((F.col("id") % 1000).alias("k")).agg(F.sum("id").alias("total"))

    began = time.perf_counter()
    job = start_job(pipeline, home=str(work / "home"), base=work, spark=spark)
    job.wait()
    if job.state is not strobe.JobState.FINISHED:
        raise SystemExit(job.error)
    took = time.perf_counter() - began
    gateway: Any = spark.sparkContext._gateway
    spark.stop()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(json.dumps({"up": up, "job": took, "processor": sum(u.ru_utime + u.ru_stime for u in used)}))


def run(name: str, data: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="bench-ports-") as work:
        command = [sys.executable, __file__, f"--side={name}", f"--work={work}", f"--data={data}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", choices=("guarded", "open"), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side is not None:
        side(args.side == "guarded", args.work, args.data)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    files, rows = (4, 10_000) if args.quick else (20, 100_000)
    found: dict[str, list[dict[str, float]]] = {"guarded": [], "open": []}
    with tempfile.TemporaryDirectory(prefix="bench-ports-") as data:
        for n in range(files):
            pq.write_table(pa.table({"id": pa.array(range(n * rows, (n + 1) * rows))}), f"{data}/{n:03d}.parquet")
        for n in range(1 if args.quick else args.rounds):
            for name in ("guarded", "open") if n % 2 == 0 else ("open", "guarded"):
                found[name].append(run(name, Path(data)))
    print(f"{'seconds (medians)':24}{'guarded':>9}{'open':>9}{'ratio':>8}")
    for key, name in (
        ("up", "session is up"),
        ("job", f"{files * rows:,} rows"),
        ("processor", "processor time"),
    ):
        mine, other = (statistics.median(f[key] for f in found[side]) for side in ("guarded", "open"))
        print(f"{name:24}{mine:9.2f}{other:9.2f}{mine / other:8.2f}")


if __name__ == "__main__":
    main()
