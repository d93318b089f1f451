"""The commit coordinator of a job: runs the protocol's machine beside the one that coordinates snapshots.

The snapshot's manifest *is* the decision. So the two machines go in step: a snapshot that starts begins here; when
every stage has acknowledged, the votes that came with the acknowledgements are counted here, and only if the machine
then says so is the manifest written; when it is durable, the sinks are told to commit. A snapshot that is given up is
abandoned here, which says nothing to any sink: what they have prepared is named by the next vote.

A decision that is not settled must not be forgotten: `unsettled` checkpoints are not disposed of.

Words between the coordinator and the sinks are the protocol's messages and nothing else. The machine is stepped under
one lock, by whichever thread brings a word; no step waits for anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from strobe.hosts.shared.clock import SYSTEM, Clock
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.commit.ledger import Entry, named_handles
from strobe.hosts.spark.commit.work import SinkWork, ToCoordinator, check_handles
from strobe.hosts.spark.snapshot.decisions import Decisions
from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.hosts.spark.snapshot.metrics import SinkStatus
from strobe.model.errors import Failed, HostFault
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.restore.messages import StandDown
from strobe.protocol.two_phase_commit import TwoPhaseCoordinator
from strobe.protocol.two_phase_commit import messages as protocol
from strobe.store.manifest import Manifest

__all__ = ["Commits", "decisions_of"]

_log = logging.getLogger("strobe.sinks")
_PATIENCE = 60.0
_CLOSING = 2.0  # seconds for a sink to come back from a commit before it is left to itself


def decisions_of(works: Iterable[SinkWork], manifests: Iterable[Manifest]) -> list[protocol.Decision]:
    """What complete snapshots say of handles that sinks are in doubt about: as their manifests name them, and as the
    ledgers know already (a savepoint may be anywhere by now)."""
    doubts = {work.name: {e.handle: e for e in work.in_doubt} for work in works}
    named: dict[SnapshotId, dict[str, tuple[str, ...]]] = {}
    for manifest in manifests:
        for sink, handles in named_handles(manifest).items():
            open_ones = tuple(h for h in handles if h in doubts.get(sink, {}))
            if open_ones:
                named.setdefault(manifest.snapshot, {})[sink] = open_ones
    for sink, entries in doubts.items():
        for entry in entries.values():
            if entry.decided_by is not None:
                known = named.setdefault(entry.decided_by, {}).get(sink, ())
                both = {*known, entry.handle}
                named[entry.decided_by][sink] = tuple(h for h in entries if h in both)
    return [
        protocol.Decision(
            snapshot,
            tuple(sorted((NodeId(s), tuple(protocol.Handle(h) for h in handles)) for s, handles in sinks.items())),
        )
        for snapshot, sinks in sorted(named.items())
    ]


class Commits(Decisions):
    """`settled` is called, from any thread, when every sink has committed a snapshot and forgotten it."""

    def __init__(
        self,
        incarnation: Incarnation,
        settled: Callable[[SnapshotId], None] = lambda snapshot: None,
        clock: Clock = SYSTEM,
    ) -> None:
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

    def open(self, works: Iterable[SinkWork], manifests: Iterable[Manifest]) -> None:
        """Before any stage starts: recover every sink, and resolve what was in doubt. What is to be committed is, in
        the background. `manifests` are those of the complete snapshots."""
        self._works = {work.name: work for work in works}
        if not self._works:
            return
        decisions = decisions_of(self._works.values(), manifests)
        with self._lock:
            names = [NodeId(name) for name in self._works]
            self._machine = TwoPhaseCoordinator(names, self._incarnation, decisions=decisions)
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
        """Wait until everything that is decided is visible; False if that takes longer than `patience` seconds."""
        deadline = self._clock.monotonic() + patience
        with self._changed:
            while self._unsettled:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    @property
    def unsettled(self) -> frozenset[SnapshotId]:
        """Complete snapshots of which some sink has something in doubt: their manifests must be kept."""
        with self._lock:
            return frozenset(self._unsettled)

    def in_doubt(self) -> tuple[Entry, ...]:
        return tuple(entry for work in self._works.values() for entry in work.in_doubt)

    def status(self) -> tuple[SinkStatus, ...]:
        return tuple(work.status() for work in self._works.values())

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
            self._step(protocol.DecisionLogged(snapshot))

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
        with self._lock:
            if self._machine is None:
                return ()
            effects = self._machine.step(input)
            for effect in effects:
                if isinstance(effect, protocol.ToParticipant):
                    self._works[effect.participant].tell(effect.message)
                elif isinstance(effect, protocol.Settled):
                    self._unsettled.discard(effect.snapshot)
                    self._changed.notify_all()
                    done.append(effect.snapshot)
                elif isinstance(effect, StandDown):
                    raise HostFault("A sink of a newer driver has spoken to this one.")
        for snapshot in done:
            crash_points.point("commit.settled")
            self._settled(snapshot)
        return effects
