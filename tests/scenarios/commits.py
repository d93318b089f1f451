"""Scenarios of two-phase commit: the coordinator `c`, sinks with a disk of their own, and the log of decisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strobe.model.errors import ProtocolError
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.restore.messages import StandDown
from strobe.protocol.two_phase_commit import TwoPhaseCoordinator, TwoPhaseParticipant
from strobe.protocol.two_phase_commit import messages as cm
from tests.scenarios.harness import BadScenario, Setup, refusal
from tests.scenarios.post import Post, crash_after

__all__ = ["CommitWorld"]

C = NodeId("c")


class CommitWorld:
    def __init__(
        self,
        setup: Setup,
        *,
        coordinator: Callable[..., TwoPhaseCoordinator] = TwoPhaseCoordinator,
        participant: Callable[..., TwoPhaseParticipant] = TwoPhaseParticipant,
    ) -> None:
        self.makers = (coordinator, participant)
        self.names = tuple(NodeId(n) for n in setup.words("nodes"))
        self.judges = "judged" in setup.words("settings")
        self.released = SnapshotId(0)  # durable
        self.machines: dict[NodeId, Any] = {}  # those that run
        self.lives = dict.fromkeys((C, *self.names), 0)
        self.post = Post()
        self.log: dict[SnapshotId, cm.Decision] = {}
        self.logging: dict[SnapshotId, cm.Decision] = {}  # asked for, not durable
        self.handles: dict[NodeId, dict[cm.Handle, str]] = {n: {} for n in self.names}  # what each sink's disk holds
        self.noted: dict[NodeId, list[cm.Handle]] = {n: [] for n in self.names}  # not forgotten
        self.asked: dict[NodeId, list[SnapshotId]] = {n: [] for n in self.names}  # prepares that are not durable

    def do(self, verb: str, words: tuple[str, ...]) -> list[str]:
        words, crash = crash_after(words)
        reason = " ".join(words[1:])
        match verb, words:
            case "open", ():
                return self._open()
            case "start", (name, *rest):
                return self._start(NodeId(name), keeps=rest == ["keeps"], crash=crash)
            case "crash", (name,):
                return self._crash(NodeId(name))
            case "deliver", (way, *which):
                receiver, message = self.post.take(way, *which)
                return [
                    f"{receiver}  hears: {_message(message, receiver)}",
                    *self._step(NodeId(receiver), message, crash),
                ]
            case "begin", (snapshot,):
                return self._step(C, cm.Begin(_id(snapshot)), crash)
            case "abandon", (snapshot, *_):
                return self._step(C, cm.Abandon(_id(snapshot), reason), crash)
            case "logged", (snapshot,):
                decision = self.logging.pop(_id(snapshot))
                self.log[decision.snapshot] = decision
                return [f"log  {_decision(decision)}", *self._step(C, cm.DecisionLogged(decision.snapshot), crash)]
            case "unlogged", (snapshot, *_):
                del self.logging[_id(snapshot)]
                return self._step(C, cm.DecisionFailed(_id(snapshot), reason), crash)
            case "verdict", (snapshot, finding):
                return self._step(C, cm.Judged(_id(snapshot), cm.Finding(finding)), crash)
            case "release", (snapshot,):
                self.released = _id(snapshot)
                return ["note  everything up to " + snapshot, *self._step(C, cm.Released(self.released), crash)]
            case "prepared", (name,):
                return self._prepared(NodeId(name), crash)
            case "prepared", (name, "nothing"):
                return self._step(NodeId(name), cm.WritesPrepared(self.asked[NodeId(name)].pop(0), None), crash)
            case "unprepared", (name, *_):
                return self._step(NodeId(name), cm.WritesFailed(self.asked[NodeId(name)].pop(0), reason), crash)
            case "show", ():
                return self._show()
        raise BadScenario(f"there is no command {verb!r} with these words")

    # ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self) -> list[str]:
        """Start everything and let the greetings pass, which other scenarios show in full."""
        for name in (C, *self.names):
            self._start(name, keeps=False, crash=None)
        while ways := [way for way, messages in self.post.waiting.items() if messages]:
            sender, receiver = ways[0]
            self._step(NodeId(receiver), self.post.take(f"{sender}->{receiver}")[1], None)
        return [f"{', '.join((C, *self.names))} run; nothing is prepared, nothing is on its way"]

    def _start(self, name: NodeId, *, keeps: bool, crash: int | None) -> list[str]:
        if name in self.machines:
            raise BadScenario(f"{name} runs already")
        self.lives[name] += 1
        life = Incarnation(self.lives[name])
        make_coordinator, make_participant = self.makers
        if name == C:
            more = {"judges": True, "released": self.released} if self.judges else {}
            self.machines[C] = make_coordinator(self.names, life, decisions=self.log.values(), **more)
        else:
            self.machines[name] = make_participant(name, life, prepared=self.noted[name], keeps=keeps)
        return [f"{name}  incarnation {life}", *self._step(name, cm.Opened(), crash)]

    def _crash(self, name: NodeId) -> list[str]:
        del self.machines[name]
        if name == C:
            self.logging = {}
        else:
            self.asked[name] = []
        return [f"{name}  is down"]

    def _step(self, name: NodeId, input: object, crash: int | None) -> list[str]:
        if name not in self.machines:
            raise BadScenario(f"{name} is down")
        machine = self.machines[name]
        before = machine.key()
        try:
            effects = machine.step(input)
        except ProtocolError as fault:
            assert machine.key() == before, f"{input} was refused, but changed {name}"
            return [f"{name}  {refusal(fault)}"]
        told: list[str] = []
        for effect in effects:
            # Making visible and forgetting are two writes; a crash may come between them.
            for half in (1, 2) if isinstance(effect, cm.CommitWrites | cm.AbortWrites) else (0,):
                if crash is not None and len(told) == crash:
                    return told + self._crash(name)
                told.append(f"{name}  {self._perform(name, effect, half)}")
        return told + (self._crash(name) if crash is not None else [])

    # ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _perform(self, name: NodeId, effect: object, half: int) -> str:
        match effect:
            case cm.ToParticipant(to, message):
                self.post.put(name, to, message)
                return f"to {to}: {_message(message, to)}"
            case cm.ToCoordinator(message):
                self.post.put(name, C, message)
                return f"to c: {_message(message, C)}"
            case cm.LogDecision(decision):
                self.logging[decision.snapshot] = decision
                return f"log {_decision(decision)}"
            case cm.PrepareWrites(snapshot):
                self.asked[name].append(snapshot)
                return f"make {snapshot} durable"
            case cm.CommitWrites(handle) | cm.AbortWrites(handle) if half == 2:
                self.noted[name].remove(handle)
                return f"forget {handle}"
            case cm.CommitWrites(handle):
                before, self.handles[name][handle] = self.handles[name][handle], "visible"
                assert before != "deleted"
                return f"make {handle} visible" + (", which it was" if before == "visible" else "")
            case cm.AbortWrites(handle):
                before, self.handles[name][handle] = self.handles[name][handle], "deleted"
                assert before != "visible"
                return f"delete {handle}"
            case cm.RecoverFrom(snapshot):
                return f"load snapshot {snapshot}" if snapshot else "load the beginning"
            case cm.Judge(snapshot):
                return f"ask the invariants of {snapshot}"
            case cm.Settled(snapshot):
                return f"{snapshot} is settled"
            case cm.Abandoned(snapshot, reason):
                return f"{snapshot} is abandoned: {reason}"
            case StandDown(newer):
                return f"stand down before incarnation {newer}"
        raise BadScenario(f"this host cannot perform {effect}")

    def _prepared(self, name: NodeId, crash: int | None) -> list[str]:
        handle = cm.Handle(f"{name}.{len(self.handles[name]) + 1}")
        self.handles[name][handle] = "prepared"
        self.noted[name].append(handle)
        told = f"{name}  {handle} is durable"
        return [told, *self._step(name, cm.WritesPrepared(self.asked[name].pop(0), handle), crash)]

    def _show(self) -> list[str]:
        told = [f"log  {_decision(decision)}" for decision in self.log.values()] or ["log  empty"]
        for name, handles in self.handles.items():
            told.append(f"{name}  " + (", ".join(f"{h} {status}" for h, status in handles.items()) or "nothing"))
        waiting = [
            f"{sender}->{receiver}  {', '.join(_message(m, receiver) for m in messages)}"
            for (sender, receiver), messages in self.post.waiting.items()
            if messages
        ]
        return told + waiting


def _id(word: str) -> SnapshotId:
    return SnapshotId(int(word))


def _decision(decision: cm.Decision) -> str:
    handles = ", ".join(f"{n} {_handles(h)}" for n, h in decision.handles)
    return f"decision {decision.snapshot}: {handles}" + (", if it holds" if decision.judged else "")


def _handles(handles: tuple[cm.Handle, ...]) -> str:
    return " ".join(handles) or "nothing"


def _message(message: object, to: str) -> str:
    match message:
        case cm.Ask(coordinator):
            return f"what have you prepared? [c{coordinator}]"
        case cm.Hello(participant, incarnation):
            return f"hello [{participant}{incarnation}]"
        case cm.InDoubt(participant, session, handles, keeps):
            kept = ", which it keeps" if keeps else ""
            return f"prepared here: {_handles(handles)}{kept} {_session(session, participant)}"
        case cm.Resolve(session, commit, abort, snapshot):
            return f"commit {_handles(commit)}, abort {_handles(abort)}, newest is {snapshot} {_session(session, to)}"
        case cm.Resolved(participant, session):
            return f"resolved {_session(session, participant)}"
        case cm.Prepare(session, snapshot):
            return f"prepare {snapshot} {_session(session, to)}"
        case cm.Prepared(participant, session, snapshot, handles):
            return f"prepared {snapshot}: {_handles(handles)} {_session(session, participant)}"
        case cm.Refused(participant, session, snapshot, reason):
            return f"refused {snapshot}: {reason} {_session(session, participant)}"
        case cm.Commit(session, snapshot, handles):
            return f"commit {snapshot}: {_handles(handles)} {_session(session, to)}"
        case cm.Committed(participant, session, snapshot):
            return f"committed {snapshot} {_session(session, participant)}"
    raise BadScenario(f"unknown message {message}")


def _session(session: cm.Session, participant: str) -> str:
    return f"[c{session.coordinator} {participant}{session.participant}]"
