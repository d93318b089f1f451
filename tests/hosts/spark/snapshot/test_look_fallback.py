"""State that is not decoded without Spark is read by Spark itself, and `strobe sql` says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.snapshot.reading import read_with_spark
from strobe.model.errors import StrobeError
from tests.support.spark.jobs import all_read, eventually

CODEC = "spark.sql.streaming.stateStore.compression.codec"


def test_changes_in_another_compression_are_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    """The user has chosen Snappy for one stage: its state is lost to nobody, and the other's needs no Spark."""
    (tmp_path / "in").mkdir()
    rows = ({"account": f"a{i % 3}", "cents": i} for i in range(30))
    (tmp_path / "in" / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline = strobe.Pipeline("snappy", checkpoint=strobe.CheckpointConfig(interval=None), partitions=1)

    @pipeline.stage(uid="rows")
    def rows_(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("account STRING, cents BIGINT").json(str(tmp_path / "in"))

    def totals(rows: DataFrame) -> DataFrame:
        return rows.groupBy("account").agg(F.sum("cents").alias("total"))

    pipeline.stage(uid="odd", reads="rows", output_mode="update", to=strobe.DeltaSink("odd"), conf={CODEC: "snappy"})(
        totals
    )
    pipeline.stage(uid="usual", reads="rows", output_mode="update", to=strobe.DeltaSink("usual"))(totals)
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        eventually(lambda: all_read(job), "the file is read", job)
        job.checkpoint()
    finally:
        job.stop()
        job.wait()
    with strobe.open_snapshot("snappy", tmp_path / "home") as cut:  # without Spark: one is lost, the other answers
        usual = {row["account"]: row["total"] for row in cut.state("usual").to_pylist()}
        with pytest.raises(StrobeError, match=r"state\.odd is not decoded here: a compression other than LZ4"):
            cut.state("odd")
    assert usual == {"a0": 135, "a1": 145, "a2": 155}
    with strobe.open_snapshot("snappy", tmp_path / "home", fallback=read_with_spark) as cut:
        found = cut.sql("select key_account as account, value_sum as total from state.odd").to_pylist()
    assert {row["account"]: row["total"] for row in found} == usual


def test_a_state_of_variants_is_read_by_spark_as_json(spark: SparkSession, tmp_path: Path) -> None:
    """Also those that are null, and those inside of a struct."""
    (tmp_path / "in").mkdir()
    rows = [{"id": 0, "j": '{"a": [1, "x"]}'}, {"id": 1, "j": None}, {"id": 2, "j": '"text"'}]
    (tmp_path / "in" / "0.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pipeline = strobe.Pipeline("variants", checkpoint=strobe.CheckpointConfig(interval=None), partitions=1)

    @pipeline.stage(uid="firsts", output_mode="update", to=strobe.MemorySink("firsts"))
    def firsts(spark: SparkSession) -> DataFrame:
        read = spark.readStream.schema("id INT, j STRING").json(str(tmp_path / "in"))
        found = read.select("id", F.parse_json("j").alias("v"), F.struct(F.parse_json("j").alias("v")).alias("s"))
        return found.groupBy("id").agg(F.to_json(F.first("v")).alias("v"), F.to_json(F.first("s")).alias("s"))

    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        eventually(lambda: all_read(job), "the file is read", job)
        job.checkpoint()
    finally:
        job.stop()
        job.wait()
    with strobe.open_snapshot("variants", tmp_path / "home", fallback=read_with_spark) as cut:
        found = cut.state("firsts").sort_by("key_id").to_pylist()
    texts = [[row["value_first"], row["value_first_2"]] for row in found]
    assert texts == [['{"a":[1,"x"]}', '{"v":{"a":[1,"x"]}}'], [None, "{}"], ['"text"', '{"v":"text"}']]
