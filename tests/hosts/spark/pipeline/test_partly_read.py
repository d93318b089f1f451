"""A function behind stateful operators that does not read its whole batch, as `show()` does: the state moves on."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from tests.support.spark.jobs import finish, stage
from tests.support.spark.ledger_data import read_transfers, write_transfers


def aggregated(rows: DataFrame) -> DataFrame:
    return rows.groupBy("src").agg(F.count("*").alias("n"))


def joined(rows: DataFrame) -> DataFrame:
    """Two stores for each side, and a deduplication behind it."""
    left, right = rows.select("id", "src"), rows.select("id", "dst")
    return left.join(right, "id").dropDuplicates(["id"])


@pytest.mark.parametrize("operators", [aggregated, joined])
@pytest.mark.parametrize("reads", ["nothing", "a part", "at times"])
def test_what_a_function_leaves_unread_is_in_the_state(
    spark: SparkSession, tmp_path: Path, operators: object, reads: str
) -> None:
    data = write_transfers(tmp_path / "in", files=3, rows=20)
    pipeline = strobe.Pipeline("partly", checkpoint=strobe.CheckpointConfig(interval=None))
    seen: list[int] = []

    def function(batch: DataFrame, batch_id: int) -> None:
        seen.append(batch_id)
        if reads == "a part":
            batch.limit(1).collect()
        if reads == "at times" and batch_id == 1:
            batch.collect()

    @pipeline.stage(
        uid="partly", trigger={"availableNow": True}, output_mode="append" if operators is joined else "update",
        to=strobe.ForeachBatchSink(function),
    )  # fmt: skip
    def partly(spark: SparkSession) -> DataFrame:
        return operators(read_transfers(spark, data))  # type: ignore[operator, no-any-return]

    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        finish(job)
        assert seen == [0, 1, 2]
        assert stage(job, "partly").restarts == 0
    finally:
        job.stop()
