"""A snapshot while it is being put together, and the host's own knowledge of where it was cut.

The simulator sees everything, so at each recording it notes how far every channel was: that is the truth that law 1
speaks of, taken without the protocol's help. `Recording.violation` compares the two. It needs no journal and no
history, which makes it the check for exhaustive exploration and for hundreds of thousands of seeds; the verifier in
`strobe.verify` comes to the same verdict from a journal alone, and the tests compare the two.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from strobe.hosts.sim.network import Wire
from strobe.model.cut import Cut, Json, Message, canonical
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId

__all__ = ["Recording", "capture", "frozen"]


def capture(state: Json) -> Json:
    """The state as it is now, in the form in which it would come back from disk. Later changes do not affect it."""
    if type(state) is int or type(state) is str or state is None:
        return state
    return json.loads(canonical(state))


def frozen(state: Json) -> object:
    """Something hashable that is equal exactly when the states are the same bit for bit."""
    kind = type(state)
    if kind is dict:
        return frozenset([(key, frozen(value)) for key, value in state.items()])
    if kind is list or kind is tuple:
        return tuple([frozen(value) for value in state])
    if kind is bool or kind is float:
        return kind, state  # True == 1 == 1.0, but they are written differently
    return state


class Reach(NamedTuple):
    """How far a channel was when its receiver recorded: what had been sent, and which of that had not been received."""

    sent: int
    unreceived: tuple[int, ...]


class Recording:
    """What has been recorded of one snapshot."""

    __slots__ = ("_key", "channels", "finished", "reached", "sent", "snapshot", "states")

    def __init__(self, snapshot: SnapshotId) -> None:
        self.snapshot = snapshot
        self.states: dict[NodeId, Json] = {}
        self.channels: dict[ChannelId, tuple[Message, ...]] = {}
        self.finished = 0  # nodes
        self.sent: dict[ChannelId, int] = {}  # the newest message when the sender recorded
        self.reached: dict[ChannelId, Reach] = {}
        self._key: object = None

    def copy(self) -> Recording:
        new = Recording(self.snapshot)
        new.states = self.states.copy()
        new.channels = self.channels.copy()
        new.finished = self.finished
        new.sent = self.sent.copy()
        new.reached = self.reached.copy()
        return new

    def key(self) -> object:
        """The key of this part; computed once, and kept until `touch`."""
        if self._key is None:
            self._key = (
                self.snapshot,
                self.finished,
                frozenset([(node, frozen(state)) for node, state in self.states.items()]),
                frozenset(self.channels.items()),
                frozenset(self.sent.items()),
                frozenset(self.reached.items()),
            )
        return self._key

    def touch(self) -> None:
        """Call this before the part changes."""
        self._key = None

    def record(self, node: NodeId, state: Json, graph: Graph, wires: Mapping[ChannelId, Wire]) -> None:
        """The node's state, and how far the channels at it are."""
        self.states[node] = state
        for channel in graph.outputs(node):
            self.sent[channel] = wires[channel].seq
        for channel in graph.inputs(node):
            self.reached[channel] = Reach(wires[channel].seq, wires[channel].unreceived())

    def cut(self, graph: Graph) -> Cut:
        return Cut(
            self.snapshot,
            {node: self.states[node] for node in graph.nodes if node in self.states},
            {c.id: self.channels[c.id] for c in graph.channels if c.id in self.channels},
        )

    def violation(self, graph: Graph) -> str | None:
        """None, or a sentence that says how the snapshot breaks law 1. Channels that lose messages are not judged."""
        for node in graph.nodes:
            if node not in self.states:
                return f"snapshot {self.snapshot} is called complete, but {node} never recorded."
        for channel in graph.channels:
            if channel.id not in self.channels:
                return f"snapshot {self.snapshot} is called complete, but channel {channel} was never recorded."
            found = self._channel_violation(channel)
            if found is not None:
                return found
        return None

    def _channel_violation(self, channel: Channel) -> str | None:
        sent, reach = self.sent[channel.id], self.reached[channel.id]
        where = f"snapshot {self.snapshot}, channel {channel}"
        unreceived = set(reach.unreceived)
        for seq in range(sent + 1, reach.sent + 1):
            if seq not in unreceived:
                return (
                    f"{where}: message {seq} was received before {channel.target} recorded, but sent after "
                    f"{channel.source} did."
                )
        expected = [s for s in reach.unreceived if s <= sent] + list(range(reach.sent + 1, sent + 1))
        recorded = [m.seq for m in self.channels[channel.id]]
        if sorted(recorded) == sorted(expected):
            return None
        # As multisets: a channel that duplicates may hold one message twice.
        missing = sorted((Counter(expected) - Counter(recorded)).elements())
        if missing:
            return (
                f"{where}: message {missing[0]} was sent before {channel.source} recorded and received after "
                f"{channel.target} did, but it is not in the channel's content."
            )
        extra = sorted((Counter(recorded) - Counter(expected)).elements())
        return f"{where}: message {extra[0]} is in the channel's content, but it was not in flight at the cut."
