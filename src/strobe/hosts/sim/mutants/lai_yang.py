"""Lai–Yang with one rule broken at a time (1987: the colour of messages, and the closing of channels by counting)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strobe.hosts.sim.judge import ViolationKind
from strobe.hosts.sim.mutants.base import FinishesBeforeTheLast, Mutant
from strobe.model.ids import ChannelId, SnapshotId
from strobe.protocol.events import (
    ChannelRecorded,
    Effect,
    Input,
    SendCount,
    Sending,
    SendStamped,
)
from strobe.protocol.lai_yang import LaiYang

__all__ = ["LAI_YANG"]


class DeliversBeforeColour(LaiYang):
    """Delivers a message of a later colour first, and takes that colour when the next thing comes."""

    _owed = 0

    def key(self) -> object:
        return super().key(), self._owed

    def step(self, input: Input) -> tuple[Effect, ...]:
        if isinstance(input, Sending):
            return super().step(input)
        return self._record_up_to(SnapshotId(self._owed)) + super().step(input)

    def _colour(self, stamp: int) -> tuple[Effect, ...]:
        self._owed = max(self._owed, stamp)
        return ()


class StampsStale(LaiYang):
    """Stamps a message with the number before its own."""

    def _send(self, channel: ChannelId, message: Any) -> tuple[Effect, ...]:
        super()._send(channel, message)
        return (SendStamped(channel, message, max(0, self.number - 1)),)


class RecordsAnyColour(LaiYang):
    """Takes every message that comes on an open channel for its content, whatever its colour."""

    def _message(self, channel: ChannelId, message: Any, stamp: int) -> tuple[Effect, ...]:
        return self._colour(stamp) + super()._message(channel, message, 0)


class ClosesAtTheCount(LaiYang):
    """Closes a channel as soon as the count is there, without waiting for what it counts."""

    def _settle(self, snapshot: SnapshotId, channel: ChannelId) -> tuple[Effect, ...]:
        flight = self._open[snapshot][channel]
        if flight.expected is None:
            return ()
        del self._open[snapshot][channel]
        return (ChannelRecorded(snapshot, channel, tuple(flight.content)), *self._finish(snapshot))


class ForgetsReceivedBefore(LaiYang):
    """Does not add what it had received before the recording when it compares with the count."""

    def _record(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        effects = super()._record(snapshot)
        for flight in self._open.get(snapshot, {}).values():
            flight.before = 0
        return effects


class CountsLate(LaiYang):
    """Takes the count not at the recording but at the next thing that happens, and counts what was sent since."""

    def __init__(self, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId]) -> None:
        super().__init__(inputs, outputs)
        self._late: tuple[SnapshotId, ...] = ()

    def key(self) -> object:
        return super().key(), self._late

    def step(self, input: Input) -> tuple[Effect, ...]:
        if isinstance(input, Sending):
            return super().step(input)
        late, self._late = self._late, ()
        counts = tuple(SendCount(c, s, self._sent[c]) for s in late if s not in self._aborted for c in self.outputs)
        return (*counts, *super().step(input))

    def _record(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        self._late += (snapshot,)
        return tuple(e for e in super()._record(snapshot) if not isinstance(e, SendCount))


class ForgetsAnOutput(LaiYang):
    """Sends no count for its last output channel."""

    def _record(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        return tuple(
            e for e in super()._record(snapshot) if not (isinstance(e, SendCount) and e.channel == self.outputs[-1])
        )


class IgnoresInvitation(LaiYang):
    """Throws a count away when it has not recorded that snapshot yet."""

    def _count(self, channel: ChannelId, snapshot: SnapshotId, sent: int) -> tuple[Effect, ...]:
        return super()._count(channel, snapshot, sent) if snapshot <= self.number else ()


class FinishesEarly(FinishesBeforeTheLast, LaiYang):
    """Calls its part complete when one channel is still open."""

    def _channels_open(self, snapshot: SnapshotId) -> int:
        return len(self._open[snapshot])


class SkipsOlder(LaiYang):
    """Goes straight to the newest snapshot that it hears of, and leaves out those between."""

    def _record_up_to(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if self.number < snapshot:
            self.number = snapshot - 1
        return super()._record_up_to(snapshot)


class RecordsForOneSnapshot(LaiYang):
    """Gives each message to the newest open snapshot's content only."""

    def _message(self, channel: ChannelId, message: Any, stamp: int) -> tuple[Effect, ...]:
        effects = self._colour(stamp)
        newest = max(self._open, default=None)
        set_aside = {s: channels for s, channels in self._open.items() if s != newest}
        for snapshot in set_aside:
            del self._open[snapshot]
        effects += super()._message(channel, message, stamp)
        self._open.update(set_aside)
        return effects


class ForgetsAborted(LaiYang):
    """Stops recording when a snapshot is given up, but records it when it hears of it for the first time afterwards."""

    def _abort(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if snapshot <= self.number:
            return super()._abort(snapshot)
        return ()


_LY = ("lai-yang",)

LAI_YANG = (
    Mutant("delivers-before-colour", _LY, ViolationKind.CUT, DeliversBeforeColour,
           "Colour before delivery: a node records before it takes a later message in."),
    Mutant("stamps-stale", _LY, ViolationKind.CUT, StampsStale,
           "A message carries the number that its sender has at the sending."),
    Mutant("records-any-colour", _LY, ViolationKind.CUT, RecordsAnyColour,
           "A channel's content holds only messages of the old colour."),
    Mutant("closes-at-the-count", _LY, ViolationKind.CUT, ClosesAtTheCount,
           "A channel stays open until everything that was counted has come."),
    Mutant("forgets-received-before", _LY, ViolationKind.LIVENESS, ForgetsReceivedBefore,
           "What came before the recording counts against the sender's count."),
    Mutant("counts-late", _LY, ViolationKind.LIVENESS, CountsLate,
           "The count is taken at the recording."),
    Mutant("forgets-a-count", _LY, ViolationKind.LIVENESS, ForgetsAnOutput,
           "A count is sent for every output channel."),
    Mutant("ignores-invitation", _LY, ViolationKind.LIVENESS, IgnoresInvitation,
           "A count makes a node record that has not done so: on a silent channel nothing else would."),
    Mutant("finishes-before-counts", _LY, ViolationKind.CUT, FinishesEarly,
           "A node's part is complete when every input is closed."),
    Mutant("skips-older", _LY, ViolationKind.PROTOCOL, SkipsOlder,
           "A node that hears of a later snapshot first records those between as well."),
    Mutant("records-for-newest-only", _LY, ViolationKind.LIVENESS, RecordsForOneSnapshot,
           "Snapshots share nothing: an old message counts for each that is open."),
    Mutant("forgets-aborted-number", _LY, ViolationKind.LIVENESS, ForgetsAborted,
           "A snapshot that was given up is not recorded by those who hear of it later."),
)  # fmt: skip
