"""Scenarios of the snapshot protocols: one machine per node, a queue per channel, effects performed in order.

The application is the smallest that can tell a right cut from a wrong one: a node's state is what it has sent and
received on each channel, or, for `nodes a=200`, an account from which what is sent is taken and to which what is
received is added. `show` prints the recorded cut and holds it against law 1, straight from its definition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from strobe.model.errors import ProtocolError
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.protocol import events as ev
from strobe.protocol.barriers import BarrierMode, Barriers
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.lai_yang import LaiYang
from strobe.protocol.wrong import AgreedClock, FreezeInTurn
from tests.scenarios.harness import BadScenario, Setup, refusal

__all__ = ["MACHINES", "Maker", "SnapshotWorld"]


class KeyedMachine(ev.Machine, Protocol):
    def key(self) -> object: ...


Maker = Callable[[Graph, NodeId, tuple[str, ...]], KeyedMachine]


def _barriers(graph: Graph, node: NodeId, options: tuple[str, ...]) -> KeyedMachine:
    inputs = graph.inputs(node)
    feedback = [c for c in inputs if graph.by_id[c].feedback]
    return Barriers(inputs, graph.outputs(node), feedback=feedback, mode=BarrierMode(options[0]))


MACHINES: dict[str, Maker] = {
    "chandy-lamport": lambda g, n, _: ChandyLamport(g.inputs(n), g.outputs(n)),
    "lai-yang": lambda g, n, _: LaiYang(g.inputs(n), g.outputs(n)),
    "barriers": _barriers,
    "agreed-clock": lambda g, n, _: AgreedClock(g.inputs(n), g.outputs(n)),
    "freeze-in-turn": lambda g, n, _: FreezeInTurn(g.inputs(n), g.outputs(n)),
}

INPUTS: dict[str, Callable[[SnapshotId], ev.Input]] = {
    "initiate": ev.Initiate,
    "abort": ev.Abort,
    "timeout": ev.AlignmentTimedOut,
    "thaw": ev.Thaw,
}


class Message(NamedTuple):
    seq: int  # with the channel, the identity; 0 for what nobody sent
    text: str
    stamp: int = 0


class Marker(NamedTuple):
    snapshot: SnapshotId


class Barrier(NamedTuple):
    snapshot: SnapshotId
    overtook: bool = False
    overtaken: tuple[Message, ...] = ()


class End(NamedTuple):
    pass


Item = Message | Marker | Barrier | End


@dataclass
class State:
    """What a node has done. Messages are kept in order, by channel."""

    balance: int | None
    sent: dict[ChannelId, tuple[Message, ...]]
    received: dict[ChannelId, tuple[Message, ...]]

    def copy(self) -> State:
        return State(self.balance, dict(self.sent), dict(self.received))

    def __str__(self) -> str:
        if self.balance is not None:
            return str(self.balance)
        parts = [f"sent {_texts(m)} on {c}" for c, m in self.sent.items() if m]
        parts += [f"received {_texts(m)} on {c}" for c, m in self.received.items() if m]
        return ", ".join(parts) or "nothing sent, nothing received"


@dataclass
class Part:
    """What has been recorded of one snapshot."""

    states: dict[NodeId, State] = field(default_factory=dict)
    channels: dict[ChannelId, tuple[Message, ...]] = field(default_factory=dict)
    complete: set[NodeId] = field(default_factory=set)


class SnapshotWorld:
    def __init__(self, setup: Setup, make: Maker) -> None:
        self.graph, balances = _graph(setup)
        self.reordering = {ChannelId(c) for c in setup.words("reordering")}
        self.machines = {n: make(self.graph, n, setup.protocol[1:]) for n in self.graph.nodes}
        self.queues: dict[ChannelId, list[Item]] = {c.id: [] for c in self.graph.channels}
        self.held: set[ChannelId] = set()
        self.ended: set[ChannelId] = set()
        self.seq = dict.fromkeys(self.queues, 0)
        self.counts: dict[tuple[ChannelId, SnapshotId], int] = {}
        self.states = {
            n: State(balances.get(n), dict.fromkeys(self.graph.outputs(n), ()), dict.fromkeys(self.graph.inputs(n), ()))
            for n in self.graph.nodes
        }
        self.total = sum(balances.values()) if len(balances) == len(self.graph.nodes) else None
        self.parts: dict[SnapshotId, Part] = {}

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────

    def do(self, verb: str, words: tuple[str, ...]) -> list[str]:
        if verb in INPUTS:
            node, snapshot = words
            nodes = self.graph.nodes if node == "*" else (self._node(node),)
            return [line for n in nodes for line in self._step(n, INPUTS[verb](_id(snapshot)))]
        if verb == "show":
            (snapshot,) = words
            return self._show(_id(snapshot))
        channel = self._channel(words[0])
        if verb == "send":
            return self._send(channel, words[1:])
        if verb == "deliver":
            return self._deliver(channel, *words[1:])
        if verb == "count":
            _, snapshot = words
            sent = self.counts[channel.id, _id(snapshot)]
            return self._step(channel.target, ev.CountArrived(channel.id, _id(snapshot), sent))
        if verb in ("end", "inject"):
            self.queues[channel.id].append(_item(*words[1:]) if verb == "inject" else End())
            self.ended |= {channel.id} if verb == "end" else set()
            return [f"{channel.id}  {self._contents(channel.id)}"]
        if verb == "lose":
            lost = self.queues[channel.id].pop(0)
            return [f"{channel.id}  lost {_name(lost)}"]
        raise BadScenario(f"there is no command {verb!r}")

    def _send(self, channel: Channel, texts: tuple[str, ...]) -> list[str]:
        trace: list[str] = []
        for text in texts:
            self.seq[channel.id] += 1
            message = Message(self.seq[channel.id], text)
            if self.machines[channel.source].stamps_messages:
                trace += self._step(channel.source, ev.Sending(channel.id, message))
            else:
                trace.append(f"{channel.source}  send {text} on {channel.id}")
                self._sent(channel, message)
        return trace

    def _deliver(self, channel: Channel, which: str = "#1") -> list[str]:
        queue = self.queues[channel.id]
        if channel.id in self.held:
            return [f"{channel.id}  held: {self._contents(channel.id)}"]
        if not queue:
            return [f"{channel.id}  empty"]
        if which == "all":
            trace: list[str] = []
            while queue and channel.id not in self.held:
                trace += self._deliver(channel)
            return trace
        index = int(which.removeprefix("#")) - 1
        if index and channel.id not in self.reordering:
            raise BadScenario(f"{channel.id} does not reorder")
        item = queue.pop(index)
        return self._step(channel.target, _arrival(channel.id, item))

    # ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, node: NodeId, input: ev.Input) -> list[str]:
        machine = self.machines[node]
        before = machine.key()
        try:
            effects = machine.step(input)
        except ProtocolError as fault:
            assert machine.key() == before, f"{node} refused {input}, but was changed by it"
            return [f"{node}  {refusal(fault)}"]
        return [f"{node}  {self._perform(node, effect)}" for effect in effects]

    def _perform(self, node: NodeId, effect: ev.Effect) -> str:
        match effect:
            case ev.RecordState(snapshot):
                self._part(snapshot).states[node] = self.states[node].copy()
                return f"record {snapshot}"
            case ev.SendMarker(channel, snapshot):
                self.queues[channel].append(Marker(snapshot))
                return f"marker {snapshot} on {channel}"
            case ev.SendBarrier(channel, snapshot) if channel in self.ended:
                return f"barrier {snapshot} on {channel}: not sent, it has ended"
            case ev.SendBarrier(channel, snapshot, overtakes):
                self.queues[channel].append(Barrier(snapshot, overtakes))
                return f"barrier {snapshot} on {channel}" + (self._overtake(channel, snapshot) if overtakes else "")
            case ev.SendCount(channel, snapshot, sent):
                self.counts[channel, snapshot] = sent
                return f"count {snapshot} for {channel}: {sent}"
            case ev.SendStamped(channel, message, stamp):
                self._sent(self.graph.by_id[channel], message._replace(stamp=stamp))
                return f"send {message.text} on {channel}, stamp {stamp}"
            case ev.Deliver(channel, message):
                state = self.states[node]
                state.received[channel] = (*state.received[channel], message)
                if state.balance is not None:
                    state.balance += int(message.text)
                return f"deliver {message.text} from {channel}"
            case ev.Hold(channel):
                self.held.add(channel)
                return f"hold {channel}"
            case ev.Release(channel):
                self.held.discard(channel)
                return f"release {channel}"
            case ev.StartTimer(snapshot):
                return f"timer for {snapshot}"
            case ev.Overtake(channel, snapshot):
                return f"let barrier {snapshot} overtake on {channel}" + self._overtake(channel, snapshot)
            case ev.ChannelRecorded(snapshot, channel, content):
                self._part(snapshot).channels[channel] = content
                return f"content of {channel} in {snapshot}: {_texts(content)}"
            case ev.NodeRecorded(snapshot):
                self._part(snapshot).complete.add(node)
                return f"part of {snapshot} complete"
            case ev.Declined(snapshot, reason):
                return f"decline {snapshot}: {reason}"

    def _sent(self, channel: Channel, message: Message) -> None:
        state = self.states[channel.source]
        state.sent[channel.id] = (*state.sent[channel.id], message)
        if state.balance is not None:
            state.balance -= int(message.text)
        self.queues[channel.id].append(message)

    def _overtake(self, channel: ChannelId, snapshot: SnapshotId) -> str:
        """Move the barrier ahead of the messages before it, up to another barrier or the front."""
        queue = self.queues[channel]
        at = next((i for i, item in enumerate(queue) if isinstance(item, Barrier) and item.snapshot == snapshot), None)
        if at is None:
            return ": none waits there"
        barrier, to = queue.pop(at), at
        assert isinstance(barrier, Barrier)
        while to > 0 and isinstance(queue[to - 1], Message):
            to -= 1
        jumped = tuple(item for item in queue[to:at] if isinstance(item, Message))
        queue.insert(to, Barrier(snapshot, True, (*jumped, *barrier.overtaken)))
        return f", ahead of {_texts(jumped)}" if jumped else ", ahead of nothing"

    # ── the cut ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _show(self, snapshot: SnapshotId) -> list[str]:
        part = self.parts.get(snapshot, Part())
        trace = [f"{n}  {part.states.get(n, 'not recorded')}" for n in self.graph.nodes]
        for channel in self.queues:
            trace.append(f"{channel}  {_texts(part.channels[channel]) if channel in part.channels else 'open'}")
        missing = [n for n in self.graph.nodes if n not in part.complete]
        if missing:
            return [*trace, f"incomplete: {', '.join(missing)} to come"]
        if self.total is not None:
            balances = sum(state.balance or 0 for state in part.states.values())
            flying = sum(int(m.text) for content in part.channels.values() for m in content)
            trace.append(f"total {balances + flying} of {self.total}")
        wrong = [
            line
            for channel in self.graph.channels
            for line in _law_one(channel, part, channel.id not in self.reordering)
        ]
        return [*trace, *(wrong or ["complete, law 1 holds"])]

    def _part(self, snapshot: SnapshotId) -> Part:
        return self.parts.setdefault(snapshot, Part())

    def _contents(self, channel: ChannelId) -> str:
        return ", ".join(_name(item) for item in self.queues[channel]) or "empty"

    def _node(self, name: str) -> NodeId:
        if name not in self.graph.nodes:
            raise BadScenario(f"there is no node {name!r}")
        return NodeId(name)

    def _channel(self, name: str) -> Channel:
        if ChannelId(name) not in self.graph.by_id:
            raise BadScenario(f"there is no channel {name!r}")
        return self.graph.by_id[ChannelId(name)]


def _law_one(channel: Channel, part: Part, ordered: bool) -> list[str]:
    """Nothing sent after the recording is received before; the content is what was sent before and received after."""
    sent = {m.seq: m for m in part.states[channel.source].sent[channel.id]}
    received = {m.seq: m for m in part.states[channel.target].received[channel.id]}
    content = {m.seq: m for m in part.channels[channel.id]}
    order = [m.seq for m in part.channels[channel.id]]
    faults = [
        ("received before the recording, sent after it", received.keys() - sent.keys(), received),
        ("in flight, but not recorded", sent.keys() - received.keys() - content.keys(), sent),
        ("recorded, but not in flight", content.keys() - (sent.keys() - received.keys()), content),
        ("recorded twice", {seq for seq in order if order.count(seq) > 1}, content),
        ("recorded out of order", set(order) if ordered and order != sorted(order) else set[int](), content),
    ]
    return [
        f"law 1 broken on {channel.id}: {', '.join(where[seq].text for seq in sorted(seqs))} {what}"
        for what, seqs, where in faults
        if seqs
    ]


def _graph(setup: Setup) -> tuple[Graph, dict[NodeId, int]]:
    """Channels are `a->b`, or `a->b.2` for one beside it; nodes need naming only for accounts, or without channels."""
    nodes: dict[NodeId, None] = {}
    balances: dict[NodeId, int] = {}
    for word in setup.words("nodes"):
        name, _, balance = word.partition("=")
        nodes[NodeId(name)] = None
        if balance:
            balances[NodeId(name)] = int(balance)
    feedback = setup.words("feedback")
    channels: list[Channel] = []
    for word in setup.words("channels", "reordering", "feedback"):
        source, target = (NodeId(end) for end in word.partition(".")[0].split("->"))
        nodes |= {source: None, target: None}
        channels.append(Channel(ChannelId(word), source, target, word in feedback))
    return Graph(tuple(nodes), tuple(channels)), balances


def _arrival(channel: ChannelId, item: Item) -> ev.Input:
    match item:
        case Message():
            return ev.MessageArrived(channel, item, item.stamp)
        case Marker(snapshot):
            return ev.MarkerArrived(channel, snapshot)
        case Barrier(snapshot, overtook, overtaken):
            return ev.BarrierArrived(channel, snapshot, overtook, overtaken)
        case End():
            return ev.InputEnded(channel)


def _item(kind: str, word: str) -> Item:
    makers: dict[str, Callable[[str], Item]] = {
        "marker": lambda w: Marker(_id(w)),
        "barrier": lambda w: Barrier(_id(w)),
        "message": lambda w: Message(0, w),
    }
    return makers[kind](word)


def _name(item: Item) -> str:
    match item:
        case Message(_, text):
            return text
        case Marker(snapshot):
            return f"marker {snapshot}"
        case Barrier(snapshot):
            return f"barrier {snapshot}"
        case End():
            return "end"


def _texts(messages: tuple[Message, ...]) -> str:
    return " ".join(m.text for m in messages) or "empty"


def _id(word: str) -> SnapshotId:
    return SnapshotId(int(word))
