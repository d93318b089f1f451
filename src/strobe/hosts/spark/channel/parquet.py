"""How a micro-batch gets into its channel: Spark writes Parquet, one commit makes it visible.

Each attempt writes into a directory of its own under the table, so an attempt that died leaves nothing that another
could mistake for its own; what no commit names is swept when the next incarnation opens the channel. Rows are
counted from the files' footers, which is what readers will see, not what the query says it wrote.

A batch that is already in the channel (a replay after a crash between its commit here and Spark's own) is not
written again. The query still has to run it: its state must advance.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from weakref import WeakKeyDictionary

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

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
_columns: Final[WeakKeyDictionary[ChannelWriter, list[Column]]] = WeakKeyDictionary()


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
    files = write_files(df, batch, writer, max_files=max_files)
    return writer.append(files, batch, even_if_empty=even_if_empty)


def write_files(
    df: DataFrame, batch: int, writer: ChannelWriter, *, max_files: int | None = None
) -> tuple[DataFile, ...]:
    """The first half of `write_batch`: the files are there, but nobody sees them yet."""
    if writer.has_batch(batch):
        run_only(df)
        return ()
    place = f"{DATA}/{writer.timeline}/{batch}-{uuid.uuid4().hex[:8]}"
    write_parquet(_numbered(df, writer), writer.path / place, max_files=max_files)
    return parquet_files(writer.path, place)


def _numbered(df: DataFrame, writer: ChannelWriter) -> DataFrame:
    """Spark writes the numbers of columns into the file. Each takes a dozen calls to the JVM to say, so they are kept:
    a writer has the same columns for as long as it lives."""
    if writer not in _columns:
        _columns[writer] = [
            F.col("`{}`".format(c.name.replace("`", "``"))).alias(c.name, metadata={FIELD_ID: c.number})
            for c in writer.columns.columns
        ]
    return df.select(*_columns[writer])


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
    writer = spread.write.mode("append").options(**{**_OPTIONS, **(options or {})})
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
