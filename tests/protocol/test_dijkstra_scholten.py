"""Termination detection: every schedule of three fully connected nodes, any of which sends work while it is active."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import NamedTuple

import pytest

from strobe.model.errors import HostFault, PeerFault, ProtocolError
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId
from strobe.protocol.dijkstra_scholten import (
    BecameIdle,
    DeliverWork,
    DijkstraScholten,
    SendingWork,
    SendSignal,
    SendWork,
    SignalArrived,
    StartWork,
    Terminated,
    TerminationEffect,
    TerminationInput,
    WorkArrived,
)
from tests.protocol.explorer import Violation, explore

R, A, B = NodeId("r"), NodeId("a"), NodeId("b")
CHANNELS = tuple(Channel(ChannelId(f"{s}->{t}"), s, t) for s in (R, A, B) for t in (R, A, B) if s != t)
TRIANGLE = Graph((R, A, B), CHANNELS)
LOOPED = Graph((R, A), (*(c for c in CHANNELS if B not in (c.source, c.target)), Channel(ChannelId("a->a"), A, A)))


class World(NamedTuple):
    """`work` bounds how many messages are sent in all; channels are bags, so everything may be reordered."""

    graph: Graph
    machines: tuple[DijkstraScholten, ...]
    work: int
    net: tuple[tuple[ChannelId, str], ...] = ()  # work travels forwards, signals backwards
    announced: bool = False

    def key(self) -> Hashable:
        machines = tuple(m.key() for m in self.machines)
        return machines, self.work, tuple(sorted(self.net)), self.announced

    def moves(self) -> Iterator[tuple[str, Callable[[], World]]]:
        for index, (channel, kind) in enumerate(self.net):
            rest = self._replace(net=self.net[:index] + self.net[index + 1 :])
            if kind == "work":
                arrived = WorkArrived(channel, "work")
                yield f"work arrives on {channel}", partial(rest.step, self.graph.by_id[channel].target, arrived)
            else:
                signal = SignalArrived(channel)
                yield f"a signal for {channel} arrives", partial(rest.step, self.graph.by_id[channel].source, signal)
        for node, machine in zip(self.graph.nodes, self.machines, strict=True):
            if machine.active:
                yield f"{node} becomes idle", partial(self.step, node, BecameIdle())
                if self.work:
                    spent = self._replace(work=self.work - 1)
                    for channel in self.graph.outputs(node):
                        yield f"{node} sends on {channel}", partial(spent.step, node, SendingWork(channel, "work"))

    def step(self, node: NodeId, input: TerminationInput) -> World:
        index = self.graph.nodes.index(node)
        machine = copy.copy(self.machines[index])
        effects = machine.step(input)
        world = self._replace(machines=(*self.machines[:index], machine, *self.machines[index + 1 :]))
        for effect in effects:
            if isinstance(effect, SendWork):
                world = world._replace(net=(*world.net, (effect.channel, "work")))
            elif isinstance(effect, SendSignal):
                world = world._replace(net=(*world.net, (effect.channel, "signal")))
            elif isinstance(effect, Terminated):
                busy = [str(n) for n, m in zip(self.graph.nodes, world.machines, strict=True) if m.active]
                flying = [c for c, kind in world.net if kind == "work"]
                if busy or flying:
                    raise Violation(f"announced, but {busy} are active and work is in flight on {flying}")
                world = world._replace(announced=True)
        return world

    def check_rest(self) -> None:
        if not self.net and not any(m.active for m in self.machines) and not self.announced:
            raise Violation("everything is idle and nothing in flight, but nothing was announced")


def world(graph: Graph, work: int, machine: type[DijkstraScholten] = DijkstraScholten) -> World:
    machines = tuple(machine(graph.inputs(n), graph.outputs(n), root=n == R) for n in graph.nodes)
    return World(graph, machines, work).step(R, StartWork())


def test_never_early_and_always_in_the_end_on_three_fully_connected_nodes() -> None:
    assert explore(world(TRIANGLE, work=5)).states > 10_000


def test_never_early_and_always_in_the_end_with_a_self_loop() -> None:
    assert explore(world(LOOPED, work=4)).states > 500


def test_a_computation_that_sends_nothing_ends_when_the_root_is_idle() -> None:
    root = DijkstraScholten((), (), root=True)
    assert root.step(StartWork()) == ()
    assert root.step(BecameIdle()) == (Terminated(),)


def test_a_root_may_start_again_after_the_end() -> None:
    root = DijkstraScholten((), (), root=True)
    for _ in range(2):
        root.step(StartWork())
        assert root.step(BecameIdle()) == (Terminated(),)


def test_the_first_message_is_signalled_last_and_the_others_at_once() -> None:
    one, two = ChannelId("one"), ChannelId("two")
    node = DijkstraScholten((one, two), ())
    assert node.step(WorkArrived(one, "x")) == (DeliverWork(one, "x"),)
    assert node.step(WorkArrived(two, "y")) == (DeliverWork(two, "y"), SendSignal(two))
    assert node.step(BecameIdle()) == (SendSignal(one),)


def test_a_node_waits_for_the_work_that_it_sent() -> None:
    up, down = ChannelId("up"), ChannelId("down")
    node = DijkstraScholten((up,), (down,))
    node.step(WorkArrived(up, "x"))
    assert node.step(SendingWork(down, "y")) == (SendWork(down, "y"),)
    assert node.step(BecameIdle()) == ()
    assert node.step(SignalArrived(down)) == (SendSignal(up),)


@pytest.mark.parametrize(
    ("input", "whose"),
    [
        (StartWork(), HostFault),  # not the root
        (BecameIdle(), HostFault),
        (SendingWork(ChannelId("out"), "x"), HostFault),
        (SendingWork(ChannelId("in"), "x"), HostFault),
        (WorkArrived(ChannelId("out"), "x"), HostFault),
        (SignalArrived(ChannelId("in")), HostFault),
        (SignalArrived(ChannelId("out")), PeerFault),
    ],
)
def test_what_makes_no_sense_at_an_idle_node_is_refused(input: TerminationInput, whose: type[ProtocolError]) -> None:
    node = DijkstraScholten((ChannelId("in"),), (ChannelId("out"),))
    before = node.key()
    with pytest.raises(whose):
        node.step(input)
    assert node.key() == before


def test_work_at_a_root_that_has_announced_the_end_is_a_peers_fault() -> None:
    root = DijkstraScholten((ChannelId("in"),), (), root=True)
    root.step(StartWork())
    root.step(BecameIdle())
    with pytest.raises(PeerFault, match="announced the end"):
        root.step(WorkArrived(ChannelId("in"), "x"))


# ── mutants: one broken rule each ───────────────────────────────────────────────────────────────────────────────────


class SignalsTheFirstMessageAtOnce(DijkstraScholten):
    def _engage(self, channel: ChannelId) -> tuple[TerminationEffect, ...]:
        super()._engage(channel)
        return (SendSignal(channel),)

    def _leave(self) -> tuple[TerminationEffect, ...]:
        return tuple(e for e in super()._leave() if isinstance(e, Terminated))


class ForgetsItsDeficit(DijkstraScholten):
    def _may_leave(self) -> bool:
        return self._engaged and not self._active

    def _signal(self, channel: ChannelId) -> tuple[TerminationEffect, ...]:
        return ()


class LeavesWhileItIsActive(DijkstraScholten):
    def _may_leave(self) -> bool:
        return self._engaged and not any(self._deficit.values())


class SignalsOnlyItsParent(DijkstraScholten):
    def _engage(self, channel: ChannelId) -> tuple[TerminationEffect, ...]:
        return tuple(e for e in super()._engage(channel) if not isinstance(e, SendSignal))


class TakesEveryMessageForAParent(DijkstraScholten):
    """Keeps the signal of the message that it heard last, instead of the first."""

    def _engage(self, channel: ChannelId) -> tuple[TerminationEffect, ...]:
        self._engaged, self._parent = True, channel
        return ()


MUTANTS = {
    SignalsTheFirstMessageAtOnce: "announced, but",
    ForgetsItsDeficit: "announced, but",
    LeavesWhileItIsActive: "announced, but",
    SignalsOnlyItsParent: "nothing was announced",
    TakesEveryMessageForAParent: "announced",
}


@pytest.mark.parametrize(("mutant", "rule"), MUTANTS.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_the_check_catches_a_node_that(mutant: type[DijkstraScholten], rule: str) -> None:
    with pytest.raises(Violation, match=rule):
        explore(world(TRIANGLE, work=3, machine=mutant))
