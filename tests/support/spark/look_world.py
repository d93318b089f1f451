"""Checkpoints of plain Spark queries, one for each stateful operator, and what Spark's reader says of their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructField, StructType

from strobe.hosts.spark.plans.description import describe_stage
from strobe.hosts.spark.snapshot.reading import reader_options
from strobe.look.state_files import stores_of
from strobe.look.state_schema import operators_of
from strobe.look.state_tables import Column, StateTable, entries_of, rows_of, tables_of
from strobe.store.manifest import BlobRef

SCHEMA = (
    "id BIGINT, account STRING, amount BIGINT, at TIMESTAMP, b BOOLEAN, t8 TINYINT, t16 SMALLINT, t32 INT, f FLOAT, "
    "d DOUBLE, dec DECIMAL(10,2), big DECIMAL(38,5), s STRING, bin BINARY, day DATE, ntz TIMESTAMP_NTZ, "
    "st STRUCT<x INT, y STRING, z STRUCT<w DOUBLE>>, arr ARRAY<INT>, flags ARRAY<BOOLEAN>, texts ARRAY<STRING>, "
    "decs ARRAY<DECIMAL(30,1)>, m MAP<STRING, DOUBLE>, nest ARRAY<STRUCT<a BIGINT, m MAP<STRING, ARRAY<BIGINT>>>>"
)
VALUES = (
    "b", "t8", "t16", "t32", "f", "d", "dec", "big", "s", "bin", "day", "ntz", "at", "st", "arr", "flags", "texts",
    "decs", "m", "nest",
)  # fmt: skip
T0 = datetime(2031, 5, 17, 9, tzinfo=UTC)


def write_rows(directory: Path, files: int = 3, rows: int = 40) -> Path:
    directory.mkdir(parents=True)
    for file in range(files):
        ids = range(file * rows, (file + 1) * rows)

        def some(make: Callable[[int], Any], kind: pa.DataType, every: int = 0, ids: Any = ids) -> pa.Array:
            return pa.array([None if every and i % every == 0 else make(i) for i in ids], kind)

        inner = pa.struct([("a", pa.int64()), ("m", pa.map_(pa.string(), pa.list_(pa.int64())))])
        outer = pa.struct([("x", pa.int32()), ("y", pa.string()), ("z", pa.struct([("w", pa.float64())]))])
        table = pa.table({
            "id": some(lambda i: i, pa.int64()),
            "account": some(lambda i: f"acc-{i % 7}", pa.string()),
            "amount": some(lambda i: i * 37 % 1000 - 500, pa.int64()),
            "at": some(lambda i: T0 + timedelta(seconds=7 * i), pa.timestamp("us", "UTC")),
            "b": some(lambda i: i % 3 == 0, pa.bool_(), 5),
            "t8": some(lambda i: i % 100 - 50, pa.int8(), 7),
            "t16": some(lambda i: i - 50, pa.int16()),
            "t32": some(lambda i: -(2**31) + i, pa.int32()),
            "f": some(lambda i: i / 3, pa.float32()),
            "d": some(lambda i: -i / 7, pa.float64(), 11),
            "dec": some(lambda i: Decimal(-i) / 100, pa.decimal128(10, 2), 3),
            "big": some(lambda i: Decimal(-i) * 10**20 + 1, pa.decimal128(38, 5), 4),
            "s": some(lambda i: "ü" * (i % 20), pa.string(), 6),
            "bin": some(lambda i: bytes([i % 256] * (i % 9)), pa.binary()),
            "day": some(lambda i: (T0 - timedelta(days=40000 - i)).date(), pa.date32()),
            "ntz": some(lambda i: (T0 + timedelta(microseconds=i)).replace(tzinfo=None), pa.timestamp("us")),
            "st": some(lambda i: {"x": i, "y": f"y{i}", "z": {"w": i / 2} if i % 2 else None}, outer, 5),
            "arr": some(lambda i: [j if j % 2 else None for j in range(i % 70)], pa.list_(pa.int32()), 8),
            "flags": some(lambda i: [None, True, False][: i % 4], pa.list_(pa.bool_())),
            "texts": some(lambda i: [None if j == 2 else f"s{j}" for j in range(i % 4)], pa.list_(pa.string())),
            "decs": some(lambda i: [Decimal(i) * 10**18, None], pa.list_(pa.decimal128(30, 1)), 9),
            "m": some(lambda i: [(f"k{j}", j / 2 or None) for j in range(i % 3)], pa.map_(pa.string(), pa.float64())),
            "nest": some(lambda i: [{"a": i, "m": [("q", [i, None]), ("r", None)]}, None], pa.list_(inner)),
        })  # fmt: skip
        pq.write_table(table, directory / f"{file}.parquet")
    return directory


class Processor(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.latest = handle.getValueState("latest", "id BIGINT, s STRING")
        self.recent = handle.getListState("recent", "id BIGINT, amount BIGINT")
        self.by_day = handle.getMapState("by_day", "day STRING", "n BIGINT, total DECIMAL(20,2)")
        self.short = handle.getValueState("short", "id BIGINT", ttlDurationMs=3_600_000)
        self.gone = handle.getValueState("gone", "id BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for _, row in frame.iterrows():
                self.latest.update((int(row["id"]), row["s"]))
                self.recent.appendValue((int(row["id"]), int(row["amount"])))
                self.short.update((int(row["id"]),))
                self.gone.update((1,))
                day = (str(row["id"] % 2),)
                n = self.by_day.getValue(day)[0] if self.by_day.containsKey(day) else 0
                self.by_day.updateValue(day, (n + 1, Decimal(n)))
        self.gone.clear()
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 3_600_000)
        yield pd.DataFrame({"account": [key[0]]})

    def close(self) -> None:
        pass


def _count(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    n, last = state.get if state.exists else (0, "")
    for frame in frames:
        n, last = n + len(frame), str(frame["id"].max())
    state.update((n, last))
    yield pd.DataFrame({"account": [key[0]], "n": [n]})


def _joined(rows: DataFrame) -> DataFrame:
    left = rows.select(F.col("id").alias("a"), "account", "at").withWatermark("at", "1 hour")
    right = rows.select(F.col("id").alias("b"), "amount", F.col("at").alias("then"), "st").withWatermark(
        "then", "1 hour"
    )
    near = "a = b and then between at - interval 1 minute and at + interval 1 minute"
    return left.join(right, F.expr(near), "leftOuter")


def _sums(rows: DataFrame) -> DataFrame:
    total, mean, big = F.sum("amount").alias("balance"), F.avg("amount").alias("mean"), F.sum("big").alias("big")
    return rows.groupBy("account").agg(total, mean, F.count("*").alias("n"), big)


def _types(rows: DataFrame) -> DataFrame:
    keys = [F.col(c).alias(f"k_{c}") for c in VALUES if c not in ("m", "nest")]
    values = [F.first(c).alias(f"v_{c}") for c in VALUES]
    return rows.groupBy("id", (F.col("id") % 3).alias("mod"), *keys).agg(*values)


def _windows(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", "10 minutes").groupBy(F.window("at", "1 minute"), "account").count()


def _sessions(rows: DataFrame) -> DataFrame:
    grouped = rows.withWatermark("at", "1 hour").groupBy(F.session_window("at", "1 minute"), "account")
    return grouped.agg(F.sum("amount").alias("total"))


def _twice(rows: DataFrame) -> DataFrame:
    short = rows.withWatermark("at", "1 minute").groupBy(F.window("at", "10 seconds")).agg(F.sum("amount").alias("w"))
    return short.groupBy(F.window("window", "1 minute")).agg(F.max("w").alias("top"))


def _groups(rows: DataFrame) -> DataFrame:
    returned, state = "account STRING, n BIGINT", "seen BIGINT, last STRING"
    return rows.groupBy("account").applyInPandasWithState(_count, returned, state, "update", "NoTimeout")


def _processor(rows: DataFrame) -> DataFrame:
    keyed = rows.select("account", "id", "s", "amount").groupBy("account")
    return keyed.transformWithStateInPandas(Processor(), "account STRING", "Update", "ProcessingTime")


QUERIES: Mapping[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "sums": (_sums, "update"),
    "types": (_types, "update"),
    "windows": (_windows, "update"),
    "sessions": (_sessions, "append"),
    "distinct": (lambda rows: rows.select("account", "t32").dropDuplicates(["account"]), "append"),
    "within": (
        lambda rows: rows.select("at", "t8").withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["t8"]),
        "append",
    ),
    "joined": (_joined, "append"),
    "groups": (_groups, "update"),
    "twice": (_twice, "append"),
    "processor": (_processor, "update"),
}


@dataclass(frozen=True)
class Checkpoint:
    """A query's checkpoint after its last batch."""

    place: Path
    described: Any

    @property
    def files(self) -> dict[str, BlobRef]:
        there = (p.relative_to(self.place).as_posix() for p in self.place.rglob("*") if p.is_file())
        return {p: BlobRef("0" * 64, 0) for p in there if not p.rpartition("/")[2].startswith(".")}

    def read(self, path: str) -> bytes:
        return (self.place / path).read_bytes()

    def lay_out(self, path: str, target: Path) -> None:
        target.write_bytes(self.read(path))

    def tables(self, stage: str) -> tuple[StateTable, ...]:
        return tables_of(stage, operators_of(self.files, self.read), self.described["operators"])

    def rows(self, table: StateTable) -> pa.Table:
        stores = [s for s in stores_of(self.files) if s.operator == table.operator and s.name == table.store]
        assert stores
        entries = [entries_of(table, store, self.read, self.lay_out) for store in stores]
        return pa.Table.from_batches([batch for each in entries for batch in rows_of(table, each)], table.schema)


def run(spark: SparkSession, name: str, data: Path, place: Path, conf: Mapping[str, str]) -> Checkpoint:
    """The query of this name, over all of the data, a file at a time."""
    query, mode = QUERIES[name]
    # With timers there is always another batch that might be due, and no end to it.
    conf = {**conf, "spark.sql.streaming.noDataMicroBatches.enabled": str(name != "processor").lower()}
    before = {key: spark.conf.get(key, None) for key in conf}
    for key, value in conf.items():
        spark.conf.set(key, value)
    try:
        rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(data))
        frame = query(rows)
        described = describe_stage(frame, mode)
        writing = frame.writeStream.outputMode(mode).format("noop").option("checkpointLocation", str(place))
        started = writing.trigger(availableNow=True).start()
        started.awaitTermination()
        return Checkpoint(place, described)
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


def compared(table: StateTable) -> list[Column]:
    """What Spark's reader shows, too: not the place in a list, nor whether a row of a join has found another."""
    join = table.operator_name.startswith("symmetricHashJoin")
    return [c for c in table.columns if c.side != "position" and not (join and c.name == "matched")]


def spark_says(spark: SparkSession, checkpoint: Checkpoint, table: StateTable) -> list[tuple[Any, ...]]:
    """The rows of a table by Spark's reader, with the columns that ours has."""
    read = spark.read.format("statestore").options(**reader_options(table)).load(str(checkpoint.place))
    found = read.select(*[_numbered(read, field) for field in read.schema.fields]).toArrow()
    columns = []
    for column in compared(table):
        array = _pick(found, table, column).combine_chunks()
        columns.append(array)
    return sorted_rows(columns)


def _numbered(read: DataFrame, field: StructField) -> Any:
    """Structs with names that Arrow can tell apart: an aggregate may keep two sums."""
    if not isinstance(field.dataType, StructType):
        return read[field.name]
    fields = [StructField(f"f{i}", f.dataType, f.nullable) for i, f in enumerate(field.dataType.fields)]
    return read[field.name].cast(StructType(fields)).alias(field.name)


def _pick(found: pa.Table, table: StateTable, column: Any) -> pa.ChunkedArray:
    names = found.column_names
    family = table.family
    assert family is not None
    field = (family.key if column.side == "key" else family.value)[column.place]
    if column.side == "key" and "user_map_key" in names and field.name == "userKey":
        side = found.column("user_map_key")
        return _field(side, column.inner)
    if column.side == "key" and field.name == "expiryTimestampMs":
        return found.column("expiration_timestamp_ms")
    if column.side == "key" and field.name == "key" and field.type.name == "struct":
        return _field(found.column("key"), column.inner)
    if column.side == "value" and "list_element" in names:
        side = found.column("list_element")
    elif column.side == "value" and "user_map_value" in names:
        side = found.column("user_map_value")
    else:
        side = found.column(column.side)
    array = _field(side, column.place)
    if column.inner is not None:
        array = _field(array, column.inner)
    if column.over is not None:
        return pc.divide(array, _field(side, column.over).cast(pa.float64()))
    if column.unless is not None:
        return pc.if_else(_field(side, column.unless), pa.scalar(None, array.type), array)
    return array


def _field(column: pa.ChunkedArray, place: int) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.flatten()[place] for chunk in column.chunks], column.type.field(place).type)


def sorted_rows(columns: list[Any]) -> list[tuple[Any, ...]]:
    rows = zip(*([_plain(v) for v in column.to_pylist()] for column in columns), strict=True)
    return sorted(rows, key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
