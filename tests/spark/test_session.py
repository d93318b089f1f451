"""The session: what it is set to, and what it refuses to be set to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.session import FILE_MANAGER, spark_session
from strobe.hosts.spark.worker_python import worker_python
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
    assert out.stdout.splitlines() == [f"{packages}:/a b/*:/c", "one two", "$3"]


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
