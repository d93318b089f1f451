"""Lai and Yang's algorithm (1987) for channels that reorder, for many snapshots at once.

Theory of operation
-------------------
There are no markers. A node's *number* is the newest snapshot that it has recorded, and every message carries its
sender's number (the paper's colour: white below n, red from n on). Two rules:

1. *Colour before delivery.* A node records snapshot n before it delivers a message stamped n or higher. So nothing
   that was sent after a recording is received before one.
2. *Closed by counting.* When P records n it says, off the data path, how many messages it had sent on each channel.
   The content of P→Q is the messages stamped below n that Q receives after recording n; it is complete once those,
   and those that Q had received before, add up to P's count.

Counts may take any path and arrive in any order, before or after the messages that they count. A count also serves as
the invitation to record: on a silent channel nothing else would come. Recording early is always legal.

A message that says it was sent before the recording, and comes after it, was in flight; the sender's count says how
many there must be.

>>> node = LaiYang([ChannelId("a")], [ChannelId("out")])
>>> [type(effect).__name__ for effect in node.step(Initiate(SnapshotId(1)))]
['RecordState', 'SendCount']
>>> node.step(MessageArrived(ChannelId("a"), "hello", stamp=0))
(Deliver(channel='a', message='hello'),)
>>> node.step(CountArrived(ChannelId("a"), SnapshotId(1), sent=1))
(ChannelRecorded(snapshot=1, channel='a', content=('hello',)), NodeRecorded(snapshot=1))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import ChannelId, SeenIds, SnapshotId
from strobe.protocol.events import (
    Abort,
    ChannelRecorded,
    CountArrived,
    Deliver,
    Effect,
    Initiate,
    Input,
    MessageArrived,
    NodeRecorded,
    RecordState,
    SendCount,
    Sending,
    SendStamped,
)

__all__ = ["LaiYang"]


class _InFlight:
    """One channel's content for one snapshot, while it is open."""

    __slots__ = ("before", "content", "expected")

    def __init__(self, before: int) -> None:
        self.before = before  # received before this node recorded; all of these are white
        self.content: list[Any] = []
        self.expected: int | None = None  # the sender's count, once it is known

    def complete(self) -> bool:
        return self.expected is not None and self.before + len(self.content) >= self.expected


class LaiYang:
    """One node's part in every snapshot that passes."""

    stamps_messages = True

    def __init__(self, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.number = 0
        self._sent = dict.fromkeys(self.outputs, 0)
        self._received = dict.fromkeys(self.inputs, 0)
        self._open: dict[SnapshotId, dict[ChannelId, _InFlight]] = {}
        self._aborted = SeenIds()

    @classmethod
    def resumed(
        cls,
        inputs: Iterable[ChannelId],
        outputs: Iterable[ChannelId],
        *,
        number: int,
        sent: Mapping[ChannelId, int],
        received: Mapping[ChannelId, int],
    ) -> Self:
        """After a restore: no snapshot up to `number` is still to come, and counts go on from those of the cut."""
        machine = cls(inputs, outputs)
        machine.number = number
        machine._sent.update((c, count) for c, count in sent.items() if c in machine._sent)
        machine._received.update((c, count) for c, count in received.items() if c in machine._received)
        return machine

    @property
    def recording(self) -> tuple[SnapshotId, ...]:
        return tuple(self._open)

    def key(self) -> object:
        opened = tuple(
            (s, tuple((c, f.before, tuple(f.content), f.expected) for c, f in sorted(channels.items())))
            for s, channels in sorted(self._open.items())
        )
        return (
            self.number, opened, tuple(self._sent.values()), tuple(self._received.values()), self._aborted.key()
        )  # fmt: skip

    def step(self, input: Input) -> tuple[Effect, ...]:
        match input:
            case MessageArrived():
                return self._message(input.channel, input.message, input.stamp)
            case Sending():
                return self._send(input.channel, input.message)
            case CountArrived():
                return self._count(input.channel, input.snapshot, input.sent)
            case Initiate():
                return self._initiate(input.snapshot)
            case Abort():
                return self._abort(input.snapshot)
            case _:
                raise HostFault(f"Lai–Yang takes no {type(input).__name__}.")

    def _initiate(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if snapshot < 1:
            raise HostFault(f"Snapshot {snapshot} was to start: snapshots are numbered from 1.")
        return self._record_up_to(snapshot)

    def _send(self, channel: ChannelId, message: Any) -> tuple[Effect, ...]:
        if channel not in self._sent:
            raise HostFault(f"A message is to go out on {channel!r}, which is not an output of this node.")
        self._sent[channel] += 1
        return (SendStamped(channel, message, self.number),)

    def _message(self, channel: ChannelId, message: Any, stamp: int) -> tuple[Effect, ...]:
        if channel not in self._received:
            raise HostFault(f"A message came on {channel!r}, which is not an input of this node.")
        if stamp < 0:
            raise PeerFault(f"A message stamped {stamp} came on {channel!r}: stamps are numbered from 0.")
        effects = self._colour(stamp)
        self._received[channel] += 1
        effects += (Deliver(channel, message),)
        for snapshot in [s for s, channels in self._open.items() if stamp < s and channel in channels]:
            self._open[snapshot][channel].content.append(message)
            effects += self._settle(snapshot, channel)
        return effects

    def _count(self, channel: ChannelId, snapshot: SnapshotId, sent: int) -> tuple[Effect, ...]:
        if channel not in self._received:
            raise HostFault(f"A count came for {channel!r}, which is not an input of this node.")
        if snapshot < 1 or sent < 0:
            raise PeerFault(f"A count of {sent} for snapshot {snapshot} came for {channel!r}: neither can be that low.")
        if snapshot in self._aborted:
            return ()
        flight = self._open.get(snapshot, {}).get(channel)
        if snapshot <= self.number and (flight is None or flight.expected is not None):
            raise PeerFault(
                f"A second count for snapshot {snapshot} came for {channel!r}: its sender must send exactly one."
            )
        received = self._received[channel] if flight is None else flight.before + len(flight.content)
        if received > sent:
            raise PeerFault(
                f"{received} messages from before snapshot {snapshot} have come on {channel!r}, but its sender counted "
                f"{sent}: the channel duplicates, or the count is wrong."
            )
        effects = self._record_up_to(snapshot)
        flight = self._open[snapshot][channel]
        flight.expected = sent
        return effects + self._settle(snapshot, channel)

    def _abort(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        self._open.pop(snapshot, None)
        self._aborted.add(snapshot)
        return ()

    # One method per rule; the mutants in the simulator override exactly these.

    def _colour(self, stamp: int) -> tuple[Effect, ...]:
        """Rule 1: before a message of a later colour is delivered, take that colour."""
        return self._record_up_to(SnapshotId(stamp))

    def _record_up_to(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        """Record every snapshot up to this one: a node that sees n first takes the same state for those it missed."""
        effects: tuple[Effect, ...] = ()
        while self.number < snapshot:
            self.number += 1
            if SnapshotId(self.number) not in self._aborted:
                effects += self._record(SnapshotId(self.number))
        return effects

    def _record(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        self._open[snapshot] = {channel: _InFlight(self._received[channel]) for channel in self.inputs}
        counts = tuple(SendCount(channel, snapshot, self._sent[channel]) for channel in self.outputs)
        return (RecordState(snapshot), *counts, *self._finish(snapshot))

    def _settle(self, snapshot: SnapshotId, channel: ChannelId) -> tuple[Effect, ...]:
        """Rule 2: close the channel when what was received of the old colour adds up to what was sent."""
        flight = self._open[snapshot][channel]
        if not flight.complete():
            return ()
        del self._open[snapshot][channel]
        return (ChannelRecorded(snapshot, channel, tuple(flight.content)), *self._finish(snapshot))

    def _finish(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if self._open[snapshot]:
            return ()
        del self._open[snapshot]
        return (NodeRecorded(snapshot),)
