"""One snapshot as seen from outside, and where its time went.

What is shown adds up (law 10). A stage's part passes through phases, one after the other, from the trigger until the
coordinator has it: `NodeRecord.phases`. The agent measures them from the moment at which it first hears of the
snapshot, each from the end of the one before; the coordinator measures how long the whole took. What lies before the
agent's first phase is the *start delay*: the barrier was on its way through the stages before this one, or this stage's
own batch was running.

The whole snapshot takes as long as its slowest stage, the one whose part came last, and then the manifest. So its
phases are that stage's, and `manifest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from strobe.hosts.shared.clock import utc_now
from strobe.hosts.spark.home.history import PastSnapshot, PastStage
from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.manifest import NodeRecord, Timing

__all__ = ["Progress", "arrived", "completed", "past", "with_figures"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Under way, complete, or failed and why. Milliseconds and bytes. The phases are those of the `slowest` stage, and
    with `manifest_ms` they are the duration."""

    snapshot: SnapshotId
    kind: Kind
    status: str
    started: str
    duration_ms: float = 0.0
    start_delay_ms: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    channels_ms: float = 0.0
    async_ms: float = 0.0
    prepare_ms: float = 0.0
    acknowledge_ms: float = 0.0
    manifest_ms: float = 0.0
    slowest: str = ""
    bytes_new: int = 0
    bytes_total: int = 0
    rows_in_flight: int = 0
    acknowledged: int = 0
    reason: str = ""

    @property
    def phases(self) -> dict[str, float]:
        """How long each phase took, in their order."""
        return {
            "start_delay": self.start_delay_ms,
            "alignment": self.alignment_ms,
            "sync": self.sync_ms,
            "channels": self.channels_ms,
            "async": self.async_ms,
            "prepare": self.prepare_ms,
            "acknowledge": self.acknowledge_ms,
            "manifest": self.manifest_ms,
        }


def arrived(record: NodeRecord, *, posted_ms: float, taken_ms: float) -> NodeRecord:
    """A stage's record as the coordinator has it. Since the trigger: when it was sent, and when it was read."""
    timing = record.timing or Timing()
    measured = record.alignment_ms + record.sync_ms + timing.channels_ms + record.async_ms + timing.prepare_ms
    return replace(
        record,
        timing=replace(
            timing,
            start_delay_ms=round(max(0.0, posted_ms - measured), 3),
            acknowledge_ms=round(taken_ms - posted_ms, 3),
        ),
    )


def with_figures(progress: Progress, parts: Mapping[NodeId, StagePart], slowest: NodeId, took_ms: float) -> Progress:
    """Every part is there; that of the `slowest` came last."""
    last = parts[slowest].record
    timing = last.timing or Timing()
    return replace(
        progress,
        duration_ms=took_ms,
        start_delay_ms=timing.start_delay_ms,
        alignment_ms=last.alignment_ms,
        sync_ms=last.sync_ms,
        channels_ms=timing.channels_ms,
        async_ms=last.async_ms,
        prepare_ms=timing.prepare_ms,
        acknowledge_ms=timing.acknowledge_ms,
        slowest=slowest,
        bytes_new=sum(part.record.bytes_new for part in parts.values()),
        bytes_total=sum(part.record.bytes_total for part in parts.values()),
        rows_in_flight=sum(f.rows or 0 for part in parts.values() for f in part.in_flight.values()),
    )


def completed(progress: Progress, duration_ms: float) -> Progress:
    before = sum(progress.phases.values()) - progress.manifest_ms
    return replace(
        progress, status="complete", duration_ms=duration_ms, manifest_ms=round(max(0.0, duration_ms - before), 3)
    )


def past(
    progress: Progress,
    parts: Mapping[NodeId, StagePart],
    incarnation: Incarnation,
    timeline: Timeline,
    *,
    everywhere: bool = False,
) -> PastSnapshot:
    """A snapshot that is complete, or has failed, for the history."""
    return PastSnapshot(
        snapshot=progress.snapshot,
        kind=progress.kind.value,
        status=progress.status,
        started=progress.started,
        ended=utc_now(),
        incarnation=incarnation,
        timeline=timeline,
        duration_ms=round(progress.duration_ms, 3),
        phases=progress.phases if progress.slowest else {},
        slowest=progress.slowest,
        bytes_new=progress.bytes_new,
        bytes_total=progress.bytes_total,
        rows_in_flight=progress.rows_in_flight,
        reason=progress.reason,
        stages={
            uid: PastStage(
                phases=part.record.phases,
                bytes_new=part.record.bytes_new,
                bytes_total=part.record.bytes_total,
                rows_in_flight=sum(flight.rows or 0 for flight in part.in_flight.values()),
                batch=part.record.batch,
                state_rows=part.record.state_rows,
            )
            for uid, part in parts.items()
        },
        everywhere=everywhere,
    )
