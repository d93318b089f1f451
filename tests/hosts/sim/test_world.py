"""The world as a value: forks go their own way, equal keys mean equal worlds, choices have stable names."""

from __future__ import annotations

from collections import deque

import pytest

from strobe.hosts.sim.network import Order
from strobe.hosts.sim.protocols import PROTOCOLS, SnapshotMachine
from strobe.hosts.sim.sites import clone
from strobe.hosts.sim.workloads import WORKLOADS, workload
from strobe.hosts.sim.world import Choice, World
from strobe.model.errors import HostFault
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.barriers import BarrierMode, Barriers
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.events import Initiate, MessageArrived
from strobe.protocol.lai_yang import LaiYang


def world(protocol: str, name: str = "bank", script: str = "two-transfers", order: Order = "fifo") -> World:
    spec, chosen = PROTOCOLS[protocol], WORKLOADS[name].scripts()[script]
    load = workload(name, chosen.nodes, chosen.params)
    graph = spec.prepare(load.graph)
    plan = [(SnapshotId(1), spec.initiators(graph, 1))]
    return World(graph, load, spec, order=order, scripts=chosen.actions, plan=plan)


def ends(start: World) -> list[World]:
    """Every world in which nothing more can happen, each reached once."""
    seen, todo, found = {start.key()}, deque([start]), []
    while todo:
        here = todo.pop()
        choices = here.enabled()
        if not choices:
            found.append(here)
        for choice in choices:
            there = here.fork()
            there.perform(choice)
            if there.key() not in seen:
                seen.add(there.key())
                todo.append(there)
    return found


@pytest.mark.parametrize("protocol", [name for name, spec in PROTOCOLS.items() if spec.is_correct])
def test_every_schedule_of_two_transfers_gives_a_lawful_snapshot(protocol: str) -> None:
    start = world(protocol)
    load = workload("bank", 2)
    found = ends(start)
    assert len(found) > 1
    for end in found:
        assert end.done()
        assert end.finished[SnapshotId(1)].violation is None
        assert load.check(end.finished[SnapshotId(1)].cut) is None


@pytest.mark.parametrize("protocol", [name for name, spec in PROTOCOLS.items() if not spec.is_correct])
def test_some_schedules_of_two_transfers_break_a_wrong_protocol(protocol: str) -> None:
    verdicts = [end.finished[SnapshotId(1)].violation for end in ends(world(protocol))]
    assert any(verdicts)
    assert not all(verdicts)


def test_every_schedule_of_lai_yang_is_lawful_when_channels_reorder() -> None:
    for end in ends(world("lai-yang", order="reorder")):
        assert end.finished[SnapshotId(1)].violation is None


def test_a_fork_and_its_origin_do_not_touch_each_other() -> None:
    for protocol in PROTOCOLS:
        origin = world(protocol, script="four-transfers")
        for _ in range(40):
            choices = origin.enabled()
            if not choices:
                break
            before = (origin.key(), [str(c) for c in choices])
            for choice in choices:
                fork = origin.fork()
                fork.perform(choice)
                for more in fork.enabled():
                    fork.fork().perform(more)
                if not fork.done():
                    fork.perform(fork.enabled()[0])
            assert (origin.key(), [str(c) for c in origin.enabled()]) == before, protocol
            origin.perform(choices[-1])


def test_the_same_choices_lead_to_the_same_key() -> None:
    first, second = world("lai-yang"), world("lai-yang")
    while not first.done():
        choice = first.enabled()[-1]
        first.perform(choice)
        second = second.fork()
        second.perform(choice)
        assert first.key() == second.key(), choice


def test_a_key_tells_recorded_parts_apart() -> None:
    """Two worlds that differ only in what was recorded are different."""
    early, late = world("chandy-lamport"), world("chandy-lamport")
    early.perform(Choice("initiate", "n1", 1))
    early.perform(Choice("act", "n1"))
    late.perform(Choice("act", "n1"))
    late.perform(Choice("initiate", "n1", 1))
    assert early.key() != late.key()


def test_choices_are_named_after_what_happens_where() -> None:
    start = world("chandy-lamport")
    assert [str(c) for c in start.enabled()] == ["act n1", "act n2", "initiate n1 snapshot 1"]
    start.perform(Choice("act", "n1"))
    start.perform(Choice("initiate", "n1", 1))
    assert [str(c) for c in start.enabled()] == ["deliver n1-n2", "act n2"]


def test_on_channels_that_reorder_every_item_may_come_next() -> None:
    start = world("lai-yang", script="four-transfers", order="reorder")
    site = start.sites[NodeId("n1")]
    for amount in (1, 2, 3):
        start.act(site, ["n1-n2", amount])
    deliveries = [c for c in start.enabled() if c.kind == "deliver"]
    assert [str(c) for c in deliveries] == ["deliver n1-n2", "deliver n1-n2 item 2", "deliver n1-n2 item 3"]
    start.perform(deliveries[1])
    assert start.sites[NodeId("n2")].state["balance"] == 1002


def test_a_held_channel_delivers_nothing() -> None:
    start = world("aligned", "dataflow", "two-lanes")
    start.perform(Choice("initiate", "source1", 1))
    start.perform(Choice("deliver", "source1-map1"))
    start.perform(Choice("act", "source1"))
    held = [w.id for w in start.wires.values() if w.held]
    assert held == ["source1-map1"]
    assert Choice("deliver", "source1-map1") not in start.enabled()


def test_the_end_of_a_source_travels_to_the_last_node() -> None:
    """Each node ends when all its inputs have; a loop never does, because something may still be on the way back."""
    lane = world("aligned", "dataflow", "one-lane")
    while not lane.done():
        lane.perform(lane.enabled()[-1])
    assert all(wire.ended for wire in lane.wires.values())
    loop = world("aligned", "feedback-loop", "once-round")
    while not loop.done():
        loop.perform(loop.enabled()[-1])
    assert [wire.id for wire in loop.wires.values() if wire.ended] == ["source-head"]


def test_a_frozen_node_does_nothing_until_it_is_thawed() -> None:
    start = world("freeze-in-turn")
    start.perform(Choice("initiate", "n1", 1))
    assert [str(c) for c in start.enabled()] == ["act n2", "thaw n1 snapshot 1"]


def test_an_application_that_sends_on_a_channel_of_another_node_is_stopped() -> None:
    start = world("chandy-lamport")
    with pytest.raises(HostFault, match="n2-n1"):
        start.act(start.sites[NodeId("n1")], ["n2-n1", 1])


def test_a_cloned_machine_shares_nothing_that_changes() -> None:
    inputs, outputs = ("a", "b"), ("c",)
    machines: list[SnapshotMachine] = [
        ChandyLamport(inputs, outputs),  # type: ignore[arg-type]
        LaiYang(inputs, outputs),  # type: ignore[arg-type]
        Barriers(inputs, outputs, feedback=inputs, mode=BarrierMode.UNALIGNED),  # type: ignore[arg-type]
    ]
    for machine in machines:
        machine.step(Initiate(SnapshotId(1)))
        copy = clone(machine)
        assert copy.key() == machine.key()
        before = machine.key()
        copy.step(MessageArrived(inputs[0], "m"))  # type: ignore[arg-type]
        copy.step(Initiate(SnapshotId(2)))
        assert machine.key() == before, type(machine).__name__
        assert copy.key() != before
