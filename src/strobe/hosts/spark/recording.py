"""One stage's part of one snapshot, from the moment it is recorded until it is durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from strobe.hosts.spark.channel import ChannelWriter
from strobe.hosts.spark.messages import StagePart
from strobe.model.cut import Json
from strobe.model.errors import StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.store.manifest import InFlight

__all__ = ["Recorded", "Recording", "Uploads"]


@dataclass(slots=True)
class Recording:
    """One snapshot's part of this stage, while it is being gathered."""

    snapshot: SnapshotId
    batch: int
    inputs: Mapping[NodeId, int]
    began: float  # when this stage first heard of the snapshot
    recorded_at: float
    barrier: int | None = None
    sync_ms: float = 0.0
    in_flight: dict[NodeId, InFlight] = field(default_factory=dict)
    sinks: Mapping[str, Json] = field(default_factory=dict)  # where each sink stood


class Recorded(Protocol):
    """What an upload needs to know of the stage that was recorded."""

    uid: NodeId
    checkpoint: Path
    output: ChannelWriter | None


class Uploads(Protocol):
    """Makes a recording durable in the background, then calls back."""

    def submit(
        self, stage: Recorded, recording: Recording, done: Callable[[StagePart | StrobeError], None]
    ) -> None: ...
