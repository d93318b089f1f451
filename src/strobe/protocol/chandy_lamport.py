"""Chandy and Lamport's algorithm (1985, section 3), for many snapshots at once.

Theory of operation
-------------------
*Marker-sending rule.* A node that records its state sends one marker on each output channel, after every message that
its state contains as sent and before any later one.

*Marker-receiving rule.* On a marker for a snapshot that the node has not recorded, it records, and that channel's
content is empty. Otherwise the channel's content is what came on it between the node's recording and the marker.

On FIFO channels this gives law 1: the content of P→Q is exactly what was sent *before* P recorded and received after
Q did. A snapshot is one entry in `_open`: the input channels whose marker is still to come, each with what it has
carried since the recording. Snapshots share nothing, so any number may be under way.

A marker on one channel; what then comes on the other, ahead of its marker, was in flight.

>>> node = ChandyLamport([ChannelId("a"), ChannelId("b")], [ChannelId("out")])
>>> [type(effect).__name__ for effect in node.step(MarkerArrived(ChannelId("a"), SnapshotId(1)))]
['RecordState', 'SendMarker', 'ChannelRecorded']
>>> node.step(MessageArrived(ChannelId("b"), "hello"))
(Deliver(channel='b', message='hello'),)
>>> node.step(MarkerArrived(ChannelId("b"), SnapshotId(1)))
(ChannelRecorded(snapshot=1, channel='b', content=('hello',)), NodeRecorded(snapshot=1))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import ChannelId, SeenIds, SnapshotId
from strobe.protocol.events import (
    Abort,
    ChannelRecorded,
    Deliver,
    Effect,
    Initiate,
    Input,
    MarkerArrived,
    MessageArrived,
    NodeRecorded,
    RecordState,
    SendMarker,
)

__all__ = ["ChandyLamport"]


class ChandyLamport:
    """One node's part in every snapshot that passes."""

    stamps_messages = False

    def __init__(self, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId]) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._known = frozenset(self.inputs)
        self._open: dict[SnapshotId, dict[ChannelId, list[Any]]] = {}
        self._finished = SeenIds()  # or given up: without those it would have gaps, and grow for ever
        self._aborted = SeenIds()

    @property
    def recording(self) -> tuple[SnapshotId, ...]:
        return tuple(self._open)

    def key(self) -> object:
        """A hashable picture of the machine: equal keys behave alike for ever."""
        opened = tuple(
            (s, tuple((c, tuple(content)) for c, content in sorted(channels.items())))
            for s, channels in sorted(self._open.items())
        )
        return opened, self._finished.key(), self._aborted.key()

    def step(self, input: Input) -> tuple[Effect, ...]:
        match input:
            case MessageArrived():
                return self._message(input)
            case MarkerArrived():
                return self._marker(input.channel, input.snapshot)
            case Initiate():
                return self._initiate(input.snapshot)
            case Abort():
                return self._abort(input.snapshot)
            case _:
                raise HostFault(f"Chandy–Lamport takes no {type(input).__name__}.")

    def _message(self, arrived: MessageArrived) -> tuple[Effect, ...]:
        channel = arrived.channel
        if channel not in self._known:
            raise HostFault(f"A message came on {channel!r}, which is not an input of this node.")
        for channels in self._open.values():
            if channel in channels:
                channels[channel].append(arrived.message)
        return (Deliver(channel, arrived.message),)

    def _initiate(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if snapshot < 1:
            raise HostFault(f"Snapshot {snapshot} was to start: snapshots are numbered from 1.")
        # A marker may have come first, or a retry: joining twice is not an error.
        if snapshot in self._open or snapshot in self._finished or snapshot in self._aborted:
            return ()
        return self._record(snapshot) + self._finish(snapshot)

    def _marker(self, channel: ChannelId, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if channel not in self._known:
            raise HostFault(f"A marker came on {channel!r}, which is not an input of this node.")
        if snapshot < 1:
            raise PeerFault(f"A marker for snapshot {snapshot} came on {channel!r}: snapshots are numbered from 1.")
        if snapshot in self._aborted:
            return ()
        effects: tuple[Effect, ...] = ()
        if snapshot not in self._open:
            if snapshot in self._finished:
                raise PeerFault(
                    f"A second marker for snapshot {snapshot} came on {channel!r}, which had closed that snapshot: "
                    "its sender must send exactly one."
                )
            effects = self._record(snapshot)
        elif channel not in self._open[snapshot]:
            raise PeerFault(
                f"A second marker for snapshot {snapshot} came on {channel!r}: its sender must send exactly one."
            )
        return effects + self._close(snapshot, channel) + self._finish(snapshot)

    def _abort(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if snapshot not in self._finished:
            self._open.pop(snapshot, None)
            self._aborted.add(snapshot)
            self._finished.add(snapshot)
        return ()

    # One method per rule of the paper; the mutants in the simulator override exactly these.

    def _record(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        """Record, then the markers: the order of the effects is the marker-sending rule."""
        self._open[snapshot] = {channel: [] for channel in self.inputs}
        return (RecordState(snapshot), *(SendMarker(channel, snapshot) for channel in self.outputs))

    def _close(self, snapshot: SnapshotId, channel: ChannelId) -> tuple[Effect, ...]:
        """The marker ends the channel's content; at the first marker there is none."""
        return (ChannelRecorded(snapshot, channel, tuple(self._open[snapshot].pop(channel))),)

    def _finish(self, snapshot: SnapshotId) -> tuple[Effect, ...]:
        if self._open[snapshot]:
            return ()
        del self._open[snapshot]
        self._finished.add(snapshot)
        return (NodeRecorded(snapshot),)
