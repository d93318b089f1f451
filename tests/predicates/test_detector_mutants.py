"""Detectors that break a rule are caught: by what a run does next, or by brute force over all consistent cuts.

A stable predicate that was found stays: whoever is called deadlocked never moves again, garbage is garbage to the end,
and nothing happens after termination. The simulator asks a detector after every step of a run, and the run itself is
the judge. `possibly` and `definitely` are judged by walking through all cuts, and all orders, of small random runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from strobe.hosts.sim.checks import Check, cut_of
from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.workloads import Workload, workload
from strobe.hosts.sim.world import World
from strobe.model.cut import Cut
from strobe.model.ids import NodeId
from strobe.predicates import conjunctive, stable
from strobe.predicates.computation import Computation, Positions
from strobe.predicates.conjunctive import Interval, definitely_all, possibly_all
from strobe.predicates.deadlock import Wait, any_of, deadlock
from strobe.predicates.stable import Finding, Parties
from tests.predicates.computations import all_cuts, computations, holds_definitely, labels

__all__ = ["RULES"]

SEEDS = 15
WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "deadlock": ("philosophers", {"meals": 2}),
    "garbage": ("objects", {"actions": 8}),
    "termination": ("diffusing", {"fuel": 4}),
}


# ── mutants of stable predicates ────────────────────────────────────────────────────────────────────────────────────

_grants, _waits, _references, _keep = stable._grants, stable._waits, stable._references_in_flight, stable._keep


class NothingInFlight:
    """The parties of a cut, of which what is in flight was forgotten."""

    def __init__(self, parties: Parties) -> None:
        self._parties = parties
        self.in_flight = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parties, name)


def forgets_grants_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stable, "_grants", lambda parties, waits: _grants(NothingInFlight(parties), waits))


def forgets_who_would_give(patch: pytest.MonkeyPatch) -> None:
    def grants(parties: Parties, waits: Mapping[str, Wait | None]) -> set[tuple[str, str]]:
        asked = _grants(parties, waits)
        given = {(c.source, c.target) for c, m in parties.in_flight if parties.is_grant(c, m)}
        return asked & given

    patch.setattr(stable, "_grants", grants)


def forgets_references_in_flight(patch: pytest.MonkeyPatch) -> None:
    def references(parties: Parties, heap: Any, keepers: Any) -> set[Any]:
        _references(parties, heap, keepers)
        return set()

    patch.setattr(stable, "_references_in_flight", references)


def forgets_objects_in_flight(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stable, "_references_in_flight", lambda parties, heap, keepers: _references(parties, {}, {}))


def forgets_what_objects_refer_to(patch: pytest.MonkeyPatch) -> None:
    def keep(who: str, objects: Mapping[Any, Any], heap: Any, keepers: Any) -> None:
        _keep(who, dict.fromkeys(objects, ()), heap, keepers)

    patch.setattr(stable, "_keep", keep)


def forgets_work_in_flight(patch: pytest.MonkeyPatch) -> None:
    real = stable.CHECKS["termination"]
    checks = {**stable.CHECKS, "termination": lambda parties: real(NothingInFlight(parties))}
    patch.setattr(stable, "CHECKS", checks)


def asks_only_the_first_process(patch: pytest.MonkeyPatch) -> None:
    class First(NothingInFlight):
        def __init__(self, parties: Parties) -> None:
            super().__init__(parties)
            self.in_flight = parties.in_flight  # type: ignore[assignment]

        def is_active(self, node: NodeId) -> bool:
            return node == self._parties.graph.nodes[0] and self._parties.is_active(node)

    real = stable.CHECKS["termination"]
    patch.setattr(stable, "CHECKS", {**stable.CHECKS, "termination": lambda parties: real(First(parties))})


@dataclass(frozen=True)
class Mutant:
    check: str
    rule: str
    patch: Callable[[pytest.MonkeyPatch], None] | None = None
    from_the_future: bool = False
    polite: bool = False  # philosophers who cannot deadlock


MUTANTS: dict[str, Mutant] = {
    "forgets-grants-in-flight": Mutant("deadlock", "A grant in flight has been given.", forgets_grants_in_flight),
    "forgets-who-would-give": Mutant(
        "deadlock", "A process that waits may still give what it does not use.", forgets_who_would_give, polite=True
    ),
    "wait-from-the-future": Mutant(
        "deadlock", "Every edge of the wait-for graph is of the cut, none of a later state.", from_the_future=True
    ),
    "forgets-references-in-flight": Mutant(
        "garbage", "A reference in flight keeps its object.", forgets_references_in_flight
    ),
    "forgets-objects-in-flight": Mutant("garbage", "An object in flight is kept.", forgets_objects_in_flight),
    "forgets-what-objects-refer-to": Mutant(
        "garbage", "What an object in use refers to is in use.", forgets_what_objects_refer_to
    ),
    "reference-from-the-future": Mutant(
        "garbage", "Every root is of the cut, none of a later state.", from_the_future=True
    ),
    "forgets-work-in-flight": Mutant("termination", "Work in flight is work to be done.", forgets_work_in_flight),
    "asks-only-the-first-process": Mutant("termination", "Nobody is active.", asks_only_the_first_process),
}


def load_of(check: str, polite: bool = False) -> Workload:
    name, params = WORKLOADS[check]
    return workload(name, None, {**params, **({"polite": True} if polite else {})})


@cache
def moments(check: str, seed: int, polite: bool = False) -> tuple[Cut, ...]:
    """The global state after each step of a run, to its end."""
    load = load_of(check, polite)
    world = World(load.graph, load, PROTOCOLS["chandy-lamport"])
    dice = Dice(seed)
    found = [cut_of(world)]
    while True:
        # An action is thrown where it is taken; whether a node has one does not depend on the dice.
        sites = [s for s in world.sites.values() if load.next_action(s.id, s.state, Dice(0)) is not None]
        wires = [wire for wire in world.wires.values() if wire.queue]
        if not sites and not wires:
            return tuple(found)
        if wires and (not sites or dice.chance(400)):
            world.deliver(dice.pick(wires))
        else:
            site = dice.pick(sites)
            world.act(site, load.next_action(site.id, site.state, dice))
        found.append(cut_of(world))


def claims(finding: Finding) -> set[str]:
    facts: Any = finding.facts
    if finding.check == "deadlock":
        return {one["process"] for one in facts["processes"]}
    if finding.check == "garbage":
        gone = {f"gone: {name}" for name in facts["dangling"]}
        return gone.union(*facts["garbage"].values())
    return {"the end"} if finding.found else set()


def said(check: str, cuts: Iterable[Cut], polite: bool = False) -> list[set[str]]:
    load, asked = load_of(check, polite), Check.named(check)
    return [claims(asked(load, cut)) for cut in cuts]


@cache
def truth(check: str, seed: int, polite: bool = False) -> tuple[frozenset[str], ...]:
    """What is to be said at each moment at most: that which the real detector says at all later ones, too."""
    later, found = None, []
    for one in reversed(said(check, moments(check, seed, polite), polite)):
        later = one if later is None else later & one
        found.append(frozenset(later))
    return tuple(reversed(found))


def false_alarm(check: str, seed: int, mutant: Mutant | None = None) -> bool:
    """Whether something is said that the rest of the run refutes."""
    polite = mutant is not None and mutant.polite
    shown = run = moments(check, seed, polite)
    if mutant is not None and mutant.from_the_future:  # one node is shown as it will be a few steps later
        nodes = load_of(check).graph.nodes
        node = nodes[seed % len(nodes)]
        later = [run[min(at + 3, len(run) - 1)].states[node] for at in range(len(run))]
        shown = tuple(replace(c, states={**c.states, node: state}) for c, state in zip(run, later, strict=True))
    alarms = zip(said(check, shown, polite), truth(check, seed, polite), strict=True)
    return any(not one <= right for one, right in alarms)


@pytest.mark.parametrize("check", WORKLOADS)
def test_what_a_stable_detector_finds_stays(check: str) -> None:
    for seed in range(SEEDS):
        assert not false_alarm(check, seed), seed


@pytest.mark.parametrize("check", WORKLOADS)
def test_there_is_something_to_find(check: str) -> None:
    assert any(truth(check, seed)[-1] for seed in range(SEEDS))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_stable_detector_that_breaks_a_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    for seed in range(SEEDS):
        truth(mutant.check, seed, mutant.polite)  # by the real one, before it is broken
    if mutant.patch is not None:
        mutant.patch(monkeypatch)
    assert any(false_alarm(mutant.check, seed, mutant) for seed in range(SEEDS))


def test_taking_all_of_for_any_of_is_caught() -> None:
    """Not by a workload: philosophers wait for one. By the definition, on the smallest system that tells them apart."""
    waits: dict[str, Wait | None] = {"a": any_of("b", "c"), "b": any_of("a"), "c": None}
    assert deadlock(waits) is None
    assert deadlock({n: w and replace(w, need=len(w.of)) for n, w in waits.items()}) is not None


# ── mutants of possibly and definitely ──────────────────────────────────────────────────────────────────────────────

Labelled = tuple[Computation, list[list[bool]]]
SEARCH = settings(max_examples=5000, deadline=None, derandomize=True, database=None, phases=[Phase.generate])


@st.composite
def labelled(draw: st.DrawFn) -> Labelled:
    run = draw(computations(nodes=3, steps=3))
    return run, draw(labels(run, st.booleans()))


def in_all(holds: Sequence[Sequence[bool]]) -> Callable[[Positions], bool]:
    return lambda cut: all(holds[node][state] for node, state in enumerate(cut))


def misjudges_possibly(detect: Callable[..., Positions | None]) -> Callable[[Labelled], bool]:
    def wrong(case: Labelled) -> bool:
        run, holds = case
        return (detect(run, dict(enumerate(holds))) is not None) != any(map(in_all(holds), all_cuts(run)))

    return wrong


def misjudges_definitely(detect: Callable[..., Any]) -> Callable[[Labelled], bool]:
    def wrong(case: Labelled) -> bool:
        run, holds = case
        return (detect(run, dict(enumerate(holds))) is not None) != holds_definitely(run, in_all(holds))

    return wrong


def forgets_messages(run: Computation, holds: Mapping[int, Sequence[bool]]) -> Positions | None:
    return possibly_all(replace(run, needs=tuple((None,) * length for length in run.lengths)), holds)


def takes_the_first_state_only(run: Computation, holds: Mapping[int, Sequence[bool]]) -> Positions | None:
    return possibly_all(run, {n: [*true[: true.index(True) + 1], *([False] * len(true))][: len(true)]
                              if True in true else true for n, true in holds.items()})  # fmt: skip


def sees_messages_one_step_late(run: Computation, holds: Mapping[int, Sequence[bool]]) -> Positions | None:
    late = tuple((None, *needs[:-1]) if needs else needs for needs in run.needs)
    return possibly_all(replace(run, needs=late), holds)


POSSIBLY = {
    "forgets-messages": ("A cut has the send of what it has received.", forgets_messages),
    "takes-the-first-state-only": ("A condition may hold in any later state.", takes_the_first_state_only),
    "sees-messages-one-step-late": ("A message counts from the step that receives it.", sees_messages_one_step_late),
}


def is_content_with_touching(run: Computation, early: int, ending: Interval, late: int, beginning: Interval) -> bool:
    if ending.last == run.lengths[early]:
        return False
    return run.clocks(early)[ending.last + 1][late] < beginning.first - 1


def forgets_the_end(run: Computation, early: int, ending: Interval, late: int, beginning: Interval) -> bool:
    return run.clocks(early)[min(ending.last + 1, run.lengths[early])][late] < beginning.first


DEFINITELY = {
    "is-content-with-touching": ("Intervals overlap in every order, and not just nearly.", is_content_with_touching),
    "forgets-the-end": ("What holds to the end of a run cannot end before anything.", forgets_the_end),
}

RULES: dict[str, str] = {
    **{name: mutant.rule for name, mutant in MUTANTS.items()},
    **{name: rule for name, (rule, _) in (POSSIBLY | DEFINITELY).items()},
}


@pytest.mark.parametrize("name", POSSIBLY)
def test_a_detector_of_what_is_possible_that_breaks_a_rule_is_caught(name: str) -> None:
    find(labelled(), misjudges_possibly(POSSIBLY[name][1]), settings=SEARCH)


@pytest.mark.parametrize("name", DEFINITELY)
def test_a_detector_of_what_is_definite_that_breaks_a_rule_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conjunctive, "_can_end_before", DEFINITELY[name][1])
    find(labelled(), misjudges_definitely(definitely_all), settings=SEARCH)


def test_the_real_ones_are_not_caught() -> None:
    few = settings(SEARCH, max_examples=300)
    for wrong in (misjudges_possibly(possibly_all), misjudges_definitely(definitely_all)):
        with pytest.raises(NoSuchExample):
            find(labelled(), wrong, settings=few)
