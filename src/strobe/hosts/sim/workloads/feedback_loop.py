"""A dataflow with a loop: records go round until they are done, so some are always on the way back.

source → head → body … → sink, and from the last body back to the head. Record n starts with the value n + 1. Each time
round, the last body halves an even value and turns an odd one v into 3v + 1; a record whose value is 1 leaves for the
sink with the number of rounds that it took.

The channel back is a feedback channel: alignment does not wait for it, and what it holds belongs to the snapshot.

Invariant: every record that the source has emitted is in exactly one place, in flight or in the sink, and its value is
right for the rounds that it has made.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.topology import node_names
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.model.app import Reaction
from strobe.model.cut import Cut, Json
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId

__all__ = ["FeedbackLoop"]

SOURCE, HEAD, SINK = NodeId("source"), NodeId("head"), NodeId("sink")


def _next(value: int) -> int:
    return value // 2 if value % 2 == 0 else 3 * value + 1


class FeedbackLoop(Workload):
    name = "feedback-loop"
    description = "A dataflow with a loop: records go round until done, and the loop's content is in the snapshot."
    defaults: ClassVar[Mapping[str, Json]] = {"records": 10}
    default_nodes = least_nodes = 4
    ends = True

    def __init__(self, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> None:
        super().__init__(nodes, params)
        bodies = node_names(self.nodes - 3, "body")
        self._last = bodies[-1]
        ends = [*pairwise((SOURCE, HEAD, *bodies, SINK))]
        forward = tuple(Channel(ChannelId(f"{a}-{b}"), a, b) for a, b in ends)
        self._back = ChannelId(f"{self._last}-{HEAD}")
        self._out = ChannelId(f"{self._last}-{SINK}")
        self.graph = Graph(
            (SOURCE, HEAD, *bodies, SINK), (*forward, Channel(self._back, self._last, HEAD, feedback=True))
        )

    def initial(self, node: NodeId) -> Json:
        if node == SOURCE:
            return {"next": 0}
        return {"done": {}} if node == SINK else {"passed": 0}

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        number = state["next"]
        if number >= self.params["records"]:
            return state, ()
        return {"next": number + 1}, ((self.graph.outputs(node)[0], (number, number + 1, 0)),)

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        number, value, rounds = payload
        if node == SINK:
            return {"done": {**state["done"], str(number): rounds}}, ()
        new = {"passed": state["passed"] + 1}
        if node != self._last:
            return new, ((self.graph.outputs(node)[0], (number, value, rounds)),)
        if value == 1:
            return new, ((self._out, (number, value, rounds)),)
        return new, ((self._back, (number, _next(value), rounds + 1)),)

    def next_action(self, node: NodeId, state: Json, dice: Dice) -> Json | None:
        return "emit" if node == SOURCE and state["next"] < self.params["records"] else None

    def finished(self, node: NodeId, state: Json) -> bool:
        return node == SOURCE and bool(state["next"] >= self.params["records"])

    @property
    def length(self) -> int:
        return 4 * int(self.params["records"])  # the source is done sooner, but the loop goes on

    @classmethod
    def scripts(cls) -> Mapping[str, Script]:
        return {
            "once-round": Script(
                "two records, of which one goes round once", 4, {SOURCE: ("emit",) * 2}, {"records": 2}
            )
        }

    def check(self, cut: Cut) -> str | None:
        places: dict[int, list[str]] = {number: [] for number in range(cut.states[SOURCE]["next"])}
        for channel, messages in cut.channels.items():
            for message in messages:
                number, value, rounds = message.payload
                places.setdefault(number, []).append(f"on {channel}")
                right = self._value(number, rounds)
                if value != right:
                    return f"Record {number} has the value {value} after {rounds} rounds, not {right}."
        for text in cut.states[SINK]["done"]:
            places.setdefault(int(text), []).append("in the sink")
        return self._misplaced(places, cut.states)

    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        if states[SOURCE]["next"] != self.params["records"]:
            return f"The source stopped at record {states[SOURCE]['next']} of {self.params['records']}."
        places: dict[int, list[str]] = {number: [] for number in range(self.params["records"])}
        for text in states[SINK]["done"]:
            places.setdefault(int(text), []).append("in the sink")
        return self._misplaced(places, states)

    def _misplaced(self, places: Mapping[int, list[str]], states: Mapping[NodeId, Json]) -> str | None:
        for number, where in places.items():
            if len(where) != 1:
                return f"Record {number} is in {len(where)} places: {', '.join(where) or 'nowhere'}."
            if number >= states[SOURCE]["next"]:
                return f"Record {number} is {where[0]}, but the source has not emitted it."
        for text, rounds in states[SINK]["done"].items():
            if self._value(int(text), rounds) != 1:
                return f"Record {text} left the loop after {rounds} rounds, with a value that is not 1."
        return None

    @staticmethod
    def _value(number: int, rounds: int) -> int:
        value = number + 1
        for _ in range(rounds):
            value = _next(value)
        return value
