"""What the coordinator's host needs done with the parts of a snapshot, and does not do itself."""

from __future__ import annotations

from collections.abc import Mapping

from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.hosts.spark.snapshot.progress import Progress
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.kind import Kind

__all__ = ["SnapshotWriter"]


class SnapshotWriter:
    """What the host needs done with a snapshot's parts; the job implements it."""

    def reserve(self, snapshot: SnapshotId, kind: Kind) -> None:
        """Make it durable that this id is taken, and a place ready for its parts."""

    def write(self, progress: Progress, parts: Mapping[NodeId, StagePart]) -> None:
        """Check the cut and write the manifest, or raise: InconsistentCut if it is refused. On return it is durable."""

    def aborted(self, snapshot: SnapshotId) -> None:
        """The snapshot is given up: its parts can go."""

    def note_end(self, progress: Progress, parts: Mapping[NodeId, StagePart]) -> None:
        """Called when a snapshot is complete, or has failed. `parts` are those that had come."""

    def dispose(self, snapshot: SnapshotId) -> None:
        """Delete a checkpoint that is past its retention."""

    def settled(self) -> None:
        """Every sink has committed a checkpoint: what was kept for its sake can go."""

    def spare(self, consumed: Mapping[NodeId, Mapping[NodeId, int]]) -> Mapping[NodeId, int]:
        """After a completion and its disposals: up to which position each channel may let go of its rows. `consumed` is
        how far each stage has read, by producer."""
        return {}
