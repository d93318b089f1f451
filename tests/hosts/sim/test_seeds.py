"""A slice of `bench/sim_seeds.py`: the same experiments, so that what the benchmark claims is checked on every run."""

from __future__ import annotations

from collections import Counter

import pytest

from strobe.hosts.sim.judge import ViolationKind
from strobe.hosts.sim.mutants import MUTANTS
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.seeds import Trial, clock_config, random_system, try_seed
from strobe.hosts.sim.system import walk
from strobe.verify.consistency import check_journal

SLICE = range(400)


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return [try_seed(seed, proof=True) for seed in SLICE]


def test_no_seed_shows_a_violation(trials: list[Trial]) -> None:
    failed = [f"seed {t.seed}, {t.protocol}, {t.what}: {t.failures[0]}" for t in trials if t.failures]
    assert not failed, "\n".join(failed)


def test_the_seeds_reach_every_correct_protocol_and_take_many_snapshots(trials: list[Trial]) -> None:
    tried = Counter(trial.protocol for trial in trials)
    assert set(tried) == {name for name, spec in PROTOCOLS.items() if spec.is_correct}
    assert min(tried.values()) > len(SLICE) // 10
    assert sum(trial.snapshots for trial in trials) > len(SLICE)


def test_the_walks_reach_every_kind_of_graph_and_trouble() -> None:
    systems = [random_system(seed) for seed in range(0, 600, 2)]
    channels = [(s.graph, c) for s in systems for c in s.graph.channels]
    assert any(c.source == c.target for _, c in channels), "self-loops"
    assert any((c.source, c.target) == (d.source, d.target) and c != d for g, c in channels for d in g.channels)
    assert any(c.feedback for _, c in channels)
    assert any(len(s.graph.sources()) > 1 for s in systems)
    assert any(len(s.plan) > 1 and len(s.plan[0][1]) > 1 for s in systems), "overlapping, several initiators"
    assert any(s.aborts for s in systems)
    assert any(s.missed for s in systems)
    assert {s.order for s in systems} == {"fifo", "reorder"}


def test_the_runs_by_the_clock_meet_every_harmless_fault() -> None:
    faults = [clock_config(seed).faults for seed in range(1, 200, 2)]
    assert any(f.partitions for f in faults)
    assert any(f.slow for f in faults)
    assert any(f.crashes for f in faults)
    assert not any(f.on_channels for f in faults)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_seed_is_the_same_experiment_every_time(seed: int) -> None:
    assert try_seed(seed) == try_seed(seed)


def test_the_host_and_the_verifier_find_the_same_snapshots_wrong() -> None:
    """Two independent judges: one sees everything, the other only the journal."""
    names = ["records-late", "records-past-the-marker", "closes-at-the-count", "holds-nothing", "forgets-overtaken"]
    seen = 0
    for name in names:
        mutant = MUTANTS[name]
        for seed in range(0, 120, 2):
            run = walk(random_system(seed, mutant.protocols[0], mutant.machine), seed, stop=False)
            by_host = {f.snapshot for f in run.failures if f.kind is ViolationKind.CUT}
            # What the journal shows beyond law 1, such as a marker before its recording, the host does not judge.
            by_verifier = {v.snapshot for v in check_journal(run.journal).violations if "marker" not in v.rule}
            assert by_host == by_verifier, f"{name}, seed {seed}"
            seen += len(by_host)
    assert seen > 50
