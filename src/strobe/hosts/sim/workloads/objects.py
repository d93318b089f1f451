"""Objects that migrate, references that travel, and garbage that a snapshot shows.

Each node keeps objects, each of which refers to others, and has references of its own, its roots. By itself it makes an
object, gives a copy of a root to another node, drops a root, lets an object that it keeps refer to one of its roots, or
sends an object away to be kept elsewhere. Nothing is ever collected.

Invariant: every object that was made is in exactly one place, kept or in flight; every reference leads to one; and as
many messages are in flight as were sent and have not come.

An object is garbage when no root and no reference in flight leads to it. Garbage is stable: only a node that has a
reference as a root can copy it. A snapshot that forgets a reference in flight would call its object garbage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.topology import node_names, shaped
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.model.app import Reaction, Sends
from strobe.model.cut import Cut, Json
from strobe.model.ids import ChannelId, NodeId, SnapshotId

__all__ = ["Objects"]

_KINDS = ("make", "make", "give", "give", "give", "drop", "drop", "move", "link", "link")


class Objects(Workload):
    name = "objects"
    description = "Objects migrate and references travel: nothing is lost, and what nobody can reach is garbage."
    defaults: ClassVar[Mapping[str, Json]] = {"actions": 20}
    default_nodes = 3
    least_nodes = 2

    def __init__(self, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> None:
        super().__init__(nodes, params)
        self.graph = shaped("complete", node_names(self.nodes), 0, 1)

    def initial(self, node: NodeId) -> Json:
        """`sent` and `got` count messages, so that one that is lost is missed."""
        return {"left": self.params["actions"], "made": 0, "sent": 0, "got": 0, "kept": {}, "roots": []}

    # ── the application ─────────────────────────────────────────────────────────────────────────────────────────────

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        kind, *what = action
        kept, roots = dict(state["kept"]), list(state["roots"])
        made = state["made"]
        sends: Sends = ()
        if kind == "make":
            made += 1
            name = f"{node}.{made}"
            kept[name] = []
            roots.append(name)
        elif kind == "give" and what[0] in roots:
            sends = ((what[1], ("ref", what[0])),)
        elif kind == "drop" and what[0] in roots:
            roots.remove(what[0])
        elif kind == "link" and what[0] in kept and what[1] in roots:
            kept[what[0]] = sorted({*kept[what[0]], what[1]})
        elif kind == "move" and what[0] in kept:
            sends = ((what[1], ("object", what[0], tuple(kept.pop(what[0])))),)
        new = {"left": state["left"] - 1, "made": made, "sent": state["sent"] + len(sends), "got": state["got"]}
        return {**new, "kept": kept, "roots": sorted(roots)}, sends

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        new = {**state, "got": state["got"] + 1}
        if payload[0] == "ref":
            return {**new, "roots": sorted({*state["roots"], payload[1]})}, ()
        return {**new, "kept": {**state["kept"], payload[1]: list(payload[2])}}, ()

    # ── the generator ───────────────────────────────────────────────────────────────────────────────────────────────

    def next_action(self, node: NodeId, state: Json, dice: Dice) -> Json | None:
        if state["left"] <= 0:
            return None
        kind, roots, kept = dice.pick(_KINDS), state["roots"], sorted(state["kept"])
        if kind in ("give", "drop") and roots:
            return [kind, dice.pick(roots), *([dice.pick(self.graph.outputs(node))] if kind == "give" else [])]
        if kind == "link" and roots and kept:
            return [kind, dice.pick(kept), dice.pick(roots)]
        if kind == "move" and kept:
            return [kind, dice.pick(kept), dice.pick(self.graph.outputs(node))]
        return ["make"]

    @property
    def length(self) -> int:
        actions: int = self.params["actions"]
        return actions

    @classmethod
    def scripts(cls) -> Mapping[str, Script]:
        a, b = node_names(2)
        hand_over = (["make"], ["give", "n1.1", "n1-n2"], ["drop", "n1.1"])
        return {
            "hand-over": Script(
                "one object, whose only reference is handed over, and dropped there if it has come", 2,
                {a: hand_over, b: (["drop", "n1.1"],)}, {"actions": 3},
            ),
            "migrate": Script(
                "an object moves to where its reference went", 2,
                {a: (["make"], ["give", "n1.1", "n1-n2"], ["move", "n1.1", "n1-n2"]), b: ()}, {"actions": 3},
            ),
        }  # fmt: skip

    # ── the checker ─────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, cut: Cut) -> str | None:
        flying = [m.payload for messages in cut.channels.values() for m in messages]
        places = Counter(name for state in cut.states.values() for name in state["kept"])
        places.update(payload[1] for payload in flying if payload[0] == "object")
        twice = sorted(name for name, count in places.items() if count > 1)
        if twice:
            return f"{twice[0]} is in {places[twice[0]]} places."
        made = sum(state["made"] for state in cut.states.values())
        if made != len(places):
            return f"{made} objects were made, but {len(places)} are there."
        under_way = sum(state["sent"] - state["got"] for state in cut.states.values())
        if under_way != len(flying):
            return f"{under_way} messages were sent and have not come, but {len(flying)} are in flight."
        used = [ref for state in cut.states.values() for ref in state["roots"]]
        used += [ref for state in cut.states.values() for refs in state["kept"].values() for ref in refs]
        for payload in flying:
            used += [payload[1]] if payload[0] == "ref" else payload[2]
        nowhere = sorted(ref for ref in set(used) if ref not in places)
        return f"There is a reference to {nowhere[0]}, which is nowhere." if nowhere else None

    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        busy = [node for node, state in states.items() if state["left"] > 0]
        return f"{busy[0]} has something left to do." if busy else self.check(Cut(SnapshotId(0), states, {}))

    # ── what is kept, and who refers to it ──────────────────────────────────────────────────────────────────────────

    def objects(self, node: NodeId, state: Json) -> Mapping[Hashable, Iterable[Hashable]]:
        kept: Mapping[Hashable, Iterable[Hashable]] = state["kept"]
        return kept

    def refs(self, node: NodeId, state: Json) -> Iterable[Hashable]:
        roots: Iterable[Hashable] = state["roots"]
        return roots

    def objects_in(self, channel: ChannelId, payload: Json) -> Mapping[Hashable, Iterable[Hashable]]:
        return {payload[1]: tuple(payload[2])} if payload[0] == "object" else {}

    def refs_in(self, channel: ChannelId, payload: Json) -> Iterable[Hashable]:
        return (payload[1],) if payload[0] == "ref" else ()
