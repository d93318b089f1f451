"""A diffusing computation, and its termination detected by Dijkstra and Scholten's algorithm (1980).

The root starts with one task. A node that works on a task may send tasks to others, each with less fuel, until the fuel
is used up; then the system falls silent, and the root must notice.

Every task that was sent is answered by one signal, on the channel that leads back. The task that engages an idle node
(its sender becomes the parent) is answered when the node has nothing left to do and all its own tasks are answered;
every other task at once. When the root itself has nothing left to do and no answer outstanding, all is over.

Invariant: what a node waits for is exactly its tasks in flight, the nodes that it engaged, and the signals on the way
to it; and when the root says that all is over, every node is idle and every channel empty. Termination is stable, so a
snapshot that shows it proves it. At the end of a run the root has said so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.topology import complete, node_names
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.model.app import Reaction, Sends
from strobe.model.cut import Cut, Json
from strobe.model.ids import ChannelId, NodeId, SnapshotId

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
        """`waits` counts unanswered tasks; `parent` is the channel of the task that engaged the node."""
        state = {"tasks": [], "waits": 0, "parent": None, "worked": 0}
        return {**state, "phase": "new"} if node == self.root else state

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        kind, *targets = action
        if kind == "start" and state.get("phase") == "new":
            return {**state, "phase": "running", "tasks": [self.params["fuel"]]}, ()
        if kind != "work" or not state["tasks"]:
            return state, ()
        fuel, *rest = state["tasks"]
        sends = tuple((ChannelId(channel), fuel - 1) for channel in targets) if fuel else ()
        new = {**state, "tasks": rest, "worked": state["worked"] + 1, "waits": state["waits"] + len(sends)}
        return self._rest(node, new, sends)

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        if payload == SIGNAL:
            return self._rest(node, {**state, "waits": state["waits"] - 1}, ())
        new = {**state, "tasks": [*state["tasks"], payload]}
        if self._engaged(node, state):
            return new, ((self._back[channel], SIGNAL),)
        return {**new, "parent": channel}, ()

    def _engaged(self, node: NodeId, state: Json) -> bool:
        return state["parent"] is not None or node == self.root

    def _rest(self, node: NodeId, state: Json, sends: Sends) -> Reaction:
        """If nothing is left to do or to wait for, answer the parent; the root knows that all is over."""
        if state["tasks"] or state["waits"]:
            return state, sends
        if node == self.root:
            return {**state, "phase": "over"}, sends
        return {**state, "parent": None}, (*sends, (self._back[state["parent"]], SIGNAL))

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
        engaged: dict[NodeId, int] = {}
        for state in cut.states.values():
            if state["parent"] is not None:
                parent = self.graph.by_id[state["parent"]].source
                engaged[parent] = engaged.get(parent, 0) + 1
        for node, state in cut.states.items():
            tasks = self._count(cut, self.graph.outputs(node), signals=False)
            signals = self._count(cut, self.graph.inputs(node), signals=True)
            found = tasks + signals + engaged.get(node, 0)
            if state["waits"] != found:
                return (
                    f"{node} waits for {state['waits']} answers, but has {tasks} tasks in flight, "
                    f"{engaged.get(node, 0)} engaged nodes and {signals} signals on the way to it."
                )
            if state["tasks"] and not self._engaged(node, state):
                return f"{node} has tasks, but nobody has engaged it."
        if cut.states[self.root]["phase"] == "over":
            busy = [str(node) for node, state in cut.states.items() if state["tasks"] or state["parent"] is not None]
            busy += [f"channel {channel}" for channel, messages in cut.channels.items() if messages]
            if busy:
                return f"{self.root} says that all is over, but {', '.join(busy)} is not idle."
        return None

    @staticmethod
    def _count(cut: Cut, channels: tuple[ChannelId, ...], *, signals: bool) -> int:
        return sum((m.payload == SIGNAL) == signals for c in channels for m in cut.channels.get(c, ()))

    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        if states[self.root]["phase"] != "over":
            return f"Everything has come to rest, but {self.root} has not noticed."
        return self.check(Cut(SnapshotId(0), states, {}))

    def terminated(self, cut: Cut) -> bool:
        """Nobody has anything to do, and no task is in flight: whether the root knows it or not."""
        return (
            cut.states[self.root]["phase"] != "new"
            and not any(state["tasks"] for state in cut.states.values())
            and all(m.payload == SIGNAL for messages in cut.channels.values() for m in messages)
        )

    def finding(self, cut: Cut) -> str | None:
        if not self.terminated(cut):
            return None
        known = cut.states[self.root]["phase"] == "over"
        return f"The computation has terminated{'' if known else f', and {self.root} does not know it yet'}."
