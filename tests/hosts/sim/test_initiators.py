"""Unaligned snapshots that start at any number of nodes: every schedule of small graphs, whoever is told when."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from strobe.hosts.sim.explore import explore_system
from strobe.hosts.sim.mutants import MUTANTS
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.seeds import Couriers
from strobe.hosts.sim.system import System
from strobe.hosts.sim.topology import joined
from strobe.model.graph import Graph
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.barriers import Barriers
from strobe.protocol.events import BarrierArrived, BarrierOptions, Effect, Initiate, Input

UNALIGNED = PROTOCOLS["unaligned"]
A, B, C, D = (NodeId(n) for n in "abcd")
GRAPHS = {
    "line": joined((A, B, C), [(A, B), (B, C)]),
    "join": joined((A, B, C), [(A, C), (B, C)]),
    "diamond": joined((A, B, C, D), [(A, B), (A, C), (B, D), (C, D)]),
    "loop": joined((A, B, C), [(A, B), (B, C), (C, B)]),
}
SENDERS = {"line": (A, B), "join": (A, B), "diamond": (A,), "loop": (A,)}
LARGEST = 40_000  # states


def system(
    name: str, told: tuple[NodeId, ...] | None = None, *, senders: tuple[NodeId, ...] | None = None, snapshots: int = 1
) -> System:
    """Each sender sends coins that are handed on twice; `told` are asked to start, else all."""
    graph: Graph = UNALIGNED.prepare(GRAPHS[name])
    scripts = {n: ([graph.outputs(n)[-1], 8, 2],) for n in senders or SENDERS[name]}
    plan = tuple((SnapshotId(s), told or graph.nodes) for s in range(1, snapshots + 1))
    return System(Couriers(graph), graph, UNALIGNED, "fifo", scripts, plan)


def subsets() -> list[object]:
    """The sources, and any of the other nodes."""
    found: list[object] = []
    for name in GRAPHS:
        graph = UNALIGNED.prepare(GRAPHS[name])
        others = [n for n in graph.nodes if n not in graph.sources()]
        for count in range(len(others) + 1):
            for chosen in combinations(others, count):
                told = tuple(n for n in graph.nodes if n in graph.sources() or n in chosen)
                found.append(pytest.param(name, told, id=f"{name}-{''.join(told)}"))
    return found


@pytest.mark.parametrize(("name", "told"), subsets())
def test_no_schedule_fails_whoever_is_told_and_whoever_meets_a_barrier_first(
    name: str, told: tuple[NodeId, ...]
) -> None:
    report = explore_system(system(name, told), max_states=LARGEST)
    assert report.ok, [(str(e.failure), e.names) for e in report.counterexamples]


def test_two_snapshots_that_start_everywhere_do_not_disturb_each_other() -> None:
    report = explore_system(system("line", senders=(A,), snapshots=2), max_states=LARGEST)
    assert report.ok, [(str(e.failure), e.names) for e in report.counterexamples]


class SecondIsAligned(Barriers):
    """Snapshot 2 is a savepoint: it asks to be aligned, as its barriers do."""

    def step(self, input: Input) -> tuple[Effect, ...]:
        if isinstance(input, Initiate | BarrierArrived) and input.snapshot == 2:
            input = replace(input, options=BarrierOptions(aligned=True))
        return super().step(input)


def with_an_aligned_one(name: str, machine: type[Barriers]) -> System:
    """A checkpoint that starts everywhere, and behind it a savepoint that starts at the sources."""
    made = system(name, senders=(A,))
    sources = UNALIGNED.prepare(GRAPHS[name]).sources()
    return replace(made, plan=(*made.plan, (SnapshotId(2), sources)), machine=machine)


@pytest.mark.parametrize("name", ["line", "join", "loop"])
def test_an_aligned_snapshot_behind_one_that_starts_everywhere_is_consistent_in_every_schedule(name: str) -> None:
    report = explore_system(with_an_aligned_one(name, SecondIsAligned), max_states=LARGEST)
    assert report.ok, [(str(e.failure), e.names) for e in report.counterexamples]


def test_exploring_finds_a_machine_that_does_not_align_what_asks_for_it() -> None:
    broken = type("Broken", (SecondIsAligned, MUTANTS["holds-nothing"].machine), {})
    assert explore_system(with_an_aligned_one("join", broken), max_states=LARGEST).counterexamples


def test_a_node_that_is_told_records_before_any_barrier_has_come() -> None:
    """Else the snapshot would take the sum of the waits along the path."""
    world = system("line").world()
    world.initiate(C, SnapshotId(1))
    part = world.parts[SnapshotId(1)]
    assert set(part.states) == {C}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("mutant", ["records-after-its-trigger", "trigger-closes-inputs", "joins-twice"])
def test_exploring_finds_a_machine_that_treats_a_trigger_wrongly(name: str, mutant: str) -> None:
    broken = replace(system(name), machine=MUTANTS[mutant].machine)
    assert explore_system(broken, max_states=1_000).counterexamples
