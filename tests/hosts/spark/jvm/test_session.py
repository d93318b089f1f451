"""The session: what it is set to, and what it refuses to be set to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.jvm.output import SparkOutput
from strobe.hosts.spark.jvm.session import FILE_MANAGER, passing_session, spark_session
from strobe.hosts.spark.jvm.worker_python import worker_python
from strobe.model.errors import Misuse


@pytest.mark.spark
def test_the_settings_that_guarantees_rest_on_are_in_force(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.streaming.checkpointFileManagerClass") == FILE_MANAGER
    assert "RocksDB" in str(spark.conf.get("spark.sql.streaming.stateStore.providerClass"))
    assert spark.conf.get("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled") == "true"
    assert int(str(spark.conf.get("spark.sql.streaming.minBatchesToRetain"))) >= 100
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"


@pytest.mark.spark
def test_files_have_no_checksum_files_beside_them(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "out"))
    assert not list((tmp_path / "out").glob("*.crc"))


@pytest.mark.spark
def test_workers_use_the_compiled_pyspark(spark: SparkSession) -> None:
    def where(_: object) -> list[str]:
        import pyspark

        return [str(pyspark.__file__)]

    (found,) = spark.sparkContext.parallelize([1], 1).mapPartitions(where).collect()
    assert found == pyspark.__file__


def test_the_workers_keep_the_rest_of_their_module_path(tmp_path: Path) -> None:
    python = worker_python(sys.executable, tmp_path)
    path = "/x/pyspark.zip:/x/py4j-1-src.zip:/a b/*:/x/pyspark.zip:/c"
    out = subprocess.run(
        [python, "-c", "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sep='\\n')", "one two", "$3"],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    packages = Path(pyspark.__file__).parent.parent
    assert out.stdout.splitlines() == [f"/a b/*:/c:{packages}", "one two", "$3"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.streaming.minBatchesToRetain", "10"),
        ("spark.sql.streaming.minBatchesToRetain", "many"),
        ("spark.sql.parquet.outputTimestampType", "INT96"),
        ("spark.sql.streaming.stateStore.providerClass", "some.other.Provider"),
    ],
)
def test_a_setting_that_would_break_a_guarantee_is_refused(key: str, value: str) -> None:
    with pytest.raises(Misuse, match=key):
        spark_session("never", extra={key: value})


@pytest.mark.spark
def test_a_session_that_runs_takes_settings_of_queries_and_refuses_those_of_its_start(spark: SparkSession) -> None:
    again = spark_session("again", extra={"spark.sql.ui.explainMode": "simple", "spark.app.name": "strobe-tests"})
    assert again is spark
    assert spark.conf.get("spark.sql.ui.explainMode") == "simple"
    with pytest.raises(Misuse, match=r"spark\.driver\.memory can no longer be set to '9g'"):
        spark_session("again", extra={"spark.driver.memory": "9g"})


def test_a_session_for_one_question_leaves_the_one_that_is_there(spark: SparkSession) -> None:
    with passing_session("a question", "local[2]") as session:
        assert session.range(3).count() == 3
    assert spark.range(4).count() == 4


def test_the_output_of_an_early_start_becomes_the_jobs_log_and_older_ones_stay(tmp_path: Path) -> None:
    log = tmp_path / "home" / "spark.log"
    for text in ("first", "second", "third"):
        output = SparkOutput()
        early = output.before_any_job(tmp_path / "home")
        assert early is not None
        early.write_text(text)
        output.become(log)
    assert {p.name: p.read_text() for p in (tmp_path / "home").iterdir()} == {
        "spark.log": "third", "spark.log.1": "first", "spark.log.2": "second",
    }  # fmt: skip
    output.become(tmp_path / "other.log")
    assert log.read_text() == "third", "a log that is in its place stays there"


def test_the_output_of_an_early_start_that_no_job_comes_of_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from strobe.hosts.spark.jvm.output import SparkOutput; "
        "print(SparkOutput().before_any_job(pathlib.Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "a" / "home"], capture_output=True, check=True)
    assert done.stdout.decode().startswith(str(tmp_path / "a" / "home" / ".spark-"))
    assert not (tmp_path / "a" / "home").exists()


@pytest.mark.spark
def test_jobs_of_one_process_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    """Stages of one name, settings of their own, and the end of one of them. In a process that has no Spark yet, as in
    a notebook; then with a session that is the user's."""
    done = subprocess.run([sys.executable, "-c", _TWO_JOBS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "both Asia/Tokyo UTC",
        "one has ended; the other has 40 rows",
        "Spark has ended: True",
        "3 rows of a session that is not theirs",
    ]


_TWO_JOBS = """
import json, time
from pathlib import Path
import strobe
from deltalake import DeltaTable
from pyspark import SparkContext
from pyspark.sql import SparkSession

def more(file):
    Path("in").mkdir(exist_ok=True)
    Path("in", file).write_text("".join(json.dumps({"id": i}) + "\\n" for i in range(20)))

zones = {}

def started(name, **options):
    pipeline = strobe.Pipeline(name, checkpoint=strobe.CheckpointConfig(interval=None), **options)

    @pipeline.stage(uid="rows", to=strobe.DeltaSink(name))
    def rows(spark):
        zones[name] = spark.conf.get("spark.sql.session.timeZone")
        return spark.readStream.schema("id INT").json("in")

    return pipeline.run()

def has(name, rows):
    deadline = time.monotonic() + 120
    while not Path(name, "_delta_log").exists() or DeltaTable(name).to_pyarrow_table().num_rows < rows:
        assert time.monotonic() < deadline, name
        time.sleep(0.2)

more("0.json")
one = started("one", conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
two = started("two")
has("one", 20)
has("two", 20)
print("both", zones["one"], zones["two"])
one.stop()
one.wait()
more("1.json")
has("two", 40)
print("one has ended; the other has", DeltaTable("two").to_pyarrow_table().num_rows, "rows")
two.stop()
two.wait()
print("Spark has ended:", SparkContext._active_spark_context is None)
session = SparkSession.builder.master("local[1]").getOrCreate()
three = started("three")
has("three", 40)
three.stop()
three.wait()
print(session.range(3).count(), "rows of a session that is not theirs")
"""
