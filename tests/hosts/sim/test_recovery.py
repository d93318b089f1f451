"""A node crashes, the system goes back to its last complete snapshot, and the result is as if nothing had happened."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from strobe.hosts.sim import recovery
from strobe.hosts.sim.faults import Faults
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.recovery import Recovery
from strobe.hosts.sim.runner import SimConfig, SimResult, run, workload_of
from strobe.hosts.sim.workloads import WORKLOADS
from strobe.hosts.sim.world import World
from strobe.model.cut import Cut
from strobe.model.events import Completed, Crashed, Event, Restarted
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.verify.consistency import check_journal
from strobe.verify.reachability import prove

CORRECT = [name for name, spec in PROTOCOLS.items() if spec.is_correct]


def events(result: SimResult) -> Sequence[Event]:
    assert result.journal is not None
    return result.journal.events


@pytest.mark.parametrize("protocol", CORRECT)
@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_run_ends_right_whatever_crashes_when(workload: str, protocol: str) -> None:
    for seed in range(10):
        config = SimConfig(workload, protocol=protocol, seed=seed, snapshots=4, faults=Faults(crashes=1 + seed % 3))
        result = run(config)
        assert result.ok, (config, result.end, result.incomplete, [v for v in result.verdicts if not v.ok])
        assert result.crashes > 0, config
        assert result.journal is not None
        report = check_journal(result.journal)
        assert not report.violations, (config, report.violations[0])
        for cut in result.cuts:
            proof = prove(result.journal, cut, workload_of(result.journal.header))
            assert proof.holds, (config, proof.sentence)


@pytest.mark.parametrize("protocol", CORRECT)
def test_sources_replay_and_the_sink_ends_as_without_the_crash(protocol: str) -> None:
    """Exactly once: the final states, not only an invariant over them, are those of an undisturbed run."""
    undisturbed = run(SimConfig("dataflow", protocol=protocol, seed=0)).states
    for seed in range(15):
        result = run(SimConfig("dataflow", protocol=protocol, seed=seed, snapshots=3, faults=Faults(crashes=2)))
        for node in ("sink", "count1", "count2"):
            assert result.states[node] == undisturbed[node], (seed, node)  # type: ignore[index]


def test_the_restart_is_from_the_newest_complete_snapshot_or_from_the_beginning() -> None:
    origins = set()
    for seed in range(30):
        result = run(SimConfig(seed=seed, snapshots=3, faults=Faults(crashes=1)))
        complete: list[Cut] = []
        crashed = False
        for event in events(result):
            if isinstance(event, Completed) and not crashed:
                complete.append(event.cut)
            elif isinstance(event, Crashed):
                crashed = True
            elif isinstance(event, Restarted):
                # A snapshot may still complete between the crash and its discovery.
                assert event.cut.snapshot >= (complete[-1].snapshot if complete else 0), seed
                assert event.incarnation == 2
                origins.add(event.cut.snapshot)
                crashed = False
    assert 0 in origins
    assert len(origins) > 2


def test_each_restart_raises_the_incarnation() -> None:
    result = run(SimConfig("dataflow", {"records": 60}, seed=2, snapshots=6, faults=Faults(crashes=4)))
    incarnations = [e.incarnation for e in events(result) if isinstance(e, Restarted)]
    assert len(incarnations) >= 2
    assert incarnations == sorted(set(incarnations))


def test_messages_of_an_older_incarnation_are_fenced_off() -> None:
    """The crash comes in the middle of a busy run, so there is always something left of the old life."""
    for seed in range(10):
        result = run(SimConfig("bank", {"transfers": 100, "balance": 100_000}, seed=seed, faults=Faults(crashes=1)))
        assert result.fenced > 0, seed


def test_a_node_takes_no_step_between_the_restart_and_its_own_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that were started first send to it already; that waits on the channel."""
    whole, go = recovery.restart, Recovery._go
    at_restart: dict[NodeId, int] = {}
    waited = 0

    def restart(world: World, cut: Cut, incarnation: Incarnation) -> None:
        whole(world, cut, incarnation)
        at_restart.update({node: site.steps for node, site in world.sites.items()})

    def start(self: Recovery, node: NodeId) -> None:
        nonlocal waited
        assert self._world.sites[node].steps == at_restart[node]
        waited += sum(self._world.wires[channel].owed for channel in self._world.graph.inputs(node))
        go(self, node)

    monkeypatch.setattr(recovery, "restart", restart)
    monkeypatch.setattr(Recovery, "_go", start)
    for seed in range(20):
        run(SimConfig(seed=seed, snapshots=3, faults=Faults(crashes=2)))
    assert waited > 0


def test_a_snapshot_under_way_is_given_up_and_later_ones_complete() -> None:
    """Its id is not used again."""
    seen = False
    for seed in range(40):
        result = run(SimConfig(seed=seed, snapshots=5, faults=Faults(crashes=1), delays="long-tailed"))
        complete = [int(v.cut.snapshot) for v in result.verdicts]
        assert sorted([*complete, *result.aborted]) == [1, 2, 3, 4, 5], seed
        seen |= any(aborted < max(complete, default=0) for aborted in result.aborted)
    assert seen


def test_forgetting_the_channels_loses_money(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: restore the states alone, and what was in flight is gone."""
    whole = recovery.restart

    def states_only(world: World, cut: Cut, incarnation: Incarnation) -> None:
        whole(world, Cut(cut.snapshot, cut.states, {}), incarnation)

    monkeypatch.setattr(recovery, "restart", states_only)
    ends = [run(SimConfig(seed=seed, snapshots=4, faults=Faults(crashes=1))).end for seed in range(20)]
    assert any(end is not None and "vanished" in end for end in ends)


def test_restoring_only_the_crashed_node_breaks_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: go back with the wrong states, and money appears or vanishes."""
    whole = recovery.restart

    def one_node_only(world: World, cut: Cut, incarnation: Incarnation) -> None:
        states = {node: site.state for node, site in world.sites.items()}
        first = world.graph.nodes[0]
        whole(world, Cut(SnapshotId(0), {**states, first: cut.states[first]}, {}), incarnation)

    monkeypatch.setattr(recovery, "restart", one_node_only)
    assert any(run(SimConfig(seed=seed, snapshots=4, faults=Faults(crashes=1))).end is not None for seed in range(10))
