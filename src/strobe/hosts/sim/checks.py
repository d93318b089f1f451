"""Stable predicates of simulated systems: asked of snapshots, and of the world itself.

A workload says of each state what its node waits for, whether it is active, what it keeps (`workloads.base`). The
simulator can do what no live system can: ask the same of the whole world at one moment. So it knows whether what a
snapshot shows is really there. If it is not, the snapshot shows a *phantom*, and was not a consistent cut.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from strobe.hosts.shared.functions import function_named, is_function_name
from strobe.hosts.sim.network import Stamped
from strobe.hosts.sim.parts import capture
from strobe.hosts.sim.runner import SimResult
from strobe.hosts.sim.workloads.base import Workload
from strobe.hosts.sim.world import World
from strobe.model.cut import Cut, Json, Message
from strobe.model.errors import Misuse
from strobe.model.graph import Channel, Graph
from strobe.model.ids import NodeId, SnapshotId
from strobe.predicates.deadlock import Wait
from strobe.predicates.stable import Finding, examine, examine_by, known_check

__all__ = ["Check", "Shown", "cut_of", "show"]

OF_STATES = {"deadlock": "waits_for", "garbage": "objects"}


@dataclass(frozen=True)
class Check:
    """A check by its name; `predicate` is the function if it is one of the user's own."""

    name: str
    predicate: Callable[[Cut], Any] | None = None

    @classmethod
    def named(cls, text: str) -> Check:
        """`deadlock`, `termination`, `garbage`, or FILE.py:FUNCTION."""
        return cls(text, function_named(text)) if is_function_name(text) else cls(known_check(text))

    def fits(self, load: Workload) -> None:
        """Misuse if the workload lacks the methods that the check needs."""
        if self.predicate is None:
            missing = _Parties(load, Cut(SnapshotId(0), {}, {})).can(self.name)
            if missing is not None:
                raise Misuse(missing, untouched="Nothing was run.", next="See `strobe sim list` for the workloads.")

    def __call__(self, load: Workload, cut: Cut) -> Finding:
        if self.predicate is not None:
            return examine_by(self.name, self.predicate, cut)
        return examine(self.name, _Parties(load, cut))


@dataclass(frozen=True)
class Shown:
    """What a snapshot of a run shows. It is a `phantom` if the run came to its end and it does not hold there."""

    snapshot: SnapshotId
    finding: Finding
    phantom: bool

    def to_json(self) -> dict[str, Json]:
        return {"snapshot": self.snapshot, "phantom": self.phantom, **self.finding.to_json()}


def show(check: Check, load: Workload, result: SimResult) -> tuple[Shown, ...]:
    """The check on each complete snapshot of a run. A run that crashed has been taken back: nothing of it is final."""
    final = result.at_rest and not result.crashes and not result.lost and not result.duplicated
    end = check(load, Cut(SnapshotId(0), result.states, {})) if final and check.predicate is None else None
    whole = [cut for cut in result.cuts if len(cut.states) == len(load.graph.nodes)]
    findings = [(cut.snapshot, check(load, cut)) for cut in whole]
    return tuple(Shown(s, found, found.found and end is not None and not end.found) for s, found in findings)


def cut_of(world: World) -> Cut:
    """The world as it is: what a snapshot that takes no time would show."""
    return Cut(
        SnapshotId(0),
        {site.id: capture(site.state) for site in world.sites.values()},
        {
            wire.id: tuple(
                item.message if isinstance(item, Stamped) else item
                for item in wire.queue
                if isinstance(item, Stamped | Message)
            )
            for wire in world.wires.values()
        },
    )


@dataclass(frozen=True)
class _Parties:
    load: Workload
    cut: Cut

    @property
    def graph(self) -> Graph:
        return self.load.graph

    @cached_property
    def in_flight(self) -> tuple[tuple[Channel, Json], ...]:
        channels = self.load.graph.by_id
        return tuple((channels[c], m.payload) for c, content in self.cut.channels.items() for m in content)

    def can(self, check: str) -> str | None:
        wanted = OF_STATES.get(check)
        if wanted is None or getattr(type(self.load), wanted) is not getattr(Workload, wanted):
            return None
        what = "waits for anything" if check == "deadlock" else "keeps objects"
        return f"In the workload {self.load.name!r} nobody {what}: there is no {check} to look for."

    def waits_for(self, node: NodeId) -> Wait | None:
        return self.load.waits_for(node, self.cut.states[node])

    def holds(self, node: NodeId) -> Iterable[str]:
        return self.load.holds(node, self.cut.states[node])

    def would_give(self, node: NodeId, to: NodeId) -> bool:
        return self.load.would_give(node, self.cut.states[node], to)

    def is_grant(self, channel: Channel, message: Json) -> bool:
        return self.load.is_grant(channel.id, message)

    def is_active(self, node: NodeId) -> bool:
        return self.load.is_active(node, self.cut.states[node])

    def is_work(self, channel: Channel, message: Json) -> bool:
        return self.load.is_work(channel.id, message)

    def objects(self, node: NodeId) -> Mapping[Hashable, Iterable[Hashable]]:
        return self.load.objects(node, self.cut.states[node])

    def refs(self, node: NodeId) -> Iterable[Hashable]:
        return self.load.refs(node, self.cut.states[node])

    def objects_in(self, channel: Channel, message: Json) -> Mapping[Hashable, Iterable[Hashable]]:
        return self.load.objects_in(channel.id, message)

    def refs_in(self, channel: Channel, message: Json) -> Iterable[Hashable]:
        return self.load.refs_in(channel.id, message)
