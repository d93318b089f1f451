"""Stable predicates of simulated systems: against every future of every state, and by snapshots that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from strobe.hosts.sim import checks
from strobe.hosts.sim.checks import Check, cut_of
from strobe.hosts.sim.explore import ExploreConfig, Identify, explore
from strobe.hosts.sim.search import shortest
from strobe.hosts.sim.shrink import shrink
from strobe.hosts.sim.system import System, replay, scripted
from strobe.hosts.sim.workloads import workload
from strobe.model.cut import Cut
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.predicates import stable
from strobe.predicates.deadlock import Wait
from strobe.predicates.stable import Finding, Parties

DEADLOCK = Check("deadlock")


def table(philosophers: int, *, polite: bool = False) -> System:
    system = scripted("philosophers", {2: "two", 3: "three"}[philosophers], snapshots=0)
    return replace(system, workload=workload("philosophers", philosophers, {"meals": 1, "polite": polite}))


class Space:
    """Every state that a system can reach, and where each leads."""

    def __init__(self, system: System) -> None:
        identify = Identify()
        world = system.world()
        start = identify(world)
        self.cuts: dict[bytes, Cut] = {start: cut_of(world)}
        self.after: dict[bytes, list[bytes]] = {}
        todo = [(start, world)]
        while todo:
            state, at = todo.pop()
            self.after[state] = []
            for choice in system.enabled(at):
                new = at.fork()
                system.perform(new, choice)
                reached = identify(new)
                self.after[state].append(reached)
                if reached not in self.cuts:
                    self.cuts[reached] = cut_of(new)
                    todo.append((reached, new))

    def futures(self, state: bytes) -> Iterator[Cut]:
        seen, todo = {state}, [state]
        while todo:
            at = todo.pop()
            yield self.cuts[at]
            for further in self.after[at]:
                if further not in seen:
                    seen.add(further)
                    todo.append(further)


@cache
def spaces() -> dict[tuple[int, bool], tuple[System, Space]]:
    made = {(n, polite): table(n, polite=polite) for n in (2, 3) for polite in (False, True)}
    return {which: (system, Space(system)) for which, system in made.items()}


def false_alarms(detect: Callable[[System, Cut], Finding] = lambda s, cut: DEADLOCK(s.workload, cut)) -> int:
    """How often somebody who is called stuck gets on in some future."""
    count = 0
    for system, space in spaces().values():
        for state, cut in space.cuts.items():
            finding = detect(system, cut)
            if finding.found:
                stuck = [p["process"] for p in finding.facts["processes"]]
                count += any(f.states[NodeId(p)]["mood"] != "hungry" for f in space.futures(state) for p in stuck)
    return count


def test_who_is_called_stuck_never_gets_on_in_any_future() -> None:
    assert false_alarms() == 0


def test_every_end_at_which_the_hungry_wait_for_the_hungry_is_a_deadlock() -> None:
    ends = 0
    for system, space in spaces().values():
        for state, cut in space.cuts.items():
            moods = [s["mood"] for s in cut.states.values()]
            if not space.after[state] and "hungry" in moods and "eating" not in moods:
                ends += 1
                assert DEADLOCK(system.workload, cut).found
    assert ends


def test_the_polite_are_never_stuck() -> None:
    for philosophers in (2, 3):
        system, space = spaces()[philosophers, True]
        assert not any(DEADLOCK(system.workload, cut).found for cut in space.cuts.values())
        assert not shortest(system, DEADLOCK).found


# ── mutants of the detector ─────────────────────────────────────────────────────────────────────────────────────────


class _Without:
    """Parties of whom something is not asked."""

    def __init__(self, parties: Parties, **changes: Any) -> None:
        self._parties = parties
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        return self._changes[name] if name in self._changes else getattr(self._parties, name)


def _mutant(**changes: Any) -> Callable[[System, Cut], Finding]:
    def detect(system: System, cut: Cut) -> Finding:
        parties: Any = _Without(checks._Parties(system.workload, cut), **changes)
        return stable.examine("deadlock", parties)

    return detect


def test_a_detector_that_forgets_grants_in_flight_is_caught() -> None:
    assert false_alarms(_mutant(in_flight=())) > 0


def test_a_detector_that_forgets_what_a_waiting_process_would_give_is_caught() -> None:
    assert false_alarms(_mutant(would_give=lambda node, to: False)) > 0


def test_a_detector_that_takes_an_edge_from_the_future_is_caught() -> None:
    """One process's wait from the state after the cut's, the rest as it is."""
    alarms = 0
    for system, space in spaces().values():
        for state, cut in space.cuts.items():
            for further in space.after[state]:
                later = space.cuts[further]
                for node in cut.states:
                    mixed = replace(cut, states={**cut.states, node: later.states[node]})
                    found = DEADLOCK(system.workload, mixed)
                    if found.found and not DEADLOCK(system.workload, later).found:
                        alarms += 1
    assert alarms


# ── the shortest schedule ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("philosophers", [2, 3])
def test_the_shortest_schedule_that_deadlocks_is_that_all_take_their_own_fork(philosophers: int) -> None:
    way = shortest(table(philosophers), DEADLOCK)
    assert [str(choice) for choice in way.schedule] == [f"act p{i + 1}" for i in range(philosophers)]
    assert way.finding.facts["core"] == [f"p{i + 1}" for i in range(philosophers)]
    run = replay(way.system, way.schedule)
    assert len(run.schedule) == philosophers
    assert not run.failures


def test_no_shorter_schedule_leads_there() -> None:
    """Against plain enumeration: every state that fewer choices lead to."""
    system = scripted("diffusing", "there-and-on", snapshots=0)
    check = Check("termination")
    way = shortest(system, check)
    assert way.found
    level = [system.world()]
    for _ in range(len(way.schedule)):
        assert not any(check(system.workload, cut_of(world)).found for world in level)
        further = []
        for world in level:
            for choice in system.enabled(world):
                new = world.fork()
                system.perform(new, choice)
                further.append(new)
        level = further
    assert any(check(system.workload, cut_of(world)).found for world in level)


def test_a_search_that_is_cut_short_says_so() -> None:
    way = shortest(table(3, polite=True), DEADLOCK, max_states=10)
    assert not way.complete
    assert not way.found


# ── phantoms ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", ["agreed-clock", "freeze-in-turn"])
def test_an_inconsistent_cut_shows_a_phantom_deadlock_and_the_run_is_shrunk(protocol: str) -> None:
    report = explore(ExploreConfig("philosophers", "two", protocol=protocol, check=DEADLOCK))
    assert not report.ok
    example = min(report.counterexamples, key=lambda one: len(one.schedule))
    smallest = shrink(replay(report.system, example.schedule))
    assert "shows what is not there: deadlock: p1, p2 wait for each other" in smallest.failures[0].sentence
    assert len(smallest.schedule) <= 6


def test_a_consistent_cut_shows_none() -> None:
    report = explore(ExploreConfig("philosophers", "two", check=DEADLOCK))
    assert report.ok
    assert report.cuts > 10


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_workload_in_which_nobody_waits_is_refused() -> None:
    with pytest.raises(Misuse, match="nobody waits for anything"):
        ExploreConfig("bank", check=DEADLOCK).system()
    with pytest.raises(Misuse, match="nobody keeps objects"):
        Check("garbage").fits(workload("bank"))
    Check("termination").fits(workload("bank"))


def test_what_is_no_check_is_refused_with_the_nearest() -> None:
    with pytest.raises(Misuse) as refused:
        Check.named("deadlok")
    assert "Did you mean 'deadlock'?" in refused.value.next


def test_a_wait_for_nobody_we_know_is_refused() -> None:
    load = workload("philosophers")
    cut = Cut(cut_of(table(2).world()).snapshot, {n: load.initial(n) for n in load.graph.nodes}, {})
    answers: Mapping[str, Any] = {
        "and there is no such node": Wait(1, ("p9",)),
        "which is not a wait": ["p2"],
    }
    for words, answer in answers.items():
        parties: Any = _Without(checks._Parties(load, cut), waits_for=lambda node, answer=answer: answer)
        with pytest.raises(Misuse, match=words):
            stable.examine("deadlock", parties)
