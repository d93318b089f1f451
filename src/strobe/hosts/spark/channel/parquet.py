"""How a micro-batch gets into its channel: Spark writes Parquet, one commit makes it visible.

Each attempt writes into a directory of its own under the table, so an attempt that died leaves nothing that another
could mistake for its own; what no commit names is swept when the next incarnation opens the channel. Rows are
counted from the files' footers, which is what readers will see, not what the query says it wrote.

Columns of numbers are written without a dictionary. To make one costs more than all other encoding of the file, and
pays only where few values come again and again; the packing of version 2 makes numbers as small, most of the time, and
a channel's files are read once. Texts keep theirs, and so do the tables of sinks, which are kept.

A batch that is already in the channel (a replay after a crash between its commit here and Spark's own) is not
written again. The query still has to run it: its state must advance.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, DecimalType, NumericType, StructType, TimestampNTZType, TimestampType

from strobe.hosts.spark.channel.columns import FIELD_ID
from strobe.hosts.spark.channel.log import Commit, DataFile
from strobe.hosts.spark.channel.writer import DATA, ChannelWriter

__all__ = ["parquet_files", "run_only", "write_batch", "write_files", "write_parquet"]

_OPTIONS: Final = {
    # The cheapest to write and to read of what was measured (bench/channel.py --codecs): encodings that pack numbers,
    # then a light codec (not "lz4": Arrow cannot read its Hadoop framing). Statistics stay on: without them Spark
    # notes -1 nulls in each page of this version, and readers in Rust (deltalake, Polars) refuse the file.
    "compression": "lz4_raw",
    "parquet.writer.version": "v2",
    # Files move to their place when their task ends, and nothing marks the directory as complete: the commit does.
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.cleanup-failures.ignored": "true",
}
_DICTIONARY: Final = "parquet.enable.dictionary"
_LONG_DIGITS: Final = 18  # of a decimal that Parquet has as a whole number
_columns: Final[WeakKeyDictionary[ChannelWriter, Any]] = WeakKeyDictionary()  # of a writer, in the JVM
_options: Final[WeakKeyDictionary[Any, dict[tuple[tuple[str, str], ...], Any]]] = WeakKeyDictionary()  # of a JVM


def write_batch(
    df: DataFrame,
    batch: int,
    writer: ChannelWriter,
    *,
    max_files: int | None = None,
    even_if_empty: bool = False,
) -> Commit | None:
    """Write `df` as the producer's batch `batch`. None when it was already written, or is empty.

    `max_files` limits the files of a batch, by default to the number of cores that Spark has.
    """
    files = write_files(df, batch, writer, max_files=max_files, read_once=False)
    return writer.append(files, batch, even_if_empty=even_if_empty)


def write_files(
    df: DataFrame, batch: int, writer: ChannelWriter, *, max_files: int | None = None, read_once: bool = True
) -> tuple[DataFile, ...]:
    """The first half of `write_batch`: the files are there, but nobody sees them yet. `read_once`: what they cost to
    write matters more than how small they are."""
    if writer.has_batch(batch):
        run_only(df)
        return ()
    place = f"{DATA}/{writer.timeline}/{batch}-{uuid.uuid4().hex[:8]}"
    options = _without_dictionaries(writer.schema) if read_once else None
    write_parquet(_numbered(df, writer), writer.path / place, max_files=max_files, options=options)
    return parquet_files(writer.path, place)


def _numbered(df: DataFrame, writer: ChannelWriter) -> DataFrame:
    """Spark writes the numbers of columns into the file. Each takes a dozen calls to the JVM to say, so they are kept:
    a writer has the same columns for as long as it lives."""
    if writer not in _columns:
        named = [
            F.col("`{}`".format(c.name.replace("`", "``"))).alias(c.name, metadata={FIELD_ID: c.number})
            for c in writer.columns.columns
        ]
        _columns[writer] = cast(Any, df)._jcols(*named)
    return DataFrame(cast(Any, df)._jdf.select(_columns[writer]), df.sparkSession)


def _in_java(df: DataFrame, options: Mapping[str, str]) -> Any:
    """The options as a map in the JVM, made once: one by one, each would be two calls to the JVM in every batch."""
    jvm: Any = df.sparkSession._jvm
    kept = _options.setdefault(jvm, {})
    key = tuple(sorted(options.items()))
    if key not in kept:
        made = jvm.java.util.HashMap()
        for name, value in key:
            made.put(name, value)
        kept[key] = made
    return kept[key]


def _without_dictionaries(schema: StructType) -> dict[str, str]:
    """Options for columns of numbers and times. A name with a dot would mean a field of a struct: such a column keeps
    its dictionary."""
    return {f"{_DICTIONARY}#{f.name}": "false" for f in schema.fields if "." not in f.name and _is_packed(f.dataType)}


def _is_packed(kind: DataType) -> bool:
    if isinstance(kind, DecimalType):
        return kind.precision <= _LONG_DIGITS
    return isinstance(kind, NumericType | DateType | TimestampType | TimestampNTZType)


def write_parquet(
    df: DataFrame,
    place: Path,
    *,
    max_files: int | None = None,
    options: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
) -> None:
    """Let Spark write `df` as Parquet files into the new directory `place`, or into one below it for each partition."""
    limit = max_files if max_files is not None else max(2, df.sparkSession.sparkContext.defaultParallelism)
    # Hadoop starts a process (chmod) for each directory that it makes, and none for those that are there.
    (place / "_temporary" / "0" / "_temporary").mkdir(parents=True)
    # The rows of one partition belong into few files, and many partitions do not belong into one task.
    spread = df.hint("rebalance", *(F.col(name) for name in partition_by)) if partition_by else df.coalesce(limit)
    writer: Any = spread.write.mode("append")
    writer._jwrite = writer._jwrite.options(_in_java(df, {**_OPTIONS, **(options or {})}))
    (writer.partitionBy(*partition_by) if partition_by else writer).parquet(str(place))


def parquet_files(table: Path, place: str) -> tuple[DataFile, ...]:
    """The non-empty Parquet files in directory `place` of the table, in the order of Spark's partitions."""
    files = []
    for entry in sorted(os.scandir(table / place), key=lambda e: e.name):
        if entry.name.endswith(".parquet") and not entry.name.startswith((".", "_")):
            rows = pq.read_metadata(entry.path).num_rows
            if rows:
                files.append(DataFile(f"{place}/{entry.name}", rows, entry.stat().st_size))
    return tuple(files)


def run_only(df: DataFrame) -> None:
    """Compute it, and keep nothing of it but the query's state."""
    df.write.format("noop").mode("overwrite").save()
