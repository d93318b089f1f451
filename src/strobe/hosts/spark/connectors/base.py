"""What a sink is.

A stage hands each micro-batch to its sinks inside `foreachBatch`, after its channel has it and before Spark commits
the batch. So after a crash the last batch comes again, with the same id and, if the stage is deterministic, the same
rows: a sink writes a batch id once per timeline, whatever happens. What a sink says at a snapshot goes into the
manifest and comes back at a restore.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from strobe.model.cut import Json
from strobe.model.errors import StrobeError
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["Sink", "SinkContext", "SinkFate", "SinkOutlook"]


@dataclass(frozen=True)
class SinkContext:
    """For whom the sink writes. `name` is the sink's identity within the job: the stage's uid and its place there."""

    job: str
    stage: NodeId
    name: str
    timeline: Timeline
    incarnation: Incarnation
    schema: StructType
    output_mode: str
    base: Path  # relative paths of sinks are below this directory: where the job was started


class SinkFate(Enum):
    """What a restore does to a sink."""

    ROLLED_BACK = "rolled back"
    COPIED = "copied"
    EMPTY = "starts empty"
    KEPT = "cannot be undone"


@dataclass(frozen=True)
class SinkOutlook:
    """What a restore would do to a sink, in words, and why it cannot if it cannot."""

    fate: SinkFate
    detail: str
    problem: StrobeError | None = None
    warning: str = ""


class Sink(ABC):
    @abstractmethod
    def describe(self) -> str:
        """Where it writes, for people."""

    def open(self, context: SinkContext) -> None:  # noqa: B027  (most sinks need nothing here)
        """Before the stage's first batch, at each start. Raise Misuse for what can never work."""

    @abstractmethod
    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write the batch, once per (timeline, batch id)."""

    def place(self) -> str | None:
        """What it writes to, if nobody else may."""
        return None

    def last_batch(self) -> int | None:
        """The newest batch of this job and timeline that it has, if it can tell. Called after `open`."""
        return None

    def position(self, snapshot: SnapshotId) -> Json:
        """At a snapshot, between two batches: what a restore needs to take this sink back to here."""
        return None

    def outlook(self, position: Json, context: SinkContext, *, fork: bool, again: bool) -> SinkOutlook:
        """What a restore to `position` would do here; touches nothing. `position` is None for a sink that the snapshot
        does not know. A `fork` must leave the original's place alone. `again`: an earlier attempt may have begun."""
        if fork:
            return SinkOutlook(SinkFate.KEPT, "it gets every batch after the snapshot, as the original's does")
        return SinkOutlook(SinkFate.KEPT, "what it got after the snapshot stays there, and comes once more")

    def restore(self, position: Json, context: SinkContext, fate: SinkFate) -> None:  # noqa: B027
        """Do what `outlook` said, before `open`. Doing it again changes nothing."""

    def close(self) -> None:  # noqa: B027
        """The stage has ended."""
