"""A keyed dataflow: sources that can replay → map → count by key → sink; each record has its effect exactly once.

Record number n of a source is a function of the source and n: a source's whole state is its offset, so after a restart
it emits the same records again. A map doubles the value and sends it to the counter of its key; a counter keeps number
and sum for each key and tells the sink, which keeps both over all keys.

Invariant, for each key: what the counters hold and what is in flight before them is exactly what the sources have
emitted, in number and in sum; and what the sink holds and what is in flight before it is exactly what the counters
hold. At the end all records have passed through.

Parameters: `records` for each source, `keys`, `uneven` (sources end at different times), `skew` (the first source
pauses that many turns between records, so that its barriers come late).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.topology import joined, node_names
from strobe.hosts.sim.workloads.base import Script, Workload
from strobe.model.app import Reaction
from strobe.model.cut import Cut, Json
from strobe.model.ids import ChannelId, NodeId

__all__ = ["Dataflow"]

SINK = NodeId("sink")


class Dataflow(Workload):
    name = "dataflow"
    description = "Sources that replay → map → count by key → sink: every record counts exactly once."
    defaults: ClassVar[Mapping[str, Json]] = {"records": 20, "keys": 5, "uneven": False, "skew": 0}
    default_nodes = 7
    least_nodes = 4
    ends = True

    def __init__(self, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> None:
        super().__init__(nodes, params)
        rest = self.nodes - 1
        self.sources = node_names((rest + 2) // 3, "source")
        self.maps = node_names((rest + 1) // 3, "map")
        self.counters = node_names(rest // 3, "count")
        self.graph = joined(
            (*self.sources, *self.maps, *self.counters, SINK),
            [
                *((s, m) for s in self.sources for m in self.maps),
                *((m, c) for m in self.maps for c in self.counters),
                *((c, SINK) for c in self.counters),
            ],
        )
        self._keys = max(1, self.params["keys"])

    def total(self, source: NodeId) -> int:
        """How many records the source has."""
        records: int = self.params["records"]
        if not self.params["uneven"]:
            return records
        return records * (self.sources.index(source) + 1) // len(self.sources)

    def record(self, source: NodeId, offset: int) -> tuple[str, int]:
        number = self.sources.index(source)
        return f"k{(offset * 3 + number) % self._keys}", offset % 10 + number + 1

    # ── the application ─────────────────────────────────────────────────────────────────────────────────────────────

    def initial(self, node: NodeId) -> Json:
        if node in self.sources:
            return {"offset": 0}
        if node in self.maps:
            return {"mapped": 0}
        return {"number": 0, "sum": 0} if node == SINK else {"keys": {}}

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        offset = state["offset"]
        if action != "emit" or offset >= self.total(node):
            return state, ()
        outputs = self.graph.outputs(node)
        return {"offset": offset + 1}, ((outputs[offset % len(outputs)], self.record(node, offset)),)

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        if node == SINK:
            return {"number": state["number"] + 1, "sum": state["sum"] + payload}, ()
        key, value = payload
        outputs = self.graph.outputs(node)
        if "mapped" in state:
            return {"mapped": state["mapped"] + 1}, ((outputs[int(key[1:]) % len(outputs)], (key, 2 * value)),)
        number, total = state["keys"].get(key, (0, 0))
        return {"keys": {**state["keys"], key: [number + 1, total + value]}}, ((outputs[0], value),)

    # ── the generator ───────────────────────────────────────────────────────────────────────────────────────────────

    def next_action(self, node: NodeId, state: Json, dice: Dice) -> Json | None:
        if "offset" not in state or state["offset"] >= self.total(node):
            return None
        if node == self.sources[0] and self.params["skew"] and dice.below(self.params["skew"] + 1):
            return "pause"
        return "emit"

    def finished(self, node: NodeId, state: Json) -> bool:
        return "offset" in state and state["offset"] >= self.total(node)

    @property
    def length(self) -> int:
        records: int = self.params["records"]
        return records

    @classmethod
    def scripts(cls) -> Mapping[str, Script]:
        emit = ("emit", "emit")
        return {
            "one-lane": Script(
                "one node of each kind, two records", 4, {NodeId("source1"): emit}, {"records": 2, "keys": 2}
            ),
            "two-lanes": Script(
                "two sources into two maps, one record each", 5,
                {NodeId("source1"): ("emit",), NodeId("source2"): ("emit",)}, {"records": 1, "keys": 2},
            ),
        }  # fmt: skip

    # ── the checker ─────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, cut: Cut) -> str | None:
        return self._check(cut.states, cut.channels)

    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        for source in self.sources:
            if states[source]["offset"] != self.total(source):
                return f"{source} stopped at record {states[source]['offset']} of {self.total(source)}."
        return self._check(states, {})

    def _check(self, states: Mapping[NodeId, Json], channels: Mapping[ChannelId, Iterable[Json]]) -> str | None:
        def in_flight(sources: Iterable[NodeId]) -> list[Json]:
            return [m.payload for s in sources for c in self.graph.outputs(s) for m in channels.get(c, ())]

        emitted = [self.record(s, i) for s in self.sources for i in range(states[s]["offset"])]
        wanted = _by_key((key, 1, 2 * value) for key, value in emitted)
        found = _by_key(
            [
                *((key, 1, 2 * value) for key, value in in_flight(self.sources)),
                *((key, 1, value) for key, value in in_flight(self.maps)),
                *((key, *kept) for c in self.counters for key, kept in states[c]["keys"].items()),
            ]
        )
        for key in sorted({*wanted, *found}):
            if wanted.get(key) != found.get(key):
                return (
                    f"Key {key}: the sources have emitted {_text(wanted.get(key))}, but counters and channels hold "
                    f"{_text(found.get(key))}."
                )
        counted = _by_key(("all", *kept) for c in self.counters for kept in states[c]["keys"].values())
        late = in_flight(self.counters)
        at_sink = [states[SINK]["number"] + len(late), states[SINK]["sum"] + sum(late)]
        if counted.get("all", [0, 0]) != at_sink:
            return (
                f"The counters have counted {_text(counted.get('all'))}, but the sink has or will get {_text(at_sink)}."
            )
        return None


def _by_key(parts: Iterable[tuple[str, int, int]]) -> dict[str, list[int]]:
    result: dict[str, list[int]] = {}
    for key, number, total in parts:
        kept = result.setdefault(key, [0, 0])
        kept[0] += number
        kept[1] += total
    return result


def _text(kept: list[int] | None) -> str:
    return "no record" if not kept else f"{kept[0]} records with sum {kept[1]}"
