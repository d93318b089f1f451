"""The coordinator of two-phase commit. The theory is in the package.

One sink: the decision is logged when it has prepared, and the order to commit goes out when the decision is durable.

>>> gold, session = NodeId("gold"), Session(Incarnation(1), Incarnation(1))
>>> coordinator = TwoPhaseCoordinator([gold], Incarnation(1))
>>> def said(*inputs):
...     effects = [effect for input in inputs for effect in coordinator.step(input)]
...     return [type(getattr(effect, "message", effect)).__name__ for effect in effects]
>>> said(Opened(), InDoubt(gold, session, handles=(), keeps=True), Resolved(gold, session))
['Ask', 'Resolve']
>>> said(Begin(SnapshotId(1)), Prepared(gold, session, SnapshotId(1), (Handle("gold/1"),)))
['Prepare', 'LogDecision']
>>> said(DecisionLogged(SnapshotId(1)), Committed(gold, session, SnapshotId(1)))
['Commit', 'Settled']
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Final, NamedTuple

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.restore.messages import Fence, StandDown, Verdict
from strobe.protocol.transitions import Transitions
from strobe.protocol.two_phase_commit.messages import (
    Abandon,
    Abandoned,
    Ask,
    Begin,
    Commit,
    CommitCoordinatorEffect,
    CommitCoordinatorInput,
    Committed,
    Decision,
    DecisionFailed,
    DecisionLogged,
    Finding,
    Handle,
    Hello,
    InDoubt,
    Judge,
    Judged,
    LogDecision,
    Opened,
    Prepare,
    Prepared,
    Refused,
    Released,
    Resolve,
    Resolved,
    Session,
    Settled,
    ToParticipant,
)

__all__ = ["TRANSITIONS", "TwoPhaseCoordinator"]


class _Phase(Enum):
    PREPARING = "preparing"
    LOGGING = "logging"
    WAITING = "waiting"  # logged; for its verdict, or a release, or that of an earlier one
    COMMITTING = "committing"
    SETTLED = "settled"
    ABANDONED = "abandoned"


TRANSITIONS: Final = Transitions(
    _Phase.PREPARING,
    {
        (_Phase.PREPARING, "all have voted"): _Phase.LOGGING,
        (_Phase.PREPARING, "abandoned"): _Phase.ABANDONED,
        (_Phase.LOGGING, "not logged"): _Phase.ABANDONED,
        (_Phase.LOGGING, "logged"): _Phase.COMMITTING,
        (_Phase.LOGGING, "logged, to be judged"): _Phase.WAITING,
        (_Phase.WAITING, "let go"): _Phase.COMMITTING,
        (_Phase.COMMITTING, "all have committed"): _Phase.SETTLED,
    },
)


class _Transaction(NamedTuple):
    phase: _Phase
    decision: Decision  # the votes so far
    waiting: frozenset[NodeId]  # whose vote, or acknowledgement, is still to come
    finding: Finding | None = None

    def after(self, event: str) -> _Phase:
        return TRANSITIONS.after(self.phase, event)


class TwoPhaseCoordinator:
    """All state is in immutable values (dicts are replaced, never changed): a shallow copy is a full copy."""

    def __init__(
        self,
        participants: Iterable[NodeId],
        incarnation: Incarnation,
        *,
        decisions: Iterable[Decision] = (),
        judges: bool = False,
        released: int = 0,
    ) -> None:
        """`decisions` are those of all complete snapshots; each that is not settled must be among them. `judges`: new
        decisions wait for a verdict. `released` is the newest snapshot that a person has released."""
        self.participants = tuple(participants)
        self.incarnation = incarnation
        self._opened = False
        self._over = False
        self._judges = judges
        self._passed = SnapshotId(released)  # everything decided up to here may become visible
        self._open: dict[SnapshotId, _Transaction] = {}
        for decision in sorted(decisions, key=lambda d: d.snapshot):
            waiting = frozenset(name for name, _ in decision.handles)
            if not waiting <= set(self.participants):
                gone = ", ".join(sorted(waiting - set(self.participants)))
                raise HostFault(f"Snapshot {decision.snapshot} names handles of {gone}, which no longer takes part.")
            self._open[decision.snapshot] = self._decided_now(decision, waiting)
        self._decided = max(self._open, default=SnapshotId(0))  # the newest logged decision
        self._newest = self._decided  # the newest snapshot begun
        self._lives: dict[NodeId, Incarnation] = {}  # the newest life of each participant that has reported
        self._reports: dict[NodeId, InDoubt] = {}  # not answered yet; such a participant takes no part
        self._resolving: dict[NodeId, frozenset[SnapshotId]] = {}  # decisions that `Resolved` will acknowledge

    def key(self) -> object:
        return (
            self.incarnation, self._opened, self._over, tuple(sorted(self._open.items())), self._decided, self._newest,
            self._judges, self._passed,
            *(tuple(sorted(d.items())) for d in (self._lives, self._reports)), tuple(sorted(self._resolving.items())),
        )  # fmt: skip

    @property
    def waiting(self) -> tuple[tuple[SnapshotId, Finding | None], ...]:
        """Decided and not let go, oldest first, with what its invariants said; None: nothing yet."""
        return tuple((s, t.finding) for s, t in self._waiting())

    def handles_of(self, snapshot: SnapshotId, participant: NodeId) -> tuple[Handle, ...]:
        """What the decision on a snapshot that is not settled names."""
        return self._open[snapshot].decision.of(participant)

    @property
    def needed(self) -> frozenset[SnapshotId]:
        """Decisions that must not be forgotten: of all that are not settled, those that name a handle first."""
        seen: frozenset[tuple[NodeId, Handle]] = frozenset()
        found = set()
        for snapshot, transaction in sorted(self._open.items()):
            if transaction.phase in (_Phase.WAITING, _Phase.COMMITTING):
                if not transaction.decision.all_handles <= seen or snapshot == self._decided:
                    found.add(snapshot)
                seen |= transaction.decision.all_handles
        return frozenset(found)

    def step(self, input: CommitCoordinatorInput) -> tuple[CommitCoordinatorEffect, ...]:
        if self._over:
            return ()
        match input:
            case Opened():
                return self._open_once()
            case _ if not self._opened:
                raise HostFault(f"{type(input).__name__} came before the commit coordinator was opened.")
            case Begin():
                return self._begin(input.snapshot)
            case Abandon():
                return self._abandon_asked(input.snapshot, input.reason)
            case DecisionLogged() | DecisionFailed():
                return self._log_answered(input)
            case Judged():
                return self._judged(input.snapshot, input.finding)
            case Released():
                return self._released(input.snapshot)
            case Hello() | InDoubt() | Resolved() | Prepared() | Refused() | Committed():
                return self._message(input)
            case _:
                raise HostFault(f"The commit coordinator takes no {type(input).__name__}.")

    # ── the host ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_once(self) -> tuple[CommitCoordinatorEffect, ...]:
        if self._opened:
            raise HostFault("The commit coordinator was opened twice.")
        self._opened = True
        asks = tuple(ToParticipant(name, Ask(self.incarnation)) for name in self.participants)
        return asks + tuple(Judge(s) for s, t in self._waiting() if t.finding is None)

    def _begin(self, snapshot: SnapshotId) -> tuple[CommitCoordinatorEffect, ...]:
        if snapshot <= self._newest:
            raise HostFault(f"Snapshot {snapshot} was to begin after snapshot {self._newest}: numbers must rise.")
        self._newest = snapshot
        absent = [p for p in self.participants if p not in self._lives or p in self._reports]
        if absent:
            return (Abandoned(snapshot, f"{', '.join(absent)}: not back yet"),)
        nothing = Decision(snapshot, ())
        self._set(snapshot, _Transaction(_Phase.PREPARING, nothing, frozenset(self.participants)))
        prepares = (ToParticipant(p, Prepare(self._session(p), snapshot)) for p in self.participants)
        return (*prepares, *self._all_voted(snapshot))

    def _abandon_asked(self, snapshot: SnapshotId, reason: str) -> tuple[CommitCoordinatorEffect, ...]:
        if snapshot > self._newest:
            raise HostFault(f"Snapshot {snapshot} is to be abandoned, but it was never begun.")
        transaction = self._open.get(snapshot)
        if transaction is None or transaction.phase is not _Phase.PREPARING:
            return ()  # over, or in the hands of the log, which has the last word
        return self._abandon(snapshot, reason)

    def _log_answered(self, answer: DecisionLogged | DecisionFailed) -> tuple[CommitCoordinatorEffect, ...]:
        transaction = self._open.get(answer.snapshot)
        if transaction is None or transaction.phase is not _Phase.LOGGING:
            raise HostFault(f"The log answered for snapshot {answer.snapshot}, whose decision it was not given.")
        if isinstance(answer, DecisionFailed):
            why = f"the decision was not logged: {answer.reason}"
            return self._abandon(answer.snapshot, why, "not logged") + self._answer()
        logged = self._decided_now(transaction.decision, frozenset(self.participants))
        self._set(answer.snapshot, logged)
        self._decided = max(self._decided, answer.snapshot)
        if logged.phase is _Phase.WAITING:
            judge = () if logged.finding is not None else (Judge(answer.snapshot),)
            return judge + self._answer()
        return self._commit(answer.snapshot) + self._answer()

    def _judged(self, snapshot: SnapshotId, finding: Finding) -> tuple[CommitCoordinatorEffect, ...]:
        transaction = self._open.get(snapshot)
        if transaction is not None and transaction.phase is _Phase.WAITING and transaction.finding is None:
            self._set(snapshot, transaction._replace(finding=finding))
            return self._let_go()
        if snapshot <= self._passed and (transaction is None or transaction.phase is _Phase.COMMITTING):
            return ()  # released meanwhile
        raise HostFault(f"A verdict came for snapshot {snapshot}, which was not to be judged.")

    def _released(self, snapshot: SnapshotId) -> tuple[CommitCoordinatorEffect, ...]:
        if snapshot > self._decided:
            raise HostFault(f"Snapshot {snapshot} was to be released, but it is not complete.")
        self._passed = max(self._passed, snapshot)
        return self._let_go()

    # ── the participants ────────────────────────────────────────────────────────────────────────────────────────────

    def _message(
        self, message: Hello | InDoubt | Resolved | Prepared | Refused | Committed
    ) -> tuple[CommitCoordinatorEffect, ...]:
        name = message.participant
        if name not in self.participants:
            raise PeerFault(f"{type(message).__name__} came from {name!r}, which is not a participant.")
        if isinstance(message, Hello):
            fresh = message.incarnation > self._lives.get(name, 0)
            return (ToParticipant(name, Ask(self.incarnation)),) if fresh else ()
        verdict = Fence(self.incarnation).judge(message.session.coordinator)
        if verdict is Verdict.NEWER:
            self._over = True
            return (StandDown(message.session.coordinator),)
        if verdict is Verdict.OLDER:
            return ()
        if isinstance(message, InDoubt):
            return self._report(message)
        if self._is_stale(message.session, name):
            return ()
        if isinstance(message, Resolved):
            return self._resolved(name)
        if message.snapshot > self._newest:
            raise PeerFault(f"{name} sent {type(message).__name__} for snapshot {message.snapshot}, never begun.")
        transaction = self._open.get(message.snapshot)
        if isinstance(message, Committed):
            if transaction is None or transaction.phase is not _Phase.COMMITTING or name not in transaction.waiting:
                raise PeerFault(f"{name} acknowledged a commit of snapshot {message.snapshot} that is not owed.")
            return self._acknowledge(name, frozenset({message.snapshot}))
        if transaction is None:
            return ()  # abandoned meanwhile
        if transaction.phase is not _Phase.PREPARING or name not in transaction.waiting:
            raise PeerFault(f"{name} voted on snapshot {message.snapshot} a second time.")
        if isinstance(message, Refused):
            return self._abandon(message.snapshot, f"{name} refused: {message.reason}")
        handles = (*transaction.decision.handles, (name, message.handles))
        decision = Decision(message.snapshot, tuple(sorted(handles)))
        self._set(message.snapshot, _Transaction(_Phase.PREPARING, decision, transaction.waiting - {name}))
        return self._all_voted(message.snapshot)

    def _report(self, report: InDoubt) -> tuple[CommitCoordinatorEffect, ...]:
        """A participant begins a new session: what it had not voted on is lost, what it had may be."""
        name = report.participant
        if report.session.participant <= self._lives.get(name, 0):
            return ()
        self._lives = {**self._lives, name: report.session.participant}
        self._reports = {**self._reports, name: report}
        self._resolving = {p: s for p, s in self._resolving.items() if p != name}
        effects = self._let_go_before(report)
        for snapshot, transaction in self._open.items():
            if transaction.phase is _Phase.PREPARING and not self._vote_stands(transaction, report):
                effects += self._abandon(snapshot, f"{name} came back without its vote")
        return effects + self._answer()

    def _resolved(self, name: NodeId) -> tuple[CommitCoordinatorEffect, ...]:
        if name not in self._resolving:
            raise PeerFault(f"{name} says that its doubts are resolved, which it was not asked for.")
        snapshots = self._resolving[name]
        self._resolving = {p: s for p, s in self._resolving.items() if p != name}
        return self._acknowledge(name, snapshots)

    # ── rules; the mutants in the tests override exactly these ──────────────────────────────────────────────────────

    def _all_voted(self, snapshot: SnapshotId) -> tuple[CommitCoordinatorEffect, ...]:
        """The decision is logged, and that is all: the commits wait for the log's answer."""
        transaction = self._open[snapshot]
        if transaction.waiting:
            return ()
        decision = replace(transaction.decision, judged=self._judges and bool(transaction.decision.all_handles))
        self._set(snapshot, transaction._replace(phase=transaction.after("all have voted"), decision=decision))
        return (LogDecision(decision),)

    def _decided_now(self, decision: Decision, waiting: frozenset[NodeId]) -> _Transaction:
        """A logged decision goes out at once only if it needs no verdict, and if none waits before it."""
        earlier = [t for s, t in self._waiting() if s < decision.snapshot]
        if decision.snapshot <= self._passed or not (decision.judged or earlier):
            return _Transaction(TRANSITIONS.after(_Phase.LOGGING, "logged"), decision, waiting)
        named = frozenset(handle for t in earlier for handle in t.decision.all_handles)
        shares = any(t.finding is Finding.VIOLATED for t in earlier) and decision.all_handles <= named
        # One that names nothing new behind one that is held has nothing to be asked for: it goes when that one goes.
        needs_none = shares or not decision.judged
        phase = TRANSITIONS.after(_Phase.LOGGING, "logged, to be judged")
        return _Transaction(phase, decision, waiting, Finding.HOLDS if needs_none else None)

    def _let_go(self) -> tuple[CommitCoordinatorEffect, ...]:
        """In order, up to the first that neither holds nor was released. One that could not be asked waits for the
        next."""
        postponed: list[SnapshotId] = []
        effects: tuple[CommitCoordinatorEffect, ...] = ()
        for snapshot, transaction in self._waiting():
            if snapshot > self._passed and transaction.finding is Finding.POSTPONED:
                postponed.append(snapshot)
                continue
            if snapshot > self._passed and transaction.finding is not Finding.HOLDS:
                break
            self._passed = max(self._passed, snapshot)
            for each in (*postponed, snapshot):
                self._set(each, self._open[each]._replace(phase=self._open[each].after("let go")))
                effects += self._commit(each)
            postponed = []
        return effects

    def _let_go_before(self, report: InDoubt) -> tuple[CommitCoordinatorEffect, ...]:
        """A participant forgets a named handle only when it was let go. So, in an earlier life, was the first snapshot
        that names it, and everything before."""
        seen: set[Handle] = set()
        for snapshot, transaction in sorted(self._open.items()):
            if transaction.phase in (_Phase.WAITING, _Phase.COMMITTING):
                named = set(transaction.decision.of(report.participant)) - seen
                seen |= named
                if transaction.phase is _Phase.WAITING and named - set(report.handles):
                    self._passed = max(self._passed, snapshot)
        return self._let_go()

    def _commit(self, snapshot: SnapshotId) -> tuple[CommitCoordinatorEffect, ...]:
        """One that is not back yet, or has reported and not been answered, hears it in its answer."""
        transaction = self._open[snapshot]
        commits = tuple(
            ToParticipant(p, Commit(self._session(p), snapshot, transaction.decision.of(p)))
            for p in self.participants
            if p in transaction.waiting and p in self._lives and p not in self._reports
        )
        return commits + self._settle(snapshot)

    def _answer(self) -> tuple[CommitCoordinatorEffect, ...]:
        """Resolve every report, but not while the log may still decide."""
        if self._is_logging():
            return ()
        effects: tuple[CommitCoordinatorEffect, ...] = ()
        for name, report in self._reports.items():
            commit = tuple(h for h in report.handles if self._may_commit(name, h))
            abort = () if report.keeps else tuple(h for h in report.handles if not self._is_named(name, h))
            owed = frozenset(s for s, t in self._open.items() if t.phase is _Phase.COMMITTING and name in t.waiting)
            gone = frozenset(s for s in owed if not set(self._open[s].decision.of(name)) & set(commit))
            self._resolving = {**self._resolving, name: owed - gone}
            effects += (ToParticipant(name, Resolve(self._session(name), commit, abort, self._decided)),)
            effects += self._acknowledge(name, gone)
        self._reports = {}
        return effects

    def _is_logging(self) -> bool:
        return any(t.phase is _Phase.LOGGING for t in self._open.values())

    def _is_named(self, name: NodeId, handle: Handle) -> bool:
        """Whether a logged decision names the handle. A settled one names none: its participants have forgotten."""
        logged = (t for t in self._open.values() if t.phase in (_Phase.WAITING, _Phase.COMMITTING))
        return any(handle in t.decision.of(name) for t in logged)

    def _may_commit(self, name: NodeId, handle: Handle) -> bool:
        """Whether a decision that was let go names the handle."""
        return any(t.phase is _Phase.COMMITTING and handle in t.decision.of(name) for t in self._open.values())

    def _waiting(self) -> list[tuple[SnapshotId, _Transaction]]:
        """Decided and not let go, oldest first."""
        return [(s, t) for s, t in sorted(self._open.items()) if t.phase is _Phase.WAITING]

    def _vote_stands(self, transaction: _Transaction, report: InDoubt) -> bool:
        """A vote outlives its participant's crash only if everything that it named is still there, and stays."""
        name = report.participant
        if name in transaction.waiting or not report.keeps:
            return False
        return all(h in report.handles or self._is_named(name, h) for h in transaction.decision.of(name))

    def _is_stale(self, session: Session, name: NodeId) -> bool:
        return session.participant != self._lives.get(name)

    def _abandon(
        self, snapshot: SnapshotId, reason: str, event: str = "abandoned"
    ) -> tuple[CommitCoordinatorEffect, ...]:
        self._open[snapshot].after(event)
        self._open = {s: t for s, t in self._open.items() if s != snapshot}
        return (Abandoned(snapshot, reason),)

    def _acknowledge(self, name: NodeId, snapshots: frozenset[SnapshotId]) -> tuple[CommitCoordinatorEffect, ...]:
        effects: tuple[CommitCoordinatorEffect, ...] = ()
        for snapshot in sorted(snapshots):
            transaction = self._open[snapshot]
            self._set(snapshot, transaction._replace(waiting=transaction.waiting - {name}))
            effects += self._settle(snapshot)
        return effects

    def _settle(self, snapshot: SnapshotId) -> tuple[CommitCoordinatorEffect, ...]:
        """Forget a decision when nobody can be in doubt about it any more."""
        if self._open[snapshot].waiting:
            return ()
        self._open[snapshot].after("all have committed")
        self._open = {s: t for s, t in self._open.items() if s != snapshot}
        return (Settled(snapshot),)

    def _set(self, snapshot: SnapshotId, transaction: _Transaction) -> None:
        self._open = {**self._open, snapshot: transaction}

    def _session(self, name: NodeId) -> Session:
        return Session(self.incarnation, self._lives[name])
