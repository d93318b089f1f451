"""Asynchronous barrier snapshotting (Carbone et al. 2015), aligned and unaligned.

Theory of operation
-------------------
Barriers are injected at the nodes without live inputs and flow with the data. Snapshot ids rise; on one channel
barriers arrive in rising order, and a node is asked to start snapshots in rising order. At a node a snapshot passes
through two phases:

*Aligning.* Inputs that have delivered barrier n are held until every regular input has; then the node records, sends
its barriers and releases. Everything before the barriers is in the state, nothing behind them is, so regular channels
have no content. Only one snapshot can be aligning.

*Recording.* The node has recorded n, but some channels are still open: what they deliver ahead of their barrier n is
their content. Aligned snapshots leave only feedback channels open (section 4.3 of the paper: the loop's records belong
to the snapshot); unaligned ones leave every channel open whose barrier has not come. Several may be recording.

Unaligned means: record at the *first* barrier. Its own channel's content is what the barrier overtook. Aligned with a
timeout starts aligned; when the timer runs out it records at once, and asks the host to let waiting barriers overtake.

*Who starts.* Alignment needs barriers that come through the inputs, so an aligned snapshot starts at the nodes without
live inputs. An unaligned one may start anywhere, at any number of nodes (Chandy and Lamport 1985, section 3.1: they are
its markers, but for the overtaking). A node that is asked to start records at once and leaves every live input open:
what comes on it ahead of its barrier was sent before its sender's recording. A node that meets a barrier first has
recorded when it is asked, and does nothing. Either way nothing from behind a barrier is delivered to a node that has
not recorded. If all are asked at the same time, a snapshot takes as long as the slowest node, not as long as a path.

A barrier says what its snapshot asks for (`BarrierOptions`), and a node sends on what it was told: so it knows when it
records, whatever else is said to it when. A snapshot may ask to be aligned at nodes that do not align others. While it
is under way no unaligned one may be started: that one would overtake it, and it would have to be given up.

An input that has ended counts as having delivered every barrier. A newer barrier on a channel that has not delivered
an older one proves that the older one was given up upstream: it is declined here, and the newer one takes over.

Two inputs, aligned: the first to deliver its barrier is held until the other one has.

>>> node = Barriers([ChannelId("a"), ChannelId("b")], [ChannelId("out")])
>>> node.step(BarrierArrived(ChannelId("a"), SnapshotId(1)))
(Hold(channel='a'),)
>>> for effect in node.step(BarrierArrived(ChannelId("b"), SnapshotId(1))):
...     print(type(effect).__name__, getattr(effect, "channel", "-"))
Hold b
RecordState -
SendBarrier out
ChannelRecorded a
ChannelRecorded b
Release a
Release b
NodeRecorded -

Unaligned, and asked to start: it records at once, and its inputs stay open until their barriers come.

>>> node = Barriers([ChannelId("a")], [ChannelId("out")], mode=BarrierMode.UNALIGNED)
>>> for effect in node.step(Initiate(SnapshotId(1))):
...     print(type(effect).__name__, getattr(effect, "channel", "-"))
RecordState -
SendBarrier out
Overtake a
>>> node.step(MessageArrived(ChannelId("a"), "sent before the barrier"))
(Deliver(channel='a', message='sent before the barrier'),)
>>> node.step(BarrierArrived(ChannelId("a"), SnapshotId(1)))[0].content
('sent before the barrier',)
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import ChannelId, SnapshotId
from strobe.protocol.events import (
    ORDINARY,
    Abort,
    AlignmentTimedOut,
    BarrierArrived,
    BarrierOptions,
    ChannelRecorded,
    Declined,
    Deliver,
    Effect,
    Hold,
    Initiate,
    Input,
    InputEnded,
    MessageArrived,
    NodeRecorded,
    Overtake,
    RecordState,
    Release,
    SendBarrier,
    StartTimer,
)

__all__ = ["BarrierMode", "Barriers"]


class BarrierMode(Enum):
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    ALIGNED_WITH_TIMEOUT = "aligned-with-timeout"


class Barriers:
    """One node's part in every snapshot that passes."""

    stamps_messages = False

    def __init__(
        self,
        inputs: Iterable[ChannelId],
        outputs: Iterable[ChannelId],
        *,
        feedback: Iterable[ChannelId] = (),
        mode: BarrierMode = BarrierMode.ALIGNED,
        newest: int = 0,
    ) -> None:
        """`newest` is the highest id that this node may have seen in an earlier life: older barriers are stale."""
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.feedback = frozenset(feedback)
        self.mode = mode
        if not self.feedback <= set(self.inputs):
            others = sorted(self.feedback - set(self.inputs))
            raise HostFault(f"Feedback channels {others} are not inputs of this node.")
        self._newest = SnapshotId(newest)  # the highest snapshot begun, or given up, here
        self._last: dict[ChannelId, SnapshotId] = {}  # the newest barrier of each channel
        self._ended: set[ChannelId] = set()
        self._aligning: SnapshotId | None = None
        self._arrived: list[ChannelId] = []  # in alignment, in order of arrival
        self._recording: dict[SnapshotId, dict[ChannelId, list[Any]]] = {}
        self._options = ORDINARY  # of the snapshot that was begun last
        self._aborted: set[SnapshotId] = set()  # aborted before any barrier came; ids above _newest only

    @property
    def aligning(self) -> SnapshotId | None:
        return self._aligning

    @property
    def recording(self) -> tuple[SnapshotId, ...]:
        return tuple(self._recording)

    @property
    def held(self) -> frozenset[ChannelId]:
        """Inputs that must deliver nothing at present."""
        return frozenset(c for c in self._arrived if c not in self._ended)

    def missing(self, snapshot: SnapshotId) -> tuple[ChannelId, ...]:
        """The inputs whose barrier this node waits for, or has left open."""
        still_open = self._recording.get(snapshot)
        if still_open is not None or self.passed(snapshot):
            return tuple(still_open or ())
        return tuple(c for c in self.inputs if c not in (*self._arrived, *self._ended, *self.feedback))

    def passed(self, snapshot: SnapshotId) -> bool:
        """Whether what lies behind this barrier on a channel may be delivered: it is recorded, or given up, here."""
        return snapshot in self._aborted or (snapshot <= self._newest and snapshot != self._aligning)

    def overtakes(self, options: BarrierOptions) -> bool:
        """Whether a barrier that asks for this need not wait for what lies before it."""
        return self.mode is BarrierMode.UNALIGNED and not options.aligned

    def key(self) -> object:
        recording = tuple(
            (s, tuple((c, tuple(content)) for c, content in sorted(channels.items())))
            for s, channels in sorted(self._recording.items())
        )
        return (
            self._newest, tuple(sorted(self._last.items())), frozenset(self._ended), self._aligning,
            frozenset(self._arrived), recording, frozenset(self._aborted), self._options,
        )  # fmt: skip

    def step(self, input: Input) -> tuple[Effect, ...]:
        match input:
            case MessageArrived():
                return self._message(input.channel, input.message)
            case BarrierArrived():
                return self._barrier(input)
            case Initiate():
                return self._initiate(input)
            case InputEnded():
                return self._end(input.channel)
            case AlignmentTimedOut():
                return self._timed_out(input.snapshot)
            case Abort():
                return self._abort(input.snapshot)
            case _:
                raise HostFault(f"Barriers take no {type(input).__name__}.")

    # ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _message(self, channel: ChannelId, message: Any) -> tuple[Effect, ...]:
        self._check_live(channel, "message")
        if channel in self._arrived:
            raise HostFault(f"A message came on {channel!r}, which is held for snapshot {self._aligning}.")
        for channels in self._recording.values():
            if channel in channels:
                channels[channel].append(message)
        return (Deliver(channel, message),)

    def _initiate(self, asked: Initiate) -> tuple[Effect, ...]:
        snapshot = asked.snapshot
        unaligned = self.overtakes(asked.options)
        live = [c for c in self.inputs if c not in self._ended and c not in self.feedback]
        if live and not unaligned:
            raise HostFault(
                f"Snapshot {snapshot} was to start at a node with live inputs ({', '.join(live)}): barriers must come "
                "through them."
            )
        if snapshot < 1:
            raise HostFault(f"Snapshot {snapshot} was to start: snapshots are numbered from 1.")
        if snapshot <= self._newest or snapshot in self._aborted:
            return ()
        self._begin(snapshot, asked.options)
        return self._record(snapshot, overtakes=unaligned)

    def _barrier(self, arrived: BarrierArrived) -> tuple[Effect, ...]:
        channel, snapshot = arrived.channel, arrived.snapshot
        self._check_live(channel, "barrier")
        if snapshot < 1:
            raise PeerFault(f"Barrier {snapshot} came on {channel!r}: snapshots are numbered from 1.")
        if channel in self._arrived:
            raise HostFault(f"Barrier {snapshot} came on {channel!r}, which is held for snapshot {self._aligning}.")
        if snapshot <= self._last.get(channel, 0):
            raise PeerFault(
                f"Barrier {snapshot} came on {channel!r} after barrier {self._last[channel]}: "
                "a channel's barriers must rise."
            )
        self._last[channel] = snapshot
        effects = self._overtaken_by(channel, snapshot)
        if snapshot in self._recording:
            return effects + self._close(snapshot, channel, arrived.overtaken) + self._finish(snapshot)
        if snapshot in self._aborted or (snapshot <= self._newest and snapshot != self._aligning):
            return effects  # given up or already finished here: swallowed
        if snapshot != self._aligning:
            self._begin(snapshot, arrived.options)
        return effects + self._arrive(arrived)

    def _end(self, channel: ChannelId) -> tuple[Effect, ...]:
        self._check_live(channel, "end")
        if channel in self._arrived:
            raise HostFault(f"{channel!r} ended, but it is held for snapshot {self._aligning}.")
        self._ended.add(channel)
        effects: tuple[Effect, ...] = ()
        for snapshot in [s for s, channels in self._recording.items() if channel in channels]:
            effects += self._close(snapshot, channel, ()) + self._finish(snapshot)
        if self._aligning is not None and self._all_arrived():
            effects += self._record(self._aligning, overtakes=False)
        return effects

    def _timed_out(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if self.mode is not BarrierMode.ALIGNED_WITH_TIMEOUT:
            raise HostFault(f"A timer ran out for snapshot {snapshot}, but {self.mode.value} barriers ask for none.")
        if snapshot != self._aligning:
            return ()  # the last barrier, or an abort, was faster
        return self._record(snapshot, overtakes=True)

    def _abort(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        self._recording.pop(snapshot, None)
        if snapshot == self._aligning:
            return self._release()
        if snapshot > self._newest:
            self._aborted.add(snapshot)
        return ()

    # ── rules; the mutants in the simulator override exactly these ──────────────────────────────────────────────────

    def _overtaken_by(self, channel: ChannelId, newer: SnapshotId) -> tuple[Effect, ...]:
        """An older snapshot whose barrier can no longer come on this channel is given up."""
        effects: tuple[Effect, ...] = ()
        if self._aligning is not None and self._aligning < newer:
            effects += (Declined(self._aligning, f"barrier {newer} came on {channel} before it"), *self._release())
        for snapshot in [s for s, channels in self._recording.items() if s < newer and channel in channels]:
            del self._recording[snapshot]
            effects += (Declined(snapshot, f"barrier {newer} came on {channel} before it"),)
        return effects

    def _begin(self, snapshot: SnapshotId, options: BarrierOptions) -> None:
        self._newest = snapshot
        self._options = options
        self._aborted = {s for s in self._aborted if s > snapshot}

    def _arrive(self, barrier: BarrierArrived) -> tuple[Effect, ...]:
        """A barrier of a snapshot that is not recorded yet: wait for the others, or record now."""
        if barrier.overtook or self.overtakes(barrier.options):
            # What it jumped over is not in the state: there is nothing left to align.
            return self._record(barrier.snapshot, overtakes=True, by=barrier)
        # A feedback channel is never waited for; but if its barrier comes first, what follows must wait all the same.
        first = self._aligning is None
        self._aligning = barrier.snapshot
        self._arrived.append(barrier.channel)
        effects: tuple[Effect, ...] = (Hold(barrier.channel),)
        if self._all_arrived():
            return effects + self._record(barrier.snapshot, overtakes=False)
        if first and self.mode is BarrierMode.ALIGNED_WITH_TIMEOUT:
            return (*effects, StartTimer(barrier.snapshot))
        return effects

    def _all_arrived(self) -> bool:
        return all(c in self._arrived or c in self._ended or c in self.feedback for c in self.inputs)

    def _record(self, snapshot: SnapshotId, *, overtakes: bool, by: BarrierArrived | None = None) -> tuple[Effect, ...]:
        """Record, then send the barriers, then let the held inputs go on: in this order, or the cut is wrong."""
        effects: list[Effect] = [RecordState(snapshot, self._options)]
        effects += (SendBarrier(channel, snapshot, overtakes, self._options) for channel in self.outputs)
        self._recording[snapshot] = {c: [] for c in self.inputs}
        for channel in self.inputs:
            if by is not None and channel == by.channel:
                effects += self._close(snapshot, channel, by.overtaken)
            elif channel in self._arrived or channel in self._ended:
                effects += self._close(snapshot, channel, ())
        effects += self._release()
        if overtakes:
            effects += (Overtake(channel, snapshot) for channel in self._recording[snapshot])
        effects += self._finish(snapshot)
        return tuple(effects)

    def _release(self) -> tuple[Effect, ...]:
        # In the order of the inputs, not of the arrivals: the effects must depend on nothing that the key leaves out.
        effects = tuple(Release(channel) for channel in self.inputs if channel in self._arrived)
        self._aligning = None
        self._arrived = []
        return effects

    def _close(self, snapshot: SnapshotId, channel: ChannelId, overtaken: tuple[Any, ...]) -> tuple[Effect, ...]:
        """A channel's content: what it delivered from the recording to the barrier, then what the barrier overtook."""
        channels = self._recording[snapshot]
        if channel not in channels:
            return ()
        return (ChannelRecorded(snapshot, channel, (*channels.pop(channel), *overtaken)),)

    def _finish(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if self._recording[snapshot]:
            return ()
        del self._recording[snapshot]
        return (NodeRecorded(snapshot),)

    def _check_live(self, channel: ChannelId, what: str) -> None:
        if channel not in self.inputs:
            raise HostFault(f"A {what} came on {channel!r}, which is not an input of this node.")
        if channel in self._ended:
            raise PeerFault(f"A {what} came on {channel!r} after its end.")
