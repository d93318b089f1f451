"""Termination is announced when everything has ended: never before, and always in the end."""

from __future__ import annotations

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, run
from strobe.hosts.sim.workloads.diffusing import Diffusing
from strobe.hosts.sim.world import World
from strobe.model.cut import Cut, Message
from strobe.model.ids import SnapshotId


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
        assert load.terminated(now(world))


def test_a_snapshot_that_shows_the_end_is_right_for_ever() -> None:
    shown = early = 0
    for seed in range(40):
        result = run(SimConfig("diffusing", seed=seed, snapshots=6, journal=False))
        load = Diffusing()
        for cut in result.cuts:
            if load.terminated(cut):
                shown += 1
                worked = sum(state["worked"] for state in cut.states.values())
                assert worked == sum(state["worked"] for state in result.states.values()), seed
            else:
                early += 1
    assert shown
    assert early


def test_an_announcement_too_early_is_caught() -> None:
    """The check can fail: a root that does not wait for its answers."""
    load = Diffusing(3)
    states = {node: load.initial(node) for node in load.graph.nodes}
    states[load.root] = {**states[load.root], "phase": "over", "waits": 1}
    channels = {load.graph.outputs(load.root)[0]: (Message(1, 3),)}
    said = load.check(Cut(SnapshotId(1), states, channels))
    assert said is not None
    assert "is not idle" in said
