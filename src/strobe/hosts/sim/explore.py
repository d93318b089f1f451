"""Every schedule of a small system, each state visited once.

Theory
------
A state has everything that decides the future (nodes, machines, channels, what is left of scripts and plan) and
everything that a verdict asks about the past: for each snapshot the recorded parts, how far every channel was when its
two ends recorded (`strobe.hosts.sim.parts`), and how many markers were sent. So two schedules that meet in a state have
the same futures *and* the same verdicts from there on, and walking on from one of them is enough. What happened on the
way is judged on each transition, before anything is merged. The tests compare this with plain enumeration.

States form a graph without cycles: a step takes something from a script, the plan or a queue for ever, and only an
application's endless chatter could go on refilling them (`max_states` ends that). The number of schedules is therefore
a sum over the graph, worked out from the ends backwards: one for an end, and for a state the sum of its successors'.

A state is kept as 16 bytes: its parts (each node, each channel, each snapshot …) are numbered as they are met, and the
list of numbers is hashed with BLAKE2b. With its count of schedules a state takes about 500 bytes, numbering included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from struct import pack

from strobe.hosts.sim.checks import Check
from strobe.hosts.sim.judge import Failure
from strobe.hosts.sim.mutants import mutant
from strobe.hosts.sim.network import Order
from strobe.hosts.sim.sites import Choice
from strobe.hosts.sim.system import Schedule, System, scripted
from strobe.hosts.sim.world import World
from strobe.model.errors import Misuse, ProtocolError
from strobe.model.ids import NodeId

__all__ = ["Counterexample", "ExploreConfig", "ExploreProgress", "ExploreReport", "explore", "explore_system"]


@dataclass(frozen=True)
class ExploreConfig:
    """What to explore: a workload's script under a protocol. `mutant` names a protocol variant that breaks a rule."""

    workload: str = "bank"
    script: str | None = None  # the workload's first
    protocol: str = "chandy-lamport"
    channels: Order = "fifo"
    snapshots: int = 1
    initiators: tuple[NodeId, ...] = ()
    aborts: tuple[int, ...] = ()  # snapshots that may be given up at any time
    mutant: str | None = None
    force: bool = False  # let channels reorder under a protocol that needs order
    check: Check | None = None  # snapshots are asked whether what they show of this is true
    max_states: int = 5_000_000
    keep: int = 5  # counterexamples

    def system(self) -> System:
        machine = None
        if self.mutant is not None:
            chosen = mutant(self.mutant)
            if self.protocol not in chosen.protocols:
                raise Misuse(
                    f"The mutant {self.mutant!r} is one of {' and '.join(chosen.protocols)}, not of {self.protocol}.",
                    next=f"Choose the protocol {chosen.protocols[0]}.",
                )
            machine = chosen.machine
        system = scripted(
            self.workload,
            self.script,
            protocol_name=self.protocol,
            order=self.channels,
            snapshots=self.snapshots,
            initiators=self.initiators,
            aborts=self.aborts,
            machine=machine,
            force=self.force,
        )
        if self.check is not None:
            self.check.fits(system.workload)
        return replace(system, check=self.check)


@dataclass(frozen=True, slots=True)
class ExploreProgress:
    """`fraction` is an estimate that only rises: each state divides its share of the whole equally among its
    choices."""

    states: int
    transitions: int
    fraction: float


@dataclass(frozen=True)
class Counterexample:
    failure: Failure
    schedule: Schedule

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(choice) for choice in self.schedule)


@dataclass(frozen=True)
class ExploreReport:
    """`complete` says that nothing was left out; otherwise the counts are of what was seen."""

    system: System
    schedules: int  # different complete schedules
    failing: int  # of these
    states: int
    transitions: int
    cuts: int  # different snapshots that completed
    ends: int  # different states in which nothing more can happen
    depth: int  # choices in the longest schedule
    complete: bool
    counterexamples: tuple[Counterexample, ...]

    @property
    def ok(self) -> bool:
        return self.complete and not self.failing and not self.counterexamples


def explore(config: ExploreConfig, on_progress: Callable[[ExploreProgress], None] | None = None) -> ExploreReport:
    """All schedules of a workload's script."""
    return explore_system(config.system(), on_progress, max_states=config.max_states, keep=config.keep)


def explore_system(
    system: System,
    on_progress: Callable[[ExploreProgress], None] | None = None,
    *,
    max_states: int = 5_000_000,
    keep: int = 5,
) -> ExploreReport:
    return _Search(system, on_progress, max_states, keep).run()


class _Frame:
    """A state on the current path: the choices that are left, and the results of the others."""

    __slots__ = ("choices", "failing", "id", "schedules", "share", "world")

    def __init__(self, state: bytes, world: World, choices: list[Choice], share: float) -> None:
        self.id = state
        self.world = world
        self.choices = choices
        self.share = share / len(choices)
        self.schedules = self.failing = 0


class _Search:
    EVERY = 2048  # transitions between two reports of progress

    def __init__(
        self, system: System, on_progress: Callable[[ExploreProgress], None] | None, max_states: int, keep: int
    ) -> None:
        self.system = system
        self.judge = system.judge()
        self.on_progress = on_progress
        self.max_states = max_states
        self.keep = keep
        self.identify = Identify()
        self.schedules: dict[bytes, int] = {}  # from each finished state on
        self.failing: dict[bytes, int] = {}  # the same, where not 0
        self.stack: list[_Frame] = []
        self.path: list[Choice] = []
        self.transitions = self.depth = self.ends = 0
        self.fraction = 0.0
        self.found: dict[str, Counterexample] = {}

    def run(self) -> ExploreReport:
        world = self.system.world()
        start = self.identify(world)
        self._enter(start, world, 1.0)
        complete = True
        while self.stack:
            if len(self.schedules) + len(self.stack) >= self.max_states:
                complete = False
                break
            frame = self.stack[-1]
            if frame.choices:
                self._take(frame, frame.choices.pop())
            else:
                self._leave()
        if not complete:
            while self.stack:
                self._leave()
        if self.on_progress is not None:
            self._report(1.0)
        return ExploreReport(
            self.system,
            self.schedules[start],
            self.failing.get(start, 0),
            len(self.schedules),
            self.transitions,
            self.judge.cuts,
            self.ends,
            self.depth,
            complete,
            tuple(self.found.values()),
        )

    def _take(self, frame: _Frame, choice: Choice) -> None:
        """One transition: judge what it did, then go on from the new state, unless it is known."""
        self.transitions += 1
        if self.on_progress is not None and self.transitions % self.EVERY == 0:
            self._report(self.fraction)
        world = frame.world.fork() if frame.choices else frame.world  # the last choice may use the state up
        finished = len(world.finished)
        self.path.append(choice)
        try:
            self.system.perform(world, choice)
        except ProtocolError as error:
            self._keep((self.judge.refused(error),))
            self._settle(frame, 1, 1)
            return
        if len(world.finished) > finished:
            self._keep(self.judge.after(world, finished))
        state = self.identify(world)
        known = self.schedules.get(state)
        if known is None:
            self._enter(state, world, frame.share)
        else:
            self._settle(frame, known, self.failing.get(state, 0))

    def _settle(self, frame: _Frame, schedules: int, failing: int) -> None:
        """A choice is done: everything that can follow from it is known."""
        self.path.pop()
        self.fraction += frame.share
        frame.schedules += schedules
        frame.failing += failing

    def _enter(self, state: bytes, world: World, share: float) -> None:
        choices = self.system.enabled(world)
        if choices:
            choices.reverse()
            self.stack.append(_Frame(state, world, choices, share))
            return
        self.depth = max(self.depth, len(self.path))
        self.ends += 1
        at_end = self.judge.at_end(world)
        self._keep(at_end)
        self.schedules[state] = 1
        if at_end or any(self.judge.standing(world)):
            self.failing[state] = 1
        if self.stack:
            self._settle(self.stack[-1], 1, self.failing.get(state, 0))

    def _leave(self) -> None:
        frame = self.stack.pop()
        self.schedules[frame.id] = frame.schedules
        if frame.failing:
            self.failing[frame.id] = frame.failing
        if self.stack:
            before = self.stack[-1]
            self.path.pop()
            before.schedules += frame.schedules
            before.failing += frame.failing

    def _keep(self, failures: Iterable[Failure]) -> None:
        for failure in failures:
            if len(self.found) < self.keep and failure.sentence not in self.found:
                self.found[failure.sentence] = Counterexample(failure, tuple(self.path))

    def _report(self, fraction: float) -> None:
        assert self.on_progress is not None
        self.on_progress(ExploreProgress(len(self.schedules) + len(self.stack), self.transitions, min(1.0, fraction)))


class Identify:
    """Sixteen bytes for a state. Parts that were met before are found again by what they are, not by which object."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._next = count().__next__

    def __call__(self, world: World) -> bytes:
        parts = world.key()
        assert isinstance(parts, tuple)
        sites, wires, *others = parts
        numbers = [self._number(part) for part in (*sites, *wires, *others, frozenset(world.markers.items()))]
        return blake2b(pack(f"<{len(numbers)}Q", *numbers), digest_size=16).digest()

    def _number(self, part: object) -> int:
        number = self._numbers.get(part)
        if number is None:
            number = self._numbers[part] = self._next()
        return number
