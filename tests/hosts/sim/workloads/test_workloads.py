"""What every workload owes: pure functions, work that stands in the state, scripts that run, checks that can fail."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, run
from strobe.hosts.sim.workloads import WORKLOADS, workload
from strobe.hosts.sim.world import World
from strobe.model.cut import Cut, Json, Message, canonical
from strobe.model.ids import SnapshotId

PARAMS: dict[str, list[dict[str, Json]]] = {
    "two-process": [{"example": "transfer"}, {"example": "messages"}],
    "dataflow": [{}, {"uneven": True, "skew": 2}],
    "philosophers": [{}, {"polite": True}],
}
CASES = [(name, params) for name in WORKLOADS for params in PARAMS.get(name, [{}])]


@pytest.mark.parametrize(("name", "params"), CASES)
def test_a_run_ends_with_its_work_done(name: str, params: dict[str, Json]) -> None:
    for seed in range(20):
        result = run(SimConfig(name, params, seed=seed, snapshots=0, journal=False))
        assert result.at_rest
        assert result.end is None, (seed, result.end)


@pytest.mark.parametrize(("name", "params"), CASES)
def test_the_application_never_changes_the_state_that_it_was_given(name: str, params: dict[str, Json]) -> None:
    load = workload(name, None, params)

    world = World(load.graph, load, PROTOCOLS["chandy-lamport"])
    dice = Dice(1)
    for _ in range(200):
        for site in world.sites.values():
            action = load.next_action(site.id, site.state, dice)
            if action is not None:
                given, before = site.state, canonical(site.state)
                world.act(site, action)
                assert canonical(given) == before, action
        wires = [wire for wire in world.wires.values() if wire.queue]
        if wires:
            wire = dice.pick(wires)
            site = world.sites[wire.target]
            given, before = site.state, canonical(site.state)
            world.deliver(wire)
            assert canonical(given) == before, wire.id


@pytest.mark.parametrize(("name", "params"), CASES)
def test_states_and_messages_survive_being_written_and_read(name: str, params: dict[str, Json]) -> None:
    """From a journal or a snapshot, tuples come back as lists: the application must not mind."""
    load = workload(name, None, params)
    world = World(load.graph, load, PROTOCOLS["chandy-lamport"])
    dice = Dice(2)
    for _ in range(100):
        for site in world.sites.values():
            action = load.next_action(site.id, site.state, dice)
            if action is not None:
                read = json.loads(canonical([site.state, action]))
                assert canonical(load.act(site.id, *read)) == canonical(load.act(site.id, site.state, action))
                world.act(site, action)
        for wire in world.wires.values():
            if wire.queue:
                site, message = world.sites[wire.target], wire.queue[0]
                assert isinstance(message, Message)
                state, payload = json.loads(canonical([site.state, message.payload]))
                there = load.receive(site.id, state, wire.id, payload)
                assert canonical(there) == canonical(load.receive(site.id, site.state, wire.id, message.payload))
                world.deliver(wire)


@pytest.mark.parametrize("name", WORKLOADS)
def test_scripts_run_to_an_end_that_satisfies_the_invariant(name: str) -> None:
    for label, script in WORKLOADS[name].scripts().items():
        load = workload(name, script.nodes, script.params)
        assert all(node in load.graph.nodes for node in script.actions), label
        for protocol in ("chandy-lamport", "aligned"):
            spec = PROTOCOLS[protocol]
            graph = spec.prepare(load.graph)
            world = World(graph, load, spec, scripts=script.actions, plan=[(SnapshotId(1), spec.initiators(graph, 1))])
            dice = Dice(7)
            while not world.done():
                world.perform(dice.pick(world.enabled()))
            assert load.check(world.finished[SnapshotId(1)].cut) is None, label


@pytest.mark.parametrize(("name", "params"), CASES)
def test_the_invariant_is_broken_by_a_snapshot_of_a_wrong_protocol(name: str, params: dict[str, Json]) -> None:
    said = []
    for seed in range(60):
        for protocol in ("agreed-clock", "freeze-in-turn"):
            config = SimConfig(name, params, seed=seed, protocol=protocol, snapshots=2, journal=False)
            said += [v.invariant for v in run(config).verdicts if v.invariant is not None]
    assert said
    assert all(sentence.endswith(".") for sentence in said)


@pytest.mark.parametrize(("name", "params"), CASES)
def test_the_invariant_sees_a_message_that_is_missing_or_there_twice(name: str, params: dict[str, Json]) -> None:
    tried = 0
    for seed in range(30):
        result = run(SimConfig(name, params, seed=seed, protocol="unaligned", snapshots=3, journal=False))
        load = workload(name, None, params)
        for cut in result.cuts:
            for channel, messages in cut.channels.items():
                if messages:
                    tried += 1
                    for wrong in (messages[1:], (*messages, messages[-1])):
                        changed = Cut(cut.snapshot, cut.states, {**cut.channels, channel: wrong})
                        assert load.check(changed) is not None, (seed, channel, messages)
    assert tried


@pytest.mark.parametrize(("name", "params"), CASES)
def test_the_end_is_judged_too(name: str, params: dict[str, Json]) -> None:
    """A run that is cut off in the middle does not satisfy the end's conditions."""
    config = SimConfig(name, params, seed=3, snapshots=0, journal=False)
    load = workload(name, None, params)
    early = run(replace(config, max_events=1))
    assert not early.at_rest
    assert load.check_end(early.states) is not None
