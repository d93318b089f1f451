"""A stage's parts of the snapshots under way, from the recording to the acknowledgement.

A part is recorded, uploaded, prepared, acknowledged. The first happens at rest; then the stage runs on, and what works
in the background puts its results into the stage's inbox. The coordinator hears of a part when its files are in the
store *and* its sinks have prepared, and not before: on its word alone the manifest is written.

All of this runs in the stage's own thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from strobe.hosts.shared.clock import SYSTEM, Clock
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.channel.admission import Limits
from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.channel.pace import Pace
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.snapshot.messages import Acknowledge, Decline, StagePart, ToCoordinator
from strobe.hosts.spark.snapshot.recording import Recording, Uploads, Vote, Voter
from strobe.hosts.spark.stage.inbox import SinkVoted, Uploaded
from strobe.model.cut import Json
from strobe.model.errors import StrobeError
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.barriers import BarrierMode
from strobe.store.manifest import SinkRecord

__all__ = ["StageContext", "StageParts"]

_log = logging.getLogger("strobe.agent")


def _nothing(snapshot: SnapshotId) -> Mapping[str, Json]:
    return {}


@dataclass(frozen=True, slots=True)
class StageContext:
    """What a stage's agent works with, the same in all its lives. `post` carries messages to the coordinator;
    `sinks` are those that deliver on snapshot; `sink_positions` is where each of the others stands, and `steady` says
    that it can be asked for before a batch, for snapshots that begin while the batch runs (`NO_SNAPSHOT`). `hold`: how
    many seconds at most Spark's question is kept while there is nothing to read. `never_rests`: it waits for the clock,
    so Spark runs one batch after the other, with rows or without. `pace`: how many rows its next batch should have, by
    what its batches have taken."""

    uid: NodeId
    checkpoint: Path
    inputs: Mapping[NodeId, ChannelLog]
    output: ChannelWriter | None
    feedback: frozenset[NodeId]
    mode: BarrierMode
    alignment_timeout: float
    limits: Limits
    uploads: Uploads
    post: Callable[[ToCoordinator], None]
    sinks: tuple[Voter, ...] = ()
    sink_positions: Callable[[SnapshotId], Mapping[str, Json]] = _nothing
    steady: bool = True
    clock: Clock = SYSTEM
    hold: float = 0.0
    never_rests: bool = False
    pace: Pace | None = None


@dataclass(slots=True)
class _Durable:
    """Its files are in the store; its sinks prepare."""

    part: StagePart
    votes: dict[str, Vote] = field(default_factory=dict)


class StageParts:
    """What becomes of recorded parts, in one life of the stage: uploaded, prepared, acknowledged."""

    def __init__(
        self, stage: StageContext, incarnation: Incarnation, put: Callable[[Uploaded | SinkVoted], None]
    ) -> None:
        """`put`, from any thread: into the stage's inbox."""
        self._stage, self._incarnation, self._put = stage, incarnation, put
        self._recordings: dict[SnapshotId, Recording] = {}
        self._durable: dict[SnapshotId, _Durable] = {}

    def __contains__(self, snapshot: SnapshotId) -> bool:
        return snapshot in self._recordings

    def __getitem__(self, snapshot: SnapshotId) -> Recording:
        return self._recordings[snapshot]

    def synced(self, now: float) -> None:
        """What was recorded in this step has its barrier: the stage goes on."""
        for recording in self._recordings.values():
            if recording.synced_at is None:
                recording.synced_at = now

    def forget(self, snapshot: SnapshotId) -> None:
        """The snapshot is over. Results that still come of it mean nothing."""
        self._recordings.pop(snapshot, None)
        self._durable.pop(snapshot, None)

    def decline(self, snapshot: SnapshotId, reason: str) -> None:
        self.forget(snapshot)
        self._stage.post(Decline(self._stage.uid, self._incarnation, snapshot, reason))

    # ── recorded, uploaded, prepared, acknowledged ──────────────────────────────────────────────────────────────────

    def record(self, recording: Recording) -> None:
        """The stage's state is decided on. Its channels may still be open."""
        self._recordings[recording.snapshot] = recording

    def upload(self, snapshot: SnapshotId) -> None:
        """All of its channels are closed: make its files durable, in the background."""
        recording = self._recordings[snapshot]
        recording.closed_at = self._stage.clock.monotonic()
        recording.synced_at = recording.synced_at or recording.closed_at
        self._stage.uploads.submit(self._stage, recording, lambda result: self._put(Uploaded(snapshot, result)))

    def prepare(self, uploaded: Uploaded) -> None:
        """Its files are durable: now its sinks, if any deliver on snapshot."""
        snapshot, result = uploaded.snapshot, uploaded.result
        recording = self._recordings.get(snapshot)
        if recording is None:
            return
        if isinstance(result, StrobeError):
            self._fail(snapshot, result)
            return
        self._durable[snapshot] = _Durable(result)
        for sink in self._stage.sinks:
            sink.prepare(snapshot, recording.batch, partial(self._vote, snapshot, sink.name))
        self._acknowledge_if_all(snapshot)

    def _vote(self, snapshot: SnapshotId, sink: str, vote: Vote | StrobeError) -> None:
        self._put(SinkVoted(snapshot, sink, vote))

    def voted(self, voted: SinkVoted) -> None:
        durable = self._durable.get(voted.snapshot)
        if durable is None:
            return
        if isinstance(voted.vote, StrobeError):
            self._fail(voted.snapshot, voted.vote)
            return
        durable.votes[voted.sink] = voted.vote
        self._acknowledge_if_all(voted.snapshot)

    def _acknowledge_if_all(self, snapshot: SnapshotId) -> None:
        durable, recording = self._durable[snapshot], self._recordings[snapshot]
        if len(durable.votes) < len(self._stage.sinks):
            return
        sinks = dict(durable.part.sinks)
        for name, vote in durable.votes.items():
            sinks[name] = replace(sinks.get(name, SinkRecord()), prepared=vote.prepared)
        votes = tuple(vote.message for vote in durable.votes.values())
        part = recording.settled(replace(durable.part, sinks=sinks, votes=votes), self._stage.clock.monotonic())
        self.forget(snapshot)
        crash_points.point("snapshot.part-durable", self._stage.uid)
        self._stage.post(Acknowledge(self._stage.uid, self._incarnation, snapshot, part, recording.consumed))

    def _fail(self, snapshot: SnapshotId, error: StrobeError) -> None:
        _log.warning("%s: its part of snapshot %d failed: %s", self._stage.uid, snapshot, error)
        self.decline(snapshot, str(error))
