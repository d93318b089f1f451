"""A node crashes; the whole system goes back to its last complete snapshot and goes on.

The restore machines of `strobe.protocol.restore` do it: the coordinator orders every node to load the snapshot, a node
stops and says when it is ready, and when all are the coordinator says start. Until the order reaches it a node that did
not crash goes on with its old life; what comes of that is fenced off.

The world gets its new contents at the moment when the coordinator sends the first start: by then every application
has stopped, so nothing of the old life can be mixed with the new one. What was in flight before stays on old wires,
arrives late, and is judged by the receiver's fence.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from strobe.hosts.sim.network import Item, Stamped, Wire
from strobe.hosts.sim.sites import Site
from strobe.hosts.sim.world import World
from strobe.model.cut import Cut
from strobe.model.errors import Failed, HostFault
from strobe.model.events import Crashed, Restarted
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.coordinator.messages import NodeLost, Tick, WakeAt
from strobe.protocol.events import Sending, SendStamped
from strobe.protocol.restore import RestoreCoordinator, RestoreParticipant
from strobe.protocol.restore.messages import (
    ClaimIncarnation,
    Fenced,
    LoadState,
    NodeReturned,
    RestoreCoordinatorInput,
    Restored,
    RestoreFailed,
    RestoreOrder,
    RestoreParticipantInput,
    RestoreRequested,
    StandDown,
    Start,
    StartApplication,
    StateLoaded,
    StopApplication,
    ToCoordinator,
    ToNode,
)  # fmt: skip

if TYPE_CHECKING:
    from strobe.hosts.sim.scheduler import Scheduler

__all__ = ["Recovery", "restart"]


def restart(world: World, cut: Cut, incarnation: Incarnation) -> None:
    """Give every node and channel what the cut says. Snapshots that were under way are over."""
    for snapshot in [*world.started, *world.parts]:
        world.aborted.setdefault(snapshot, "a node crashed")
    for old in (world.started, world.parts, world.controls, world.timers):
        old.clear()
    world.incarnation = incarnation
    for node, before in list(world.sites.items()):
        before.frozen = True
        site = Site(node, cut.states[node], world.factory(world.graph, node, world.newest))
        site.steps = before.steps
        world.sites[node] = site
    for channel in world.graph.channels:
        old_wire = world.wires[channel.id]
        old_wire.fenced = True
        wire = world.wires[channel.id] = Wire(channel, old_wire.seq, incarnation)
        wire.table, wire.period, wire.windows = old_wire.table, old_wire.period, old_wire.windows
        wire.faulty = old_wire.faulty
    if world.events is not None:
        world.events.append(Restarted(incarnation, cut))
    for channel in world.graph.channels:
        site, wire = world.sites[channel.source], world.wires[channel.id]
        for message in cut.channels.get(channel.id, ()):
            item: Item = message
            if site.stamps:
                # A machine that counts messages must count those in flight again.
                (stamped,) = site.step(Sending(channel.id, message))
                assert isinstance(stamped, SendStamped)
                item = Stamped(stamped.message, stamped.stamp)
            wire.queue.append(item)
            world.driver.sent(wire)


class Recovery:
    """Crashes, and the conversation of the restore machines, each message with a delay of its own."""

    def __init__(self, scheduler: Scheduler, world: World) -> None:
        self.crashes = 0
        self._scheduler = scheduler
        self._world = world
        self._stopped: dict[NodeId, None] = {}
        self._initial = Cut(SnapshotId(0), {n: s.state for n, s in world.sites.items()}, {})
        self._participants: dict[NodeId, RestoreParticipant] = {}
        self._coordinator = RestoreCoordinator(
            world.graph.nodes, incarnation=world.incarnation, timeline=Timeline(1), timeout=1_000_000, attempts=1_000
        )
        self._lost: dict[NodeId, None] = {}
        self._restoring: Cut | None = None

    @property
    def underway(self) -> bool:
        return bool(self._stopped) or self._restoring is not None

    def is_stopped(self, node: NodeId) -> bool:
        return node in self._stopped

    def crash(self, node: NodeId) -> None:
        """The node ends, and its state is lost. It comes back, empty, a while later."""
        if node in self._lost:
            return
        world = self._world
        if not self._participants:
            self._participants = {n: self._running_participant(n) for n in world.graph.nodes}
        self.crashes += 1
        if world.events is not None:
            world.events.append(Crashed(node))
        self._lost[node] = None
        self._stop(node)
        self._scheduler.soon(partial(self._noticed, node))

    def arrived_late(self, wire: Wire) -> None:
        """Something of an older life arrives. A node that is down loses it, any other node's fence drops it."""
        item = wire.queue.popleft()
        self._scheduler.fenced += 1
        if wire.target not in self._lost and self._participants[wire.target].step(
            Fenced(wire.id, item, wire.incarnation)
        ):
            raise HostFault(f"{wire.target} took a message of incarnation {wire.incarnation} on {wire.id!r}.")

    def _running_participant(self, node: NodeId) -> RestoreParticipant:
        """The first life began like every other: the initial state is loaded, then everyone starts."""
        participant, first = RestoreParticipant(node), self._world.incarnation
        for input in (RestoreOrder(first, Timeline(1), SnapshotId(0)), StateLoaded(first), Start(first)):
            participant.step(input)
        return participant

    # ── coordinator ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _noticed(self, node: NodeId) -> None:
        self._tell_coordinator(NodeLost(node, "it crashed"))
        if self._restoring is None:
            newest = max(self._world.finished, default=None)
            self._restoring = self._initial if newest is None else self._world.finished[newest].cut
            self._tell_coordinator(RestoreRequested(self._restoring.snapshot))
        self._scheduler.soon(partial(self._returned, node))

    def _returned(self, node: NodeId) -> None:
        del self._lost[node]
        self._participants[node] = RestoreParticipant(node)
        self._tell_coordinator(NodeReturned(node))

    def _tell_coordinator(self, input: RestoreCoordinatorInput) -> None:
        for tick_or_input in (Tick(self._scheduler.now), input):
            for effect in self._coordinator.step(tick_or_input):
                if isinstance(effect, ToNode):
                    if isinstance(effect.message, Start):
                        self._everyone_is_ready(effect.message.incarnation)
                    self._scheduler.soon(partial(self._tell_node, effect.node, effect.message))
                elif isinstance(effect, Restored):
                    self._restoring = None
                elif isinstance(effect, RestoreFailed | StandDown):
                    raise Failed(f"The simulated system could not be restored: {effect}.")
                else:
                    assert isinstance(effect, ClaimIncarnation | WakeAt)

    def _everyone_is_ready(self, incarnation: Incarnation) -> None:
        if self._world.incarnation < incarnation:
            assert self._restoring is not None
            restart(self._world, self._restoring, incarnation)
            for site in self._world.sites.values():
                site.frozen = True
                self._stopped[site.id] = None
            for wire in self._world.wires.values():
                wire.held = True

    # ── nodes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tell_node(self, node: NodeId, input: RestoreParticipantInput) -> None:
        if node in self._lost:
            return
        for effect in self._participants[node].step(input):
            if isinstance(effect, StopApplication):
                self._stop(node)
            elif isinstance(effect, LoadState):
                self._stop(node)
                self._scheduler.soon(partial(self._loaded, node, self._participants[node], effect.incarnation))
            elif isinstance(effect, StartApplication):
                self._go(node)
            elif isinstance(effect, ToCoordinator):
                self._scheduler.soon(partial(self._tell_coordinator, effect.message))
            else:
                raise HostFault(f"The simulator cannot perform {type(effect).__name__} in a restore.")

    def _loaded(self, node: NodeId, process: RestoreParticipant, incarnation: Incarnation) -> None:
        if self._participants[node] is process:  # else the process that was loading has crashed
            self._tell_node(node, StateLoaded(incarnation))

    def _stop(self, node: NodeId) -> None:
        """Nothing is delivered to it and it does nothing: until it is started, if it is part of the next life."""
        self._stopped[node] = None
        self._world.sites[node].frozen = True
        for channel in self._world.graph.inputs(node):
            self._world.wires[channel].fenced = True

    def _go(self, node: NodeId) -> None:
        world = self._world
        self._stopped.pop(node, None)
        site = world.sites[node]
        site.frozen = False
        for channel in world.graph.inputs(node):
            world.wires[channel].held = False
            self._scheduler.released(world.wires[channel])
        self._scheduler.wake(site)
