"""A small stand-in for Spark: frames of rows, files of rows, and the loop of one streaming query.

A query does what Spark does, in its order: run the batch that was logged and not committed; ask every reader how far;
log the offsets; run the batch; keep its state; commit. Every file is written aside and renamed, and none is synced.

A row is a name: a source's rows are `a0`, `a1`, …; a stage puts its own name in front of each row that it reads. A
stage's state is all that it has read of each input, and all that it has given out, so what a snapshot should hold can
be told from its content alone.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructField, StructType

from strobe.hosts.spark.channel.log import LOG, DataFile, entry_name
from strobe.hosts.spark.channel.writer import DATA, ChannelWriter
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint import leftovers
from strobe.hosts.spark.stage.runner import StageRunner
from strobe.hosts.spark.stage.settling import Settling
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from strobe.store.manifest import NOTHING
from tests.hostsim.scheduler import Scheduler

__all__ = [
    "SCHEMA",
    "Frame",
    "NoWatermarks",
    "PlayedRunner",
    "State",
    "Table",
    "read_rows",
    "state_of",
    "write_files",
    "write_parquet",
]

SCHEMA = StructType([StructField("row", StringType())])
_FRAME = struct.Struct("<8sBiii")
_IDLE = 0.02  # seconds between two questions of a query with nothing to do


@dataclass(frozen=True)
class Frame:
    """A DataFrame, as far as the host looks at one."""

    rows: tuple[str, ...] = ()
    schema: StructType = SCHEMA
    isStreaming: bool = True

    def __getattr__(self, name: str) -> Any:
        """What leads to reading files, or to doing nothing."""
        return _Chain(self) if name in ("sparkSession", "write") else object.__getattribute__(self, name)


class _Chain:
    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def parquet(self, *paths: str) -> Frame:
        return Frame(tuple(row for path in paths for row in read_rows(Path(path))))

    def __getattr__(self, name: str) -> Any:
        return self if name == "read" else lambda *args, **named: self


# ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_rows(path: Path) -> list[str]:
    rows: list[str] = json.loads(path.read_bytes())
    return rows


def write_parquet(batch: Frame, place: Path, **_: Any) -> None:
    place.mkdir(parents=True)
    (place / "part-0.parquet").write_text(json.dumps(batch.rows))


def write_files(batch: Frame, number: int, writer: ChannelWriter) -> tuple[DataFile, ...]:
    if writer.has_batch(number) or not batch.rows:
        return ()
    place = f"{DATA}/{writer.timeline}/{number}-{os.urandom(4).hex()}"
    write_parquet(batch, writer.path / place)
    name = f"{place}/part-0.parquet"
    return (DataFile(name, len(batch.rows), (writer.path / name).stat().st_size),)


class Table:
    """`deltalake`'s table, as far as a channel needs it: the first entry of its log."""

    def __init__(self, path: str) -> None:
        self._first = Path(path) / LOG / entry_name(0)

    @classmethod
    def is_deltatable(cls, path: str) -> bool:
        return (Path(path) / LOG / entry_name(0)).exists()

    @classmethod
    def create(cls, path: str, schema: Any, **_: Any) -> None:
        log = Path(path) / LOG
        log.mkdir(parents=True, exist_ok=True)
        fresh = log / f".{os.urandom(4).hex()}"
        fresh.write_text(json.dumps({"metaData": {"schemaString": schema.to_json()}}) + "\n")
        os.replace(fresh, log / entry_name(0))

    def schema(self) -> Any:
        return self

    def to_json(self) -> str:
        try:
            return str(json.loads(self._first.read_text())["metaData"]["schemaString"])
        except ValueError as error:
            raise DeltaError(f"the log cannot be read: {error}") from error


@dataclass(frozen=True)
class State:
    """What a stage has read of each input, and given out, ever."""

    read: Mapping[str, Sequence[str]]
    out: Sequence[str]
    supply: int = 0  # rows that a source has taken of the world outside

    def encode(self) -> bytes:
        """As Spark keeps its files: a frame that says how long it is, and an empty one."""
        data = json.dumps({"read": dict(self.read), "out": list(self.out), "supply": self.supply}).encode()
        return _FRAME.pack(b"LZ4Block", 0x10, len(data), len(data), 0) + data + _FRAME.pack(b"LZ4Block", 0x10, 0, 0, 0)

    @classmethod
    def decode(cls, data: bytes) -> State:
        value = json.loads(data[_FRAME.size : -_FRAME.size])
        return cls(value["read"], value["out"], value["supply"])


def state_of(batch: int) -> str:
    """Where the state after a batch is, in a checkpoint."""
    return f"state/0/0/{batch + 1}.snapshot"


# ── a query ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class PlayedQuery:
    """`supply`: how many rows the world outside has now for a source, and whether there will be more."""

    def __init__(
        self,
        runner: PlayedRunner,
        scheduler: Scheduler,
        supply: Callable[[], tuple[int, bool]],
    ) -> None:
        self._runner, self._scheduler, self._supply = runner, scheduler, supply
        self._uid, self._checkpoint = runner.spec.uid, runner.agent.checkpoint
        self._inputs = list(runner.spec.inputs)
        self._error: Exception | None = None
        self._stopped = False
        self.isActive = True
        self.status: dict[str, Any] = {"message": ""}
        self.lastProgress: dict[str, Any] = {}
        current = scheduler.current
        assert current is not None
        scheduler.start(current.process, f"spark-{self._uid}", self._run)

    def stop(self) -> None:
        self._stopped = True
        self._scheduler.wait(lambda: not self.isActive)

    def awaitTermination(self, timeout: float | None = None) -> bool:
        self._scheduler.wait(lambda: not self.isActive, timeout)
        if self._error is not None:
            raise self._error
        return not self.isActive

    def _run(self) -> None:
        try:
            self._loop()
        except Exception as error:
            self._error = error
        finally:
            self.isActive = False

    def _loop(self) -> None:
        place = self._checkpoint
        for part in ("offsets", "commits", "state/0/0"):
            (place / part).mkdir(parents=True, exist_ok=True)
        if not (place / "metadata").exists():
            self._put("metadata", json.dumps({"id": str(uuid.UUID(int=1))}))
        committed, logged = spark_checkpoint.last_committed(place), spark_checkpoint.last_logged(place)
        batch = NOTHING if committed is None else committed
        if logged is not None and logged > batch:
            self._batch(logged)
            batch = logged
        while not self._stopped:
            before = self._offsets(batch)
            planned = {p: self._runner.agent.latest(f"{self._uid}<{p}", p, int(before.get(p, 0))) for p in self._inputs}
            if not self._inputs:
                there, more = self._supply()
                taken = before.get(NodeId(""), 0)
                if taken >= there and not more:
                    return
                planned[NodeId("")] = min(there, taken + 3)
            if planned == before or not any(planned.values()):
                self._scheduler.sleep(_IDLE)
                continue
            batch += 1
            self._log(batch, planned)
            self._batch(batch)

    def _batch(self, batch: int) -> None:
        before, after = self._offsets(batch - 1), self._offsets(batch)
        old = self._state(batch - 1)
        news = {p: self._rows(p, int(before.get(p, 0)), int(after.get(p, 0))) for p in self._inputs}
        supply = int(after.get(NodeId(""), 0))
        taken = [str(k) for k in range(old.supply, supply)] if not self._inputs else []
        given = [*taken, *(row for rows in news.values() for row in rows)]
        rows = tuple(f"{self._uid}{'' if not self._inputs else '.'}{row}" for row in given)
        self._runner._batch(cast(DataFrame, Frame(rows)), batch)
        read = {str(p): [*old.read.get(p, ()), *news[p]] for p in self._inputs}
        self._put(state_of(batch), State(read, [*old.out, *rows], supply).encode())
        self._put(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def _rows(self, producer: NodeId, after: int, upto: int) -> list[str]:
        log = self._runner.agent.inputs[producer]
        if upto <= after:
            return []
        return [row for c in log.commits(after, upto) for f in c.files for row in read_rows(log.path / f.path)]

    def _state(self, batch: int) -> State:
        if batch == NOTHING:
            return State({}, [])
        return State.decode((self._checkpoint / state_of(batch)).read_bytes())

    def _offsets(self, batch: int) -> dict[NodeId, int]:
        if batch == NOTHING:
            return {}
        found = spark_checkpoint.read_offsets(self._checkpoint, batch).sources
        return {NodeId(s.get("channel", "")): int(s.get("version", s.get("rows"))) for s in cast(list[Any], found)}

    def _log(self, batch: int, ends: Mapping[NodeId, int]) -> None:
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        sources = [json.dumps({"channel": p, "version": v} if p else {"rows": v}) for p, v in ends.items()]
        self._put(f"offsets/{batch}", "\n".join(["v1", head, *sources]))

    def _put(self, name: str, content: str | bytes) -> None:
        target = self._checkpoint / name
        fresh = target.with_name(f".{target.name}.{uuid.UUID(bytes=os.urandom(16))}.tmp")
        fresh.write_bytes(content.encode() if isinstance(content, str) else content)
        os.rename(fresh, target)


class NoWatermarks:
    def __init__(self, *_: Any) -> None:
        pass

    def begin_life(self) -> None: ...

    def begin_batch(self, batch: int) -> None: ...

    def end_batch(self, batch: int) -> None: ...


class _Settling(Settling):
    """Of what is done before a query starts and at a drain, what needs no plan of a query: there is no event time."""

    def before_start(self) -> None:
        leftovers.sweep(self._agent.checkpoint)
        self._finish_last_batch()

    def _has_event_time(self) -> bool:
        return False


class PlayedRunner(StageRunner):
    """The real one, but for the query that it starts."""

    scheduler: Scheduler
    supply: Callable[[str], tuple[int, bool]]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._settling = _Settling(
            self.spec, self._result, self.agent, self._life_apart,
            written=self._written, setting=lambda key, default: default, stopping=self._stopping,
        )  # fmt: skip

    def _start_query(self) -> StreamingQuery:
        if self._stopping.is_set():
            raise Failed("it is stopping")
        supply = type(self).supply
        return cast(StreamingQuery, PlayedQuery(self, type(self).scheduler, lambda: supply(self.spec.uid)))
