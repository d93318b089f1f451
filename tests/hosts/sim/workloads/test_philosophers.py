"""A snapshot of the philosophers shows a deadlock exactly when there is one."""

from __future__ import annotations

from strobe.hosts.sim.checks import Check
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, run
from strobe.hosts.sim.workloads.philosophers import Philosophers
from strobe.model.cut import Cut
from strobe.model.ids import SnapshotId
from strobe.predicates.stable import Finding

CORRECT = [name for name, spec in PROTOCOLS.items() if spec.is_correct]


def deadlock(load: Philosophers, cut: Cut) -> Finding | None:
    finding = Check("deadlock")(load, cut)
    return finding if finding.found else None


def test_a_deadlock_in_a_snapshot_is_there_at_the_end() -> None:
    """Stable: what a consistent snapshot shows stays true."""
    shown = stuck = 0
    for seed in range(60):
        for protocol in CORRECT:
            result = run(SimConfig("philosophers", nodes=3, seed=seed, protocol=protocol, snapshots=4, journal=False))
            load = Philosophers(3)
            end = deadlock(load, Cut(SnapshotId(0), result.states, {}))
            stuck += end is not None
            for cut in result.cuts:
                found = deadlock(load, cut)
                if found is not None:
                    shown += 1
                    assert end is not None, (seed, protocol, found)
                    assert found.facts["core"] == end.facts["core"], (seed, protocol)
    assert shown > 10
    assert 0 < stuck < 60 * len(CORRECT)


def test_a_snapshot_after_the_deadlock_shows_it() -> None:
    """Taken when nothing moves any more, it must contain the circle."""
    for seed in range(60):
        config = SimConfig("philosophers", nodes=3, seed=seed, snapshots=1, journal=False)
        result = run(config)
        load = Philosophers(3)
        end = Cut(SnapshotId(0), result.states, {})
        finding = deadlock(load, end)
        if finding is not None:
            assert finding.sentence == "deadlock: p1, p2, p3 wait for each other for ever"
            assert finding.details[0] == "p1 holds its own fork and waits for p2 (its fork)"
            return
    raise AssertionError("no seed led to a deadlock")


def test_polite_philosophers_never_get_stuck() -> None:
    for seed in range(100):
        result = run(SimConfig("philosophers", {"polite": True}, nodes=3, seed=seed, snapshots=2, journal=False))
        load = Philosophers(3, {"polite": True})
        assert all(state["meals"] == 0 for state in result.states.values()), seed
        assert all(deadlock(load, cut) is None for cut in result.cuts), seed


def test_an_inconsistent_snapshot_shows_a_deadlock_that_is_none() -> None:
    """A phantom: everybody got to eat in the end."""
    phantoms = 0
    for seed in range(400):
        for protocol in ("agreed-clock", "freeze-in-turn"):
            config = SimConfig("philosophers", {"polite": True}, nodes=2, seed=seed, protocol=protocol, snapshots=4)
            result = run(config)
            load = Philosophers(2, {"polite": True})
            phantoms += sum(deadlock(load, cut) is not None for cut in result.cuts)
    assert phantoms
