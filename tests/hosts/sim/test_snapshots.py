"""Every correct protocol on every workload: each snapshot obeys law 1, is reachable, and satisfies the invariant."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from strobe.hosts.sim.network import Order
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, SimResult, run, workload_of
from strobe.hosts.sim.workloads import WORKLOADS
from strobe.model.cut import Json
from strobe.model.events import Event, Received, Recorded
from strobe.model.ids import NodeId
from strobe.verify.consistency import check_journal
from strobe.verify.reachability import prove

CORRECT = [name for name, spec in PROTOCOLS.items() if spec.is_correct]
DELAYS = ("uniform", "long-tailed", "bursty", "fixed")
ORDERS: tuple[Order, ...] = ("fifo", "reorder")
CASES = [
    (name, order, workload)
    for name, order, workload in product(CORRECT, ORDERS, WORKLOADS)
    if order == "fifo" or not PROTOCOLS[name].needs_fifo
]


def verified(config: SimConfig) -> SimResult:
    """Run it and hold the three judges against it: the host's own, the verifier, and the constructive proof."""
    result = run(config)
    assert result.ok, (config, result.end, result.incomplete, result.refused, [v for v in result.verdicts if not v.ok])
    assert result.journal is not None
    report = check_journal(result.journal)
    assert not report.violations, (config, report.violations[0])
    app = workload_of(result.journal.header)
    for cut in result.cuts:
        proof = prove(result.journal, cut, app)
        assert proof.holds, (config, proof.sentence)
    return result


@pytest.mark.parametrize(("protocol", "order", "workload"), CASES)
def test_snapshots_are_consistent_and_reachable(protocol: str, order: Order, workload: str) -> None:
    for seed in range(6):
        config = SimConfig(workload, protocol=protocol, order=order, seed=seed, snapshots=3, delays=DELAYS[seed % 4])
        assert len(verified(config).cuts) == 3, config


@pytest.mark.parametrize("protocol", CORRECT)
@pytest.mark.parametrize("shape", ["complete", "ring", "line", "random", "anything"])
def test_any_graph_will_do(protocol: str, shape: str) -> None:
    """`anything` has self-loops, parallel channels and several components."""
    for seed in range(8):
        params: dict[str, Json] = {"graph": shape, "graph_seed": seed, "channels": 2 + seed, "transfers": 10}
        config = SimConfig("bank", params, nodes=1 + seed % 5, protocol=protocol, seed=seed, snapshots=2)
        assert len(verified(config).cuts) == 2, config


@pytest.mark.parametrize("protocol", CORRECT)
def test_snapshots_overlap(protocol: str) -> None:
    """Ten at once in a run that has hardly time for one: they must not disturb each other."""
    config = SimConfig("bank", {"transfers": 12}, nodes=4, protocol=protocol, seed=3, snapshots=10)
    result = verified(config)
    assert len(result.cuts) == 10
    records = [e.snapshot for e in _journal(result) if isinstance(e, Recorded)]
    last = {int(s): max(i for i, r in enumerate(records) if r == s) for s in records}
    first = {int(s): records.index(s) for s in records}
    assert any(first[s + 1] < last[s] for s in range(1, 10) if s + 1 in first), "no two snapshots overlapped"


def _journal(result: SimResult) -> list[Event]:
    assert result.journal is not None
    return result.journal.events


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
def test_several_nodes_may_start_the_same_snapshot(protocol: str) -> None:
    for seed in range(10):
        initiators = (NodeId("n1"), NodeId("n2"), NodeId("n4"))
        config = SimConfig("bank", protocol=protocol, seed=seed, snapshots=2, initiators=initiators)
        assert len(verified(config).cuts) == 2


@pytest.mark.parametrize("protocol", ["chandy-lamport", "aligned", "unaligned"])
def test_exactly_one_marker_for_each_channel_and_snapshot(protocol: str) -> None:
    result = run(SimConfig("bank", nodes=6, protocol=protocol, seed=1, snapshots=4))
    assert sorted(result.markers) == [1, 2, 3, 4]
    for snapshot, markers in result.markers.items():
        assert markers == {channel.id: 1 for channel in result.graph.channels}, snapshot


def test_lai_yang_sends_no_marker_and_one_count_for_each_channel_and_snapshot() -> None:
    result = run(SimConfig("bank", nodes=5, protocol="lai-yang", order="reorder", seed=1, snapshots=3))
    assert not result.markers
    assert result.counts == 3 * len(result.graph.channels)


def test_inputs_that_have_ended_are_not_waited_for() -> None:
    """Sources end at different times, and snapshots go on after the last of them has."""
    for seed, protocol in product(range(10), ["aligned", "unaligned", "aligned-with-timeout"]):
        params: dict[str, Json] = {"uneven": True, "records": 6}
        config = SimConfig("dataflow", params, nodes=7, protocol=protocol, seed=seed, snapshots=6)
        result = verified(config)
        assert len(result.cuts) == 6, config
    late = verified(replace(config, params={"uneven": True, "records": 0}, snapshots=3))
    assert len(late.cuts) == 3


def test_a_slow_source_makes_alignment_time_out() -> None:
    """With the timeout, snapshots hold channel content; purely aligned ones of the same dataflow never do."""

    def content(protocol: str) -> int:
        total = 0
        for seed in range(10):
            config = SimConfig(
                "dataflow", {"skew": 5}, protocol=protocol, seed=seed, snapshots=4, alignment_timeout=5, delays="bursty"
            )  # fmt: skip
            total += sum(len(messages) for cut in verified(config).cuts for messages in cut.channels.values())
        return total

    assert content("aligned") == 0
    assert content("aligned-with-timeout") > 0
    assert content("unaligned") > 0


def test_the_loop_belongs_to_the_snapshot() -> None:
    """What is on the feedback channel at the cut is in the snapshot, even when it is aligned."""
    found = 0
    for seed in range(20):
        result = verified(SimConfig("feedback-loop", protocol="aligned", seed=seed, snapshots=3))
        for cut in result.cuts:
            for channel in result.graph.channels:
                if channel.feedback:
                    found += len(cut.channels[channel.id])
                else:
                    assert not cut.channels[channel.id]
    assert found > 0


def test_channels_that_reorder_do_reorder() -> None:
    def arrivals(order: Order) -> dict[str, list[int]]:
        by_channel: dict[str, list[int]] = {}
        for event in _journal(run(SimConfig("bank", protocol="lai-yang", order=order, seed=1))):
            if isinstance(event, Received):
                by_channel.setdefault(event.channel, []).append(event.seq)
        return by_channel

    assert all(seqs == sorted(seqs) for seqs in arrivals("fifo").values())
    assert any(seqs != sorted(seqs) for seqs in arrivals("reorder").values())
