"""Exploring: every schedule once, counted exactly, and what fails is found and can be repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from strobe.hosts.sim.explore import (
    ExploreConfig,
    ExploreProgress,
    ExploreReport,
    Identify,
    explore,
    explore_system,
)
from strobe.hosts.sim.judge import ViolationKind
from strobe.hosts.sim.mutants import MUTANTS
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.seeds import random_system
from strobe.hosts.sim.sites import Choice
from strobe.hosts.sim.system import System, replay, scripted
from strobe.hosts.sim.workloads import WORKLOADS
from strobe.hosts.sim.world import World
from strobe.model.errors import Misuse, ProtocolError
from strobe.verify.consistency import check_journal

CORRECT = [name for name, spec in PROTOCOLS.items() if spec.is_correct]
WRONG = [name for name, spec in PROTOCOLS.items() if not spec.is_correct]
LARGE = (("philosophers", "three"), ("bank", "four-transfers"))  # bench/sim_explore.py explores the latter
SMALL = [(w, s) for w, load in WORKLOADS.items() for s in load.scripts() if (w, s) not in LARGE]


# ── counting ────────────────────────────────────────────────────────────────────────────────────────────────────────


def enumerate_all(system: System) -> tuple[int, int, set[object], set[str]]:
    """Every schedule one by one, nothing merged: schedules, failing ones, snapshots, and what is wrong with them."""
    schedules, failing, cuts, sentences = 0, 0, set[object](), set[str]()

    def descend(world: World, wrong: frozenset[str]) -> None:
        nonlocal schedules, failing
        choices = system.enabled(world)
        if not choices:
            wrong |= {str(f) for f in system.judge().at_end(world)}
        for choice in choices:
            after, finished = world.fork(), len(world.finished)
            try:
                system.perform(after, choice)
            except ProtocolError as error:
                schedules, failing = schedules + 1, failing + 1
                sentences.add(str(system.judge().refused(error)))
                continue
            cuts.update(complete.key() for complete in after.finished.values())
            found = {str(f) for f in system.judge().after(after, finished)}
            sentences.update(found)
            descend(after, wrong | found)
        if not choices:
            schedules += 1
            failing += bool(wrong)
            sentences.update(wrong)

    descend(system.world(), frozenset())
    return schedules, failing, cuts, sentences


def tiny_systems() -> Iterator[object]:
    for name in PROTOCOLS:
        yield pytest.param(scripted("bank", "two-transfers", protocol_name=name), id=f"{name}-bank")
        yield pytest.param(scripted("two-process", "messages", protocol_name=name), id=f"{name}-two-process")
    yield pytest.param(
        scripted("two-process", "transfer", protocol_name="chandy-lamport", snapshots=2), id="two-snapshots"
    )
    yield pytest.param(scripted("two-process", "transfer", aborts=[1]), id="given-up")
    yield pytest.param(scripted("bank", "two-transfers", order="reorder", force=True), id="forced-reorder")
    for name in ("records-late", "forwards-every-marker", "fills-first-channel", "forgets-an-output"):
        system = scripted("bank", "two-transfers", machine=MUTANTS[name].machine)
        yield pytest.param(system, id=f"mutant-{name}")


@pytest.mark.parametrize("system", list(tiny_systems()))
def test_merging_states_changes_no_count_and_no_verdict(system: System) -> None:
    schedules, failing, cuts, sentences = enumerate_all(system)
    report = explore_system(system, keep=1_000)
    assert (report.schedules, report.failing, report.cuts) == (schedules, failing, len(cuts))
    assert {str(example.failure) for example in report.counterexamples} == sentences
    assert report.complete


def test_merging_states_saves_most_of_the_work() -> None:
    report = explore(ExploreConfig("dataflow", "two-lanes", "aligned"))
    assert report.transitions * 100 < report.schedules


@pytest.mark.slow
def test_three_connected_nodes_with_four_messages_and_one_snapshot() -> None:
    """The figure. The number of schedules is worked out, not looked up: it must not change by accident."""
    report = explore(ExploreConfig("bank", "four-transfers"))
    assert report.ok
    assert len(report.system.graph.nodes) == 3
    assert len(report.system.graph.channels) == 6
    assert sum(map(len, report.system.scripts.values())) == 4
    assert report.schedules == 220_604_500


def test_the_longest_schedule_is_counted_in_choices() -> None:
    report = explore(ExploreConfig("two-process", "transfer"))
    # One send and its arrival, one start, and a marker on each of the two channels.
    assert report.depth == 5


# ── what is found ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("load", "script"), SMALL)
@pytest.mark.parametrize("protocol", CORRECT)
def test_no_schedule_of_a_correct_protocol_fails(protocol: str, load: str, script: str) -> None:
    report = explore(ExploreConfig(load, script, protocol))
    assert report.ok, [(str(e.failure), e.names) for e in report.counterexamples]


@pytest.mark.parametrize("protocol", CORRECT)
def test_two_overlapping_snapshots_never_fail(protocol: str) -> None:
    assert explore(ExploreConfig("two-process", "transfer", protocol, snapshots=2)).ok


@pytest.mark.parametrize("protocol", CORRECT)
def test_giving_a_snapshot_up_at_any_time_harms_nothing(protocol: str) -> None:
    report = explore(ExploreConfig("two-process", "transfer", protocol, snapshots=2, aborts=(1,)))
    assert report.ok, [(str(e.failure), e.names) for e in report.counterexamples]


def test_lai_yang_stands_channels_that_reorder() -> None:
    assert explore(ExploreConfig("two-process", "messages", "lai-yang", channels="reorder", snapshots=2)).ok


@pytest.mark.parametrize("protocol", WRONG)
def test_the_wrong_ways_lose_money_and_make_money_appear(protocol: str) -> None:
    report = explore(ExploreConfig("bank", "two-transfers", protocol, keep=100))
    said = " ".join(str(example.failure) for example in report.counterexamples)
    assert "vanished" in said
    assert "appeared" in said
    assert 0 < report.failing < report.schedules


def test_a_marker_protocol_on_channels_that_reorder_fails() -> None:
    report = explore(ExploreConfig("bank", "four-transfers", channels="reorder", force=True, max_states=3_000))
    assert report.counterexamples


def examples() -> Iterator[object]:
    configs = [ExploreConfig("bank", "two-transfers", name) for name in WRONG]
    configs += [
        ExploreConfig("bank", "two-transfers", MUTANTS[name].protocols[0], mutant=name)
        for name in ("records-late", "sends-markers-late", "records-from-before", "closes-at-the-count")
    ]
    for config in configs:
        yield pytest.param(config, id=config.mutant or config.protocol)


@pytest.mark.parametrize("config", list(examples()))
def test_a_counterexample_can_be_repeated_and_the_verifier_agrees(config: ExploreConfig) -> None:
    report = explore(config)
    assert report.counterexamples
    for example in report.counterexamples:
        run = replay(report.system, example.schedule)
        assert run.schedule == example.schedule
        assert example.failure in run.failures
        if example.failure.kind is ViolationKind.CUT:
            assert not check_journal(run.journal).ok


def test_a_schedule_reads_as_a_list_of_choices() -> None:
    report = explore(ExploreConfig("two-process", "transfer", "agreed-clock"))
    assert set(report.counterexamples[0].names) <= {
        "act A", "deliver A-B", "initiate A snapshot 1", "initiate B snapshot 1"
    }  # fmt: skip


# ── how far it goes ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_exploring_stops_at_the_limit_and_says_so() -> None:
    report = explore(ExploreConfig("dataflow", "two-lanes", "aligned", max_states=50))
    assert not report.complete
    assert not report.ok
    assert report.states == 50


def test_progress_rises_to_one() -> None:
    seen: list[ExploreProgress] = []
    report = explore(ExploreConfig("dataflow", "two-lanes", "aligned"), seen.append)
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert (seen[-1].states, seen[-1].transitions) == (report.states, report.transitions)


def test_a_state_is_known_again_by_what_it_is_whichever_way_led_to_it() -> None:
    system = scripted("bank", "two-transfers")
    identify = Identify()
    ways = []
    for schedule in (("n1", "n2"), ("n2", "n1")):
        world = system.world()
        for node in schedule:
            world.perform(Choice("act", node))
        ways.append(identify(world))
    assert ways[0] == ways[1]
    assert ways[0] != identify(system.world())
    assert len(ways[0]) == 16


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_small_random_systems_are_explored_without_failure(seed: int) -> None:
    system = random_system(seed)
    first_acts = {node: actions[:1] for node, actions in list(system.scripts.items())[:2]}
    report = explore_system(replace(system, scripts=first_acts), max_states=1_000)
    assert not report.counterexamples, [(str(e.failure), e.names) for e in report.counterexamples]


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (ExploreConfig("bnak"), "no workload called 'bnak'"),
        (ExploreConfig("bank", "five"), "no script called 'five'"),
        (ExploreConfig(protocol="paxos"), "no protocol called 'paxos'"),
        (ExploreConfig(channels="reorder"), "chandy-lamport needs channels that keep order"),
        (ExploreConfig(snapshots=-1), "cannot be -1 snapshots"),
        (ExploreConfig(mutant="nobody"), "no mutant called 'nobody'"),
        (ExploreConfig(mutant="stamps-stale"), "is one of lai-yang, not of chandy-lamport"),
        (ExploreConfig("two-process", "messages", initiators=("X",)), "No node named 'X'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_meant_is_refused(config: ExploreConfig, sentence: str) -> None:
    with pytest.raises(Misuse, match=sentence):
        explore(config)


def test_a_report_is_well_only_if_nothing_was_left_out() -> None:
    well = explore(ExploreConfig("two-process", "transfer"))
    assert well.ok
    assert not ExploreReport(**{**vars(well), "complete": False}).ok
    assert not ExploreReport(**{**vars(well), "failing": 1}).ok
