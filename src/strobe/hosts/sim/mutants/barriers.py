"""Barriers with one rule broken at a time: holding, recording, sending on, channel content, ends, giving up."""

from __future__ import annotations

from typing import Any

from strobe.hosts.sim.judge import ViolationKind
from strobe.hosts.sim.mutants.base import FinishesBeforeTheLast, Mutant
from strobe.model.ids import ChannelId, SnapshotId
from strobe.protocol.barriers import Barriers
from strobe.protocol.events import (
    BarrierArrived,
    ChannelRecorded,
    Effect,
    Hold,
    Initiate,
    Input,
    MessageArrived,
    NodeRecorded,
    RecordState,
    SendBarrier,
)

__all__ = ["BARRIERS"]


# ── alignment ───────────────────────────────────────────────────────────────────────────────────────────────────────


class HoldsNothing(Barriers):
    """Lets inputs that have delivered their barrier go on delivering."""

    def _message(self, channel: ChannelId, message: Any) -> tuple[Effect, ...]:
        arrived, self._arrived = self._arrived, []
        try:
            return super()._message(channel, message)
        finally:
            self._arrived = arrived

    # A newer barrier, or the end, can come on an input that is not held.

    def _barrier(self, arrived: BarrierArrived) -> tuple[Effect, ...]:
        self._arrived = [c for c in self._arrived if c != arrived.channel]
        return super()._barrier(arrived)

    def _end(self, channel: ChannelId) -> tuple[Effect, ...]:
        self._arrived = [c for c in self._arrived if c != channel]
        return super()._end(channel)

    def _arrive(self, barrier: BarrierArrived) -> tuple[Effect, ...]:
        effects = super()._arrive(barrier)
        return tuple(e for e in effects if not isinstance(e, Hold) or self._holds(e.channel))

    def _holds(self, channel: ChannelId) -> bool:
        return False


class HoldForgetsOneInput(HoldsNothing):
    """Holds every input but its first one."""

    def _holds(self, channel: ChannelId) -> bool:
        return channel != self.inputs[0]


class RecordsAtFirstBarrier(Barriers):
    """Takes the first barrier for all of them: it records, and calls every channel empty."""

    def _all_arrived(self) -> bool:
        self._arrived = [c for c in self.inputs if c not in self._ended and c not in self.feedback]
        return True


class WaitsForFeedback(Barriers):
    """Waits for the barrier on feedback channels, which comes only after the node has sent its own."""

    def _all_arrived(self) -> bool:
        return all(c in self._arrived or c in self._ended for c in self.inputs)


class AlignsOvertaking(Barriers):
    """Waits for the others even at a barrier that has overtaken messages, and forgets those."""

    def _arrive(self, barrier: BarrierArrived) -> tuple[Effect, ...]:
        return super()._arrive(BarrierArrived(barrier.channel, barrier.snapshot))


# ── recording, and what is sent on ──────────────────────────────────────────────────────────────────────────────────


class ReleasesBeforeRecording(Barriers):
    """Releases the inputs when all barriers are there, lets a message through, and records when the next comes."""

    _pending: tuple[SnapshotId, bool, tuple[ChannelId, ...]] | None = None
    _passed = False

    def key(self) -> object:
        return super().key(), self._pending, self._passed

    def step(self, input: Input) -> tuple[Effect, ...]:
        if self._pending is None:
            return super().step(input)
        if isinstance(input, MessageArrived) and not self._passed:
            self._passed = True
            return super().step(input)
        return self._record_at_last(*self._pending) + super().step(input)

    def _record(self, snapshot: SnapshotId, *, overtakes: bool, by: BarrierArrived | None = None) -> tuple[Effect, ...]:
        if not self._arrived:
            return super()._record(snapshot, overtakes=overtakes, by=by)
        self._pending, self._passed = (snapshot, overtakes, tuple(self._arrived)), False
        return self._release()

    def _record_at_last(
        self, snapshot: SnapshotId, overtakes: bool, arrived: tuple[ChannelId, ...]
    ) -> tuple[Effect, ...]:
        self._pending = None
        self._arrived = list(arrived)
        return super()._record(snapshot, overtakes=overtakes)


class _DoesLate(Barriers):
    """Keeps some effects of a step back until the next thing comes."""

    _late: tuple[Effect, ...] = ()

    def key(self) -> object:
        return super().key(), self._late

    def step(self, input: Input) -> tuple[Effect, ...]:
        late, effects = self._late, super().step(input)
        self._late = tuple(e for e in effects if self._is_late(e))
        return (*late, *(e for e in effects if not self._is_late(e)))

    def _is_late(self, effect: Effect) -> bool:
        raise NotImplementedError


class KeepsOneHeld(Barriers):
    """Forgets to release one of the inputs that it held."""

    def _release(self) -> tuple[Effect, ...]:
        return super()._release()[1:]


class RecordsLate(_DoesLate):
    """Sends the barriers at once, but captures the state when the next thing comes: what it sent since is in it."""

    def _is_late(self, effect: Effect) -> bool:
        return isinstance(effect, RecordState | ChannelRecorded | NodeRecorded)


class SendsBarriersLate(_DoesLate):
    """Records at once, but keeps the barriers back until the next thing comes."""

    def _is_late(self, effect: Effect) -> bool:
        return isinstance(effect, SendBarrier)


class ForgetsAnOutput(Barriers):
    """Sends no barrier on its last output channel."""

    def _record(self, snapshot: SnapshotId, *, overtakes: bool, by: BarrierArrived | None = None) -> tuple[Effect, ...]:
        effects = super()._record(snapshot, overtakes=overtakes, by=by)
        return tuple(e for e in effects if not (isinstance(e, SendBarrier) and e.channel == self.outputs[-1]))


class SendsBarriersTwice(Barriers):
    """Sends its barriers again when the last input's barrier has come."""

    def _finish(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        effects = super()._finish(snapshot)
        return (*effects, *(SendBarrier(c, snapshot) for c in self.outputs)) if effects else ()


class JoinsTwice(Barriers):
    """Starts a snapshot whenever it is asked to, even one that it has recorded."""

    def _initiate(self, asked: Initiate) -> tuple[Effect, ...]:
        self._newest = min(self._newest, SnapshotId(asked.snapshot - 1))
        return super()._initiate(asked)


class RecordsAfterItsTrigger(Barriers):
    """Asked to start, it takes one message more, whichever barrier stood before it, and records then."""

    _asked: SnapshotId | None = None
    _met: tuple[ChannelId, ...] = ()

    def key(self) -> object:
        return super().key(), self._asked, self._met

    def _initiate(self, asked: Initiate) -> tuple[Effect, ...]:
        if all(c in self._ended for c in self.inputs) or asked.snapshot <= self._newest:
            return super()._initiate(asked)
        self._asked, self._met = asked.snapshot, ()
        return ()

    def step(self, input: Input) -> tuple[Effect, ...]:
        asked = self._asked
        if asked is None:
            return super().step(input)
        if isinstance(input, BarrierArrived) and input.snapshot == asked and not input.overtaken:
            self._met += (input.channel,)
            return ()
        message = super().step(input) if isinstance(input, MessageArrived) else ()
        self._asked, self._arrived = None, list(self._met)
        effects = (*message, *super()._initiate(Initiate(asked)))
        return effects if message else effects + super().step(input)


class TriggerClosesInputs(Barriers):
    """Asked to start, it takes itself for a source: it calls every input empty."""

    def _initiate(self, asked: Initiate) -> tuple[Effect, ...]:
        ended, self._ended = self._ended, set(self.inputs)
        try:
            return super()._initiate(asked)
        finally:
            self._ended = ended


# ── channel content ─────────────────────────────────────────────────────────────────────────────────────────────────


class RecordsNoMessages(Barriers):
    """Forgets what open channels deliver between the recording and their barrier."""

    def _message(self, channel: ChannelId, message: Any) -> tuple[Effect, ...]:
        recording, self._recording = self._recording, {}
        try:
            return super()._message(channel, message)
        finally:
            self._recording = recording


class RecordsPastTheBarrier(Barriers):
    """Keeps recording on every channel until the last barrier has come."""

    _closed: frozenset[tuple[SnapshotId, ChannelId]] = frozenset()

    def key(self) -> object:
        return super().key(), self._closed

    def _close(self, snapshot: SnapshotId, channel: ChannelId, overtaken: tuple[Any, ...]) -> tuple[Effect, ...]:
        self._recording[snapshot][channel] += overtaken
        self._closed |= {(snapshot, channel)}
        return ()

    def _finish(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        channels = self._recording[snapshot]
        if any((snapshot, channel) not in self._closed for channel in channels):
            return ()
        contents = tuple(ChannelRecorded(snapshot, c, tuple(messages)) for c, messages in channels.items())
        channels.clear()
        return (*contents, *super()._finish(snapshot))


class FinishesEarly(FinishesBeforeTheLast, Barriers):
    """Calls its part complete when one channel is still open."""

    def _channels_open(self, snapshot: SnapshotId) -> int:
        return len(self._recording[snapshot])


class ForgetsOvertaken(Barriers):
    """Forgets what a barrier has jumped over."""

    def _close(self, snapshot: SnapshotId, channel: ChannelId, overtaken: tuple[Any, ...]) -> tuple[Effect, ...]:
        return super()._close(snapshot, channel, ())


class DropsFeedback(Barriers):
    """Calls feedback channels empty when it records."""

    def _close(self, snapshot: SnapshotId, channel: ChannelId, overtaken: tuple[Any, ...]) -> tuple[Effect, ...]:
        effects = super()._close(snapshot, channel, overtaken)
        return tuple(
            ChannelRecorded(e.snapshot, e.channel, ())
            if isinstance(e, ChannelRecorded) and e.channel in self.feedback
            else e
            for e in effects
        )


# ── timeouts, ends, giving up ───────────────────────────────────────────────────────────────────────────────────────


class TimeoutForgetsHeld(Barriers):
    """When the timer runs out, forgets which inputs have delivered their barrier."""

    def _timed_out(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if snapshot != self._aligning:
            return ()
        return self._release() + self._record(snapshot, overtakes=True)


class TimerRecordsAgain(Barriers):
    """Records when the timer runs out, even if the last barrier was faster."""

    def _timed_out(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        return self._record(snapshot, overtakes=True)


class WaitsForEnded(Barriers):
    """Waits for the barrier of an input that has ended."""

    def _all_arrived(self) -> bool:
        return all(c in self._arrived or c in self.feedback for c in self.inputs)

    def _record(self, snapshot: SnapshotId, *, overtakes: bool, by: BarrierArrived | None = None) -> tuple[Effect, ...]:
        ended, self._ended = self._ended, set()
        try:
            return super()._record(snapshot, overtakes=overtakes, by=by)
        finally:
            self._ended = ended


class EndClosesNothing(Barriers):
    """Leaves a channel open for a snapshot that is being recorded when the channel ends."""

    def _end(self, channel: ChannelId) -> tuple[Effect, ...]:
        recording, self._recording = self._recording, {}
        try:
            return super()._end(channel)
        finally:
            self._recording.update(recording)


class KeepsOlder(Barriers):
    """Does not give an older snapshot up when a newer barrier comes."""

    def _overtaken_by(self, channel: ChannelId, newer: SnapshotId) -> tuple[Effect, ...]:
        return ()


class ForgetsAborted(Barriers):
    """Restarts a snapshot that was given up, when a late barrier comes."""

    def _abort(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        effects = super()._abort(snapshot)
        self._aborted.discard(snapshot)
        return effects


class AbortKeepsHolding(Barriers):
    """Does not release the inputs that a snapshot held when it is given up."""

    def _abort(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        super()._abort(snapshot)
        return ()


_ALIGNED = ("aligned", "aligned-with-timeout")
_UNALIGNED = ("unaligned", "aligned-with-timeout")
_TIMEOUT = ("aligned-with-timeout",)
_ALL = ("aligned", "unaligned", "aligned-with-timeout")

BARRIERS = (
    Mutant("holds-nothing", _ALIGNED, ViolationKind.CUT, HoldsNothing,
           "An input that has delivered its barrier is held until all have."),
    Mutant("hold-forgets-one-input", _ALIGNED, ViolationKind.CUT, HoldForgetsOneInput,
           "Every input that has delivered its barrier is held."),
    Mutant("records-at-first-barrier", _ALIGNED, ViolationKind.CUT, RecordsAtFirstBarrier,
           "An aligned node records when the last barrier has come."),
    Mutant("waits-for-feedback", ("aligned",), ViolationKind.LIVENESS, WaitsForFeedback,
           "Alignment does not wait for feedback channels."),
    Mutant("aligns-overtaking", _TIMEOUT, ViolationKind.CUT, AlignsOvertaking,
           "A barrier that has overtaken messages records at once."),
    Mutant("releases-before-recording", _ALIGNED, ViolationKind.CUT, ReleasesBeforeRecording,
           "Held inputs are released after the recording."),
    Mutant("keeps-one-held", _ALIGNED, ViolationKind.LIVENESS, KeepsOneHeld,
           "Every input that was held is released after the recording."),
    Mutant("records-after-barriers", _ALL, ViolationKind.CUT, RecordsLate,
           "A node records its state before its barriers go out."),
    Mutant("sends-barriers-late", _ALL, ViolationKind.CUT, SendsBarriersLate,
           "A barrier goes out before every message that follows the recording."),
    Mutant("forgets-a-barrier", _ALL, ViolationKind.LIVENESS, ForgetsAnOutput,
           "A barrier is sent on every output channel."),
    Mutant("sends-barriers-twice", _ALL, ViolationKind.PROTOCOL, SendsBarriersTwice,
           "One barrier on each channel."),
    Mutant("joins-twice", _ALL, ViolationKind.CUT, JoinsTwice,
           "A node that is asked to start a snapshot that it has recorded does nothing."),
    Mutant("records-after-its-trigger", ("unaligned",), ViolationKind.CUT, RecordsAfterItsTrigger,
           "A node that is asked to start records before anything else comes."),
    Mutant("trigger-closes-inputs", ("unaligned",), ViolationKind.CUT, TriggerClosesInputs,
           "A node that is asked to start leaves its live inputs open until their barriers come."),
    Mutant("records-no-messages", _UNALIGNED, ViolationKind.CUT, RecordsNoMessages,
           "What an open channel delivers ahead of its barrier is its content."),
    Mutant("records-past-the-barrier", _UNALIGNED, ViolationKind.CUT, RecordsPastTheBarrier,
           "A channel's content ends at its barrier."),
    Mutant("forgets-overtaken", _UNALIGNED, ViolationKind.CUT, ForgetsOvertaken,
           "What a barrier overtakes is the channel's content."),
    Mutant("finishes-before-barriers", ("unaligned", "aligned", "aligned-with-timeout"), ViolationKind.CUT,
           FinishesEarly,
           "A node's part is complete when every input is closed."),
    Mutant("drops-feedback", _ALL, ViolationKind.CUT, DropsFeedback,
           "What is on its way back in a loop belongs to the snapshot."),
    Mutant("timeout-forgets-held", _TIMEOUT, ViolationKind.LIVENESS, TimeoutForgetsHeld,
           "At the timeout, barriers that have come still count."),
    Mutant("timer-records-again", _TIMEOUT, ViolationKind.PROTOCOL, TimerRecordsAgain,
           "A timer that runs out after the recording does nothing."),
    Mutant("waits-for-ended", _ALL, ViolationKind.LIVENESS, WaitsForEnded,
           "An input that has ended counts as having delivered every barrier."),
    Mutant("end-closes-nothing", _UNALIGNED, ViolationKind.LIVENESS, EndClosesNothing,
           "The end of an input ends its content."),
    Mutant("keeps-older", _ALL, ViolationKind.CUT, KeepsOlder,
           "A newer barrier gives an older snapshot up whose barrier can no longer come."),
    Mutant("forgets-aborted-barrier", _ALL, ViolationKind.LIVENESS, ForgetsAborted,
           "A late barrier does not restart a snapshot that was given up."),
    Mutant("abort-keeps-holding", _ALIGNED, ViolationKind.LIVENESS, AbortKeepsHolding,
           "Giving a snapshot up releases the inputs that it held."),
)  # fmt: skip
