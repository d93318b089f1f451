"""Whatever a stage can return goes through its channel unchanged, or is refused before anything starts."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path

import duckdb
import polars
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DayTimeIntervalType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from strobe.hosts.spark.channel.gate import Gate
from strobe.hosts.spark.channel.parquet import write_files
from strobe.hosts.spark.channel.schema import channel_schema
from strobe.hosts.spark.channel.source import read_channel
from strobe.hosts.spark.channel.writer import ChannelLog, ChannelWriter, DataFile, table_schema
from strobe.model.errors import Misuse
from strobe.model.ids import ChannelId, Incarnation, NodeId, Timeline

COLUMNS = """
    b boolean, i8 byte, i16 short, i32 int, i64 long, f32 float, f64 double,
    d decimal(38, 18), small decimal(5, 2), s string, bin binary, day date, ts timestamp, ntz timestamp_ntz,
    list array<int>, words map<string, array<decimal(10, 2)>>, at struct<x: double, y: struct<z: timestamp, n: string>>,
    rows array<struct<k: string, v: timestamp_ntz>>, `a b` int, `a.b` string, `größe(cm), {x};=\t\"` long
"""

UTC = dt.UTC
FULL = (
    True, -128, 32767, -(2**31), 2**63 - 1, 1.5, -1e300,
    Decimal("12345678901234567890.123456789012345678"), Decimal("-999.99"), "grüße 🌍", b"\x00\xff",
    dt.date(1582, 10, 15), dt.datetime(2026, 3, 29, 1, 30, 0, 123456, UTC), dt.datetime(2026, 3, 29, 2, 30, 0, 654321),
    [1, None, 3], {"a": [Decimal("1.25"), None], "b": []}, (1.0, (dt.datetime(1969, 12, 31, 23, 59, 59, 1, UTC), "n")),
    [("k", dt.datetime(1, 1, 1)), None], 1, "dot", 7,
)  # fmt: skip
EMPTY = (None,) * len(FULL)
HOLLOW: tuple[object, ...] = (*FULL[:14], [], {}, (None, (None, None)), [(None, None)], None, "", 0)


class OneChannel:
    """A handler that lets everyone read everything of one channel."""

    def __init__(self, log: ChannelLog) -> None:
        self._log = log

    def latest(self, stage: NodeId, channel: ChannelId, start: int, reader: str) -> int:
        self._log.refresh()
        return self._log.end

    def initial(self, stage: NodeId, channel: ChannelId) -> int:
        return 0

    def available(self, stage: NodeId, channel: ChannelId) -> int:
        return self._log.end

    def files(self, stage: NodeId, channel: ChannelId, start: int, end: int) -> list[DataFile]:
        return [f for c in self._log.commits(start, end) for f in c.files]

    def committed(self, stage: NodeId, channel: ChannelId, end: int) -> None: ...


def open_writer(path: Path, schema: StructType) -> ChannelWriter:
    return ChannelWriter(
        path, schema, job="job", producer=NodeId("stage"), timeline=Timeline(1), incarnation=Incarnation(1)
    )


def through(df: DataFrame, path: Path) -> DataFrame:
    """`df` after a way through the channel at `path`, by way of two queries' worth of machinery."""
    spark = df.sparkSession
    writer = open_writer(path, df.schema)
    writer.append(write_files(df, 0, writer), 0)
    seen: list[DataFrame] = []
    with Gate(OneChannel(writer.log)) as gate:
        stream = read_channel(
            spark, path=path, schema=writer.schema, stage=NodeId("q"), channel=ChannelId("c"), gate=gate.address
        )
        query = (
            stream.writeStream.foreachBatch(lambda batch, _: seen.append(batch.localCheckpoint()))
            .option("checkpointLocation", str(path) + "-checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    (only,) = seen
    return only


@pytest.mark.spark
def test_every_type_comes_out_as_it_went_in(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.createDataFrame([FULL, EMPTY, HOLLOW], COLUMNS)
    out = through(df, tmp_path / "c")
    assert out.schema == df.schema
    assert sorted(map(repr, out.collect())) == sorted(map(repr, df.collect()))


@pytest.mark.spark
@pytest.mark.parametrize("read_once", [True, False], ids=["channel", "table"])
def test_other_engines_read_every_type(spark: SparkSession, tmp_path: Path, read_once: bool) -> None:
    df = spark.createDataFrame([FULL, EMPTY, HOLLOW], COLUMNS)
    writer = open_writer(tmp_path / "c", df.schema)
    writer.append(write_files(df, 0, writer, read_once=read_once), 0)
    frame = polars.read_delta(str(tmp_path / "c"))
    assert frame.columns == df.columns
    assert sorted(frame["i64"].to_list(), key=str) == [2**63 - 1, 2**63 - 1, None]
    with duckdb.connect() as db:
        files = f"{tmp_path}/c/data/*/*/*.parquet"
        total = db.execute("select sum(small), max(s), max(ntz) from read_parquet(?)", [files]).fetchone()
    assert total == (Decimal("-1999.98"), FULL[9], FULL[13])


@pytest.mark.spark
def test_columns_that_may_not_be_null_come_out_as_they_went_in(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(3).select("id", F.struct(F.lit(1).alias("n")).alias("s"), F.array(F.lit("x")).alias("a"))
    assert not df.schema["id"].nullable
    out = through(df, tmp_path / "c")
    assert sorted(out.collect()) == sorted(df.collect())


@pytest.mark.spark
def test_the_watermark_of_a_stage_does_not_leak_into_its_consumers(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.readStream.format("rate").load().select(F.col("timestamp").alias("ts")).withWatermark("ts", "5 seconds")
    assert df.schema["ts"].metadata
    assert channel_schema(df.schema, "stage")["ts"].metadata == {}
    open_writer(tmp_path / "c", df.schema)
    assert table_schema(tmp_path / "c") == StructType([StructField("ts", TimestampType())])


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (StructField("gap", DayTimeIntervalType()), "column 'gap' has type interval day to second"),
        (StructField("nothing", NullType()), "column 'nothing' has type void"),
        (StructField("any", VariantType()), "column 'any' has type variant"),
        (StructField("s", StringType("UNICODE_CI")), "column 's' has type string collate UNICODE_CI"),
        (StructField("at", StructType([StructField("x", NullType())])), "column 'at.x' has type void"),
        (StructField("", LongType()), "has no name"),
        (StructField("ID", IntegerType()), "columns 'id' and 'ID' of its output differ in case at most"),
    ],
)
def test_what_a_channel_cannot_carry_is_refused(field: StructField, says: str, tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=f"Stage 'stage': .*{says}") as caught:
        open_writer(tmp_path / "c", StructType([StructField("id", LongType()), field]))
    assert caught.value.next
    assert not (tmp_path / "c").exists()


def test_a_stage_without_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="without columns"):
        open_writer(tmp_path / "c", StructType([]))


@pytest.mark.spark
@pytest.mark.parametrize("read_once", [True, False], ids=["channel", "table"])
def test_only_a_channel_has_numbers_without_dictionaries(spark: SparkSession, tmp_path: Path, read_once: bool) -> None:
    numbers = ["n", "small", "at", "x", "price"]
    few = F.pmod("id", F.lit(7))
    df = spark.range(1000).select(
        few.alias("n"), few.cast("tinyint").alias("small"), F.timestamp_seconds(few).alias("at"),
        few.cast("double").alias("x"), few.cast("decimal(18,2)").alias("price"),
        few.cast("string").alias("text"), few.cast("decimal(30,2)").alias("large"), few.alias("a.b"),
    )  # fmt: skip
    writer = open_writer(tmp_path / "c", df.schema)
    first, *_ = write_files(df, 0, writer, read_once=read_once)
    group = pq.read_metadata(tmp_path / "c" / first.path).row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    without = {c.path_in_schema for c in columns if not c.has_dictionary_page}
    assert without == (set(numbers) if read_once else set())
