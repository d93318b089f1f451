"""One stage's part of one snapshot, from the moment it is recorded until it is durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.model.cut import Json
from strobe.model.errors import StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.two_phase_commit.messages import Prepared as PreparedMessage
from strobe.store.manifest import InFlight, Prepared, Timing

__all__ = ["Recorded", "Recording", "Uploads", "Vote", "Voter"]


@dataclass(slots=True)
class Recording:
    """One snapshot's part of this stage, while it is being gathered."""

    snapshot: SnapshotId
    batch: int
    inputs: Mapping[NodeId, int]
    began: float  # when this stage first heard of the snapshot; from here on phase follows on phase
    recorded_at: float
    synced_at: float | None = None  # its state is decided on and its barrier placed: the stage goes on
    closed_at: float | None = None  # the last barrier has come
    barrier: int | None = None
    in_flight: dict[NodeId, InFlight] = field(default_factory=dict)
    sinks: Mapping[str, Json] = field(default_factory=dict)  # where each sink stood
    consumed: Mapping[NodeId, int] = field(default_factory=dict)  # what it will never read again, by producer

    def timed(self, uploaded_at: float) -> dict[str, Any]:
        """The phases so far, as fields of a record, when its files are durable."""
        synced = self.recorded_at if self.synced_at is None else self.synced_at
        closed = synced if self.closed_at is None else self.closed_at
        return {
            "alignment_ms": _ms(self.began, self.recorded_at),
            "sync_ms": _ms(self.recorded_at, synced),
            "async_ms": _ms(closed, uploaded_at),
            "timing": Timing(channels_ms=_ms(synced, closed)),
        }

    def settled(self, part: StagePart, at: float) -> StagePart:
        """The part when its sinks have prepared, if any take part: what is left of the time until then is theirs."""
        record, timing = part.record, part.record.timing or Timing()
        measured = record.alignment_ms + record.sync_ms + timing.channels_ms + record.async_ms
        left = round(max(0.0, _ms(self.began, at) - measured), 3)
        if part.votes:
            return replace(part, record=replace(record, timing=replace(timing, prepare_ms=left)))
        return replace(part, record=replace(record, async_ms=round(record.async_ms + left, 3)))


def _ms(begin: float, end: float) -> float:
    return round((end - begin) * 1000, 3)


class Recorded(Protocol):
    """What an upload needs to know of the stage that was recorded."""

    @property
    def uid(self) -> NodeId: ...

    @property
    def checkpoint(self) -> Path: ...

    @property
    def output(self) -> ChannelWriter | None: ...


@dataclass(frozen=True, slots=True)
class Vote:
    """What one sink has prepared for a snapshot: the protocol's message, and what the manifest says of each handle."""

    message: PreparedMessage
    prepared: tuple[Prepared, ...]


class Voter(Protocol):
    """A sink that delivers on snapshot."""

    name: str

    def prepare(self, snapshot: SnapshotId, batch: int, done: Callable[[Vote | StrobeError], None]) -> None:
        """The stage was recorded after `batch`, and its files are in the store. `done` is called later, from any
        thread."""
        ...


class Uploads(Protocol):
    """Makes a recording durable in the background, then calls back."""

    def submit(
        self, stage: Recorded, recording: Recording, done: Callable[[StagePart | StrobeError], None]
    ) -> None: ...

    def run(self, act: Callable[[], None]) -> None:
        """Do something else there."""
        ...
