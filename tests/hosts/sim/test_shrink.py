"""Shrinking: what is left fails as before, and nothing can be taken away from it."""

from __future__ import annotations

import pytest

from strobe.hosts.sim.explore import ExploreConfig, explore
from strobe.hosts.sim.judge import ViolationKind
from strobe.hosts.sim.mutants import MUTANTS
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, run
from strobe.hosts.sim.seeds import clock_config, random_system
from strobe.hosts.sim.shrink import retrace, shrink
from strobe.hosts.sim.system import Run, System, replay, scripted, walk
from strobe.hosts.sim.workloads import WORKLOADS, workload
from strobe.model.errors import Misuse
from strobe.verify.consistency import check_journal
from tests.support.journals import journal_bytes

TELLING = ["records-late", "records-past-the-marker", "forwards-every-marker", "closes-at-the-count", "holds-nothing",
           "forgets-overtaken", "drops-second-snapshot", "timeout-forgets-held"]  # fmt: skip


def failing_walk(name: str) -> Run:
    mutant = MUTANTS[name]
    for seed in range(0, 1_000, 2):
        found = walk(random_system(seed, mutant.protocols[0], mutant.machine), seed)
        if any(failure.kind is mutant.shows for failure in found.failures[:1]):
            return found
    raise AssertionError(f"no seed shows {name}")


def system_of(config: SimConfig) -> System:
    load, spec = workload(config.workload, config.nodes, config.params), PROTOCOLS[config.protocol]
    return System(load, spec.prepare(load.graph), spec, config.order, {}, ())


@pytest.mark.parametrize("name", TELLING)
def test_the_shrunk_run_fails_in_the_same_way_and_is_no_larger(name: str) -> None:
    before = failing_walk(name)
    after = shrink(before)
    assert after.failures[0].kind is before.failures[0].kind
    assert len(after.schedule) < len(before.schedule)
    assert len(after.system.graph.nodes) <= len(before.system.graph.nodes)
    assert len(after.system.plan) <= len(before.system.plan)


@pytest.mark.parametrize("name", TELLING)
def test_the_shrunk_run_can_be_repeated_byte_for_byte(name: str) -> None:
    after = shrink(failing_walk(name))
    again = replay(after.system, after.schedule, drain=after.done)
    assert again.failures == after.failures
    assert journal_bytes(again.journal) == journal_bytes(after.journal)


@pytest.mark.parametrize("name", ["records-late", "records-past-the-marker", "closes-at-the-count"])
def test_no_single_choice_can_be_left_out(name: str) -> None:
    after = shrink(failing_walk(name))
    for at in range(len(after.schedule)):
        shorter = replay(after.system, after.schedule[:at] + after.schedule[at + 1 :])
        assert not any(failure.kind is ViolationKind.CUT for failure in shorter.failures), at


@pytest.mark.parametrize("name", ["records-late", "records-past-the-marker", "closes-at-the-count", "holds-nothing"])
def test_the_verifier_says_what_is_wrong_with_the_shrunk_run(name: str) -> None:
    assert not check_journal(shrink(failing_walk(name)).journal).ok


def test_a_lost_message_is_shown_with_two_nodes_and_one_channel() -> None:
    """Agreed clocks: one sends and records, the other has recorded before. Three choices tell it all."""
    report = explore(ExploreConfig("bank", "four-transfers", "agreed-clock", max_states=500))
    run_ = replay(report.system, report.counterexamples[0].schedule)
    after = shrink(run_)
    assert len(after.system.graph.nodes) == 2
    assert len(after.system.graph.channels) == 1
    assert len(after.schedule) == 3
    assert "not in the channel's content" in str(after.failures[0])


def test_a_broken_invariant_is_shrunk_without_leaving_nodes_out() -> None:
    """Half a bank conserves no money: the invariant speaks of the whole."""
    report = explore(ExploreConfig("bank", "two-transfers", "agreed-clock", keep=100))
    broken = next(e for e in report.counterexamples if e.failure.kind is ViolationKind.INVARIANT)
    run_ = replay(report.system, broken.schedule)
    only = Run(run_.system, run_.schedule, run_.journal, (broken.failure,), run_.done)
    after = shrink(only)
    assert len(after.system.graph.nodes) == 2
    assert any(failure.kind is ViolationKind.INVARIANT for failure in after.failures)


def test_a_run_that_does_not_fail_stays_as_it_is() -> None:
    well = walk(scripted("bank", "two-transfers"), 1)
    assert shrink(well) is well


def test_shrinking_gives_up_after_the_given_number_of_tries() -> None:
    before = failing_walk("records-late")
    assert len(shrink(before, most=1).schedule) >= len(shrink(before).schedule)


# ── from a journal ──────────────────────────────────────────────────────────────────────────────────────────────────


BY_THE_CLOCK = [
    config
    for config in map(clock_config, range(1, 120, 2))
    # In a dataflow, ends leave no line: where one falls between two barriers cannot be seen.
    if not config.faults.crashes and not WORKLOADS[config.workload].ends
]


@pytest.mark.parametrize("config", BY_THE_CLOCK, ids=lambda c: f"seed-{c.seed}-{c.protocol}")
def test_the_schedule_of_a_run_by_the_clock_is_found_from_its_journal(config: SimConfig) -> None:
    result = run(config)
    assert result.journal is not None
    assert retrace(system_of(config), result.journal).journal.events == result.journal.events


@pytest.mark.parametrize("protocol", ["agreed-clock", "freeze-in-turn"])
def test_a_run_by_the_clock_that_fails_is_shrunk_from_its_journal(protocol: str) -> None:
    config = SimConfig("bank", {"transfers": 5}, protocol=protocol, seed=1)
    result = run(config)
    assert result.journal is not None
    after = shrink(retrace(system_of(config), result.journal))
    assert after.failures
    assert len(after.system.graph.nodes) == 2
    assert len(after.schedule) <= 5


def test_a_run_with_crashes_has_no_schedule() -> None:
    config = next(c for c in map(clock_config, range(1, 200, 2)) if c.faults.crashes)
    result = run(config)
    assert result.journal is not None
    with pytest.raises(Misuse, match="no schedule of choices"):
        retrace(system_of(config), result.journal)
