"""Dijkstra and Scholten's algorithm (1980): when has a diffusing computation terminated?

Theory of operation
-------------------
A diffusing computation starts at one node, the root; every other node is idle until work arrives. Each message of
work is answered by one *signal*, in time:

* a node that is in no tree takes the channel of its first message as its *parent*, and owes that signal until the end;
* whatever else arrives while it is in the tree is signalled at once;
* it leaves the tree when it is idle and all work that it sent has been signalled (its *deficit* is 0): then it signals
  its parent. It may join again later, under another parent.

So every active node and every message of work hangs, by unsignalled messages, on the root. When the root itself is
idle with deficit 0, there is nothing left: it announces termination, never early. When everything is idle and all
messages have arrived, the leaves of the tree leave one after the other, so the announcement comes.

Channels may reorder. Signals travel backwards along the channel of the work that they answer. Termination of a
snapshot is the same question: markers are the work, and recording is what an active node does.

One channel from the root to a node: the root is done when its work has been signalled.

>>> channel = ChannelId("work")
>>> root, node = DijkstraScholten([], [channel], root=True), DijkstraScholten([channel], [])
>>> root.step(StartWork()) + root.step(SendingWork(channel, "dig")) + root.step(BecameIdle())
(SendWork(channel='work', message='dig'),)
>>> node.step(WorkArrived(channel, "dig")) + node.step(BecameIdle())
(DeliverWork(channel='work', message='dig'), SendSignal(channel='work'))
>>> root.step(SignalArrived(channel))
(Terminated(),)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import ChannelId

__all__ = [
    "BecameIdle", "DeliverWork", "DijkstraScholten", "SendSignal", "SendWork", "SendingWork", "SignalArrived",
    "StartWork", "Terminated", "TerminationEffect", "TerminationInput", "WorkArrived",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class StartWork:
    """At the root only: the computation starts; the root is active."""


@dataclass(frozen=True, slots=True)
class WorkArrived:
    channel: ChannelId
    message: Any


@dataclass(frozen=True, slots=True)
class SendingWork:
    """The application, which must be active, is about to send work."""

    channel: ChannelId
    message: Any


@dataclass(frozen=True, slots=True)
class BecameIdle:
    """The node will do nothing more unless work arrives."""


@dataclass(frozen=True, slots=True)
class SignalArrived:
    """A message that this node sent on its output `channel` has been signalled."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class DeliverWork:
    """Give the message to the application, which is active from here on."""

    channel: ChannelId
    message: Any


@dataclass(frozen=True, slots=True)
class SendWork:
    channel: ChannelId
    message: Any


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Tell the sender of the input `channel` that one of its messages is accounted for."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class Terminated:
    """At the root: every node is idle and no work is in flight."""


TerminationInput: TypeAlias = StartWork | WorkArrived | SendingWork | BecameIdle | SignalArrived
TerminationEffect: TypeAlias = DeliverWork | SendWork | SendSignal | Terminated


class DijkstraScholten:
    """One node's part. All state is in immutable values, except dicts that are replaced: a shallow copy is full."""

    def __init__(self, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId], *, root: bool = False) -> None:
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.root = root
        self._active = False
        self._engaged = False  # in the tree; the root is from its start to its announcement
        self._parent: ChannelId | None = None
        self._deficit = dict.fromkeys(self.outputs, 0)

    @property
    def active(self) -> bool:
        return self._active

    @property
    def engaged(self) -> bool:
        return self._engaged

    def saved(self) -> dict[str, Any]:
        """What a snapshot of the node must contain of this machine, as JSON; `resumed` takes it back."""
        return {
            "active": self._active,
            "engaged": self._engaged,
            "parent": self._parent,
            "deficit": {channel: owed for channel, owed in self._deficit.items() if owed},
        }

    @classmethod
    def resumed(
        cls, inputs: Iterable[ChannelId], outputs: Iterable[ChannelId], saved: Mapping[str, Any], *, root: bool = False
    ) -> Self:
        machine = cls(inputs, outputs, root=root)
        machine._active, machine._engaged, machine._parent = saved["active"], saved["engaged"], saved["parent"]
        machine._deficit.update(saved["deficit"])
        return machine

    def key(self) -> object:
        return self._active, self._engaged, self._parent, tuple(self._deficit.values())

    def step(self, input: TerminationInput) -> tuple[TerminationEffect, ...]:
        match input:
            case WorkArrived():
                return self._work(input.channel, input.message)
            case SignalArrived():
                return self._signal(input.channel)
            case SendingWork():
                return self._send(input.channel, input.message)
            case BecameIdle():
                return self._idle()
            case StartWork():
                return self._start()
            case _:
                raise HostFault(f"Termination detection takes no {type(input).__name__}.")

    def _start(self) -> tuple[TerminationEffect, ...]:
        if not self.root:
            raise HostFault("A computation was to start at a node that is not the root.")
        if self._engaged:
            raise HostFault("The computation was to start while it is under way.")
        self._active = self._engaged = True
        return ()

    def _work(self, channel: ChannelId, message: Any) -> tuple[TerminationEffect, ...]:
        if channel not in self.inputs:
            raise HostFault(f"Work came on {channel!r}, which is not an input of this node.")
        if self.root and not self._engaged:
            raise PeerFault(f"Work came on {channel!r} at the root, which has not started, or has announced the end.")
        self._active = True
        return (DeliverWork(channel, message), *self._engage(channel))

    def _send(self, channel: ChannelId, message: Any) -> tuple[TerminationEffect, ...]:
        if channel not in self._deficit:
            raise HostFault(f"Work is to go out on {channel!r}, which is not an output of this node.")
        if not self._active:
            raise HostFault(f"Work is to go out on {channel!r}, but this node is idle.")
        self._count(channel, 1)
        return (SendWork(channel, message),)

    def _idle(self) -> tuple[TerminationEffect, ...]:
        if not self._active:
            raise HostFault("The node became idle, but it was not active.")
        self._active = False
        return self._leave()

    def _signal(self, channel: ChannelId) -> tuple[TerminationEffect, ...]:
        if channel not in self._deficit:
            raise HostFault(f"A signal came for {channel!r}, which is not an output of this node.")
        if self._deficit[channel] == 0:
            raise PeerFault(f"A signal came for {channel!r}, but all work sent there has been signalled.")
        self._count(channel, -1)
        return self._leave()

    # ── rules; the mutants in the tests override exactly these ──────────────────────────────────────────────────────

    def _engage(self, channel: ChannelId) -> tuple[TerminationEffect, ...]:
        """The first message's signal is owed until the node leaves; any other is given at once."""
        if self._engaged:
            return (SendSignal(channel),)
        self._engaged = True
        self._parent = channel
        return ()

    def _count(self, channel: ChannelId, change: int) -> None:
        self._deficit = {**self._deficit, channel: self._deficit[channel] + change}

    def _may_leave(self) -> bool:
        return self._engaged and not self._active and not any(self._deficit.values())

    def _leave(self) -> tuple[TerminationEffect, ...]:
        if not self._may_leave():
            return ()
        self._engaged = False
        parent, self._parent = self._parent, None
        return (Terminated(),) if parent is None else (SendSignal(parent),)
