"""A diffusing computation, and its termination detected by Dijkstra and Scholten's algorithm (1980).

The root starts with one task. A node that works on a task may send tasks to others, each with less fuel, until the fuel
is used up; then the system falls silent, and the root must notice.

The algorithm is `strobe.protocol.dijkstra_scholten`: every task is answered by one signal, on the channel that leads
back. Its machine's state is part of the node's, so it is in the snapshots and survives a restart.

Invariant: the signals that a node waits for from another are exactly its tasks in flight, the signals on the way back,
and the one that the other owes if it was engaged by it; and when the root says that all is over, every node is idle and
every channel empty. Termination is stable, so a snapshot that shows it proves it. At the end the root has said so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.topology import complete, node_names
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.model.app import Reaction
from strobe.model.cut import Cut, Json
from strobe.model.errors import PeerFault
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.protocol.dijkstra_scholten import (
    BecameIdle,
    DeliverWork,
    DijkstraScholten,
    SendingWork,
    SendSignal,
    SendWork,
    SignalArrived,
    StartWork,
    TerminationInput,
    WorkArrived,
)  # fmt: skip

__all__ = ["Diffusing"]

SIGNAL = "signal"


class Diffusing(Workload):
    name = "diffusing"
    description = "A diffusing computation: its end is detected exactly when everything has ended."
    defaults: ClassVar[Mapping[str, Json]] = {"fuel": 5}
    wakes = True

    def __init__(self, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> None:
        super().__init__(nodes, params)
        self.graph = complete(node_names(self.nodes))
        self.root = self.graph.nodes[0]
        ends = {(c.source, c.target): c.id for c in self.graph.channels}
        self._back = {c.id: ends[c.target, c.source] for c in self.graph.channels}

    # ── the application ─────────────────────────────────────────────────────────────────────────────────────────────

    def initial(self, node: NodeId) -> Json:
        """`detector` is the saved state of the node's termination machine."""
        state = {"tasks": [], "worked": 0, "detector": self._machine(node, None).saved()}
        return {**state, "phase": "new"} if node == self.root else state

    def _machine(self, node: NodeId, saved: Mapping[str, Json] | None) -> DijkstraScholten:
        inputs, outputs, root = self.graph.inputs(node), self.graph.outputs(node), node == self.root
        if saved is None:
            return DijkstraScholten(inputs, outputs, root=root)
        return DijkstraScholten.resumed(inputs, outputs, saved, root=root)

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        kind, *targets = action
        if kind == "start" and state.get("phase") == "new":
            started = {**state, "phase": "running", "tasks": [self.params["fuel"]]}
            return self._step(node, started, StartWork())
        if kind != "work" or not state["tasks"]:
            return state, ()
        fuel, *rest = state["tasks"]
        inputs: list[TerminationInput] = [SendingWork(ChannelId(c), fuel - 1) for c in targets if fuel]
        if not rest:
            inputs.append(BecameIdle())
        return self._step(node, {**state, "tasks": rest, "worked": state["worked"] + 1}, *inputs)

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        signal = payload == SIGNAL
        try:
            return self._step(
                node, state, SignalArrived(self._back[channel]) if signal else WorkArrived(channel, payload)
            )
        except PeerFault:
            return state, ()  # only channels that lose or duplicate bring what makes no sense; it is dropped

    def _step(self, node: NodeId, state: Json, *inputs: TerminationInput) -> Reaction:
        machine = self._machine(node, state["detector"])
        new = dict(state)
        sends: list[tuple[ChannelId, Json]] = []
        for effect in (effect for input in inputs for effect in machine.step(input)):
            if isinstance(effect, DeliverWork):
                new["tasks"] = [*new["tasks"], effect.message]
            elif isinstance(effect, SendWork):
                sends.append((effect.channel, effect.message))
            elif isinstance(effect, SendSignal):
                sends.append((self._back[effect.channel], SIGNAL))
            else:
                new["phase"] = "over"
        return {**new, "detector": machine.saved()}, sends

    # ── the generator ───────────────────────────────────────────────────────────────────────────────────────────────

    def next_action(self, node: NodeId, state: Json, dice: Dice) -> Json | None:
        if state.get("phase") == "new":
            return ["start"]
        if not state["tasks"]:
            return None
        outputs = self.graph.outputs(node)
        # Two tasks for one, and now and then fewer: the computation spreads before it dies out.
        return ["work", *(dice.pick(outputs) for _ in range(2) if outputs and dice.chance(850))]

    @property
    def length(self) -> int:
        return 6 * int(self.params["fuel"])

    @classmethod
    def scripts(cls) -> Mapping[str, Script]:
        a, b, c = node_names(3)
        return {
            "there-and-on": Script(
                "the root gives one task, which is passed on once", 3,
                {a: (["start"], ["work", "n1-n2"]), b: (["work", "n2-n3"],), c: (["work"],)}, {"fuel": 2},
            ),
            "to-and-fro": Script(
                "two nodes: a task that comes back to the root", 2,
                {a: (["start"], ["work", "n1-n2"], ["work"]), b: (["work", "n2-n1"],)}, {"fuel": 2},
            ),
        }  # fmt: skip

    # ── the checker ─────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, cut: Cut) -> str | None:
        for channel in self.graph.channels:
            owed = cut.states[channel.source]["detector"]["deficit"].get(channel.id, 0)
            tasks = sum(m.payload != SIGNAL for m in cut.channels.get(channel.id, ()))
            signals = sum(m.payload == SIGNAL for m in cut.channels.get(self._back[channel.id], ()))
            engaged = cut.states[channel.target]["detector"]["parent"] == channel.id
            if owed != tasks + signals + engaged:
                return (
                    f"{channel.source} waits for {owed} signals from {channel.target}, but {tasks} tasks are going "
                    f"there, {signals} signals on the way back, and {channel.target} owes {int(engaged)}."
                )
        if cut.states[self.root]["phase"] == "over":
            busy = [str(node) for node, s in cut.states.items() if s["tasks"] or s["detector"]["engaged"]]
            busy += [f"channel {channel}" for channel, messages in cut.channels.items() if messages]
            if busy:
                return f"{self.root} says that all is over, but {', '.join(busy)} is not idle."
        return None

    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        if states[self.root]["phase"] != "over":
            return f"Everything has come to rest, but {self.root} has not noticed."
        return self.check(Cut(SnapshotId(0), states, {}))

    # ── whether it is over: whether the root knows it or not ────────────────────────────────────────────────────────

    def is_active(self, node: NodeId, state: Json) -> bool:
        return bool(state["tasks"]) or state.get("phase") == "new"

    def is_work(self, channel: ChannelId, payload: Json) -> bool:
        return bool(payload != SIGNAL)
