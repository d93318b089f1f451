"""One coordinator and two nodes that restore snapshot 1, over a network that reorders, with crashes and timeouts.

A node that runs may send one message to the other in each life. A crashed node forgets everything and starts again
at once; the coordinator hears of both. A crashed coordinator is followed by one that knows only what was claimed. When
all is quiet every node must run, in the same life, and have received what was sent to it in that life.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import count
from typing import NamedTuple, overload

from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.coordinator.messages import NodeLost, Tick, WakeAt
from strobe.protocol.events import Deliver, Sending
from strobe.protocol.restore import Phase, RestoreCoordinator, RestoreParticipant
from strobe.protocol.restore.messages import (
    ClaimIncarnation,
    Fenced,
    LoadFailed,
    LoadState,
    NodeReturned,
    Restored,
    RestoreFailed,
    RestoreRequested,
    SendFenced,
    StartApplication,
    StateLoaded,
    StopApplication,
    ToCoordinator,
    ToNode,
)
from tests.protocol.explorer import Violation

P, Q = NodeId("p"), NodeId("q")
PEER = {P: Q, Q: P}
SNAPSHOT = SnapshotId(1)
TIMEOUT = 10


class Node(NamedTuple):
    machine: RestoreParticipant
    life: int = 0  # in which its application runs; 0: it does not
    sent: bool = False  # in this life
    received: tuple[int, ...] = ()  # the lives of the messages that it got in this one
    loading: tuple[LoadState, ...] = ()

    def key(self) -> Hashable:
        return self.machine.key(), self[1:]


class World(NamedTuple):
    coordinator: RestoreCoordinator
    p: Node
    q: Node
    net: tuple[tuple[NodeId | None, object], ...] = ()  # None: to the coordinator
    noticed: tuple[NodeLost | NodeReturned, ...] = ()  # what the coordinator's host will tell it, in order
    claimed: int = 0
    timeline: int = 0  # claimed with it
    timelines: tuple[tuple[int, int], ...] = ()  # under which life each was started
    loaded: frozenset[tuple[NodeId, int]] = frozenset()
    failed: bool = False
    crashes: int = 0
    coordinator_crashes: int = 0
    timeouts: int = 0
    refusals: int = 0

    def key(self) -> Hashable:
        return self.coordinator.key(), self.p.key(), self.q.key(), frozenset(self.net), len(self.net), self[4:]

    def node(self, name: NodeId) -> Node:
        return self.p if name == P else self.q

    def _with(self, name: NodeId, node: Node) -> World:
        return self._replace(p=node) if name == P else self._replace(q=node)

    # ── moves ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def due(self) -> Iterator[tuple[str, World, NodeId | None, object]]:
        """What some process hears next: a label, the world without it, who (None: the coordinator), what."""
        for index, (to, message) in enumerate(self.net):
            yield (
                f"{to or 'c'} gets {message}",
                self._replace(net=self.net[:index] + self.net[index + 1 :]),
                to,
                message,
            )
        if self.noticed:
            yield f"c notices {self.noticed[0]}", self._replace(noticed=self.noticed[1:]), None, self.noticed[0]
        for name in (P, Q):
            node = self.node(name)
            if node.loading:
                load = node.loading[0]
                rest = self._with(name, node._replace(loading=node.loading[1:]))
                loaded = rest._replace(loaded=self.loaded | {(name, load.incarnation)})
                yield f"{name} has loaded {load}", loaded, name, StateLoaded(load.incarnation)
                if self.refusals:
                    spent = rest._replace(refusals=self.refusals - 1)
                    yield f"{name} cannot load {load}", spent, name, LoadFailed(load.incarnation, "no such file")
            if node.life and not node.sent:
                rest = self._with(name, node._replace(sent=True))
                yield f"{name} sends", rest, name, Sending(ChannelId(f"{name}->{PEER[name]}"), node.life)
        attempt = self.coordinator._attempt
        if self.timeouts and attempt is not None and self.coordinator.underway:
            yield "the time is over", self._replace(timeouts=self.timeouts - 1), None, Tick(attempt.deadline)

    def moves(self) -> Iterator[tuple[str, Callable[[], World]]]:
        for label, world, who, what in self.due():
            yield label, partial(world.step, who, what)
            if self.coordinator_crashes if who is None else self.crashes:
                for performed in count(1):  # before the first effect it is as if nothing had been heard
                    crashed = world.step(who, what, crash_after=performed)
                    if crashed is None:
                        break
                    yield f"{label}, and crashes after {performed} effects", partial(_same, crashed)
        if self.crashes:
            yield "p crashes", partial(self._crash, P)
            yield "q crashes", partial(self._crash, Q)
        if self.coordinator_crashes:
            yield "c crashes", self._crash_coordinator

    @overload
    def step(self, who: NodeId | None, what: object) -> World: ...
    @overload
    def step(self, who: NodeId | None, what: object, *, crash_after: int) -> World | None: ...
    def step(self, who: NodeId | None, what: object, *, crash_after: int | None = None) -> World | None:
        """With `crash_after`, the process performs so many effects and then crashes; None if there are not so many."""
        machine = copy.copy(self.coordinator if who is None else self.node(who).machine)
        effects = machine.step(what)  # type: ignore[arg-type]
        if crash_after is not None and crash_after >= len(effects):
            return None
        if isinstance(machine, RestoreCoordinator):
            world = self._replace(coordinator=machine)
        else:
            assert who is not None
            world = self._with(who, self.node(who)._replace(machine=machine))
        for effect in effects[:crash_after]:
            world = world._coordinate(effect) if who is None else world._perform(who, world.node(who), effect)
        if crash_after is not None:
            return world._crash_coordinator() if who is None else world._crash(who)
        if isinstance(what, NodeReturned) and world.coordinator._attempt is None and not world.failed:
            return world.step(None, RestoreRequested(SNAPSHOT))  # it died after the restore
        return world

    # ── the coordinator ─────────────────────────────────────────────────────────────────────────────────────────────

    def _coordinate(self, effect: object) -> World:
        if isinstance(effect, ToNode):
            return self._replace(net=(*self.net, (effect.node, effect.message)))
        if isinstance(effect, ClaimIncarnation):
            if effect.incarnation <= self.claimed:
                raise Violation(f"incarnation {effect.incarnation} was claimed twice")
            return self._replace(claimed=effect.incarnation, timeline=effect.timeline)
        if isinstance(effect, RestoreFailed):
            return self._replace(failed=True)
        assert isinstance(effect, WakeAt | Restored)
        return self

    def _crash_coordinator(self) -> World:
        old = self.coordinator
        machine = type(old)(
            (P, Q),
            incarnation=Incarnation(self.claimed),
            timeline=Timeline(self.timeline),
            timeout=TIMEOUT,
            attempts=old.attempts,
        )
        # Its successor finds every node there; what it would have been told of losses is of no use any more.
        world = self._replace(coordinator=machine, noticed=(), coordinator_crashes=self.coordinator_crashes - 1)
        return world.step(None, RestoreRequested(SNAPSHOT))

    # ── the nodes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _perform(self, name: NodeId, node: Node, effect: object) -> World:
        if isinstance(effect, ToCoordinator):
            return self._replace(net=(*self.net, (None, effect.message)))
        if isinstance(effect, SendFenced):
            sent = Fenced(effect.channel, effect.message, effect.incarnation)
            return self._replace(net=(*self.net, (PEER[name], sent)))
        if isinstance(effect, LoadState):
            return self._with(name, node._replace(loading=(*node.loading, effect)))
        if isinstance(effect, StopApplication):
            return self._with(name, node._replace(life=0))
        if isinstance(effect, StartApplication):
            return self._start(name, node, effect)
        assert isinstance(effect, Deliver)
        if not node.life:
            raise Violation(f"a message was delivered at {name}, whose application does not run")
        if effect.message != node.life:
            raise Violation(f"{name} runs in life {node.life} and got a message of life {effect.message}")
        return self._with(name, node._replace(received=(*node.received, effect.message)))

    def _start(self, name: NodeId, node: Node, start: StartApplication) -> World:
        unready = [other for other in (P, Q) if (other, start.incarnation) not in self.loaded]
        if unready:
            raise Violation(f"{name} started life {start.incarnation} before {', '.join(unready)} had loaded its state")
        known = dict(self.timelines)
        if known.setdefault(start.timeline, start.incarnation) != start.incarnation:
            raise Violation(f"timeline {start.timeline} was started in two lives")
        world = self._replace(timelines=tuple(sorted(known.items())))
        return world._with(name, node._replace(life=start.incarnation, sent=False, received=()))

    def _crash(self, name: NodeId) -> World:
        fresh = Node(type(self.node(name).machine)(name))
        noticed = (*self.noticed, NodeLost(name, "it crashed"), NodeReturned(name))
        return self._with(name, fresh)._replace(noticed=noticed, crashes=self.crashes - 1)

    # ── at rest ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_rest(self) -> None:
        nodes = (self.p, self.q)
        if self.net or self.noticed or self.failed or any(n.loading or (n.life and not n.sent) for n in nodes):
            return
        if self.coordinator._attempt is not None:
            raise Violation("the restore is stuck")
        if not self.p.life == self.q.life == self.claimed:
            raise Violation(f"p runs in life {self.p.life}, q in {self.q.life}; the last claimed is {self.claimed}")
        for name in (P, Q):
            if self.node(name).machine.phase is not Phase.RUNNING or self.node(name).received != (self.claimed,):
                raise Violation(f"{name} got {self.node(name).received} in life {self.claimed}")


def world(
    *,
    crashes: int = 0,
    coordinator_crashes: int = 0,
    timeouts: int = 0,
    refusals: int = 0,
    attempts: int = 3,
    coordinator: type[RestoreCoordinator] = RestoreCoordinator,
    participant: type[RestoreParticipant] = RestoreParticipant,
) -> World:
    start = World(
        coordinator((P, Q), incarnation=Incarnation(0), timeline=Timeline(0), timeout=TIMEOUT, attempts=attempts),
        Node(participant(P)),
        Node(participant(Q)),
        crashes=crashes,
        coordinator_crashes=coordinator_crashes,
        timeouts=timeouts,
        refusals=refusals,
    )
    return start.step(None, RestoreRequested(SNAPSHOT))


def _same(world: World) -> World:
    return world
