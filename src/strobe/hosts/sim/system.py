"""A small closed system: everything that decides what a schedule does, and nothing that is left to chance.

What the nodes do stands in scripts, who starts which snapshot in a plan. What is open is only the order: a *schedule*
is a list of choices, and a system with a schedule is a run. The explorer walks all of them, `walk` one at random, and
the shrinker looks for the shortest that still fails.

A snapshot in `aborts` may be given up at any time while it is under way, as a coordinator would. One in `missed` is
planned at some of its initiators only: it cannot complete, and must not harm the others. A newer snapshot, which
completes, makes the nodes give it up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strobe.hosts.sim.checks import Check
from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.judge import Failure, Judge, PhantomJudge
from strobe.hosts.sim.network import Order
from strobe.hosts.sim.protocols import ProtocolSpec, protocol
from strobe.hosts.sim.sites import Choice, Site
from strobe.hosts.sim.workloads import Workload, workload
from strobe.hosts.sim.world import World
from strobe.model.app import Application, Reaction
from strobe.model.cut import Json
from strobe.model.errors import Misuse, ProtocolError
from strobe.model.events import Event
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.journal import Header, Journal

__all__ = ["Run", "Schedule", "System", "follow", "replay", "scripted", "walk"]

Schedule = tuple[Choice, ...]

MOST = 20_000  # choices in one run: a mutant may go on for ever
COORDINATOR = "coordinator"  # who gives a snapshot up; it is not the name of a node


@dataclass(frozen=True)
class System:
    workload: Workload
    graph: Graph
    spec: ProtocolSpec
    order: Order
    scripts: Mapping[NodeId, tuple[Json, ...]]
    plan: tuple[tuple[SnapshotId, tuple[NodeId, ...]], ...]
    aborts: frozenset[SnapshotId] = field(default_factory=frozenset)
    missed: frozenset[SnapshotId] = field(default_factory=frozenset)
    machine: Callable[..., Any] | None = None  # a mutant in place of the protocol's own class
    check: Check | None = None  # the only question about snapshots: is what they show of it true?
    partial: bool = False  # parts of the workload's graph are left out, so its invariant does not apply

    def world(self, events: list[Event] | None = None, *, forks: bool = True) -> World:
        """The system before anything has happened."""
        return (World if forks else _Straight)(
            self.graph,
            _Cropped(self.workload, self.graph) if self.partial else self.workload,
            self.spec,
            order=self.order,
            factory=self.spec.factory(self.machine),
            events=events,
            scripts=self.scripts,
            plan=self.plan,
        )

    def header(self, seed: int | None = None) -> Header:
        initial = {node: self.workload.initial(node) for node in self.graph.nodes}
        params = {"nodes": self.workload.nodes, **self.workload.params, **({"partial": True} if self.partial else {})}
        return Header("sim", self.workload.name, params, self.spec.name, self.order, seed, self.graph, initial)

    def judge(self) -> Judge:
        if self.check is not None and not self.partial:
            return PhantomJudge(self.workload, self.spec, self.check)
        return Judge(None if self.partial else self.workload, self.spec, self.aborts, self.missed)

    def enabled(self, world: World) -> list[Choice]:
        """Everything that can happen next, in a stable order."""
        choices = world.enabled()
        if self.aborts:
            choices += (Choice("abort", COORDINATOR, s) for s in world.started if s in self.aborts)
        return choices

    def perform(self, world: World, choice: Choice) -> None:
        if choice.kind == "abort" and choice.at == COORDINATOR:
            world.abort(SnapshotId(choice.arg), "the coordinator gave it up")
        else:
            world.perform(choice)


class _Straight(World):
    """A world that is never forked: nothing has to be copied before it changes."""

    def _detach(self, node: NodeId) -> Site:
        return self.sites[node]


class _Cropped:
    """An application on part of its graph: what it sends to the rest goes nowhere."""

    def __init__(self, whole: Application, graph: Graph) -> None:
        self._whole = whole
        self._channels = graph.by_id
        self.initial = whole.initial

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        return self._crop(self._whole.act(node, state, action))

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        return self._crop(self._whole.receive(node, state, channel, payload))

    def _crop(self, reaction: Reaction) -> Reaction:
        state, sends = reaction
        return state, [send for send in sends if send[0] in self._channels]


def scripted(
    name: str,
    script: str | None = None,
    *,
    protocol_name: str = "chandy-lamport",
    order: Order = "fifo",
    snapshots: int = 1,
    initiators: tuple[NodeId, ...] = (),
    aborts: Iterable[int] = (),
    machine: Callable[..., Any] | None = None,
    force: bool = False,
) -> System:
    """One of a workload's own small scripts, made into a system. `force` lets channels reorder under any protocol."""
    spec = protocol(protocol_name)
    if order == "reorder" and spec.needs_fifo and not force:
        raise Misuse(
            f"{spec.name} needs channels that keep order, but these reorder: its snapshots would be wrong.",
            untouched="Nothing was run.",
            next="Take lai-yang, or fifo channels, or force it to see what goes wrong.",
        )
    if snapshots < 0:
        raise Misuse(f"There cannot be {snapshots} snapshots.", next="Ask for 0 or more.")
    known = workload(name).scripts()
    if not known:
        raise Misuse(f"The workload {name!r} has no script to explore.", next="Run it with a seed instead.")
    if script is not None and script not in known:
        raise Misuse(
            f"The workload {name!r} has no script called {script!r}.", next=f"Choose one of: {', '.join(known)}."
        )
    chosen = known[script] if script is not None else next(iter(known.values()))
    made = workload(name, chosen.nodes, chosen.params)
    graph = spec.prepare(made.graph)
    plan = tuple((SnapshotId(s), spec.initiators(graph, s, initiators)) for s in range(1, snapshots + 1))
    scripts = {node: tuple(actions) for node, actions in chosen.actions.items()}
    return System(made, graph, spec, order, scripts, plan, frozenset(SnapshotId(s) for s in aborts), machine=machine)


@dataclass(frozen=True)
class Run:
    """One schedule, carried out. `failures` are in the order in which they showed."""

    system: System
    schedule: Schedule
    journal: Journal
    failures: tuple[Failure, ...]
    done: bool  # nothing more could happen


def replay(system: System, schedule: Iterable[Choice], *, drain: bool = False, stop: bool = True) -> Run:
    """Carry a schedule out. Choices that are not possible when their turn comes are left out.

    With `drain` the run goes on to its end by always taking the first choice; with `stop` it ends at the first failure.
    """
    rest = iter(schedule)

    def choose(enabled: list[Choice]) -> Choice | None:
        possible = set(enabled)
        for choice in rest:
            if choice in possible:
                return choice
        return enabled[0] if drain else None

    return _run(system, choose, stop=stop, seed=None)


def follow(system: System, picks: Iterable[int], *, stop: bool = True) -> Run:
    """A schedule by numbers: each pick, modulo the number of possible choices, says which is taken. After the last pick
    it is always the first."""
    rest = iter(picks)
    return _run(system, lambda enabled: enabled[next(rest, 0) % len(enabled)], stop=stop, seed=None)


def walk(system: System, seed: int, *, stop: bool = True) -> Run:
    """A schedule drawn step by step.

    With every other seed each possible choice is as likely as the others. With the rest, nodes, channels and controls
    have different weights: unlikely orders come from long delays at one place.
    """
    dice = Dice(seed)
    if dice.below(2):
        return _run(system, dice.pick, stop=stop, seed=seed)
    eagerness: dict[tuple[str, str], int] = {}

    def choose(enabled: list[Choice]) -> Choice:
        total, marks = 0, []
        for choice in enabled:
            place = choice[:2]
            if place not in eagerness:
                eagerness[place] = 1 << 2 * dice.below(4)
            total += eagerness[place]
            marks.append(total)
        return enabled[bisect_right(marks, dice.below(total))]

    return _run(system, choose, stop=stop, seed=seed)


def _run(system: System, choose: Callable[[list[Choice]], Choice | None], *, stop: bool, seed: int | None) -> Run:
    events: list[Event] = []
    world, judge = system.world(events, forks=False), system.judge()
    taken: list[Choice] = []
    failures: list[Failure] = []
    done = False
    while not (failures and stop):
        if len(taken) == MOST:
            failures.append(judge.restless(MOST))
            break
        enabled = system.enabled(world)
        if not enabled:
            done = True
            failures += judge.at_end(world)
            break
        choice = choose(enabled)
        if choice is None:
            break
        taken.append(choice)
        finished = len(world.finished)
        try:
            system.perform(world, choice)
        except ProtocolError as error:
            failures.append(judge.refused(error))
            break
        failures += judge.after(world, finished)
    return Run(system, tuple(taken), Journal(system.header(seed), events), tuple(failures), done)
