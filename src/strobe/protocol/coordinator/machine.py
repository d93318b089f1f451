"""The machine of the coordinator. The theory is in the package.
A source and a stage behind it: only the source is told to start, and the manifest waits for both.

>>> source, stage, first = NodeId("source"), NodeId("stage"), Incarnation(1)
>>> coordinator = Coordinator({source: (), stage: (source,)}, CoordinatorSettings())
>>> def said(*inputs):
...     effects = [effect for input in inputs for effect in coordinator.step(input)]
...     return [type(effect).__name__ for effect in effects if not isinstance(effect, WakeAt)]
>>> said(Tick(0), NodeReady(source, first), NodeReady(stage, first))
[]
>>> said(TriggerRequested("mine"))
['Trigger']
>>> said(Acknowledged(SnapshotId(1), source, first))
[]
>>> said(Acknowledged(SnapshotId(1), stage, first))
['WriteManifest']
>>> said(ManifestWritten(SnapshotId(1)))
['AnnounceComplete', 'Reply']
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from strobe.model.errors import HostFault
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.coordinator.messages import (
    TOLERABLE_REFUSALS,
    AbortRequested,
    Acknowledged,
    AllLost,
    AnnounceAbort,
    AnnounceComplete,
    CoordinatorEffect,
    CoordinatorInput,
    CoordinatorSettings,
    CutRefused,
    DeclinedBy,
    Dispose,
    FailJob,
    ManifestFailed,
    ManifestWritten,
    NodeLost,
    NodeReady,
    Reply,
    Tick,
    Trigger,
    TriggerRequested,
    WakeAt,
    WriteManifest,
)
from strobe.protocol.events import ORDINARY, BarrierOptions
from strobe.protocol.transitions import Transitions

__all__ = ["TRANSITIONS", "Coordinator"]


class SnapshotPhase(Enum):
    PENDING = "pending"
    WRITING = "writing"  # its manifest
    COMPLETE = "complete"
    ABORTED = "aborted"


TRANSITIONS: Final = Transitions(
    SnapshotPhase.PENDING,
    {
        (SnapshotPhase.PENDING, "last acknowledgement"): SnapshotPhase.WRITING,
        (SnapshotPhase.PENDING, "given up"): SnapshotPhase.ABORTED,
        (SnapshotPhase.WRITING, "manifest written"): SnapshotPhase.COMPLETE,
        (SnapshotPhase.WRITING, "manifest not written"): SnapshotPhase.ABORTED,
    },
)


@dataclass(slots=True)
class _Pending:
    kind: Kind
    deadline: int
    waiting: set[NodeId]
    request: str | None = None
    phase: SnapshotPhase = TRANSITIONS.first

    @property
    def writing(self) -> bool:
        return self.phase is SnapshotPhase.WRITING

    def enter(self, event: str) -> None:
        self.phase = TRANSITIONS.after(self.phase, event)


class Coordinator:
    """One job's coordinator. `upstream` names, for each participant, those that feed it (feedback left out)."""

    def __init__(
        self,
        upstream: Mapping[NodeId, Iterable[NodeId]],
        settings: CoordinatorSettings,
        *,
        next_snapshot: int = 1,
        retained: Iterable[SnapshotId] = (),
    ) -> None:
        """`next_snapshot` is above every id ever used in this job; `retained`: complete checkpoints, oldest first."""
        self.settings = settings
        self._upstream = {node: frozenset(feeders) for node, feeders in upstream.items()}
        for node, feeders in self._upstream.items():
            if unknown := feeders - self._upstream.keys():
                raise HostFault(f"{node!r} is fed by {', '.join(sorted(unknown))}, which do not take part.")
        self._next = next_snapshot
        self._now: int | None = None
        self._ready: dict[NodeId, Incarnation] = {}
        self._pending: dict[SnapshotId, _Pending] = {}
        self._requests: list[TriggerRequested] = []
        self._retained = list(retained)
        self._last_start: int | None = None
        self._last_end: int | None = None
        self._failures = 0
        self._failed = False

    @property
    def pending(self) -> Mapping[SnapshotId, frozenset[NodeId]]:
        """Snapshots under way, and whom each still waits for."""
        return {s: frozenset(p.waiting) for s, p in self._pending.items()}

    @property
    def newest(self) -> int:
        """The largest number that a snapshot has had, complete or not."""
        return self._next - 1

    def request_of(self, snapshot: SnapshotId) -> str | None:
        """The request that a snapshot under way was started for; None if it is periodic, or over."""
        pending = self._pending.get(snapshot)
        return None if pending is None else pending.request

    @property
    def failures_in_a_row(self) -> int:
        return self._failures

    @property
    def due_at(self) -> int | None:
        """When the next periodic checkpoint may start; None without a schedule, and before the first tick."""
        return self._due_at()

    def key(self) -> object:
        pending = tuple(
            (s, p.kind, p.deadline, frozenset(p.waiting), p.request, p.phase) for s, p in sorted(self._pending.items())
        )
        return (
            self._next, self._now, tuple(sorted(self._ready.items())), pending,
            tuple(self._requests), tuple(self._retained), self._last_start, self._last_end, self._failures,
            self._failed,
        )  # fmt: skip

    def step(self, input: CoordinatorInput) -> tuple[CoordinatorEffect, ...]:
        match input:
            case Tick():
                effects = self._tick(input.now)
            case _ if self._now is None:
                raise HostFault("The coordinator needs a Tick before anything else: it does not know the time.")
            case TriggerRequested():
                effects = self._request(input)
            case Acknowledged():
                effects = self._acknowledge(input)
            case DeclinedBy():
                effects = self._decline(input)
            case ManifestWritten():
                effects = self._written(input.snapshot)
            case ManifestFailed():
                effects = self._not_written(input.snapshot, f"the manifest could not be written: {input.reason}")
            case CutRefused():
                effects = self._not_written(input.snapshot, input.reason, tolerated=self._tolerable_refusals())
            case AbortRequested():
                effects = self._give_up(input.snapshot, input.reason, counts=False)
            case NodeReady():
                effects = self._node_ready(input)
            case NodeLost():
                effects = self._node_lost(input)
            case AllLost():
                effects = self._all_lost(input.reason)
            case _:
                raise HostFault(f"The coordinator takes no {type(input).__name__}.")
        return effects + self._start_due() + self._wake()

    # ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tick(self, now: int) -> tuple[CoordinatorEffect, ...]:
        if self._now is not None and now < self._now:
            raise HostFault(f"Time went back from {self._now} to {now}: the coordinator needs a clock that does not.")
        if self._last_start is None:
            self._last_start = now  # the first periodic one comes one interval after the start
        self._now = now
        effects: tuple[CoordinatorEffect, ...] = ()
        for snapshot, pending in list(self._pending.items()):
            if not pending.writing and now >= pending.deadline:
                late = ", ".join(sorted(pending.waiting))
                effects += self._give_up(
                    snapshot, f"not complete within {self.settings.timeout} ms: no word from {late}"
                )
        return effects

    def _request(self, request: TriggerRequested) -> tuple[CoordinatorEffect, ...]:
        if self._failed:
            return (Reply(request.request, None, "the job has failed"),)
        self._requests.append(request)
        return ()

    def _acknowledge(self, ack: Acknowledged) -> tuple[CoordinatorEffect, ...]:
        pending = self._pending.get(ack.snapshot)
        if pending is None or self._ready.get(ack.node) != ack.incarnation:
            return ()  # given up meanwhile, or a voice from an older life
        pending.waiting.discard(ack.node)
        return self._write_if_all(ack.snapshot)

    def _decline(self, declined: DeclinedBy) -> tuple[CoordinatorEffect, ...]:
        if self._ready.get(declined.node) != declined.incarnation:
            return ()
        return self._give_up(declined.snapshot, f"{declined.node} declined: {declined.reason}")

    def _written(self, snapshot: SnapshotId) -> tuple[CoordinatorEffect, ...]:
        pending = self._pending.get(snapshot)
        if pending is None or not pending.writing:
            raise HostFault(f"The manifest of snapshot {snapshot} was written, but nobody asked for that.")
        pending.enter("manifest written")
        del self._pending[snapshot]
        self._last_end = self._now
        self._failures = 0
        effects: tuple[CoordinatorEffect, ...] = (AnnounceComplete(snapshot, pending.kind),)
        if pending.kind is Kind.CHECKPOINT:
            self._retained.append(snapshot)
            self._retained.sort()
            for older in [s for s, p in self._pending.items() if s < snapshot and p.kind is Kind.CHECKPOINT]:
                if not self._pending[older].writing:
                    why = f"checkpoint {snapshot} completed before it"
                    effects += self._give_up(older, why, counts=False, instead=snapshot)
            while len(self._retained) > self.settings.retained:
                effects += (Dispose(self._retained.pop(0)),)
        return effects + ((Reply(pending.request, snapshot),) if pending.request else ())

    def _not_written(
        self, snapshot: SnapshotId, reason: str, *, tolerated: int | None = None
    ) -> tuple[CoordinatorEffect, ...]:
        pending = self._pending.get(snapshot)
        if pending is None or not pending.writing:
            raise HostFault(f"The manifest of snapshot {snapshot} failed, but nobody asked for it.")
        pending.enter("manifest not written")
        return self._end(snapshot, reason, tolerated=tolerated)

    def _node_ready(self, ready: NodeReady) -> tuple[CoordinatorEffect, ...]:
        self._check_known(ready.node)
        known = self._ready.get(ready.node)
        if known is not None and ready.incarnation < known:
            return ()  # an older life reports late
        effects: tuple[CoordinatorEffect, ...] = ()
        if known is not None and ready.incarnation > known:
            effects = self._abort_waiting_for(ready.node, "it restarted")
        self._ready[ready.node] = ready.incarnation
        return effects

    def _node_lost(self, lost: NodeLost) -> tuple[CoordinatorEffect, ...]:
        self._check_known(lost.node)
        self._ready.pop(lost.node, None)
        return self._abort_waiting_for(lost.node, lost.reason)

    def _all_lost(self, reason: str) -> tuple[CoordinatorEffect, ...]:
        self._ready.clear()
        effects: tuple[CoordinatorEffect, ...] = ()
        for snapshot in list(self._pending):
            effects += self._give_up(snapshot, reason, counts=False)
        return effects

    # ── rules ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _start_due(self) -> tuple[CoordinatorEffect, ...]:
        effects: tuple[CoordinatorEffect, ...] = ()
        if self._failed or not self._all_ready():
            return effects
        for request in list(self._requests):
            if request.kind is Kind.SAVEPOINT or self._has_place():
                self._requests.remove(request)
                effects += self._start(request.kind, request.request, request.options)
        due = self._due_at()
        if due is not None and self._now is not None and self._now >= due and self._has_place():
            effects += self._start(Kind.CHECKPOINT, None)
        return effects

    def _all_ready(self) -> bool:
        return bool(self._upstream) and self._upstream.keys() <= self._ready.keys()

    def _has_place(self) -> bool:
        return len(self._pending) < self.settings.max_concurrent and not self._is_aligning()

    def _is_aligning(self) -> bool:
        """Whether a checkpoint would overtake a savepoint."""
        return self.settings.everywhere and any(p.kind is Kind.SAVEPOINT for p in self._pending.values())

    def _due_at(self) -> int | None:
        if self.settings.interval is None or self._last_start is None:
            return None
        due = self._last_start + self.settings.interval
        return due if self._last_end is None else max(due, self._last_end + self.settings.min_pause)

    def _start(
        self, kind: Kind, request: str | None, options: BarrierOptions = ORDINARY
    ) -> tuple[CoordinatorEffect, ...]:
        assert self._now is not None
        snapshot = SnapshotId(self._next)
        self._next += 1
        self._last_start = self._now
        self._pending[snapshot] = _Pending(kind, self._now + self.settings.timeout, set(self._upstream), request)
        if self.settings.everywhere and kind is Kind.SAVEPOINT:
            options = replace(options, aligned=True)
        everywhere = self.settings.everywhere and not options.aligned
        initiators = tuple(n for n, upstream in self._upstream.items() if everywhere or not upstream)
        return (Trigger(snapshot, kind, initiators, options),)

    def _write_if_all(self, snapshot: SnapshotId) -> tuple[CoordinatorEffect, ...]:
        pending = self._pending[snapshot]
        if pending.waiting or pending.writing:
            return ()
        pending.enter("last acknowledgement")
        return (WriteManifest(snapshot, pending.kind),)

    def _abort_waiting_for(self, node: NodeId, reason: str) -> tuple[CoordinatorEffect, ...]:
        """What the node has acknowledged is durable and stands without it; only what still waits for it is lost."""
        effects: tuple[CoordinatorEffect, ...] = ()
        for snapshot in [s for s, p in self._pending.items() if node in p.waiting]:
            effects += self._give_up(snapshot, f"{node} was lost: {reason}", counts=False)
        return effects

    def _tolerable_refusals(self) -> int:
        return max(self.settings.tolerable_failures, TOLERABLE_REFUSALS)

    def _give_up(
        self,
        snapshot: SnapshotId,
        reason: str,
        *,
        counts: bool = True,
        instead: SnapshotId | None = None,
    ) -> tuple[CoordinatorEffect, ...]:
        pending = self._pending.get(snapshot)
        if pending is None or pending.writing:
            return ()  # already decided; a manifest that is being written can no longer be stopped
        pending.enter("given up")
        return self._end(snapshot, reason, counts=counts, instead=instead)

    def _end(
        self,
        snapshot: SnapshotId,
        reason: str,
        *,
        counts: bool = True,
        tolerated: int | None = None,
        instead: SnapshotId | None = None,
    ) -> tuple[CoordinatorEffect, ...]:
        """It is aborted. `instead`: a newer one that is complete. A request for this one is answered with it: it has
        all that was asked for, and more."""
        pending = self._pending.pop(snapshot)
        self._last_end = self._now
        effects: tuple[CoordinatorEffect, ...] = (AnnounceAbort(snapshot, pending.kind, reason),)
        if pending.request:
            effects += (
                Reply(pending.request, snapshot, reason) if instead is None else Reply(pending.request, instead),
            )
        if counts and pending.kind is Kind.CHECKPOINT:
            self._failures += 1
            limit = self.settings.tolerable_failures if tolerated is None else tolerated
            if self._failures > limit and not self._failed:
                self._failed = True
                in_a_row = f"{self._failures} failed in a row, {limit} are tolerated"
                effects += (FailJob(f"checkpoint {snapshot} failed ({reason}); {in_a_row}"),)
        return effects

    def _wake(self) -> tuple[CoordinatorEffect, ...]:
        times = [p.deadline for p in self._pending.values() if not p.writing]
        due = self._due_at()
        if due is not None and self._all_ready() and self._has_place():
            times.append(due)
        return (WakeAt(min(times)),) if times and not self._failed else ()

    def _check_known(self, node: NodeId) -> None:
        if node not in self._upstream:
            raise HostFault(f"{node!r} does not take part in this job's snapshots.")
