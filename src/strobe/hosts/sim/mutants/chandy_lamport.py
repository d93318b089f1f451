"""Chandy–Lamport with one rule broken at a time (1985, section 3: the marker-sending and marker-receiving rules)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strobe.hosts.sim.judge import ViolationKind
from strobe.hosts.sim.mutants.base import FinishesBeforeTheLast, Mutant
from strobe.model.ids import ChannelId, SeenIds, SnapshotId
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.events import (
    ChannelRecorded,
    Effect,
    Input,
    MessageArrived,
    RecordState,
    SendMarker,
)

__all__ = ["CHANDY_LAMPORT"]


class RecordsLate(ChandyLamport):
    """Sends the markers at once, but captures the state only when the next thing comes: what it sent since is in it."""

    def __init__(self, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId]) -> None:
        super().__init__(inputs, outputs)
        self._late: tuple[SnapshotId, ...] = ()

    def key(self) -> object:
        return super().key(), self._late

    def step(self, input: Input) -> tuple[Effect, ...]:
        late, self._late = self._late, ()
        return (*(RecordState(s) for s in late), *super().step(input))

    def _record(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        _, *markers = super()._record(snapshot)
        self._late += (snapshot,)
        return tuple(markers)

    def _finish(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        effects = super()._finish(snapshot)
        if effects and snapshot in self._late:  # this step completes everything: there is no later step
            self._late = tuple(s for s in self._late if s != snapshot)
            return (RecordState(snapshot), *effects)
        return effects


class SendsMarkersLate(ChandyLamport):
    """Records at once, but keeps the markers back until the next thing happens to the node."""

    def __init__(self, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId]) -> None:
        super().__init__(inputs, outputs)
        self._late: tuple[Effect, ...] = ()

    def key(self) -> object:
        return super().key(), self._late

    def step(self, input: Input) -> tuple[Effect, ...]:
        late, self._late = self._late, ()
        return (*late, *super().step(input))

    def _record(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        record, *markers = super()._record(snapshot)
        self._late += tuple(markers)
        return (record,)


class _RemembersLast(ChandyLamport):
    """Breaks nothing by itself: knows the last message that came on each channel."""

    def __init__(self, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId]) -> None:
        super().__init__(inputs, outputs)
        self._last: dict[ChannelId, Any] = {}

    def key(self) -> object:
        return super().key(), tuple(sorted(self._last.items()))

    def _message(self, arrived: MessageArrived) -> tuple[Effect, ...]:
        self._last[arrived.channel] = arrived.message
        return super()._message(arrived)


class RecordsFromBefore(_RemembersLast):
    """Starts a channel's content with the message that came just before the recording."""

    def _record(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        effects = super()._record(snapshot)
        for channel, message in self._last.items():
            self._open[snapshot][channel].append(message)
        return effects


class FillsFirstChannel(_RemembersLast):
    """Takes the message ahead of the first marker for that channel's content."""

    def _marker(self, channel: ChannelId, snapshot: SnapshotId) -> tuple[Effect, ...]:
        first = snapshot not in self._open
        effects = super()._marker(channel, snapshot)
        if not first or channel not in self._last:
            return effects
        filled = ChannelRecorded(snapshot, channel, (self._last[channel],))
        return tuple(filled if e == ChannelRecorded(snapshot, channel, ()) else e for e in effects)


class RecordsPastTheMarker(ChandyLamport):
    """Keeps recording on every channel until the last marker has come."""

    def __init__(self, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId]) -> None:
        super().__init__(inputs, outputs)
        self._closed: frozenset[tuple[SnapshotId, ChannelId]] = frozenset()

    def key(self) -> object:
        return super().key(), self._closed

    def _close(self, snapshot: SnapshotId, channel: ChannelId) -> tuple[Effect, ...]:
        self._closed |= {(snapshot, channel)}
        return ()

    def _finish(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        channels = self._open[snapshot]
        if any((snapshot, channel) not in self._closed for channel in channels):
            return ()
        contents = tuple(ChannelRecorded(snapshot, c, tuple(messages)) for c, messages in channels.items())
        channels.clear()
        return (*contents, *super()._finish(snapshot))


class ForwardsEveryMarker(ChandyLamport):
    """Sends markers on at every marker that comes, not only at the first."""

    def _marker(self, channel: ChannelId, snapshot: SnapshotId) -> tuple[Effect, ...]:
        first = snapshot not in self._open
        effects = super()._marker(channel, snapshot)
        if first:
            return effects
        return (*effects, *(SendMarker(output, snapshot) for output in self.outputs))


class ForgetsFinished(ChandyLamport):
    """Forgets a snapshot when its part is complete: a second request makes it start again."""

    def _finish(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        effects = super()._finish(snapshot)
        self._finished = SeenIds()
        return effects


class JoinsTwice(ChandyLamport):
    """Starts a snapshot whenever it is asked to, even one that it is recording."""

    def _initiate(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        self._open.pop(snapshot, None)
        return super()._initiate(snapshot)


class FinishesEarly(FinishesBeforeTheLast, ChandyLamport):
    """Calls its part complete when one channel is still open."""

    def _channels_open(self, snapshot: SnapshotId) -> int:
        return len(self._open[snapshot])


class DropsSecondSnapshot(ChandyLamport):
    """While one snapshot is being recorded, throws away the markers of any other."""

    def _marker(self, channel: ChannelId, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if self._open and snapshot not in self._open:
            return ()
        return super()._marker(channel, snapshot)


class ForgetsAnOutput(ChandyLamport):
    """Sends no marker on its last output channel."""

    def _record(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        effects = super()._record(snapshot)
        return effects[:-1] if self.outputs else effects


class RecordsForOneSnapshot(ChandyLamport):
    """Gives each message to the newest snapshot's content only."""

    def _message(self, arrived: MessageArrived) -> tuple[Effect, ...]:
        newest = max(self._open, default=None)
        everything = self._open
        self._open = {s: channels for s, channels in everything.items() if s == newest}
        try:
            return super()._message(arrived)
        finally:
            self._open = everything


class ForgetsAborted(ChandyLamport):
    """Stops recording when a snapshot is given up, but starts it again at the next marker."""

    def _abort(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        self._open.pop(snapshot, None)
        return ()


_CL = ("chandy-lamport",)

CHANDY_LAMPORT = (
    Mutant("records-late", _CL, ViolationKind.CUT, RecordsLate,
           "A node records its state before its markers, and before any later message, go out."),
    Mutant("sends-markers-late", _CL, ViolationKind.CUT, SendsMarkersLate,
           "A marker goes out before every message that follows the recording."),
    Mutant("records-from-before", _CL, ViolationKind.CUT, RecordsFromBefore,
           "A channel's content starts at the recording."),
    Mutant("records-past-the-marker", _CL, ViolationKind.CUT, RecordsPastTheMarker,
           "A channel's content ends at its marker."),
    Mutant("fills-first-channel", _CL, ViolationKind.CUT, FillsFirstChannel,
           "The channel of the first marker is empty."),
    Mutant("forwards-every-marker", _CL, ViolationKind.PROTOCOL, ForwardsEveryMarker,
           "One marker on each channel: only the first marker is sent on."),
    Mutant("forgets-finished", _CL, ViolationKind.MARKERS, ForgetsFinished,
           "A finished snapshot is remembered: nothing makes it start again."),
    Mutant("forgets-an-output", _CL, ViolationKind.LIVENESS, ForgetsAnOutput,
           "A marker is sent on every output channel."),
    Mutant("rejoins", _CL, ViolationKind.PROTOCOL, JoinsTwice,
           "A node that is asked to start a snapshot that it is recording does nothing."),
    Mutant("finishes-early", _CL, ViolationKind.CUT, FinishesEarly,
           "A node's part is complete when the marker has come on every input."),
    Mutant("drops-second-snapshot", _CL, ViolationKind.LIVENESS, DropsSecondSnapshot,
           "Snapshots overlap: a marker counts while another snapshot is being recorded."),
    Mutant("records-for-one-snapshot", _CL, ViolationKind.CUT, RecordsForOneSnapshot,
           "Snapshots share nothing: a message counts for each that is open."),
    Mutant("forgets-aborted", _CL, ViolationKind.PROTOCOL, ForgetsAborted,
           "A snapshot that was given up is never started again."),
)  # fmt: skip
