"""What does not work, shown: the two wrong protocols, a FIFO protocol on channels that reorder, channels that lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strobe.hosts.sim.faults import Faults
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, SimResult, run, workload_of
from strobe.hosts.sim.workloads import WORKLOADS
from strobe.verify.consistency import Report, Rule, check_journal
from strobe.verify.reachability import prove

WRONG = [name for name, spec in PROTOCOLS.items() if not spec.is_correct]

LAW_1 = (
    Rule.EFFECT_WITHOUT_CAUSE, Rule.MISSING_MESSAGE, Rule.EXTRA_MESSAGE, Rule.LATE_MESSAGE, Rule.DUPLICATE_MESSAGE,
)  # fmt: skip


def report(result: SimResult) -> Report:
    assert result.journal is not None
    return check_journal(result.journal)


@pytest.mark.parametrize("protocol", WRONG)
def test_money_vanishes_and_appears(protocol: str) -> None:
    said = [v.invariant or "" for seed in range(40) for v in run(SimConfig(protocol=protocol, seed=seed)).verdicts]
    assert any("vanished" in sentence for sentence in said)
    assert any("appeared" in sentence for sentence in said)


@pytest.mark.parametrize("protocol", WRONG)
def test_the_verifier_shows_both_kinds_of_fault(protocol: str) -> None:
    rules = {v.rule for seed in range(20) for v in report(run(SimConfig(protocol=protocol, seed=seed))).violations}
    assert Rule.EFFECT_WITHOUT_CAUSE in rules
    assert Rule.MISSING_MESSAGE in rules


@pytest.mark.parametrize("protocol", WRONG)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_host_and_the_verifier_never_disagree(protocol: str, workload: str) -> None:
    """Two judges that share nothing but the run: snapshot by snapshot they come to the same verdict."""
    broken = 0
    for seed in range(12):
        result = run(SimConfig(workload, protocol=protocol, seed=seed, snapshots=2))
        blamed = {v.snapshot for v in report(result).violations}
        assert blamed == {v.cut.snapshot for v in result.verdicts if v.law is not None}, (workload, protocol, seed)
        broken += len(blamed)
    assert broken > 0


@pytest.mark.parametrize("protocol", WRONG)
def test_a_wrong_snapshot_is_not_reachable(protocol: str) -> None:
    for seed in range(10):
        result = run(SimConfig(protocol=protocol, seed=seed))
        assert result.journal is not None
        for verdict in result.verdicts:
            proof = prove(result.journal, verdict.cut, workload_of(result.journal.header))
            assert proof.holds == (verdict.law is None), (seed, proof.sentence)


@pytest.mark.parametrize("protocol", [name for name, spec in PROTOCOLS.items() if spec.needs_fifo])
def test_a_fifo_protocol_on_channels_that_reorder_goes_wrong(protocol: str) -> None:
    """Refused unless forced; forced, the verifier shows why. The host agrees."""
    broken = 0
    for seed in range(20):
        result = run(SimConfig(protocol=protocol, order="reorder", force=True, seed=seed))
        law = [v for v in report(result).violations if v.rule in LAW_1]
        assert bool(law) == any(v.law is not None for v in result.verdicts), seed
        broken += bool(law)
    assert broken > 10


def test_lost_messages_are_named() -> None:
    """Where a snapshot comes after the loss; the end of the run shows it in any case."""
    named = 0
    for seed in range(10):
        result = run(SimConfig(seed=seed, faults=Faults(lose=100), snapshots=3))
        assert result.lost > 0
        assert result.end is not None
        assert "vanished" in result.end
        named += Rule.LOST_MESSAGE in {v.rule for v in report(result).violations}
    assert named >= 8


def test_duplicated_messages_are_named() -> None:
    for seed in range(10):
        result = run(SimConfig(seed=seed, faults=Faults(duplicate=100), snapshots=3))
        assert result.duplicated > 0
        assert result.end is not None
        assert "appeared" in result.end
        assert Rule.DUPLICATE_DELIVERY in {v.rule for v in report(result).violations}, seed


def test_a_lost_marker_leaves_the_snapshot_incomplete_and_the_system_unharmed() -> None:
    result = run(SimConfig(seed=1, faults=Faults(lose_markers=300)))
    assert result.incomplete == (1,)
    assert not result.verdicts
    assert result.end is None


def test_a_lost_barrier_blocks_an_aligned_system_until_the_snapshot_is_given_up() -> None:
    """Held inputs wait for ever for a barrier that is gone; a timeout frees them, and nothing is lost or wrong."""
    blocked = given_up = 0
    for seed in range(20):
        config = SimConfig(seed=seed, protocol="aligned", snapshots=4, faults=Faults(lose_markers=60))
        blocked += run(config).end is not None
        result = run(replace(config, snapshot_timeout=80))
        assert result.end is None, seed
        assert not result.incomplete, seed
        assert all(verdict.ok for verdict in result.verdicts), seed
        assert not report(result).violations, seed
        assert len(result.verdicts) + len(result.aborted) == 4, seed
        given_up += sum("not complete after 80 ticks" in reason for reason in result.aborted.values())
    assert blocked
    assert given_up


def test_a_newer_barrier_shows_that_an_older_one_was_lost() -> None:
    """The node that sees it declines the older snapshot, which is given up everywhere."""
    reasons = [
        reason
        for seed in range(20)
        for reason in run(
            SimConfig(seed=seed, protocol="unaligned", snapshots=6, faults=Faults(lose_markers=60))
        ).aborted.values()
    ]
    assert any("declined it: barrier" in reason for reason in reasons)


@pytest.mark.parametrize("protocol", [name for name, spec in PROTOCOLS.items() if spec.is_correct])
def test_giving_a_snapshot_up_too_soon_harms_nobody(protocol: str) -> None:
    """Some are given up in the middle, some finish just in time; the others and the system are unharmed."""
    complete = given_up = 0
    timeout = 20 if protocol == "unaligned" else 25  # it starts everywhere, and is done sooner
    for seed in range(15):
        result = run(SimConfig(seed=seed, protocol=protocol, snapshots=5, snapshot_timeout=timeout))
        assert result.end is None, seed
        assert not result.incomplete, seed
        assert not report(result).violations, seed
        assert all(verdict.ok for verdict in result.verdicts), seed
        complete += len(result.verdicts)
        given_up += len(result.aborted)
    assert complete
    assert given_up


def test_a_second_marker_is_refused_as_a_fault_of_its_sender() -> None:
    result = run(SimConfig(seed=1, faults=Faults(duplicate_markers=500)))
    assert any("second marker for snapshot 1" in sentence for sentence in result.refused)
    assert all(verdict.ok for verdict in result.verdicts)


def test_partitions_and_slow_nodes_only_take_time() -> None:
    for seed in range(20):
        plain = run(SimConfig(seed=seed, snapshots=2))
        slow = run(SimConfig(seed=seed, snapshots=2, faults=Faults(partitions=3, slow=2)))
        assert slow.ok, seed
        assert len(slow.cuts) == 2
        assert slow.time > plain.time
        assert not report(slow).violations
