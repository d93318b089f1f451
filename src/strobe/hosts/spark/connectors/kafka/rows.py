"""Rows as Kafka messages: which column is what, what a topic will not take, and the loop that produces them.

A batch is turned into messages by Spark, when it is staged or collected: `key` and `value` as bytes, `topic`,
`partition` and `headers` where they come from columns. So what is there is what will be sent, and its size is known
exactly. It comes in pieces, in order: files, or rows in memory.

Whether a row can be sent depends on the row and on the limits of its topic, and on nothing else: the same limits give
the same answer before and after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strobe.hosts.spark.connectors.dead_letters import Rejected
from strobe.hosts.spark.connectors.kafka.client import TopicLimits
from strobe.model.errors import Misuse

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

__all__ = ["InMemory", "Messages", "PartSize", "Piece", "reject", "send", "topics_of"]

OVERHEAD: Final = 160  # bytes, at most, that Kafka adds to a message that is alone in its request
PER_HEADER: Final = 12
_ROWS: Final = 50_000  # rows in memory at once
_SHOWN: Final = 200  # bytes of a message in a letter's reason


@dataclass(frozen=True, slots=True)
class Messages:
    """Which columns make a message. Without `value` it is the row as JSON."""

    topic: str | None
    topic_column: str | None
    key: str | None
    value: str | None
    headers: str | None
    partition: str | None

    @property
    def columns(self) -> list[str]:
        """The columns of what is staged."""
        asked = {"topic": self.topic_column, "key": self.key, "headers": self.headers, "partition": self.partition}
        return [*(name for name, column in asked.items() if column is not None), "value"]

    def check(self, schema: StructType, where: str) -> None:
        """Misuse if the stage's columns do not fit."""
        for role in ("topic_column", "key", "value", "headers", "partition"):
            column = getattr(self, role)
            if column is not None and column not in schema.names:
                raise Misuse(
                    f"{where}: {role}={column!r}, but the stage has no such column.",
                    untouched="Nothing was started.",
                    next=f"Its columns are: {', '.join(schema.names)}.",
                )
        wanted = {"topic_column": ("string",), "partition": ("int", "bigint", "smallint", "tinyint")}
        for role, kinds in wanted.items():
            column = getattr(self, role)
            kind = None if column is None else schema[column].dataType.simpleString()
            if kind is not None and kind not in kinds:
                raise Misuse(f"{where}: {role}={column!r} is a column of type {kind}; it must be {kinds[0]}.")
        if self.headers is not None:
            kind = schema[self.headers].dataType.simpleString()
            if kind not in _HEADERS:
                raise Misuse(
                    f"{where}: headers={self.headers!r} is a column of type {kind}.",
                    next="Use a map<string,string>, a map<string,binary>, or Spark's own array<struct<key,value>>.",
                )

    def project(self, batch: DataFrame) -> DataFrame:
        """The batch's messages."""
        return batch.select(*self.projection(batch.schema))

    def projection(self, schema: StructType) -> list[Column]:
        """The columns of a message, of rows with this schema."""
        from pyspark.sql import functions as f

        columns: list[Column] = []
        for name in self.columns:
            if name == "value" and self.value is None:
                apart = {self.topic_column, self.headers, self.partition}
                fields = [f.col(f"`{c}`") for c in schema.names if c not in apart]
                columns.append(f.to_json(f.struct(*fields), {"ignoreNullFields": "false"}).cast("binary").alias(name))
                continue
            source = str(self.topic_column if name == "topic" else getattr(self, name))
            column = f.col(f"`{source}`")
            if name in ("key", "value"):
                column = _bytes(column, schema[source].dataType.simpleString())
            elif name == "partition":
                column = column.cast("int")
            elif name == "headers":
                column = _headers(column, schema[source].dataType.simpleString())
            columns.append(column.alias(name))
        return columns


_HEADERS: Final = (
    "map<string,string>", "map<string,binary>",
    "array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>",
)  # fmt: skip


def _bytes(column: Column, kind: str) -> Column:
    from pyspark.sql import functions as f

    if kind == "binary":
        return column
    if kind.startswith(("struct", "array", "map", "variant")):
        return f.to_json(column).cast("binary")
    return column.cast("string").cast("binary")


def _headers(column: Column, kind: str) -> Column:
    from pyspark.sql import functions as f

    entries = f.map_entries(column) if kind.startswith("map") else column
    return f.transform(entries, lambda e: f.struct(e["key"].alias("key"), e["value"].cast("binary").alias("value")))


# ── what is staged ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class PartSize:
    """What `reject` has seen."""

    rows: int = 0
    bytes: int = 0
    largest: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class InMemory:
    """Rows that are not in a file."""

    batches: tuple[pa.RecordBatch, ...]


Piece: TypeAlias = Path | InMemory


def _batches(piece: Piece, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    if isinstance(piece, InMemory):
        yield from piece.batches
        return
    with pq.ParquetFile(piece) as opened:
        yield from opened.iter_batches(batch_size=_ROWS, columns=columns)


def topics_of(pieces: Sequence[Piece]) -> set[str]:
    """The topics that the rows name, for messages with a topic column."""
    columns = (batch.column("topic") for piece in pieces for batch in _batches(piece, ["topic"]))
    return {topic for column in columns for topic in pc.unique(column).to_pylist() if topic is not None}


def reject(
    pieces: Sequence[Piece], topic: str | None, limits: Mapping[str, TopicLimits], size: PartSize
) -> Iterator[tuple[Piece, int, Rejected]]:
    """The rows that their topic will not take, with their piece and place in it; `size` is brought up to date."""
    for piece in pieces:
        start = 0
        for batch in _batches(piece):
            sizes = _sizes(batch)
            bad = _misfits(batch, sizes, topic, limits)
            good = sizes[~bad]
            size.rows += int(good.size)
            size.bytes += int(good.sum())
            size.largest = max(size.largest, int(good.max()) if good.size else 0)
            for index in np.flatnonzero(bad):
                yield piece, start + int(index), _letter(batch.slice(int(index), 1), int(sizes[index]), topic, limits)
            start += batch.num_rows


def _sizes(batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    total = np.full(batch.num_rows, OVERHEAD, dtype=np.int64)
    for name in ("key", "value"):
        if name in batch.schema.names:
            lengths = pc.fill_null(pc.binary_length(batch.column(name)), 0)
            total += lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    if "headers" in batch.schema.names:
        headers = batch.column("headers")
        entries, parents = pc.list_flatten(headers), pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
        each = sum(
            pc.fill_null(pc.binary_length(pc.struct_field(entries, [i])), 0).to_numpy(zero_copy_only=False)
            for i in (0, 1)
        )
        total += np.bincount(parents, weights=each + PER_HEADER, minlength=batch.num_rows).astype(np.int64)
    return total


def _misfits(
    batch: pa.RecordBatch, sizes: np.ndarray[Any, Any], topic: str | None, limits: Mapping[str, TopicLimits]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    if topic is not None:
        largest: Any = limits[topic].max_bytes
        partitions: Any = limits[topic].partitions
    else:
        names = pc.fill_null(batch.column("topic"), "").dictionary_encode()
        known = [limits.get(name, TopicLimits(0, 0)) for name in names.dictionary.to_pylist()]
        places = names.indices.to_numpy(zero_copy_only=False)
        largest = np.array([k.max_bytes for k in known], dtype=np.int64)[places]
        partitions = np.array([k.partitions for k in known], dtype=np.int64)[places]
    bad: np.ndarray[Any, np.dtype[np.bool_]] = sizes > largest
    if "partition" in batch.schema.names:
        wanted = pc.fill_null(batch.column("partition"), 0).to_numpy(zero_copy_only=False)
        bad = bad | (wanted < 0) | (wanted >= partitions)
    return bad


def _letter(row: pa.RecordBatch, size: int, topic: str | None, limits: Mapping[str, TopicLimits]) -> Rejected:
    values = {name: _readable(row.column(name)[0].as_py()) for name in row.schema.names}
    name = topic if topic is not None else values["topic"]
    found = limits.get(name) if name is not None else None
    if name is None:
        reason = "the topic is null"
    elif found is None:
        reason = f"there is no topic {name!r}"
    elif size > found.max_bytes:
        reason = f"the message has up to {size:,} bytes, topic {name!r} takes {found.max_bytes:,} (max.message.bytes)"
    else:
        reason = f"topic {name!r} has {found.partitions} partitions, there is no partition {values['partition']}"
    return Rejected({"topic": name, **values}, reason)


def _readable(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, list):
        return [{k: _readable(v) for k, v in entry.items()} for entry in value]
    return value


def send(producer: Producer, piece: Piece, topic: str | None, skipped: frozenset[int], wait: Any) -> int:
    """Hand the piece's rows to the producer, in their order, without the skipped ones. `wait()` makes room when the
    producer's queue is full. Returns how many."""
    sent = start = 0
    for batch in _batches(piece):
        if skipped:
            keep = [i for i in range(batch.num_rows) if start + i not in skipped]
            start += batch.num_rows
            batch = batch.take(pa.array(keep, pa.int64()))
        sent += batch.num_rows
        names = batch.schema.names
        value = batch.column("value").to_pylist()
        key = batch.column("key").to_pylist() if "key" in names else None
        if topic is not None and "headers" not in names and "partition" not in names:
            _send_plain(producer.produce, topic, value, key, wait)
            continue
        topics = batch.column("topic").to_pylist() if topic is None else [topic] * len(value)
        partition = batch.column("partition").to_pylist() if "partition" in names else None
        headers = batch.column("headers").to_pylist() if "headers" in names else None
        for i in range(len(value)):
            more: dict[str, Any] = {}
            if key is not None:
                more["key"] = key[i]
            if partition is not None and partition[i] is not None:
                more["partition"] = partition[i]
            if headers is not None and headers[i]:
                more["headers"] = [(h["key"], h["value"]) for h in headers[i]]
            while True:
                try:
                    producer.produce(topics[i], value[i], **more)
                    break
                except BufferError:
                    wait()
    return sent


def _send_plain(produce: Any, topic: str, values: list[Any], keys: list[Any] | None, wait: Any) -> None:
    """The loop of most sinks, kept short because it runs for each row."""
    for value, key in zip(values, keys or [None] * len(values), strict=True):
        try:
            produce(topic, value, key)
        except BufferError:
            while True:
                wait()
                try:
                    produce(topic, value, key)
                    break
                except BufferError:
                    continue
