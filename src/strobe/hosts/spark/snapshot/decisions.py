"""Between the coordinator of snapshots and that of commits: the manifest of a snapshot is the decision to commit."""

from __future__ import annotations

from collections.abc import Iterable

from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.model.ids import SnapshotId

__all__ = ["Decisions"]


class Decisions:
    """What the host says to the sinks' commit coordinator; a job without such sinks has nobody who listens."""

    def begin(self, snapshot: SnapshotId) -> None:
        """A snapshot starts; Failed if it cannot."""

    def decide(self, snapshot: SnapshotId, parts: Iterable[StagePart]) -> None:
        """Every stage has acknowledged. On return the manifest may be written; Failed if it must not be."""

    def logged(self, snapshot: SnapshotId) -> None:
        """The manifest is durable."""

    def failed(self, snapshot: SnapshotId, reason: str) -> None:
        """The manifest is not there, and will not be."""

    def abandon(self, snapshot: SnapshotId, reason: str) -> None:
        """The snapshot is given up."""
