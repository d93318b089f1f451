"""The seeded scheduler: a world, a virtual clock in whole ticks, and a heap of what falls due.

What stands in the heap for a channel is not a message but a *slot*: at that time the channel hands over one item, the
first one (fifo) or any (reorder). There are as many slots as items, so everything arrives; FIFO order needs no extra
care, and a barrier that overtakes takes the next slot. A slot that falls due while the channel is held is owed, and
paid when it is released.

The same seed gives the same run: all chance comes from one `Dice`, ties in the heap are broken by a counter, and
nothing iterates over sets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import TypeAlias

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.faults import SLOWNESS, Faults, Trouble
from strobe.hosts.sim.network import Delays, Wire, delays
from strobe.hosts.sim.protocols import Start
from strobe.hosts.sim.recovery import Recovery
from strobe.hosts.sim.sites import Control, Driver, Site
from strobe.hosts.sim.workloads.base import Workload
from strobe.hosts.sim.world import World
from strobe.model.errors import PeerFault
from strobe.model.ids import NodeId, SnapshotId

__all__ = ["PACE", "Scheduler"]

PACE = delays("uniform:1:20")  # pauses between a node's own actions
_FREEZE = 25  # how long a node is frozen in turn

_Due: TypeAlias = Wire | Site | Callable[[], None]


class Scheduler(Driver):
    """Call `attach`, plan the snapshots, then `run`."""

    def __init__(
        self,
        workload: Workload,
        dice: Dice,
        *,
        delays: Delays,
        faults: Faults,
        trouble: Trouble,
        alignment_timeout: int,
        snapshot_timeout: int,
        skew: int,
    ) -> None:
        self.workload = workload
        self.dice = dice
        self.now = 0
        self.performed = 0
        self.refused: list[str] = []  # what a machine reported as a fault of a peer or a channel
        self.fenced = 0
        self._delays = delays
        self._faults = faults
        self._trouble = trouble
        self._alignment_timeout = alignment_timeout
        self._snapshot_timeout = snapshot_timeout
        self._skew = skew
        self._heap: list[tuple[int, int, _Due]] = []
        self._count = 0
        self._bits = dice.bits
        self._pace: dict[NodeId, tuple[int, ...]] = {}
        self._last_start: dict[NodeId, int] = {}
        self._newest = SnapshotId(0)
        self._skews: dict[NodeId, int] = {}
        self._turn_free = 0  # when the last freeze-in-turn snapshot is through

    def attach(self, world: World) -> None:
        self.world = world
        self._reorders = world.order == "reorder"
        for wire in world.wires.values():
            slow = wire.target in self._trouble.slow
            wire.table = (self._delays.slowed(SLOWNESS) if slow else self._delays).table
            wire.period = self._delays.period
            wire.windows = self._trouble.windows.get(wire.id, ())
            wire.faulty = self._faults.on_channels
        slow_pace = PACE.slowed(SLOWNESS).table
        for node, site in world.sites.items():
            self._pace[node] = slow_pace if node in self._trouble.slow else PACE.table
            self.wake(site)
        self.recovery = Recovery(self, world)
        for time, node in self._trouble.crashes:
            self.at(time, partial(self.recovery.crash, node))

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def at(self, time: int, due: _Due) -> None:
        self._count += 1
        heappush(self._heap, (time, self._count, due))

    def soon(self, due: _Due) -> None:
        """After a message's delay, off the data path."""
        self.at(self.now + self._delays.table[self._bits(10)], due)

    def wake(self, site: Site) -> None:
        site.asleep = False
        self.at(self.now + self._pace[site.id][self._bits(10)], site)

    def run(self, most: int) -> bool:
        """Run until nothing is due, or `most` steps were made. Returns whether the system came to rest."""
        heap, world, bits = self._heap, self.world, self._bits
        next_action, act, deliver, pace, dice = (
            self.workload.next_action, world.act, world.deliver, self._pace, self.dice,
        )  # fmt: skip
        wakes = self.workload.wakes
        for _ in range(most):
            if not heap:
                return True
            self.now, _count, due = heappop(heap)
            try:
                if type(due) is Wire:
                    if due.held or due.fenced:
                        self._not_now(due)
                    else:
                        site = deliver(due, self._any(due)) if self._reorders else deliver(due)
                        if wakes and site.asleep:
                            self.wake(site)
                elif type(due) is Site:
                    if due.frozen:
                        if world.sites[due.id] is due:
                            self.wake(due)
                        continue
                    action = next_action(due.id, due.state, dice)
                    if action is None:
                        self._sleep(due)
                        continue
                    act(due, action)
                    self._count += 1
                    heappush(heap, (self.now + pace[due.id][bits(10)], self._count, due))
                else:
                    due()  # type: ignore[operator]
            except PeerFault as fault:
                self.refused.append(str(fault))
        return not heap

    def _any(self, wire: Wire) -> int:
        return self._bits(32) * len(wire.queue) >> 32

    def _not_now(self, wire: Wire) -> None:
        if wire.fenced:
            self.recovery.arrived_late(wire)
        else:
            wire.owed += 1

    def _sleep(self, site: Site) -> None:
        site.asleep = True
        if self.workload.ends and self.workload.finished(site.id, site.state):
            self.world.end(site.id)

    # ── what the world tells ────────────────────────────────────────────────────────────────────────────────────────

    def sent(self, wire: Wire) -> None:
        time = self.now + wire.table[self._bits(10)]
        if wire.period:
            time += -time % wire.period
        for window in wire.windows:
            if window.start <= time < window.end:
                time = window.end
        self._count += 1
        heappush(self._heap, (time, self._count, wire))

    def released(self, wire: Wire) -> None:
        for _ in range(wire.owed):
            self.at(self.now, wire)
        wire.owed = 0

    def timer(self, node: NodeId, snapshot: SnapshotId) -> None:
        self.at(self.now + self._alignment_timeout, partial(self._if_up, node, self.world.time_out, node, snapshot))

    def control(self, message: Control) -> None:
        self.soon(partial(self._take_control, message))

    def _take_control(self, message: Control) -> None:
        node = self.world.wires[message.at].target if message.kind == "count" else NodeId(message.at)  # type: ignore[index]
        self._if_up(node, self.world.take_control, message)

    def _if_up(self, node: NodeId, do: Callable[..., None], *args: object) -> None:
        if not self.recovery.is_stopped(node):
            do(*args)

    def fate(self, wire: Wire) -> int:
        if self.dice.chance(self._faults.lose):
            return 0
        return 2 if self.dice.chance(self._faults.duplicate) else 1

    def fate_of_marker(self, wire: Wire) -> int:
        if self.dice.chance(self._faults.lose_markers):
            return 0
        return 2 if self.dice.chance(self._faults.duplicate_markers) else 1

    # ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────────────

    def plan_snapshot(self, time: int, asked: tuple[NodeId, ...] = ()) -> None:
        """Start one at about this time, at the nodes asked for; the protocol decides which nodes actually start.

        Ids are given out when a snapshot starts, so they rise with time.
        """
        world = self.world
        if world.spec.start is Start.BY_CLOCK:
            # The agreed time, as each node's own clock shows it.
            snapshot = self._new_id()
            for node in world.graph.nodes:
                self.at(time + self._skew_of(node), partial(self._initiate, node, snapshot))
        elif world.spec.start is Start.IN_TURN:
            snapshot = self._new_id()
            time = max(time, self._turn_free)
            for node in world.graph.nodes:
                self.at(time, partial(self._initiate, node, snapshot))
                self.at(time + _FREEZE, partial(self._if_up, node, world.thaw, node, snapshot))
                time += _FREEZE + 1 + self.dice.below(_FREEZE)
            self._turn_free = time
        else:
            self.at(time, partial(self._start, asked))

    def _new_id(self) -> SnapshotId:
        self._newest = SnapshotId(self._newest + 1)
        return self._newest

    def _skew_of(self, node: NodeId) -> int:
        if node not in self._skews:
            self._skews[node] = self.dice.below(self._skew + 1)
        return self._skews[node]

    def _start(self, asked: tuple[NodeId, ...]) -> None:
        world = self.world
        if self.recovery.underway:
            self.soon(partial(self._start, asked))
            return
        snapshot = self._new_id()
        world.announce(snapshot)
        if world.spec.start is Start.SOURCES:
            # Inputs may have ended, so this is more than the graph's sources.
            initiators = tuple(n for n in world.graph.nodes if not world.live_inputs(n))
        else:
            initiators = world.spec.initiators(world.graph, snapshot, asked)
        if self._snapshot_timeout:
            self.at(self.now + self._snapshot_timeout, partial(self._give_up, snapshot))
        for node in initiators:
            # A node hears of snapshots in rising order.
            due = max(self.now + self.dice.below(5), self._last_start.get(node, 0) + 1)
            self._last_start[node] = due
            self.at(due, partial(self._initiate, node, snapshot))

    def _give_up(self, snapshot: SnapshotId) -> None:
        if snapshot in self.world.started:
            self.world.abort(snapshot, f"it was not complete after {self._snapshot_timeout} ticks")

    def _initiate(self, node: NodeId, snapshot: SnapshotId) -> None:
        if not self.recovery.is_stopped(node):
            self.world.initiate(node, snapshot)
