"""A file whose operators mean something else than the state that they find: refused at a resume and at a restore."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.model.errors import Misuse
from tests.support.spark.jobs import finish
from tests.support.spark.ledger_data import delta_rows, read_transfers, write_transfers
from tests.support.spark.restoring import BOUNDED, start

pytestmark = pytest.mark.spark


def spread(data: Path, width: int, *, renamed: bool = False) -> strobe.Pipeline:
    """Sums of amounts by buckets of ids, `width` wide. `renamed`: the same in other words."""
    pipeline = strobe.Pipeline("spread", checkpoint=strobe.CheckpointConfig(interval=None, retained=10))

    @pipeline.stage(uid="transfers", trigger=BOUNDED)
    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(
        uid="buckets", reads="transfers", output_mode="update", to=strobe.DeltaSink("buckets", key="bucket")
    )
    def buckets(transfers: DataFrame) -> DataFrame:
        if renamed:
            number = transfers.withColumn("number", F.col("id")).where("number >= 0").select("amount", "number")
            grouped = number.groupBy(F.floor(F.col("number") / width).alias("place"))
            return grouped.agg(F.sum("amount").alias("sum")).selectExpr("place as bucket", "`sum` as total")
        return transfers.groupBy(F.floor(F.col("id") / width).alias("bucket")).agg(F.sum("amount").alias("total"))

    return pipeline


def totals(root: Path) -> list[tuple[Any, ...]]:
    return delta_rows(root / "buckets", "select bucket::BIGINT, total::BIGINT from t order by 1")


def test_a_changed_key_is_refused_and_other_words_for_the_same_are_not(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=30)
    finish(start(spread(data, 10), tmp_path, spark))
    write_transfers(data, files=2, rows=30)
    before = totals(tmp_path)
    for options in ({}, {"snapshot": "spread"}):
        with pytest.raises(Misuse, match=r"/ 10.*/ 20.*would mix") as refused:
            start(spread(data, 20), tmp_path, spark, **options)
        assert "--allow-changed-state buckets" in refused.value.next
    assert totals(tmp_path) == before
    with pytest.raises(Misuse, match="no stage 'bucket'"):
        start(spread(data, 20), tmp_path, spark, allow_changed_state=("bucket",))
    finish(start(spread(data, 10, renamed=True), tmp_path, spark))
    rows = read_rows(spark, data)
    assert totals(tmp_path) == sums(rows, 10)
    write_transfers(data, files=3, rows=30)
    with caplog.at_level(logging.WARNING, logger="strobe.job"):
        finish(start(spread(data, 20), tmp_path, spark, allow_changed_state=("buckets",)))
    assert any("results from before and after the change mix" in r.getMessage() for r in caplog.records)
    finish(start(spread(data, 20), tmp_path, spark))  # what was allowed is how it is now


def read_rows(spark: SparkSession, data: Path) -> list[tuple[int, int]]:
    return [(r.id, r.amount) for r in spark.read.parquet(str(data)).select("id", "amount").collect()]


def sums(rows: list[tuple[int, int]], width: int) -> list[tuple[int, int]]:
    found: dict[int, int] = {}
    for number, amount in rows:
        found[number // width] = found.get(number // width, 0) + amount
    return sorted(found.items())
