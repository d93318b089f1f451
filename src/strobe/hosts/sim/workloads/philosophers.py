"""Dining philosophers: forks are asked for by message, and a deadlock shows in a snapshot.

Philosopher i keeps fork i and shares it with the neighbour on the left, whose right fork it is. Hungry, a philosopher
takes the own fork, then asks the right neighbour for the other one; with both, eats; then gives both back. A fork that
is in use makes others wait in line. If all take their own fork at once, all wait for ever: a deadlock. With `polite`
the last philosopher asks for the right fork first, and there is none.

Invariant: each fork is in exactly one place (with its keeper, with the left neighbour, or in flight between the two),
whoever eats has two, and whoever waits for the right fork has asked for it once.

Deadlock is stable: a consistent snapshot that shows one proves that the system is stuck now; an inconsistent one can
show a phantom. `waits_for` and its neighbours say what the shared detector asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.topology import joined, node_names
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.model.app import Reaction
from strobe.model.cut import Cut, Json
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.predicates.deadlock import Wait, all_of, deadlock

__all__ = ["Philosophers"]


class Philosophers(Workload):
    name = "philosophers"
    description = "Dining philosophers: forks are never shared, and a deadlock shows in a snapshot."
    defaults: ClassVar[Mapping[str, Json]] = {"meals": 5, "polite": False}
    default_nodes = 5
    least_nodes = 2
    wakes = True

    def __init__(self, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> None:
        super().__init__(nodes, params)
        names = node_names(self.nodes, "p")
        rights = list(zip(names, names[1:] + names[:1], strict=True))
        self.graph = joined(names, [*rights, *((b, a) for a, b in rights)])
        channels = self.graph.channels
        self._right = {c.source: c for c in channels[: self.nodes]}  # carries requests and returns
        self._left = {c.source: c for c in channels[self.nodes :]}  # carries forks

    def initial(self, node: NodeId) -> Json:
        """`fork`: who has the own fork (nobody, me, left); `line`: who waits for it; `right`: has the right fork."""
        return {"mood": "thinking", "meals": self.params["meals"], "fork": "nobody", "line": [], "right": False}

    def _right_first(self, node: NodeId) -> bool:
        return bool(self.params["polite"]) and node == self.graph.nodes[-1]

    # ── the application ─────────────────────────────────────────────────────────────────────────────────────────────

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        if action == "hungry" and state["mood"] == "thinking" and state["meals"]:
            new = {**state, "mood": "hungry"}
            return self._ask_right(node, new) if self._right_first(node) else self._take_own(node, new)
        if action == "done" and state["mood"] == "eating":
            new = {**state, "mood": "thinking", "meals": state["meals"] - 1, "right": False, "fork": "nobody"}
            new, sends = self._hand_on(node, new)
            return new, ((self._right[node].id, "return"), *sends)
        return state, ()

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        if payload == "request":
            return self._hand_on(node, {**state, "line": [*state["line"], "left"]})
        if payload == "return":
            return self._hand_on(node, {**state, "fork": "nobody"})
        new = {**state, "right": True}
        return self._take_own(node, new) if self._right_first(node) else self._eat(new)

    def _take_own(self, node: NodeId, state: Json) -> Reaction:
        return self._hand_on(node, {**state, "line": [*state["line"], "me"]})

    def _ask_right(self, node: NodeId, state: Json) -> Reaction:
        return state, ((self._right[node].id, "request"),)

    @staticmethod
    def _eat(state: Json) -> Reaction:
        return {**state, "mood": "eating"}, ()

    def _hand_on(self, node: NodeId, state: Json) -> Reaction:
        """If the own fork is free, give it to the first in line."""
        if state["fork"] != "nobody" or not state["line"]:
            return state, ()
        first, *rest = state["line"]
        new = {**state, "fork": first, "line": rest}
        if first == "left":
            return new, ((self._left[node].id, "fork"),)
        return self._eat(new) if new["right"] else self._ask_right(node, new)

    # ── the generator ───────────────────────────────────────────────────────────────────────────────────────────────

    def next_action(self, node: NodeId, state: Json, dice: Dice) -> Json | None:
        if state["mood"] == "eating":
            return "done"
        return "hungry" if state["mood"] == "thinking" and state["meals"] else None

    @property
    def length(self) -> int:
        meals: int = self.params["meals"]
        return 6 * meals

    @classmethod
    def scripts(cls) -> Mapping[str, Script]:
        meal = ("hungry", "done")
        return {
            "two": Script("two philosophers, one meal each", 2, dict.fromkeys(node_names(2, "p"), meal), {"meals": 1}),
            "three": Script(
                "three philosophers, one meal each", 3, dict.fromkeys(node_names(3, "p"), meal), {"meals": 1}
            ),
        }

    # ── the checker ─────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, cut: Cut) -> str | None:
        for node, state in cut.states.items():
            left = self._left[node].target
            if state["mood"] == "eating" and not (state["fork"] == "me" and state["right"]):
                return f"{node} eats without two forks."
            places = []
            if state["fork"] != "left":
                places.append(f"with {node}")
            if cut.states[left]["right"]:
                places.append(f"with {left}")
            places += ["on its way out" for m in cut.channels.get(self._left[node].id, ()) if m.payload == "fork"]
            places += ["on its way back" for m in cut.channels.get(self._right[left].id, ()) if m.payload == "return"]
            if len(places) != 1:
                return f"The fork of {node} is in {len(places)} places: {', '.join(places) or 'nowhere'}."
            asked = state["line"].count("left") + places.count("on its way out")
            asked += sum(m.payload == "request" for m in cut.channels.get(self._right[left].id, ()))
            wanted = self._has_asked(left, cut.states[left])
            if asked != wanted:
                return f"{left} has asked {int(wanted)} times for the fork of {node}, but {asked} requests are known."
        return None

    def _has_asked(self, node: NodeId, state: Json) -> bool:
        """Whether the philosopher waits for the right fork."""
        return state["mood"] == "hungry" and not state["right"] and (state["fork"] == "me" or self._right_first(node))

    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        found = self.check(Cut(SnapshotId(0), states, {}))
        if found is not None or deadlock({node: self.waits_for(node, states[node]) for node in states}) is not None:
            return found
        unfed = [node for node, state in states.items() if state["meals"]]
        return f"{', '.join(unfed)} have not finished, though nobody is stuck." if unfed else None

    # ── who waits for whom ──────────────────────────────────────────────────────────────────────────────────────────

    def waits_for(self, node: NodeId, state: Json) -> Wait | None:
        if state["mood"] != "hungry":
            return None
        if self._has_asked(node, state):
            return all_of(self._right[node].target, what="its fork")
        return all_of(self._left[node].target, what="my fork back")

    def holds(self, node: NodeId, state: Json) -> tuple[str, ...]:
        own = ("its own fork",) if state["fork"] == "me" else ()
        return (*own, f"the fork of {self._right[node].target}") if state["right"] else own

    def would_give(self, node: NodeId, state: Json, to: NodeId) -> bool:
        """A fork that nobody uses goes to whoever asks for it, though its keeper may wait for the other one."""
        return bool(state["fork"] == "nobody" and self._left[node].target == to)

    def is_grant(self, channel: ChannelId, payload: Json) -> bool:
        return bool(payload != "request")
