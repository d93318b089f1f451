"""From a failing run to the smallest run that still fails, so that a person can see why.

Smaller means: fewer nodes, then fewer channels, snapshots, actions and initiators, then fewer choices. A candidate is
tried by carrying it out (choices that have become impossible are left out) and is taken if it fails in the same way:
with a failure of the same kind. The result is a local minimum: taking any single thing away makes the failure vanish.

Choices are thinned out by Zeller and Hildebrandt's delta debugging (2002): big pieces first, then smaller ones.

`retrace` finds the schedule of a run of which only the journal is known, so that a run by the clock can be shrunk too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from strobe.hosts.sim.judge import ViolationKind
from strobe.hosts.sim.network import Barrier, Item, Marker, Stamped
from strobe.hosts.sim.protocols import Start
from strobe.hosts.sim.sites import Choice
from strobe.hosts.sim.system import Run, Schedule, System, replay
from strobe.model.cut import Json, Message
from strobe.model.errors import Misuse, ProtocolError
from strobe.model.events import (
    Crashed,
    Duplicated,
    Event,
    Internal,
    Lost,
    MarkerReceived,
    Received,
    Recorded,
    Restarted,
)
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.journal import Journal

__all__ = ["retrace", "shrink"]


def shrink(run: Run, *, most: int = 5_000) -> Run:
    """The smallest run found that fails as `run` does. At most `most` candidates are tried."""
    if not run.failures:
        return run
    return _Shrinker(run, most).shrink()


class _Shrinker:
    def __init__(self, run: Run, most: int) -> None:
        self.kind = run.failures[0].kind
        self.to_the_end = run.done  # what showed only when nothing more could happen
        self.best = run
        self.left = most

    def shrink(self) -> Run:
        self._thin_out()
        while True:
            before = self.best
            for smaller in (self._smaller_graphs, self._smaller_plans, self._smaller_scripts):
                self._reduce(smaller)
            self._thin_out()
            if self.best is before or self.left <= 0:
                return self.best

    def _reduce(self, smaller: Callable[[System], Iterator[System]]) -> None:
        """Take the first smaller system that still fails, as long as there is one."""
        found = True
        while found and self.left > 0:
            found = any(self._try(s, _on_the_way(self.best, s)) for s in smaller(self.best.system))

    def _try(self, system: System, schedule: Schedule) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        try:
            run = replay(system, schedule, drain=self.to_the_end)
        except LookupError:  # an action needs something that was taken away
            return False
        if not any(failure.kind is self.kind for failure in run.failures):
            return False
        self.best = run
        return True

    # ── choices ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _thin_out(self) -> None:
        size = len(self.best.schedule)
        while size >= 1 and self.left > 0:
            start, shorter = 0, False
            while start < len(self.best.schedule):
                schedule = self.best.schedule
                candidate = schedule[:start] + schedule[start + size :]
                if len(candidate) < len(schedule) and self._shorter(candidate):
                    shorter = True
                else:
                    start += size
            if not shorter:
                size //= 2

    def _shorter(self, candidate: Schedule) -> bool:
        """Running to the end adds choices again: the new run counts only if it is shorter as a whole."""
        before = self.best
        if self._try(before.system, candidate) and len(self.best.schedule) < len(before.schedule):
            return True
        self.best = before
        return False

    # ── systems ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _smaller_graphs(self, system: System) -> Iterator[System]:
        if self.kind in (ViolationKind.INVARIANT, ViolationKind.PHANTOM):
            return  # it is about the whole system
        graph = system.graph
        for gone in reversed(graph.nodes if len(graph.nodes) > 1 else ()):
            nodes = tuple(n for n in graph.nodes if n != gone)
            yield _on(system, Graph(nodes, tuple(c for c in graph.channels if gone not in (c.source, c.target))))
        for channel in reversed(graph.channels):
            yield _on(system, Graph(graph.nodes, tuple(c for c in graph.channels if c != channel)))

    def _smaller_plans(self, system: System) -> Iterator[System]:
        for at, (snapshot, nodes) in enumerate(system.plan):
            if len(system.plan) > 1 and not system.missed:
                yield replace(system, plan=system.plan[:at] + system.plan[at + 1 :])
            if len(nodes) > 1 and system.spec.start is Start.ANYWHERE:
                for gone in nodes:
                    fewer = tuple(n for n in nodes if n != gone)
                    if _reaches_all(system.graph, fewer):
                        yield replace(system, plan=(*system.plan[:at], (snapshot, fewer), *system.plan[at + 1 :]))

    def _smaller_scripts(self, system: System) -> Iterator[System]:
        for node, actions in system.scripts.items():
            for at in reversed(range(len(actions))):
                yield replace(system, scripts={**system.scripts, node: actions[:at] + actions[at + 1 :]})


def _on(system: System, graph: Graph) -> System:
    """The system on part of its graph, with more initiators if its snapshots would not reach all of it any more."""
    scripts: dict[NodeId, tuple[Json, ...]] = {n: a for n, a in system.scripts.items() if n in graph.nodes}
    plan: list[tuple[SnapshotId, tuple[NodeId, ...]]] = []
    for snapshot, nodes in system.plan:
        rest = tuple(n for n in nodes if n in graph.nodes)
        if system.spec.takes_ends and snapshot not in system.missed:
            others = () if system.spec.start is Start.SOURCES else rest
            rest = tuple(n for n in graph.nodes if n in others or n in graph.sources())
        elif system.spec.start is Start.ANYWHERE:
            for node in graph.nodes:
                if node not in graph.reachable(rest):
                    rest += (node,)
        plan.append((snapshot, rest))
    return replace(system, graph=graph, scripts=scripts, plan=tuple(plan), partial=True)


def _on_the_way(run: Run, smaller: System) -> Schedule:
    """The run's schedule for a smaller system. Where a marker came from what is gone, its receiver starts by itself."""
    schedule: list[Choice] = []
    for choice in run.schedule:
        if choice.kind in ("deliver", "count") and choice.at not in smaller.graph.by_id:
            target = run.system.graph.by_id[ChannelId(choice.at)].target
            schedule += (Choice("initiate", target, snapshot) for snapshot, nodes in smaller.plan if target in nodes)
        else:
            schedule.append(choice)
    return tuple(schedule)


def _reaches_all(graph: Graph, initiators: tuple[NodeId, ...]) -> bool:
    return len(graph.reachable(initiators)) == len(graph.nodes)


# ── from a journal to a schedule ────────────────────────────────────────────────────────────────────────────────────


def retrace(system: System, journal: Journal) -> Run:
    """The run that the journal tells of, as a schedule. `system` says what ran; scripts and plan come from the journal.

    Whatever happens at a node leaves a line, except messages off the data path, ends and timers. Those are taken to
    happen when nothing else explains the next line. If that does not lead to the journal's lines, the run ends where
    the two differ.
    """
    return _Tracer(system, journal.events).run()


class _Tracer:
    def __init__(self, system: System, wanted: list[Event]) -> None:
        scripts: dict[NodeId, tuple[Json, ...]] = {}
        for event in wanted:
            if isinstance(event, Internal):
                scripts[event.node] = (*scripts.get(event.node, ()), event.action)
            elif isinstance(event, Lost | Duplicated | Crashed | Restarted):
                raise Misuse("A run with crashes, or with channels that lose or duplicate, has no schedule of choices.")
        self.system = replace(system, scripts=scripts, plan=())
        self.wanted = wanted
        self.world = self.system.world([])
        self.at = 0
        self.taken: list[Choice] = []

    def run(self) -> Run:
        while self.at < len(self.wanted) and (self._explain() or self._take_silent()):
            pass
        plan: dict[SnapshotId, tuple[NodeId, ...]] = {}
        for kind, node, snapshot in self.taken:
            if kind == "initiate":
                plan[SnapshotId(snapshot)] = (*plan.get(SnapshotId(snapshot), ()), NodeId(node))
        return replay(replace(self.system, plan=tuple(plan.items())), self.taken, stop=False)

    def _explain(self) -> bool:
        """Take the choice that leads to the next line."""
        return any(self._attempt(choice, silent=False) for choice in self._candidates(self.wanted[self.at]))

    def _take_silent(self) -> bool:
        return any(self._attempt(choice, silent=True) for choice in self.world.enabled())

    def _attempt(self, choice: Choice, *, silent: bool) -> bool:
        world = self.world.fork()
        if choice.kind == "initiate":
            world.plan = {(SnapshotId(choice.arg), NodeId(choice.at)): None}
        try:
            world.perform(choice)
        except ProtocolError:
            if silent or self.at + 1 < len(self.wanted):
                return False
        assert world.events is not None
        lines = len(world.events)
        if bool(lines) is silent or world.events != self.wanted[self.at : self.at + lines]:
            return False
        world.events.clear()
        self.world = world
        self.at += lines
        self.taken.append(choice)
        return True

    def _candidates(self, event: Event) -> Iterator[Choice]:
        if isinstance(event, Internal):
            yield Choice("act", event.node)
        elif isinstance(event, Received | MarkerReceived):
            wire = self.world.wires[event.channel]
            yield from (Choice("deliver", wire.id, i) for i in range(len(wire.queue)) if _is_of(wire.queue[i], event))
        else:
            # Nodes that freeze do so one after the other: the last one thaws first.
            if isinstance(event, Recorded) and not any(site.frozen for site in self.world.sites.values()):
                yield Choice("initiate", event.node, event.snapshot)
            yield from self.world.enabled()


def _is_of(item: Item, event: Received | MarkerReceived) -> bool:
    """Whether delivering the item is the event."""
    if isinstance(event, MarkerReceived):
        return isinstance(item, Marker | Barrier) and item.snapshot == event.snapshot
    message = item.message if isinstance(item, Stamped) else item
    return isinstance(message, Message) and message.seq == event.seq
