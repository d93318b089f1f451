"""Money moves between branches of a bank, and none is made or lost.

Each node is a branch with a balance. By itself it sends some of its money to another branch; a branch that receives
money adds it. A branch never sends more than it has.

Invariant: the balances and the money in flight add up to what there was at the beginning. At the end all
transfers are made and nothing is in flight, so the balances alone do.

Parameters: `transfers` for each branch, the opening `balance`, the `most` that is sent at once, and the `graph`
(complete, ring, line, random, anything) with `channels` and `graph_seed` for the random ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.topology import node_names, shaped
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.model.app import Reaction
from strobe.model.cut import Cut, Json
from strobe.model.ids import ChannelId, NodeId

__all__ = ["Bank"]


class Bank(Workload):
    name = "bank"
    description = "Transfers between branches of a bank: money is conserved."
    defaults: ClassVar[Mapping[str, Json]] = {
        "transfers": 20, "balance": 1000, "most": 100, "graph": "complete", "channels": 0, "graph_seed": 1,
    }  # fmt: skip

    def __init__(self, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> None:
        super().__init__(nodes, params)
        p = self.params
        self.graph = shaped(p["graph"], node_names(self.nodes), p["channels"], p["graph_seed"])
        self._outputs = {node: self.graph.outputs(node) for node in self.graph.nodes}
        self._most: int = max(1, p["most"])

    def initial(self, node: NodeId) -> Json:
        return {"balance": self.params["balance"], "left": self.params["transfers"]}

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        channel, amount = action
        balance = state["balance"]
        if amount > balance:
            amount = balance
        new = {"balance": balance - amount, "left": state["left"] - 1}
        return new, ((channel, amount),) if amount else ()

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        return {"balance": state["balance"] + payload, "left": state["left"]}, ()

    def next_action(self, node: NodeId, state: Json, dice: Dice) -> Json | None:
        outputs = self._outputs[node]
        if state["left"] <= 0 or not outputs:
            return None
        bits = dice.bits(32)
        return [outputs[(bits & 0xFFFF) * len(outputs) >> 16], 1 + ((bits >> 16) * self._most >> 16)]

    @property
    def length(self) -> int:
        transfers: int = self.params["transfers"]
        return transfers

    @classmethod
    def scripts(cls) -> Mapping[str, Script]:
        a, b, c = node_names(3)
        return {
            "four-transfers": Script(
                "three branches, each joined to each, four transfers in a circle and back", 3,
                {a: (["n1-n2", 10], ["n1-n3", 1]), b: (["n2-n3", 20],), c: (["n3-n1", 30],)},
            ),
            "two-transfers": Script(
                "two branches, one transfer each way", 2, {a: (["n1-n2", 10],), b: (["n2-n1", 20],)}
            ),
        }  # fmt: skip

    def check(self, cut: Cut) -> str | None:
        at_rest = sum(state["balance"] for state in cut.states.values())
        in_flight = sum(m.payload for messages in cut.channels.values() for m in messages)
        return self._compare(at_rest, in_flight)

    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        for node, state in states.items():
            if state["left"] and self._outputs[node]:
                return f"{node} has {state['left']} transfers left to make."
        return self._compare(sum(state["balance"] for state in states.values()), 0)

    def _compare(self, at_rest: int, in_flight: int) -> str | None:
        expected = self.params["balance"] * self.nodes
        found = at_rest + in_flight
        if found == expected:
            return None
        return (
            f"{abs(found - expected)} {'appeared' if found > expected else 'vanished'}: {at_rest} in the branches and "
            f"{in_flight} in flight make {found}, but there were {expected} at the beginning."
        )
