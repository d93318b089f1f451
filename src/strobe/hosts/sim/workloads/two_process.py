"""The two examples that everybody starts with, on two processes joined both ways.

`transfer`: banks A and B have 200 each, and A sends 50 to B. Record A after it has sent and B before it has received,
and forget the channel: 50 have vanished. Record B after it has received and A before it has sent: 50 have appeared.

`messages`: P and Q begin with x = 0 and y = 0. P sends m1; Q receives it and sets y to 5, then sends m2; P receives
that and sets x to 10. Invariant: a snapshot shows one of the five global states that this can pass through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.topology import joined
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.model.app import Reaction
from strobe.model.cut import Cut, Json
from strobe.model.errors import Misuse
from strobe.model.ids import ChannelId, NodeId

__all__ = ["TwoProcess"]

A, B, P, Q = (NodeId(name) for name in "ABPQ")

# (x, m1 sent, y, m2 sent, in flight), in the order in which they occur
_HISTORY = (
    (0, False, 0, False, ()),
    (0, True, 0, False, ("m1",)),
    (0, True, 5, False, ()),
    (0, True, 5, True, ("m2",)),
    (10, True, 5, True, ()),
)


class TwoProcess(Workload):
    name = "two-process"
    description = "The two classic examples: 50 sent from A to B; and P and Q with messages m1 and m2."
    defaults: ClassVar[Mapping[str, Json]] = {"example": "transfer"}
    default_nodes = least_nodes = most_nodes = 2
    wakes = True

    def __init__(self, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> None:
        super().__init__(nodes, params)
        if self.params["example"] not in ("transfer", "messages"):
            raise Misuse(
                f"The workload {self.name!r} has no example {self.params['example']!r}.",
                next="Choose transfer or messages.",
            )
        self._transfer = self.params["example"] == "transfer"
        first, second = (A, B) if self._transfer else (P, Q)
        self.graph = joined((first, second), ((first, second), (second, first)))

    def initial(self, node: NodeId) -> Json:
        if self._transfer:
            return {"balance": 200, "to_send": 50 if node == A else 0}
        return {"x": 0, "sent": False} if node == P else {"y": 0, "sent": False}

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        output = self.graph.outputs(node)[0]
        if self._transfer:
            amount = state["to_send"]
            return {"balance": state["balance"] - amount, "to_send": 0}, ((output, amount),) if amount else ()
        if not self._may_send(node, state):
            return state, ()
        return {**state, "sent": True}, ((output, "m1" if node == P else "m2"),)

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        if self._transfer:
            return {**state, "balance": state["balance"] + payload}, ()
        return {**state, **({"x": 10} if node == P else {"y": 5})}, ()

    @staticmethod
    def _may_send(node: NodeId, state: Json) -> bool:
        return not state["sent"] and (node == P or state["y"] == 5)

    def next_action(self, node: NodeId, state: Json, dice: Dice) -> Json | None:
        if self._transfer:
            return "send" if state["to_send"] else None
        return "send" if self._may_send(node, state) else None

    @property
    def length(self) -> int:
        return 4

    @classmethod
    def scripts(cls) -> Mapping[str, Script]:
        return {
            "transfer": Script("A sends 50 to B", 2, {A: ("send",)}, {"example": "transfer"}),
            "messages": Script("m1 from P to Q, m2 back", 2, {P: ("send",), Q: ("send",)}, {"example": "messages"}),
        }

    def check(self, cut: Cut) -> str | None:
        in_flight = [m.payload for messages in cut.channels.values() for m in messages]
        if self._transfer:
            total = sum(state["balance"] for state in cut.states.values()) + sum(in_flight)
            if total == 400:
                return None
            return f"{abs(total - 400)} {'appeared' if total > 400 else 'vanished'}: the two banks have 400 together."
        p, q = cut.states[P], cut.states[Q]
        if (p["x"], p["sent"], q["y"], q["sent"], tuple(in_flight)) in _HISTORY:
            return None
        return (
            f"x = {p['x']}, y = {q['y']} with {', '.join(in_flight) or 'nothing'} in flight "
            f"(m1 {'' if p['sent'] else 'not '}sent, m2 {'' if q['sent'] else 'not '}sent) never occurs."
        )

    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        expected = {A: 150, B: 250} if self._transfer else {P: 10, Q: 5}
        for node, state in states.items():
            value = next(v for k, v in state.items() if k in ("balance", "x", "y"))
            if value != expected[node]:
                return f"At the end {node} has {value}, not {expected[node]}."
        return None
