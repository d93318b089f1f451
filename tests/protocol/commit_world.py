"""One coordinator, two sinks and a network that reorders, with a crash possible between any two effects.

Each sink writes one row per prepare; rows are numbered, so that a lost row is a gap and a repeated one a duplicate. A
crash throws away the machine and whatever the host had not made durable, and starts the next incarnation at once:
being down longer is the same as getting no messages.

With `findings`, decisions wait for a verdict: what the invariants of each snapshot say is settled from the beginning,
and verdicts may come in any order. A person may release what is logged, durably.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from typing import NamedTuple, TypeAlias, overload

from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.two_phase_commit import TwoPhaseCoordinator, TwoPhaseParticipant
from strobe.protocol.two_phase_commit.messages import (
    Abandon,
    AbortWrites,
    Begin,
    CommitCoordinatorEffect,
    CommitParticipantEffect,
    CommitWrites,
    Decision,
    DecisionFailed,
    DecisionLogged,
    Finding,
    Handle,
    Judge,
    Judged,
    LogDecision,
    Opened,
    PrepareWrites,
    RecoverFrom,
    Released,
    ToCoordinator,
    ToParticipant,
    WritesFailed,
    WritesPrepared,
)
from tests.protocol.explorer import Violation

P, Q = NodeId("p"), NodeId("q")
Net: TypeAlias = tuple[tuple[NodeId | None, object], ...]  # None: to the coordinator


def row_of(handle: Handle) -> int:
    return int(handle[1 : handle.index(".")])


class Hears(NamedTuple):
    to: str
    message: object
    performed: int | None = None  # effects, before it crashes

    def __str__(self) -> str:
        heard = f"{self.to} gets {self.message}"
        return heard if self.performed is None else f"{heard}, and crashes after {self.performed} effects"


@dataclass(frozen=True)
class Sink:
    """A participant and its disk. `noted` are the handles that a restart will find, oldest first."""

    name: NodeId
    machine: TwoPhaseParticipant
    status: tuple[tuple[Handle, str], ...] = ()  # prepared, committed or aborted; in order of preparing
    noted: tuple[Handle, ...] = ()
    rows: int = 0  # written so far; volatile
    asked: tuple[SnapshotId, ...] = ()  # PrepareWrites that the host has not done yet
    answers: tuple[WritesPrepared | WritesFailed, ...] = ()  # done, but the machine does not know yet

    @cached_property
    def key(self) -> Hashable:
        return self.machine.key(), self.status, self.noted, self.rows, self.asked, self.answers

    def with_status(self, handle: Handle, status: str) -> Sink:
        changed = dict(self.status)
        changed[handle] = status
        return replace(self, status=tuple(changed.items()))


class World(NamedTuple):
    coordinator: TwoPhaseCoordinator
    sinks: tuple[Sink, ...]
    repeated: list[Handle]  # shared by all worlds: what was committed twice in some schedule
    net: Net = ()
    log: tuple[Decision, ...] = ()
    logging: tuple[Decision, ...] = ()  # LogDecision that the host has not done yet
    logged: tuple[SnapshotId, ...] = ()  # durable, but the coordinator does not know yet
    begun: SnapshotId = SnapshotId(0)
    begins: int = 1
    crashes: int = 1  # of one process
    blackouts: int = 0  # of all at once
    failures: int = 0  # that leave the process alive
    findings: tuple[Finding, ...] = ()  # of snapshot 1, 2, …; none: nothing is judged
    judging: tuple[SnapshotId, ...] = ()  # asked for, not answered yet
    releases: int = 0  # that a person may still say
    released: SnapshotId = SnapshotId(0)  # durable
    telling: tuple[SnapshotId, ...] = ()  # released, but the coordinator does not know yet

    def key(self) -> Hashable:
        return (
            self.coordinator.key(), tuple(s.key for s in self.sinks), frozenset(self.net), len(self.net), self.log,
            self.logging, self.logged, self.begun, self.begins, self.crashes, self.blackouts, self.failures,
            self.judging, self.releases, self.released, self.telling,
        )  # fmt: skip

    # ── moves ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def due(self) -> Iterator[tuple[Hears, World, NodeId | None, object]]:
        """What some process hears next: a label, the world without it, who (None: the coordinator), what."""
        for index, (to, message) in enumerate(self.net):
            heard = self._replace(net=self.net[:index] + self.net[index + 1 :])
            yield Hears(to or "c", message), heard, to, message
        if self.logged:
            heard = self._replace(logged=self.logged[1:])
            logged = DecisionLogged(self.logged[0])
            yield Hears("c", logged), heard, None, logged
        for snapshot in self.judging:
            heard = self._replace(judging=tuple(s for s in self.judging if s != snapshot))
            judged = Judged(snapshot, self.findings[snapshot - 1])
            yield Hears("c", judged), heard, None, judged
        if self.telling:
            heard = self._replace(telling=self.telling[1:])
            released = Released(self.telling[0])
            yield Hears("c", released), heard, None, released
        for sink in self.sinks:
            if sink.answers:
                heard = self._with(replace(sink, answers=sink.answers[1:]))
                yield Hears(sink.name, sink.answers[0]), heard, sink.name, sink.answers[0]

    def moves(self) -> Iterator[tuple[object, Callable[[], World]]]:
        for label, world, who, what in self.due():
            yield label, partial(world.step, who, what)
            if self.crashes:
                for performed in count():
                    crashed = world.step(who, what, crash_after=performed)
                    if crashed is None:
                        break
                    yield label._replace(performed=performed), partial(_same, crashed)
        # A disk does its work whole or not at all; a crash before or after it is a move of its own.
        if self.logging:
            yield f"the log holds {self.logging[0]}", self._log
        for sink in self.sinks:
            if sink.asked:
                yield f"{sink.name} makes {sink.asked[0]} durable", partial(self._write, sink)
        if self.begins:
            yield "begin", self._begin
        if self.releases:
            for snapshot in (d.snapshot for d in self.log if d.snapshot > self.released):
                if snapshot not in self.logged:  # who releases has seen it
                    yield f"release {snapshot}", partial(self._release, snapshot)
        if self.crashes:
            yield "c crashes", self._crash_coordinator
            for sink in self.sinks:
                yield f"{sink.name} crashes", partial(self._crash_sink, sink.name, keeps=False)
                yield f"{sink.name} crashes, keeps its writes", partial(self._crash_sink, sink.name, keeps=True)
        if self.blackouts:
            yield "everything crashes", self._black_out
        if self.failures:
            yield from self._replace(failures=self.failures - 1)._failing()

    def _failing(self) -> Iterator[tuple[object, Callable[[], World]]]:
        if self.begun:
            yield f"abandon {self.begun}", partial(self.step, None, Abandon(self.begun, "told to"))
        if self.logging:
            refused = DecisionFailed(self.logging[0].snapshot, "full")
            yield f"the log refuses {refused}", partial(self._replace(logging=self.logging[1:]).step, None, refused)
        for sink in self.sinks:
            if sink.asked:
                answers = (*sink.answers, WritesFailed(sink.asked[0], "full"))
                failed = replace(sink, asked=sink.asked[1:], answers=answers)
                yield f"{sink.name} cannot make {sink.asked[0]} durable", partial(self._with, failed)

    @overload
    def step(self, who: NodeId | None, what: object) -> World: ...
    @overload
    def step(self, who: NodeId | None, what: object, *, crash_after: int) -> World | None: ...
    def step(self, who: NodeId | None, what: object, *, crash_after: int | None = None) -> World | None:
        """With `crash_after`, the process performs so many effects and then crashes; None if there are not so many."""
        return self._coordinate(what, crash_after) if who is None else self._sink_step(who, what, crash_after)

    # ── the coordinator ─────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> World:
        snapshot = SnapshotId(self.begun + 1)
        return self._replace(begins=self.begins - 1, begun=snapshot).step(None, Begin(snapshot))

    def _coordinate(self, input: object, crash_after: int | None) -> World | None:
        machine = copy.copy(self.coordinator)
        effects: tuple[CommitCoordinatorEffect, ...] = machine.step(input)  # type: ignore[arg-type]
        world = self._replace(coordinator=machine)
        if crash_after is not None and crash_after >= len(effects):
            return None
        for effect in effects[:crash_after]:
            if isinstance(effect, ToParticipant):
                world = world._replace(net=(*world.net, (effect.participant, effect.message)))
            elif isinstance(effect, LogDecision):
                world = world._replace(logging=(*world.logging, effect.decision))
            elif isinstance(effect, Judge):
                world = world._replace(judging=(*world.judging, effect.snapshot))
        return world if crash_after is None else world._crash_coordinator()

    def _log(self) -> World:
        decision, *rest = self.logging
        logged = (*self.logged, decision.snapshot)
        return self._replace(logging=tuple(rest), log=(*self.log, decision), logged=logged)

    def _crash_coordinator(self) -> World:
        kind = type(self.coordinator)
        life = Incarnation(self.coordinator.incarnation + 1)
        if self.findings:
            machine = kind((P, Q), life, decisions=self.log, judges=True, released=self.released)
        else:
            machine = kind((P, Q), life, decisions=self.log)
        newest = max((d.snapshot for d in self.log), default=SnapshotId(0))
        # Numbers that no manifest shows are given out again: only the sessions tell the two apart.
        world = self._replace(
            coordinator=machine, logging=(), logged=(), judging=(), telling=(), begun=newest, crashes=self.crashes - 1
        )
        return world.step(None, Opened())

    def _release(self, snapshot: SnapshotId) -> World:
        return self._replace(releases=self.releases - 1, released=snapshot, telling=(*self.telling, snapshot))

    # ── the sinks ───────────────────────────────────────────────────────────────────────────────────────────────────

    def sink(self, name: NodeId) -> Sink:
        return next(s for s in self.sinks if s.name == name)

    def _with(self, sink: Sink) -> World:
        return self._replace(sinks=tuple(sink if s.name == sink.name else s for s in self.sinks))

    def _write(self, sink: Sink) -> World:
        row = sink.rows + 1
        handle = Handle(f"{sink.name}{row}.{sink.machine.incarnation}")
        answer = WritesPrepared(sink.asked[0], handle)
        return self._with(
            replace(
                sink.with_status(handle, "prepared"),
                noted=(*sink.noted, handle),
                rows=row,
                asked=sink.asked[1:],
                answers=(*sink.answers, answer),
            )
        )

    def _sink_step(self, name: NodeId, input: object, crash_after: int | None) -> World | None:
        machine = copy.copy(self.sink(name).machine)
        effects: tuple[CommitParticipantEffect, ...] = machine.step(input)  # type: ignore[arg-type]
        world = self._with(replace(self.sink(name), machine=machine))
        # Making visible and forgetting are two writes: a crash may come between them.
        steps = [
            (effect, half)
            for effect in effects
            for half in ((1, 2) if isinstance(effect, CommitWrites | AbortWrites) else (0,))
        ]
        if crash_after is not None and crash_after >= len(steps):
            return None
        for effect, half in steps[:crash_after]:
            world = world._perform(world.sink(name), effect, half)
        return world if crash_after is None else world._crash_sink(name, keeps=False)

    def _perform(self, sink: Sink, effect: CommitParticipantEffect, half: int) -> World:
        if isinstance(effect, ToCoordinator):
            return self._replace(net=(*self.net, (None, effect.message)))
        if isinstance(effect, PrepareWrites):
            return self._with(replace(sink, asked=(*sink.asked, effect.snapshot)))
        if isinstance(effect, RecoverFrom):
            named = next((d.of(sink.name) for d in self.log if d.snapshot == effect.snapshot), ())
            return self._with(replace(sink, rows=row_of(named[-1]) if named else 0))
        if isinstance(effect, CommitWrites | AbortWrites):
            if half == 2:
                return self._with(replace(sink, noted=tuple(h for h in sink.noted if h != effect.handle)))
            if isinstance(effect, CommitWrites):
                return self._commit(sink, effect.handle)
            return self._abort(sink, effect.handle)
        raise AssertionError(effect)

    def _commit(self, sink: Sink, handle: Handle) -> World:
        status = dict(sink.status)
        if not self._is_named(sink, handle):
            raise Violation(f"{handle} was committed, but no logged decision names it")
        if self.findings and not any(self._may_go(d) for d in self.log if handle in d.of(sink.name)):
            raise Violation(f"{handle} was committed, but is held")
        if status[handle] == "aborted":
            raise Violation(f"{handle} was committed after it had been aborted")
        if status[handle] == "committed":
            self.repeated.append(handle)
            return self
        visible = sorted(row_of(h) for h, s in status.items() if s == "committed")
        if row_of(handle) in visible:
            raise Violation(f"row {row_of(handle)} of {sink.name} became visible twice")
        if len(visible) != row_of(handle) - 1:
            raise Violation(f"row {row_of(handle)} of {sink.name} became visible before an earlier one")
        return self._with(sink.with_status(handle, "committed"))

    def _abort(self, sink: Sink, handle: Handle) -> World:
        if self._is_named(sink, handle):
            raise Violation(f"{handle} was aborted, but a logged decision names it")
        if dict(sink.status)[handle] == "committed":
            raise Violation(f"{handle} was aborted after it had been committed")
        return self._with(sink.with_status(handle, "aborted"))

    def _is_named(self, sink: Sink, handle: Handle) -> bool:
        return any(handle in d.of(sink.name) for d in self.log)

    def _may_go(self, decision: Decision) -> bool:
        """Its invariants hold, or it was released; and so it is with each earlier one that was logged before it."""
        if decision.snapshot <= self.released:
            return True
        before = [d for d in self.log[: self.log.index(decision)] if d.snapshot < decision.snapshot]
        held = (d for d in before if self._finding(d) is Finding.VIOLATED and d.snapshot > self.released)
        return self._finding(decision) is Finding.HOLDS and not any(d.all_handles & decision.all_handles for d in held)

    def _finding(self, decision: Decision) -> Finding:
        return self.findings[decision.snapshot - 1]

    def _held(self) -> SnapshotId | None:
        """The oldest decision that waits for a person, or for a later snapshot that can be asked."""
        newest = max((d.snapshot for d in self.log if self._finding(d) is Finding.HOLDS), default=SnapshotId(0))
        for decision in sorted(self.log, key=lambda d: d.snapshot):
            postponed = self._finding(decision) is Finding.POSTPONED and decision.snapshot > newest
            if decision.snapshot > self.released and (self._finding(decision) is Finding.VIOLATED or postponed):
                return decision.snapshot
        return None

    def _crash_sink(self, name: NodeId, *, keeps: bool) -> World:
        sink = self.sink(name)
        kind = type(sink.machine)
        machine = kind(name, Incarnation(sink.machine.incarnation + 1), prepared=sink.noted, keeps=keeps)
        rows = max((row_of(h) for h, s in sink.status if s != "aborted"), default=0) if keeps else 0
        if keeps and sink.machine.in_doubt:
            # It had not loaded a state when it crashed: there is nothing to keep.
            return self._crash_sink(name, keeps=False)
        world = self._replace(crashes=self.crashes - 1)._with(
            replace(sink, machine=machine, rows=rows, asked=(), answers=())
        )
        return world.step(name, Opened())

    def _black_out(self) -> World:
        dead = self._crash_coordinator()
        for name in (P, Q):
            dead = dead._crash_sink(name, keeps=False)
        return dead._replace(crashes=self.crashes, blackouts=self.blackouts - 1)

    # ── at rest ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_rest(self) -> None:
        if self.net or self.logging or self.logged or any(s.asked or s.answers for s in self.sinks):
            return
        if self.judging or self.telling:
            return
        held = self._held() if self.findings else None
        for decision in self.log:
            if held is not None and decision.snapshot >= held:
                continue
            for sink in self.sinks:
                for handle in decision.of(sink.name):
                    if dict(sink.status).get(handle) != "committed":
                        raise Violation(f"{handle} is named by decision {decision.snapshot} and was never committed")
        unsettled = [s for s, *_ in self.coordinator.key()[3] if held is None or s < held]  # type: ignore[index]
        if unsettled:
            raise Violation(f"the coordinator never forgot snapshots {unsettled}")
        for sink in self.sinks:
            if sink.machine.in_doubt:
                raise Violation(f"{sink.name} stayed in doubt about {sink.noted}")
            if sink.machine.prepared != sink.noted:
                raise Violation(f"{sink.name} forgot that it had prepared {sink.noted}")
            visible = sum(s == "committed" for _, s in sink.status)
            if visible + len(sink.noted) != sink.rows:
                raise Violation(
                    f"{sink.name} wrote {sink.rows} rows; {visible} are visible, {len(sink.noted)} prepared"
                )


def world(
    *,
    begins: int = 1,
    crashes: int = 0,
    blackouts: int = 0,
    failures: int = 0,
    cold: bool = False,
    findings: tuple[Finding, ...] = (),
    releases: int = 0,
    coordinator: type[TwoPhaseCoordinator] = TwoPhaseCoordinator,
    participant: type[TwoPhaseParticipant] = TwoPhaseParticipant,
) -> World:
    start = World(
        coordinator((P, Q), Incarnation(1), judges=True) if findings else coordinator((P, Q), Incarnation(1)),
        tuple(Sink(name, participant(name, Incarnation(1))) for name in (P, Q)),
        [],
        begins=begins,
        crashes=crashes,
        blackouts=blackouts,
        failures=failures,
        findings=findings,
        releases=releases,
    )
    opened = start.step(None, Opened())
    for name in (P, Q):
        opened = opened.step(name, Opened())
    while not cold and opened.net:
        _, opened, who, what = next(opened.due())
        opened = opened.step(who, what)
    return opened


def _same(world: World) -> World:
    return world
