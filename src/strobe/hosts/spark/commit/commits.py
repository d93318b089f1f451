"""The commit coordinator of a job: runs the protocol's machine beside the one that coordinates snapshots.

The snapshot's manifest *is* the decision. So the two machines go in step: a snapshot that starts begins here; when
every stage has acknowledged, the votes that came with the acknowledgements are counted here, and only if the machine
then says so is the manifest written; when it is durable, the sinks are told to commit. A snapshot that is given up is
abandoned here, which says nothing to any sink: what they have prepared is named by the next vote.

A decision that is not settled must not be forgotten: `unsettled` checkpoints are not disposed of.

With `judge`, a snapshot's invariants have their say between the manifest and the commits. The machine asks, `judge`
starts the evaluation, `judged` takes its result, and `release` takes a person's decision. The manifest says that its
parts wait (`hold`), so a driver that starts knows it without the file that was run before.

Coordinator and sinks exchange the protocol's messages and nothing else. The machine is stepped under one lock, by the
thread that brings a message; no step waits for anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable

from strobe.hosts.shared.clock import SYSTEM, Clock
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.commit.holding import not_held, not_judged_any_more
from strobe.hosts.spark.commit.ledger import Entry, PartState, named_handles
from strobe.hosts.spark.commit.work import SinkWork, ToCoordinator, check_handles
from strobe.hosts.spark.snapshot.decisions import Decisions
from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.hosts.spark.snapshot.metrics import HeldStatus, SinkStatus
from strobe.model.errors import Failed, HostFault
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.restore.messages import StandDown
from strobe.protocol.two_phase_commit import TwoPhaseCoordinator
from strobe.protocol.two_phase_commit import messages as protocol
from strobe.store.manifest import Manifest
from strobe.store.releases import holds_back

__all__ = ["Commits", "decisions_of"]

_log = logging.getLogger("strobe.sinks")
_PATIENCE = 60.0
_MANY = 5  # snapshots that wait for their verdicts: more are worth telling
_CLOSING = 2.0  # seconds for a sink to come back from a commit before it is left to itself


def decisions_of(works: Iterable[SinkWork], manifests: Iterable[Manifest]) -> list[protocol.Decision]:
    """What complete snapshots say of handles that sinks are in doubt about: as their manifests name them, and as the
    ledgers know already (a savepoint may be anywhere by now)."""
    doubts = {work.name: {e.handle: e for e in work.in_doubt} for work in works}
    named: dict[SnapshotId, dict[str, tuple[str, ...]]] = {}
    judged: set[SnapshotId] = set()
    for manifest in manifests:
        handles = {sink: named for sink, named in named_handles(manifest).items() if sink in doubts}
        if any(h in doubts[sink] for sink, each in handles.items() for h in each):
            # All that it names of these sinks: what one of them has forgotten was let go, and so was the rest.
            named[manifest.snapshot] = handles
            if holds_back(manifest):
                judged.add(manifest.snapshot)
    for sink, entries in doubts.items():
        for entry in entries.values():
            if entry.decided_by is not None:
                known = named.setdefault(entry.decided_by, {}).get(sink, ())
                if entry.handle not in known:
                    named[entry.decided_by][sink] = (*known, entry.handle)
                if entry.state is PartState.HELD:
                    judged.add(entry.decided_by)
    return [
        protocol.Decision(
            snapshot,
            tuple(sorted((NodeId(s), tuple(protocol.Handle(h) for h in handles)) for s, handles in sinks.items())),
            judged=snapshot in judged,
        )
        for snapshot, sinks in sorted(named.items())
    ]


class Commits(Decisions):
    """`settled` is called, from any thread, when every sink has committed a snapshot and forgotten it; `judge` when the
    invariants of a snapshot are to be asked, None if none of them holds anything back."""

    def __init__(
        self,
        incarnation: Incarnation,
        settled: Callable[[SnapshotId], None] = lambda snapshot: None,
        clock: Clock = SYSTEM,
        judge: Callable[[SnapshotId], None] | None = None,
    ) -> None:
        self._judge = judge
        self.before: Callable[[frozenset[SnapshotId]], frozenset[SnapshotId]] = lambda held: (
            frozenset()
        )  # the last good
        self._verdicts: dict[SnapshotId, tuple[str, str]] = {}  # of what is held back: when, and why
        self._incarnation = incarnation
        self._clock = clock
        self._settled = settled
        self._works: dict[str, SinkWork] = {}
        self._machine: TwoPhaseCoordinator | None = None
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._under_way: set[SnapshotId] = set()
        self._unsettled: set[SnapshotId] = set()
        self._reported: set[str] = set()

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, works: Iterable[SinkWork], manifests: Iterable[Manifest], released: int = 0) -> None:
        """Before any stage starts: recover every sink, and resolve what was in doubt. What is to be committed is, in
        the background. `manifests` are those of the complete snapshots; `released` is the newest that a person has
        released."""
        self._works = {work.name: work for work in works}
        if not self._works:
            return
        decisions = decisions_of(self._works.values(), manifests)
        # A commit that has begun must come to its end.
        begun = [e.decided_by for e in self.in_doubt() if e.state is PartState.DECIDED and e.decided_by is not None]
        passed = max(released, *begun, 0)
        if self._judge is None and (held := [d.snapshot for d in decisions if d.judged and d.snapshot > passed]):
            raise not_judged_any_more(next(iter(self._works.values())).context.job, held)
        with self._lock:
            names = [NodeId(name) for name in self._works]
            self._machine = TwoPhaseCoordinator(
                names, self._incarnation, decisions=decisions, judges=self._judge is not None, released=passed
            )
            self._unsettled = {d.snapshot for d in decisions}
        self._step(protocol.Opened())
        for work in self._works.values():
            work.open()
        with self._changed:  # nothing but threads that start is waited for
            if not self._changed.wait_for(lambda: self._reported >= self._works.keys(), _PATIENCE):
                raise Failed(f"Sinks did not come up: {', '.join(sorted(self._works.keys() - self._reported))}.")

    def close(self, patience: float) -> tuple[Entry, ...]:
        """Wait until everything that is decided is visible, but no longer than `patience` seconds; then end the sinks'
        threads. Returns what is still in doubt."""
        self.settle(patience)
        for work in self._works.values():
            work.close(_CLOSING)
        return self.in_doubt() if self.unsettled else ()

    def settle(self, patience: float) -> bool:
        """Wait until everything that is decided by now, and not held back, is visible. False if something is not
        visible: that takes longer than `patience` seconds, or it is held back. Snapshots that come later are not waited
        for: where they come faster than they are judged, that would have no end."""
        deadline = self._clock.monotonic() + patience
        with self._changed:
            wanted = set(self._unsettled)
            while left := wanted & self._unsettled:
                if self._machine is not None and left == self._kept_back(wanted):
                    return False
                seconds = deadline - self._clock.monotonic()
                if seconds <= 0:
                    return False
                self._changed.wait(seconds)
        return True

    @property
    def unsettled(self) -> frozenset[SnapshotId]:
        """Complete snapshots of which some sink has something in doubt: their manifests must be kept."""
        with self._lock:
            return frozenset(self._unsettled)

    @property
    def needed(self) -> frozenset[SnapshotId]:
        """Those of them without which a part would be forgotten. What is held back may be so for days: then not every
        snapshot since can stay."""
        with self._lock:
            if self._machine is None or self._judge is None:
                return frozenset(self._unsettled)
            return self._machine.needed & self._unsettled

    def in_doubt(self) -> tuple[Entry, ...]:
        return tuple(entry for work in self._works.values() for entry in work.in_doubt)

    def status(self) -> tuple[SinkStatus, ...]:
        return tuple(work.status() for work in self._works.values())

    # ── verdicts ────────────────────────────────────────────────────────────────────────────────────────────────────

    def judged(self, snapshot: SnapshotId, finding: protocol.Finding, at: str, why: str) -> None:
        """What the invariants of a snapshot say, `why` in words."""
        with self._changed:
            if self._machine is None:
                return
            self._step(protocol.Judged(snapshot, finding))
            if snapshot in dict(self._machine.waiting):
                self._verdicts[snapshot] = (at, why)
                for work in self._works.values():
                    work.hold(snapshot, self._machine.handles_of(snapshot, NodeId(work.name)))
            self._changed.notify_all()

    def release(self, snapshot: SnapshotId, note: Callable[[int], None]) -> None:
        """Let go what is held back up to this snapshot. `note` makes that durable; it is told how many parts. Misuse
        if it is not one of those that wait."""
        with self._lock:
            waiting = () if self._machine is None else tuple(s for s, _ in self._machine.waiting)
            if snapshot not in waiting:
                raise not_held(snapshot, waiting)
            note(self._parts_up_to(snapshot))
            crash_points.point("release.noted")
            self._step(protocol.Released(snapshot))

    def held(self) -> HeldStatus | None:
        with self._lock:
            waiting = () if self._machine is None else self._machine.waiting
            judging = sum(finding is None for _, finding in waiting)
            kept = [snapshot for snapshot, finding in waiting if finding is not None]
            if not waiting or waiting[0][1] is None:
                return HeldStatus(None, None, 0, "", "", judging) if judging > _MANY else None
            at, why = self._verdicts.get(kept[0], ("", ""))
            good = max(self.before(frozenset(kept)), default=None)
            return HeldStatus(kept[0], kept[-1], self._parts_up_to(kept[-1]), at, why, judging, good)

    def _parts_up_to(self, snapshot: SnapshotId) -> int:
        waiting = (PartState.PREPARED, PartState.HELD)
        return sum(e.state in waiting and e.part.snapshot <= snapshot for e in self.in_doubt())

    def _kept_back(self, among: Collection[SnapshotId]) -> set[SnapshotId] | None:
        """Which of these wait for a person. None while something may still happen by itself."""
        waiting = () if self._machine is None else self._machine.waiting
        found = {snapshot: finding for snapshot, finding in waiting if snapshot in among}
        return None if any(finding is None for finding in found.values()) else set(found)

    # ── what the snapshots' coordinator says ────────────────────────────────────────────────────────────────────────

    def begin(self, snapshot: SnapshotId) -> None:
        with self._lock:
            self._under_way.add(snapshot)
            abandoned = [e for e in self._step(protocol.Begin(snapshot)) if isinstance(e, protocol.Abandoned)]
        if abandoned:
            raise Failed(abandoned[0].reason)

    def decide(self, snapshot: SnapshotId, parts: Iterable[StagePart]) -> None:
        """Count the votes. The outcome of writing the manifest must be told, by `logged` or `failed`."""
        if self._machine is None:
            return
        taken = list(parts)
        with self._lock:
            effects: list[protocol.CommitCoordinatorEffect] = []
            for part in taken:
                for vote in part.votes:
                    effects += self._step(vote)
            decision = next((e.decision for e in effects if isinstance(e, protocol.LogDecision)), None)
        if decision is None:
            reasons = [e.reason for e in effects if isinstance(e, protocol.Abandoned)]
            raise Failed("; ".join(reasons) or "some sink has not voted")
        for part in taken:
            for name, sink in part.sinks.items():
                if name in self._works:
                    check_handles(decision, name, sink.prepared)

    def logged(self, snapshot: SnapshotId) -> None:
        if self._machine is None:
            return
        crash_points.point("commit.decided")
        with self._lock:
            self._under_way.discard(snapshot)
            self._unsettled.add(snapshot)
        self._step(protocol.DecisionLogged(snapshot))  # not under the lock: to have it judged may wait for the disk

    def failed(self, snapshot: SnapshotId, reason: str) -> None:
        with self._lock:
            self._under_way.discard(snapshot)
            self._step(protocol.DecisionFailed(snapshot, reason))

    def abandon(self, snapshot: SnapshotId, reason: str) -> None:
        """Nothing is thrown away: the next vote names it."""
        with self._lock:
            self._under_way.discard(snapshot)
            self._step(protocol.Abandon(snapshot, reason))

    # ── what the sinks say ──────────────────────────────────────────────────────────────────────────────────────────

    def post(self, message: ToCoordinator) -> None:
        self._step(message)
        if isinstance(message, protocol.InDoubt):
            with self._changed:
                self._reported.add(message.participant)
                self._changed.notify_all()

    def wanted(self, snapshot: SnapshotId) -> bool:
        with self._lock:
            return snapshot in self._under_way

    # ── inside ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, input: protocol.CommitCoordinatorInput) -> tuple[protocol.CommitCoordinatorEffect, ...]:
        done: list[SnapshotId] = []
        ask: list[SnapshotId] = []
        with self._lock:
            if self._machine is None:
                return ()
            effects = self._machine.step(input)
            for effect in effects:
                if isinstance(effect, protocol.ToParticipant):
                    self._works[effect.participant].tell(effect.message)
                elif isinstance(effect, protocol.Settled):
                    self._unsettled.discard(effect.snapshot)
                    self._verdicts.pop(effect.snapshot, None)
                    self._changed.notify_all()
                    done.append(effect.snapshot)
                elif isinstance(effect, protocol.Judge):
                    ask.append(effect.snapshot)
                elif isinstance(effect, StandDown):
                    raise HostFault("A sink of a newer driver has spoken to this one.")
        for snapshot in ask:
            assert self._judge is not None
            self._judge(snapshot)
        for snapshot in done:
            crash_points.point("commit.settled")
            self._settled(snapshot)
        return effects
