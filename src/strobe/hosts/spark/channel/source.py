"""Reading a channel: Spark's Python streaming source, format "strobe_channel" and a number.

An offset is `{"channel": name, "version": v}`: everything in the channel up to and including commit v. Where a batch
ends is not decided here but by the gate, so that a batch ends on a barrier when the protocol needs it to, and never
splits a commit. The name is in the offset because Spark knows a query's sources only by their position in the plan:
one that is handed another channel's offset says so instead of reading from the wrong place.

Only the process that plans batches talks to the gate. `read` runs on executors: it gets paths, reads them with
Arrow and hands Spark record batches in exactly the declared columns and types, which Spark checks (it refuses anything
that differs); `old_files` is how those of a file that was written with other columns get there.

The workers import this module, so it stays light: no Delta, nothing of the driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from strobe.hosts.spark.channel.gate import GateAddress, GateClient
from strobe.hosts.spark.channel.log import DataFile
from strobe.hosts.spark.channel.old_files import Known, arranged, known_columns, places_of
from strobe.hosts.spark.jvm.python_source import open_stream
from strobe.model.errors import Failed
from strobe.model.ids import ChannelId, NodeId

__all__ = ["FORMAT", "ChannelSource", "balance", "read_channel"]

FORMAT: Final = "strobe_channel"
_BATCH_ROWS: Final = 64 * 1024


def read_channel(
    spark: SparkSession,
    *,
    path: str | Path,
    schema: StructType,
    stage: NodeId,
    channel: ChannelId,
    gate: GateAddress,
    partitions: int | None = None,
) -> DataFrame:
    """The channel at `path` as a streaming DataFrame for `stage`, read in at most `partitions` tasks per batch.

    `schema` is the producer's `ChannelWriter.schema`. By default there are as many tasks as Spark has cores.
    """
    options = {
        "path": str(Path(path).absolute()),
        "stage": stage,
        "channel": channel,
        "port": str(gate.port),
        "token": gate.token,
        "partitions": str(partitions if partitions is not None else spark.sparkContext.defaultParallelism),
    }
    return open_stream(spark, ChannelSource, schema, options)


class ChannelSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return ChannelReader(dict(self.options), schema)


@dataclass
class FilesPartition(InputPartition):
    """The files that one task reads, and how the channel's columns are known in them."""

    paths: tuple[str, ...]
    columns: tuple[Known, ...] = ()


class ChannelReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._path = options["path"]
        self._channel = options["channel"]
        self._schema = schema
        self._partitions = max(1, int(options["partitions"]))
        address = GateAddress(int(options["port"]), options["token"])
        self._gate = GateClient(address, NodeId(options["stage"]), ChannelId(options["channel"]))
        self._goal: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(self._gate.initial())

    def prepareForTriggerAvailableNow(self) -> None:
        self._goal = self._gate.available()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # The limit is not Spark's to set: the gate admits whole commits only.
        version = self._version(start)
        if self._goal is not None and version >= self._goal:
            return start
        latest = self._gate.latest(version)
        return self._offset(latest if self._goal is None else min(latest, self._goal))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        after, upto = self._version(start), self._version(end)
        if after >= upto:
            return []
        files = self._gate.files(after, upto)
        columns = known_columns(self._path, self._schema.names)
        return [
            FilesPartition(tuple(f"{self._path}/{f.path}" for f in group), columns)
            for group in balance(files, self._partitions)
        ]

    def _offset(self, version: int) -> dict[str, Any]:
        return {"channel": self._channel, "version": version}

    def _version(self, offset: dict[str, Any]) -> int:
        if offset["channel"] != self._channel:
            raise Failed(
                f"The stage's checkpoint has an offset of channel {offset['channel']} where its plan now reads "
                f"{self._channel}: its inputs have changed places.",
                untouched="Nothing was read.",
                next="Use the inputs in the same order as before, or give the stage a new uid.",
            )
        return int(offset["version"])

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, FilesPartition)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        for path in partition.paths:
            yield from _batches(path, schema, partition.columns)

    def commit(self, end: dict[str, Any]) -> None:
        self._gate.committed(self._version(end))

    def stop(self) -> None:
        self._gate.close()


def balance(files: Sequence[DataFile], groups: int) -> list[list[DataFile]]:
    """`files` in at most `groups` groups of about the same size, each in the given order. Deterministic."""
    bins: list[list[int]] = [[] for _ in range(min(groups, len(files)))]
    sizes = [0] * len(bins)
    for index in sorted(range(len(files)), key=lambda i: (-files[i].size, i)):
        lightest = sizes.index(min(sizes))
        bins[lightest].append(index)
        sizes[lightest] += files[index].size
    return [[files[i] for i in sorted(indexes)] for indexes in bins]


def _batches(path: str, schema: pa.Schema, columns: Sequence[Known]) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            places = places_of(file.schema_arrow, columns)
            for batch in file.iter_batches(_BATCH_ROWS, use_threads=False):
                yield arranged(batch, places, schema)
    except FileNotFoundError as e:
        raise Failed(
            f"{path} is gone: the channel's rows were deleted before they were read.",
            next="Restore the job from a snapshot.",
        ) from e
