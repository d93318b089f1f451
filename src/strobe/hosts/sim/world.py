"""The whole simulated system as one explicit value that can be asked, copied and compared.

Two drivers sit on top of it. The seeded scheduler calls `deliver`, `act`, `initiate` … in the order of a virtual clock;
the `Driver` hooks tell it what was put on a channel, so that it can give it a time. The exhaustive explorer asks
`enabled()`, and for each choice takes a `fork()` and performs it.

Invariant: a site, wire or part that a fork may share is copied before it changes, so the keys that they keep stay true.
"""

from __future__ import annotations

from strobe.hosts.sim.host import Host, Plan
from strobe.hosts.sim.parts import Recording
from strobe.hosts.sim.protocols import Start
from strobe.hosts.sim.sites import Choice, Control, Driver, Finished, Site
from strobe.model.ids import ChannelId, NodeId, SnapshotId

__all__ = ["Choice", "Control", "Driver", "Finished", "Plan", "Site", "World"]


class World(Host):
    _own_parts: set[SnapshotId] | None = None  # None: this world was never forked, so all sites are its own

    def _part(self, snapshot: SnapshotId) -> Recording:
        part = super()._part(snapshot)
        if self._own_parts is not None and snapshot not in self._own_parts and snapshot in self.parts:
            part = self.parts[snapshot] = part.copy()
            self._own_parts.add(snapshot)
        part.touch()
        return part

    def enabled(self) -> list[Choice]:
        """Everything that can happen next, in a stable order."""
        choices: list[Choice] = []
        for wire in self.wires.values():
            if wire.queue and not wire.held:
                depth = len(wire.queue) if self.order == "reorder" else 1
                choices += (Choice("deliver", wire.id, i) for i in range(depth))
        choices += (Choice("act", s.id) for s in self.sites.values() if s.script and not s.frozen)
        choices += (Choice("count" if c.kind == "count" else "abort", c.at, c.snapshot) for c in self.controls)
        choices += (Choice("time-out", node, snapshot) for node, snapshot in self.timers)
        choices += self._initiations()
        return choices

    def _initiations(self) -> list[Choice]:
        if self.spec.start is Start.IN_TURN:
            frozen = [site.id for site in self.sites.values() if site.frozen]
            if frozen:
                return [Choice("thaw", frozen[0], self.newest)]
            return [Choice("initiate", node, snapshot) for snapshot, node in list(self.plan)[:1]]
        # One node starts its snapshots in rising order; different nodes do so independently.
        first: dict[NodeId, SnapshotId] = {}
        for snapshot, node in self.plan:
            first[node] = min(snapshot, first.get(node, snapshot))
        return [Choice("initiate", node, snapshot) for node, snapshot in first.items()]

    def perform(self, choice: Choice) -> None:
        """Perform the choice. What a fork may share is copied first."""
        kind, at, arg = choice
        if kind == "deliver" or kind == "count":
            channel = ChannelId(at)
            site = self._detach(self.wires[channel].target)
            if kind == "deliver":
                self.deliver(self.wires[channel], arg)
            else:
                self.take_control(next(c for c in self.controls if c[:3] == ("count", at, arg)))
            return
        node, snapshot = NodeId(at), SnapshotId(arg)
        site = self._detach(node)
        if kind == "act":
            action, site.script = site.script[0], site.script[1:]
            self.act(site, action)
            self.end_if_idle(site)
        elif kind == "initiate":
            if self.spec.takes_ends and snapshot not in self.started and snapshot not in self.finished:
                # Where all inputs have ended no barrier will come: those nodes must be told as well.
                ended = [n for n in self.sites if n not in self.graph.sources() and not self.live_inputs(n)]
                self.plan.update({(snapshot, n): None for n in ended})
            self.initiate(node, snapshot)
        elif kind == "thaw":
            self.thaw(node, snapshot)
        elif kind == "time-out":
            self.time_out(node, snapshot)
        else:
            self.take_control(Control("abort", at, snapshot))

    def _detach(self, node: NodeId) -> Site:
        """Make own copies of the node and of all its channels: one step can change no others."""
        site = self.sites[node] = self.sites[node].copy()
        for channel in (*self.graph.inputs(node), *self.graph.outputs(node)):
            self.wires[channel] = self.wires[channel].copy()
        return site

    def fork(self) -> World:
        """A copy that can go on independently. Sites and wires are shared until one of the two changes them."""
        new = World.__new__(World)
        new.__dict__.update(self.__dict__)
        new.events = None if self.events is None else self.events.copy()
        new.sites, new.wires = self.sites.copy(), self.wires.copy()
        new.parts = self.parts.copy()
        self._own_parts, new._own_parts = set(), set()
        new.finished, new.aborted, new.started = self.finished.copy(), self.aborted.copy(), self.started.copy()
        new.controls, new.timers, new.plan = self.controls.copy(), self.timers.copy(), self.plan.copy()
        new.markers, new.counters = self.markers.copy(), self.counters.copy()
        new._bind()
        return new

    def key(self) -> object:
        """Equal keys mean: the same future, and the same snapshots so far."""
        return (
            tuple(site.key() for site in self.sites.values()),
            tuple(wire.key() for wire in self.wires.values()),
            tuple(part.key() for _, part in sorted(self.parts.items())),
            tuple(finished.key() for _, finished in sorted(self.finished.items())),
            frozenset(self.aborted),
            frozenset(self.started),
            frozenset(self.controls),
            frozenset(self.timers),
            frozenset(self.plan),
        )

    def done(self) -> bool:
        return not self.enabled()
