"""One token goes round a ring.

A node that has the token passes it to the next one. The token counts its hops; after `rounds` times round the ring it
stays where it is.

Invariant: there is exactly one token, in a node or in flight, and its hops agree with the nodes' visits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.topology import node_names, ring
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.model.app import Reaction
from strobe.model.cut import Cut, Json
from strobe.model.ids import ChannelId, NodeId

__all__ = ["TokenRing"]


class TokenRing(Workload):
    name = "token-ring"
    description = "A token goes round a ring: there is exactly one."
    defaults: ClassVar[Mapping[str, Json]] = {"rounds": 5}
    wakes = True

    def __init__(self, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> None:
        super().__init__(nodes, params)
        self.graph = ring(node_names(self.nodes))
        self._hops: int = self.params["rounds"] * self.nodes

    def initial(self, node: NodeId) -> Json:
        """`token` is the number of hops that it has made, or None where it is not."""
        return {"token": 0 if node == self.graph.nodes[0] else None, "passed": 0}

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        if state["token"] is None:
            return state, ()
        new = {"token": None, "passed": state["passed"] + 1}
        return new, ((self.graph.outputs(node)[0], state["token"] + 1),)

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        return {"token": payload, "passed": state["passed"]}, ()

    def next_action(self, node: NodeId, state: Json, dice: Dice) -> Json | None:
        token = state["token"]
        return "pass" if token is not None and token < self._hops else None

    @property
    def length(self) -> int:
        return self._hops * 2  # one token: the nodes take turns, and each hop costs a message's delay as well

    @classmethod
    def scripts(cls) -> Mapping[str, Script]:
        a, b, c = node_names(3)
        return {
            "once-round": Script("three nodes, the token goes once round", 3, dict.fromkeys((a, b, c), ("pass",))),
        }

    def check(self, cut: Cut) -> str | None:
        places = [f"{node}" for node, state in cut.states.items() if state["token"] is not None]
        places += [f"{channel} (in flight)" for channel, messages in cut.channels.items() for _ in messages]
        hops = [state["token"] for state in cut.states.values() if state["token"] is not None]
        hops += [message.payload for messages in cut.channels.values() for message in messages]
        if len(places) != 1:
            return f"There are {len(places)} tokens, not one: {', '.join(places) or 'nowhere'}."
        passed = sum(state["passed"] for state in cut.states.values())
        if hops != [passed]:
            return f"The token at {places[0]} has made {hops[0]} hops, but the nodes have passed it {passed} times."
        return None

    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        holders = [node for node, state in states.items() if state["token"] is not None]
        if len(holders) != 1:
            return f"At the end there are {len(holders)} tokens, not one."
        if states[holders[0]]["token"] != self._hops:
            return f"At the end the token has made {states[holders[0]]['token']} hops, not {self._hops}."
        return None
