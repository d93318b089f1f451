"""The sink's side of two-phase commit: prepare, vote, commit in order, and ask after a restart.

The theory is in the package. What the host owes this machine: a handle that it
answers with is durable; a handle is durably forgotten as part of committing or aborting it, before the next effect;
and on a restart it hands in every handle that it has not forgotten.

A sink that is asked to prepare, and then to commit.

>>> session, one = Session(Incarnation(1), Incarnation(1)), SnapshotId(1)
>>> sink = TwoPhaseParticipant(NodeId("gold"), Incarnation(1))
>>> def said(*inputs):
...     effects = [effect for input in inputs for effect in sink.step(input)]
...     return [type(getattr(effect, "message", effect)).__name__ for effect in effects]
>>> said(Opened(), Ask(Incarnation(1)), Resolve(session, commit=(), abort=(), snapshot=SnapshotId(0)))
['Hello', 'InDoubt', 'RecoverFrom', 'Resolved']
>>> said(Prepare(session, one), WritesPrepared(one, Handle("gold/1")))
['PrepareWrites', 'Prepared']
>>> said(Commit(session, one, (Handle("gold/1"),)))
['CommitWrites', 'Committed']
"""

from __future__ import annotations

from collections.abc import Iterable

from strobe.model.errors import HostFault, PeerFault
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.restore.messages import Fence, StandDown, Verdict
from strobe.protocol.two_phase_commit.messages import (
    AbortWrites,
    Ask,
    Commit,
    CommitParticipantEffect,
    CommitParticipantInput,
    Committed,
    CommitWrites,
    Handle,
    Hello,
    InDoubt,
    Opened,
    Prepare,
    Prepared,
    PrepareWrites,
    RecoverFrom,
    Refused,
    Resolve,
    Resolved,
    Session,
    ToCoordinator,
    WritesFailed,
    WritesPrepared,
)

__all__ = ["TwoPhaseParticipant"]


class TwoPhaseParticipant:
    """All state is in immutable values: a shallow copy is a full copy."""

    def __init__(
        self, name: NodeId, incarnation: Incarnation, *, prepared: Iterable[Handle] = (), keeps: bool = False
    ) -> None:
        """`prepared` are the handles that may not be visible yet, oldest first; `keeps` as in `InDoubt`."""
        self.name = name
        self.incarnation = incarnation
        self._opened = False
        self._over = False
        self._coordinator = Incarnation(0)  # the newest that has spoken
        self._prepared = tuple(prepared)
        self._keeps = keeps
        self._in_doubt = True  # until the answer to the report of this session
        self._newest = SnapshotId(0)  # the newest snapshot of this session that was asked for
        self._preparing: tuple[tuple[Incarnation, SnapshotId], ...] = ()

    @property
    def prepared(self) -> tuple[Handle, ...]:
        return self._prepared

    @property
    def in_doubt(self) -> bool:
        return self._in_doubt

    def key(self) -> object:
        return (
            self.incarnation, self._opened, self._over, self._coordinator, self._prepared, self._keeps, self._in_doubt,
            self._newest, self._preparing,
        )  # fmt: skip

    def step(self, input: CommitParticipantInput) -> tuple[CommitParticipantEffect, ...]:
        if self._over:
            return ()
        match input:
            case Opened():
                return self._open()
            case _ if not self._opened:
                raise HostFault(f"{type(input).__name__} came before participant {self.name} was opened.")
            case WritesPrepared():
                return self._writes_prepared(input.snapshot, input.handle)
            case WritesFailed():
                return self._writes_failed(input.snapshot, input.reason)
            case Ask():
                return self._asked(input.coordinator)
            case Resolve() | Prepare() | Commit():
                return self._message(input)
            case _:
                raise HostFault(f"A participant takes no {type(input).__name__}.")

    def _open(self) -> tuple[CommitParticipantEffect, ...]:
        if self._opened:
            raise HostFault(f"Participant {self.name} was opened twice.")
        self._opened = True
        return (ToCoordinator(Hello(self.name, self.incarnation)),)

    def _asked(self, coordinator: Incarnation) -> tuple[CommitParticipantEffect, ...]:
        if coordinator <= self._coordinator:
            return ()  # asked before; or by one that is gone
        self._coordinator = coordinator
        self._in_doubt = True
        self._newest = SnapshotId(0)
        return (ToCoordinator(InDoubt(self.name, self._session(), self._prepared, self._keeps)),)

    def _message(self, message: Resolve | Prepare | Commit) -> tuple[CommitParticipantEffect, ...]:
        life = Fence(self.incarnation).judge(message.session.participant)
        if life is Verdict.NEWER:
            self._over = True
            return (StandDown(message.session.participant),)
        if life is Verdict.OLDER or message.session.coordinator < self._coordinator:
            return ()
        if message.session.coordinator > self._coordinator:
            raise PeerFault(f"Coordinator {message.session.coordinator} sent {type(message).__name__} before it asked.")
        match message:
            case Commit():
                self._check_order(message.handles)
                done = ToCoordinator(Committed(self.name, self._session(), message.snapshot))
                return (*self._commit(message.handles), done)
            case Prepare():
                return self._prepare(message.snapshot)
            case Resolve():
                return self._resolve(message)

    def _prepare(self, snapshot: SnapshotId) -> tuple[CommitParticipantEffect, ...]:
        if snapshot == self._newest:
            raise PeerFault(f"Snapshot {snapshot} was to be prepared at {self.name} twice.")
        if snapshot < self._newest:
            return self._refuse(snapshot, f"snapshot {self._newest} came first")
        self._newest = snapshot
        if self._in_doubt:
            return self._refuse(snapshot, "still in doubt about what was prepared before")
        self._preparing = (*self._preparing, (self._coordinator, snapshot))
        return (PrepareWrites(snapshot),)

    def _writes_prepared(self, snapshot: SnapshotId, handle: Handle | None) -> tuple[CommitParticipantEffect, ...]:
        coordinator = self._check_preparing(snapshot)
        if handle is not None and handle in self._prepared:
            raise HostFault(f"Handle {handle!r} of {self.name} was given out twice.")
        self._preparing = self._preparing[1:]
        if handle is not None:
            self._prepared = (*self._prepared, handle)
        if coordinator != self._coordinator:
            return ()  # who asked is gone; the next vote names the handle
        return (ToCoordinator(Prepared(self.name, self._session(), snapshot, self._prepared)),)

    def _writes_failed(self, snapshot: SnapshotId, reason: str) -> tuple[CommitParticipantEffect, ...]:
        coordinator = self._check_preparing(snapshot)
        self._preparing = self._preparing[1:]
        return self._refuse(snapshot, reason) if coordinator == self._coordinator else ()

    def _resolve(self, answer: Resolve) -> tuple[CommitParticipantEffect, ...]:
        if not self._in_doubt:
            raise PeerFault(f"{self.name} was told a second time what became of its handles.")
        unknown = [h for h in answer.abort if h not in self._prepared]
        if unknown or (answer.abort and self._keeps):
            raise PeerFault(
                f"{self.name} was told to abort {', '.join(unknown or answer.abort)}, which is visible already or "
                "will not be written again."
            )
        self._check_order(answer.commit)
        self._in_doubt = False
        effects = self._commit(answer.commit)
        effects += tuple(AbortWrites(handle) for handle in answer.abort)
        self._prepared = tuple(h for h in self._prepared if h not in answer.abort)
        if not self._keeps:
            self._keeps = True  # from here on it runs: what it prepares next is in its state
            effects += (RecoverFrom(answer.snapshot),)
        return (*effects, ToCoordinator(Resolved(self.name, self._session())))

    def _commit(self, handles: tuple[Handle, ...]) -> tuple[CommitParticipantEffect, ...]:
        """Those that are visible already are skipped: that is what makes a commit repeatable."""
        due = tuple(h for h in handles if h in self._prepared)
        self._prepared = tuple(h for h in self._prepared if h not in due)
        return tuple(CommitWrites(handle) for handle in due)

    def _refuse(self, snapshot: SnapshotId, reason: str) -> tuple[CommitParticipantEffect, ...]:
        return (ToCoordinator(Refused(self.name, self._session(), snapshot, reason)),)

    def _check_order(self, handles: tuple[Handle, ...]) -> None:
        due = tuple(h for h in handles if h in self._prepared)
        if due != self._prepared[: len(due)]:
            raise PeerFault(f"{self.name} was told to commit {', '.join(due)} ahead of {self._prepared[0]}.")

    def _check_preparing(self, snapshot: SnapshotId) -> Incarnation:
        """Who asked for it. Prepares are answered in the order in which they were asked for."""
        if not self._preparing or self._preparing[0][1] != snapshot:
            raise HostFault(f"{self.name} was not preparing snapshot {snapshot}, or not next.")
        return self._preparing[0][0]

    def _session(self) -> Session:
        return Session(self._coordinator, self.incarnation)
