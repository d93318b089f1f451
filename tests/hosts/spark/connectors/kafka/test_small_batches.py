"""Which batches come to the driver, and that no row of any is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from strobe.hosts.spark.connectors.kafka import small_batches
from strobe.hosts.spark.connectors.kafka.rows import InMemory, Messages
from strobe.hosts.spark.connectors.kafka.small_batches import LONGEST, ROWS, SmallBatches
from strobe.hosts.spark.stage.local_frame import local_frame

pytestmark = [pytest.mark.spark]

ONE_COLUMN = Messages("t", None, None, "v", None, None)


def values(found: InMemory | None) -> list[Any]:
    assert found is not None
    return [value for batch in found.batches for value in batch.column("value").to_pylist()]


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    """Rows of which Spark does not know how many there are."""
    rows = spark.range(0, count, 1, tasks).select(F.col("id").cast("string").alias("v"))
    return spark.createDataFrame(rows.rdd, rows.schema)


def texts(spark: SparkSession, *given: str | None) -> DataFrame:
    return local_frame(spark, [(text,) for text in given], "v STRING")


def test_a_small_batch_comes_in_order_with_every_column_of_a_message(spark: SparkSession) -> None:
    messages = Messages(None, "t", "k", "v", "h", "p")
    frame = local_frame(
        spark, [("a", "k1", b"\x00", {"x": "1"}, 2), (None, None, None, None, None)],
        "t STRING, k STRING, v BINARY, h MAP<STRING, STRING>, p INT",
    )  # fmt: skip
    found = SmallBatches(messages).collect(frame)
    assert found is not None
    assert [row for batch in found.batches for row in batch.to_pylist()] == [
        {"topic": "a", "key": b"k1", "headers": [{"key": "x", "value": b"1"}], "partition": 2, "value": b"\x00"},
        {"topic": None, "key": None, "headers": None, "partition": None, "value": None},
    ]
    assert values(SmallBatches(ONE_COLUMN).collect(numbers(spark, 50))) == [str(n).encode() for n in range(50)]


def test_a_batch_without_rows_is_small(spark: SparkSession) -> None:
    assert values(SmallBatches(ONE_COLUMN).collect(numbers(spark, 5).where("v = 'none'"))) == []


@pytest.mark.parametrize(("rows", "tasks", "small"), [(ROWS, 1, True), (ROWS + 1, 1, False), (ROWS + 1, 2, False)])
@pytest.mark.parametrize("at_once", ["10000", "100"])
def test_a_batch_with_too_many_rows_is_not_taken_for_the_rows_that_came(
    spark: SparkSession, rows: int, tasks: int, small: bool, at_once: str
) -> None:
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    spark.conf.set(setting, at_once)
    try:
        found = SmallBatches(ONE_COLUMN).collect(numbers(spark, rows, tasks))
    finally:
        spark.conf.set(setting, str(before))
    assert (found is not None) == small
    assert found is None or len(values(found)) == rows


def test_no_task_hands_over_much_more_than_a_small_batch(spark: SparkSession) -> None:
    small = SmallBatches(ONE_COLUMN)
    limited = small._limited(numbers(spark, 50 * ROWS))
    assert limited.count() == 2 * (ROWS + 1)


def test_a_long_message_stays_where_it_is(spark: SparkSession) -> None:
    fits, long = "x" * LONGEST, "x" * (LONGEST + 1)
    assert values(SmallBatches(ONE_COLUMN).collect(texts(spark, fits, None))) == [fits.encode(), None]
    small = SmallBatches(ONE_COLUMN)
    batch = texts(spark, "short", long)
    assert small.collect(batch) is None
    came = SmallBatches(ONE_COLUMN)._limited(batch).collect()
    assert sorted(bytes(row["value"] or b"") for row in came) == [b"", b"short"]


def test_headers_count_as_part_of_a_message(spark: SparkSession) -> None:
    frame = local_frame(spark, [("v", {"h": "x" * LONGEST})], "v STRING, h MAP<STRING, STRING>")
    assert SmallBatches(Messages("t", None, None, "v", "h", None)).collect(frame) is None


def test_after_large_batches_the_next_ones_go_into_files_twice_as_many_each_time(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large, few = SmallBatches(ONE_COLUMN), texts(spark, "x" * (LONGEST + 1)), texts(spark, "short")
    tries = 0
    limited = small._limited

    def noting(rows: DataFrame) -> DataFrame:
        nonlocal tries
        tries += 1
        return limited(rows)

    monkeypatch.setattr(small, "_limited", noting)
    tried = []
    for _ in range(12):
        small.collect(large)
        tried.append(tries)
    assert tried == [1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4]
    while small.collect(few) is None:
        pass
    assert small.collect(few) is not None
    assert small.collect(large) is None
    assert small.collect(few) is None
    assert small.collect(few) is not None  # as after the first


def test_with_a_spark_that_has_no_such_plans_every_batch_goes_into_files(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = SmallBatches(ONE_COLUMN)

    def unknown(rows: DataFrame) -> DataFrame:
        raise TypeError("'JavaPackage' object is not callable")

    monkeypatch.setattr(small, "_limited", unknown)
    assert [small.collect(texts(spark, "short")) for _ in range(small_batches._MOST_IN_FILES + 2)].count(None) == (
        small_batches._MOST_IN_FILES + 2
    )
