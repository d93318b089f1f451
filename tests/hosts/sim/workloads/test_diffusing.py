"""Termination is announced when everything has ended: never before, and always in the end."""

from __future__ import annotations

import pytest

from strobe.hosts.sim.checks import Check
from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, run
from strobe.hosts.sim.workloads import diffusing
from strobe.hosts.sim.workloads.diffusing import Diffusing
from strobe.hosts.sim.world import World
from strobe.model.cut import Cut, Message
from strobe.model.ids import ChannelId, SnapshotId
from strobe.protocol.dijkstra_scholten import DijkstraScholten, TerminationEffect

TERMINATION = Check("termination")


def now(world: World) -> Cut:
    """The true global state at this moment, which only the simulator can see."""
    return Cut(
        SnapshotId(0),
        {site.id: site.state for site in world.sites.values()},
        {wire.id: tuple(m for m in wire.queue if isinstance(m, Message)) for wire in world.wires.values()},
    )


def test_at_no_moment_of_any_run_is_the_end_announced_too_early() -> None:
    for seed in range(60):
        load, dice = Diffusing(2 + seed % 4), Dice(seed)
        world = World(load.graph, load, PROTOCOLS["chandy-lamport"])
        root = world.sites[load.root]
        while True:
            wires = [wire for wire in world.wires.values() if wire.queue]
            busy = [s for s in world.sites.values() if s.state["tasks"] or s.state.get("phase") == "new"]
            if not wires and not busy:
                break
            if wires and (not busy or dice.chance(500)):
                world.deliver(dice.pick(wires))
            else:
                site = dice.pick(busy)
                world.act(site, load.next_action(site.id, site.state, dice))
            assert load.check(now(world)) is None, seed
        assert root.state["phase"] == "over", seed
        assert TERMINATION(load, now(world)).found


def test_a_snapshot_that_shows_the_end_is_right_for_ever() -> None:
    shown = early = 0
    for seed in range(40):
        result = run(SimConfig("diffusing", seed=seed, snapshots=6, journal=False))
        load = Diffusing()
        for cut in result.cuts:
            if TERMINATION(load, cut).found:
                shown += 1
                worked = sum(state["worked"] for state in cut.states.values())
                assert worked == sum(state["worked"] for state in result.states.values()), seed
            else:
                early += 1
    assert shown
    assert early


class Hasty(DijkstraScholten):
    """Breaks the rule: leaves without waiting for its signals."""

    def _may_leave(self) -> bool:
        return self._engaged and not self._active


class Silent(DijkstraScholten):
    """Breaks the rule: does not signal what comes while it is engaged."""

    def _engage(self, channel: ChannelId) -> tuple[TerminationEffect, ...]:
        super()._engage(channel)
        return ()


def test_a_detector_that_does_not_wait_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check can fail: the end is announced while others still work, or not at all."""
    monkeypatch.setattr(diffusing, "DijkstraScholten", Hasty)
    results = [run(SimConfig("diffusing", seed=seed, snapshots=6, journal=False)) for seed in range(20)]
    said = [verdict.invariant or "" for result in results for verdict in result.verdicts]
    assert any("is not idle" in sentence for sentence in said)


def test_a_detector_that_owes_signals_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffusing, "DijkstraScholten", Silent)
    ends = [run(SimConfig("diffusing", seed=seed, journal=False)).end for seed in range(20)]
    assert any(end is not None and "has not noticed" in end for end in ends)
