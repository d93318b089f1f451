"""Sinks for trying things out, and for anything that Strobe has no sink for."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from strobe.hosts.shared.durable import write_durably
from strobe.hosts.spark.connectors.base import (
    Delivery,
    Part,
    Sink,
    SinkContext,
    SinkFate,
    SinkOutlook,
    TransactionalSink,
    steady,
)
from strobe.hosts.spark.connectors.staging import Staging
from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId, Timeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BatchInfo", "ConsoleSink", "ForeachBatchSink", "MemorySink"]


class ConsoleSink(Sink):
    """Prints each batch. At least once: what has been printed cannot be taken back."""

    def __init__(self, rows: int = 20) -> None:
        if rows < 1:
            raise Misuse(f"ConsoleSink(rows={rows}): it must show at least one row.")
        self.rows = rows

    def describe(self) -> str:
        return "console"

    def write(self, batch: DataFrame, batch_id: int) -> None:
        shown = batch.limit(self.rows + 1).toArrow().to_pylist()
        for row in shown[: self.rows]:
            print(f"batch {batch_id}: {row}", flush=True)
        if len(shown) > self.rows:
            print(f"batch {batch_id}: … more than {self.rows} rows", flush=True)


# ── memory ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_Rows = tuple[Mapping[str, Any], ...]


@dataclass
class _Memory:
    """What is kept under one name: rows by (timeline, batch)."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    staged: dict[tuple[int, int], _Rows] = field(default_factory=dict)
    visible: dict[tuple[int, int], _Rows] = field(default_factory=dict)
    whole: bool = False  # each batch is the whole result, in place of the one before


_memories: Final[dict[str, _Memory]] = {}


class MemorySink(TransactionalSink):
    """Keeps the rows in this process: `sink.rows()` are those that are visible, in the order of batches; of a stage
    with `output_mode="complete"`, those of the newest batch.

    With a name, every sink of that name in this process has the same rows. They end with the process: a job that goes
    on in another one has only what comes there. For trying out, and for tests.
    """

    def __init__(self, name: str = "", *, delivery: str = "on_batch") -> None:
        self.name = name
        self._delivery = Delivery.of(delivery, "MemorySink")
        self._memory = _memories.setdefault(name, _Memory()) if name else _Memory()

    def describe(self) -> str:
        return f"memory {self.name}".strip()

    def place(self) -> str | None:
        return f"memory {self.name}" if self.name else None

    def rows(self) -> list[dict[str, Any]]:
        """The rows that are visible now."""
        with self._memory.lock:
            batches = sorted(self._memory.visible.items())
            shown = batches[-1:] if self._memory.whole else batches
            return [dict(row) for _, rows in shown for row in rows]

    def clear(self) -> None:
        """Forget everything, as if it had just been made."""
        with self._memory.lock:
            self._memory.staged.clear()
            self._memory.visible.clear()

    def open(self, context: SinkContext) -> None:
        self._timeline = int(context.timeline)
        self._memory.whole = context.output_mode == "complete"
        self._newest = max(
            (b for t, b in (*self._memory.staged, *self._memory.visible) if t == self._timeline), default=-1
        )

    def write(self, batch: DataFrame, batch_id: int) -> None:
        rows = tuple(batch.toArrow().to_pylist())
        with self._memory.lock:
            kept = self._memory.staged if self._delivery is Delivery.ON_SNAPSHOT else self._memory.visible
            kept[self._timeline, batch_id] = rows
        self._newest = max(self._newest, batch_id)

    def prepare(self, part: Part) -> Json:
        return None

    def commit(self, part: Part, prepared: Json) -> None:
        with self._memory.lock:
            self._memory.visible.update(self._taken(part))

    def abort(self, part: Part, prepared: Json) -> None:
        with self._memory.lock:
            self._taken(part)

    def _taken(self, part: Part) -> dict[tuple[int, int], _Rows]:
        staged = self._memory.staged
        mine = [k for k in staged if k[0] == part.timeline and part.after < k[1] <= part.through]
        return {key: staged.pop(key) for key in mine}

    @steady
    def position(self, snapshot: SnapshotId) -> Json:
        return {"timeline": self._timeline, "batch": self._newest}

    def outlook(self, position: Json, context: SinkContext, *, fork: bool, again: bool) -> SinkOutlook:
        if fork or not isinstance(position, dict):
            return super().outlook(position, context, fork=fork, again=again)
        return SinkOutlook(SinkFate.ROLLED_BACK, "what came after the snapshot is forgotten")

    def restore(self, position: Json, context: SinkContext, fate: SinkFate) -> None:
        if fate is SinkFate.ROLLED_BACK and isinstance(position, dict):
            last, now = (position["timeline"], position["batch"]), int(context.timeline)
            with self._memory.lock:
                for kept in (self._memory.staged, self._memory.visible):
                    for key in [k for k in kept if k > last and k[0] != now]:
                        del kept[key]


# ── a function ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BatchInfo:
    """What a function of `ForeachBatchSink` is given to be idempotent by: `key` is the same when the same rows come
    again, and never used for others."""

    job: str
    sink: str
    timeline: Timeline
    batch_id: int  # on snapshot the last one that the rows are of
    snapshot: SnapshotId | None = None  # the one that is complete; None if delivered on batch

    @property
    def key(self) -> str:
        return f"{self.job}/{self.sink}/{self.timeline}/{self.batch_id}"


_HAD: Final = "had"  # a file beside what is staged


class ForeachBatchSink(TransactionalSink):
    """Calls `function(batch, batch_id)` or `function(batch, batch_id, info)` with a `BatchInfo`.

    The same rows may come again after a crash: be idempotent by `info.key`. With `delivery="on_snapshot"` the function
    gets all rows since the last snapshot once the next one is complete, and again until it returns without an error.
    """

    def __init__(self, function: Callable[..., None], *, delivery: str = "on_batch") -> None:
        if not callable(function):
            raise Misuse(f"ForeachBatchSink needs a function of (batch, batch id), not {function!r}.")
        self.function = function
        self._delivery = Delivery.of(delivery, "ForeachBatchSink")
        self._informed = _takes(function, 3)
        if not self._informed and not _takes(function, 2):
            raise Misuse(
                f"ForeachBatchSink: {self.describe()} must take (batch, batch_id) or (batch, batch_id, info).",
                next="`info` is a strobe.BatchInfo.",
            )

    def describe(self) -> str:
        return f"function {getattr(self.function, '__name__', self.function)}"

    def open(self, context: SinkContext) -> None:
        self._context = context
        if self._delivery is Delivery.ON_SNAPSHOT:
            self._staging = Staging(context)

    def write(self, batch: DataFrame, batch_id: int) -> None:
        if self._delivery is Delivery.ON_SNAPSHOT:
            self._staging.write(batch, batch_id)
        else:
            context = self._context
            self._call(batch, BatchInfo(context.job, context.name, context.timeline, batch_id))

    def _call(self, rows: DataFrame, info: BatchInfo) -> None:
        if self._informed:
            self.function(rows, info.batch_id, info)
        else:
            self.function(rows, info.batch_id)

    def prepare(self, part: Part) -> Json:
        self._staging.files(part)  # that they are all there
        return None

    def commit(self, part: Part, prepared: Json) -> None:
        from pyspark.sql import SparkSession

        context = self._context
        if part.through > self._had():
            rows = self._staging.frame(SparkSession.builder.getOrCreate(), self._told(part))
            self._call(rows, BatchInfo(context.job, context.name, part.timeline, part.through, part.snapshot))
            write_durably(context.staging / _HAD, str(part.through))
        self._staging.forget(part)

    def _told(self, part: Part) -> Part:
        """The rows that the function gets from the part; of whole results only the newest."""
        return replace(part, after=part.through - 1) if self._context.output_mode == "complete" else part

    def _had(self) -> int:
        """The last batch of this timeline for which the function has returned; it may have been called with later ones,
        too."""
        try:
            return int((self._context.staging / _HAD).read_text())
        except FileNotFoundError:
            return -1

    def abort(self, part: Part, prepared: Json) -> None:
        if part.timeline == self._context.timeline:
            self._staging.forget(part)

    def last_batch(self) -> int | None:
        return self._staging.last_batch() if self._delivery is Delivery.ON_SNAPSHOT else None


def _takes(function: Callable[..., None], arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # a function in C has no signature
        return arguments == 2
    return True
