"""A bank whose transfers are followed by hand-written and by random runs.

`Bank` is the application. `journal` and the short names below make hand-written journals readable; `random_run` drives
the protocol machines over queues in memory, with every choice taken from `rng`, and returns the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from strobe.model.cut import Cut, Json, Message
from strobe.model.events import (
    Completed,
    Event,
    Internal,
    MarkerReceived,
    MarkerSent,
    Received,
    Recorded,
    Sent,
)
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.events import (
    ChannelRecorded,
    CountArrived,
    Deliver,
    Initiate,
    Input,
    Machine,
    MarkerArrived,
    MessageArrived,
    NodeRecorded,
    RecordState,
    SendCount,
    Sending,
    SendMarker,
    SendStamped,
)
from strobe.protocol.lai_yang import LaiYang
from strobe.protocol.wrong import AgreedClock
from strobe.verify.journal import Header, Journal

START = 100


@dataclass(frozen=True)
class Bank:
    """A state is a balance. A message is [amount, hops]; with hops left, half of it goes on to the first neighbour."""

    graph: Graph

    def initial(self, node: NodeId) -> Json:
        return START

    def act(self, node: NodeId, state: Json, action: Json) -> tuple[Json, Sequence[tuple[ChannelId, Json]]]:
        if action is None:
            return state, ()
        channel, amount, hops = action
        return state - amount, [(ChannelId(channel), [amount, hops])]

    def receive(
        self, node: NodeId, state: Json, channel: ChannelId, payload: Json
    ) -> tuple[Json, Sequence[tuple[ChannelId, Json]]]:
        amount, hops = payload
        outputs = self.graph.outputs(node)
        if hops and outputs:
            half = amount // 2
            return state + amount - half, [(outputs[0], [half, hops - 1])]
        return state + amount, ()


# ── by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────────

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
AB, BA, BC, CA = ChannelId("a→b"), ChannelId("b→a"), ChannelId("b→c"), ChannelId("c→a")
TWO = Graph((A, B), (Channel(AB, A, B), Channel(BA, B, A)))
RING = Graph((A, B, C), (Channel(AB, A, B), Channel(BC, B, C), Channel(CA, C, A)))


def header(
    graph: Graph = TWO,
    *,
    order: str = "fifo",
    protocol: str = "by-hand",
    initial: Mapping[NodeId, Json] | None = None,
    seed: int | None = None,
) -> Header:
    states = dict.fromkeys(graph.nodes, START) if initial is None else initial
    return Header("test", "bank", {}, protocol, order, seed, graph, states)


def journal(*events: Event, graph: Graph = TWO, order: str = "fifo", protocol: str = "by-hand") -> Journal:
    return Journal(header(graph, order=order, protocol=protocol), list(events))


def pay(node: NodeId, step: int, channel: ChannelId, seq: int, amount: int = 10, hops: int = 0) -> tuple[Event, Event]:
    """A whole step: the node sends money by itself."""
    return Internal(node, step, [channel, amount, hops]), Sent(node, step, channel, seq, [amount, hops])


def get(node: NodeId, step: int, channel: ChannelId, seq: int) -> Received:
    return Received(node, step, channel, seq)


def idle(node: NodeId, step: int) -> Internal:
    return Internal(node, step, None)


def record(node: NodeId, after: int, snapshot: int = 1) -> Recorded:
    return Recorded(node, after, SnapshotId(snapshot))


def cut(
    states: Mapping[NodeId, Json],
    channels: Mapping[ChannelId, Sequence[tuple[int, Json]]] | None = None,
    *,
    snapshot: int = 1,
    graph: Graph = TWO,
) -> Cut:
    """Channels that are not named are recorded as empty."""
    contents: dict[ChannelId, tuple[Message, ...]] = {c.id: () for c in graph.channels}
    for channel, messages in (channels or {}).items():
        contents[channel] = tuple(Message(seq, payload) for seq, payload in messages)
    return Cut(SnapshotId(snapshot), states, contents)


# ── at random ───────────────────────────────────────────────────────────────────────────────────────────────────────


def random_graph(rng: Random) -> Graph:
    """A ring, so that everything is reachable, and more channels at will: parallel ones and self-loops too."""
    nodes = tuple(NodeId(name) for name in "abcdef"[: rng.randint(1, 5)])
    ends = [(node, nodes[(i + 1) % len(nodes)]) for i, node in enumerate(nodes)]
    ends += [(rng.choice(nodes), rng.choice(nodes)) for _ in range(rng.randint(0, 4))]
    return Graph(nodes, tuple(Channel(ChannelId(f"c{i}"), s, t) for i, (s, t) in enumerate(ends)))


PROTOCOLS: Mapping[str, type[ChandyLamport] | type[LaiYang] | type[AgreedClock]] = {
    "chandy-lamport": ChandyLamport,
    "lai-yang": LaiYang,
    "agreed-clock": AgreedClock,
}


def random_run(
    rng: Random, protocol: str = "chandy-lamport", *, graph: Graph | None = None, steps: int = 40, snapshots: int = 2
) -> Journal:
    run = _Run(rng, random_graph(rng) if graph is None else graph, protocol)
    started = 0
    for _ in range(steps):
        if started < snapshots and rng.random() < 2 * snapshots / steps:
            started += 1
            run.initiate(SnapshotId(started))
        run.anything()
    run.drain()
    return Journal(header(run.graph, order=run.order, protocol=protocol, seed=0), run.events)


@dataclass(frozen=True)
class _Marker:
    snapshot: SnapshotId


@dataclass(frozen=True)
class _Stamped:
    message: Message
    stamp: int


@dataclass
class _Node:
    machine: Machine
    state: Json
    step: int = 0


class _Run:
    def __init__(self, rng: Random, graph: Graph, protocol: str) -> None:
        self.rng, self.graph, self.app = rng, graph, Bank(graph)
        self.order = "reorder" if protocol == "lai-yang" else "fifo"
        self.everywhere = protocol == "agreed-clock"
        make = PROTOCOLS[protocol]
        self.nodes = {n: _Node(make(graph.inputs(n), graph.outputs(n)), self.app.initial(n)) for n in graph.nodes}
        self.queues: dict[ChannelId, list[_Marker | _Stamped]] = {c.id: [] for c in graph.channels}
        self.control: list[tuple[NodeId, Input]] = []
        self.seq: dict[ChannelId, int] = dict.fromkeys(self.queues, 0)
        self.events: list[Event] = []
        self.states: dict[SnapshotId, dict[NodeId, Json]] = {}
        self.contents: dict[SnapshotId, dict[ChannelId, tuple[Message, ...]]] = {}
        self.parts: dict[SnapshotId, int] = {}

    def initiate(self, snapshot: SnapshotId) -> None:
        starters = self.graph.nodes if self.everywhere else (self.rng.choice(self.graph.nodes),)
        self.control += [(node, Initiate(snapshot)) for node in starters]

    def anything(self) -> None:
        if self.control and self.rng.random() < 0.3:
            return self.one_control()
        full = [c for c, queue in self.queues.items() if queue]
        if full and self.rng.random() < 0.6:
            return self.deliver(self.rng.choice(full))
        return self.act(self.rng.choice(self.graph.nodes))

    def drain(self) -> None:
        while self.control or any(self.queues.values()):
            full = [c for c, queue in self.queues.items() if queue]
            if self.control and (not full or self.rng.random() < 0.5):
                self.one_control()
            else:
                self.deliver(self.rng.choice(full))

    def one_control(self) -> None:
        self.perform(*self.control.pop(self.rng.randrange(len(self.control))))

    def act(self, name: NodeId) -> None:
        node, outputs = self.nodes[name], self.graph.outputs(name)
        action = None
        if outputs and self.rng.random() < 0.8:
            action = [self.rng.choice(outputs), self.rng.randint(1, 9), self.rng.choice([0, 0, 1, 2])]
        node.step += 1
        self.events.append(Internal(name, node.step, action))
        node.state, sends = self.app.act(name, node.state, action)
        self.send(name, sends)

    def deliver(self, channel: ChannelId) -> None:
        target, queue = self.graph.by_id[channel].target, self.queues[channel]
        item = queue.pop(self.rng.randrange(len(queue)) if self.order == "reorder" else 0)
        if isinstance(item, _Marker):
            self.events.append(MarkerReceived(target, self.nodes[target].step, channel, item.snapshot))
            self.perform(target, MarkerArrived(channel, item.snapshot))
        else:
            self.perform(target, MessageArrived(channel, item.message, item.stamp))

    def send(self, name: NodeId, sends: Sequence[tuple[ChannelId, Json]]) -> None:
        for channel, payload in sends:
            self.seq[channel] += 1
            message = Message(self.seq[channel], payload)
            self.events.append(Sent(name, self.nodes[name].step, channel, *message))
            if self.nodes[name].machine.stamps_messages:
                self.perform(name, Sending(channel, message))
            else:
                self.queues[channel].append(_Stamped(message, 0))

    def perform(self, name: NodeId, input: Input) -> None:
        node = self.nodes[name]
        sends: Sequence[tuple[ChannelId, Json]] = ()
        for effect in node.machine.step(input):
            if isinstance(effect, RecordState):
                self.events.append(Recorded(name, node.step, effect.snapshot))
                self.states.setdefault(effect.snapshot, {})[name] = node.state
            elif isinstance(effect, SendMarker):
                self.events.append(MarkerSent(name, node.step, effect.channel, effect.snapshot))
                self.queues[effect.channel].append(_Marker(effect.snapshot))
            elif isinstance(effect, Deliver):
                node.step += 1
                self.events.append(Received(name, node.step, effect.channel, effect.message.seq))
                node.state, sends = self.app.receive(name, node.state, effect.channel, effect.message.payload)
            elif isinstance(effect, SendStamped):
                self.queues[effect.channel].append(_Stamped(effect.message, effect.stamp))
            elif isinstance(effect, SendCount):
                receiver = self.graph.by_id[effect.channel].target
                self.control.append((receiver, CountArrived(effect.channel, effect.snapshot, effect.sent)))
            elif isinstance(effect, ChannelRecorded):
                self.contents.setdefault(effect.snapshot, {})[effect.channel] = effect.content
            elif isinstance(effect, NodeRecorded):
                self.node_recorded(effect.snapshot)
        self.send(name, sends)

    def node_recorded(self, snapshot: SnapshotId) -> None:
        self.parts[snapshot] = self.parts.get(snapshot, 0) + 1
        if self.parts[snapshot] == len(self.nodes):
            contents = self.contents.get(snapshot, {})
            self.events.append(Completed(Cut(snapshot, self.states[snapshot], contents)))
