"""One stage at this moment, as `strobe status` shows it: from Spark's account of its last batch, and from its agent.

Nobody is made to wait for it: a stage's lock is held while a batch is written, so what is read here is read without it,
and may be a moment old.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strobe.hosts.spark.pipeline.pipeline import StageSpec
from strobe.hosts.spark.snapshot.coordinator import CoordinatorHost
from strobe.hosts.spark.snapshot.metrics import BarrierStatus, ChannelStatus, StageStatus, latest_bad_files
from strobe.hosts.spark.stage.runner import StageRunner
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.barriers import Barriers

__all__ = ["barrier_statuses", "channel_statuses", "rows_out", "stage_status", "with_chained"]


def stage_status(runner: StageRunner) -> StageStatus:
    progress = runner.progress
    return StageStatus(
        uid=runner.spec.uid,
        state=runner.state.value,
        batch=runner.agent.batch,
        rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
        rows_in=int(progress.get("numInputRows") or 0),
        rows_out=rows_out(runner),
        lag_rows=runner.agent.lag()[0] if runner.spec.inputs else None,
        batch_ms=float((progress.get("durationMs") or {}).get("triggerExecution") or 0.0),
        state_rows=runner.state_rows(),
        restarts=runner.restarts,
        error=runner.trouble or next((sink.trouble for sink in runner.spec.sinks if sink.trouble), ""),
        dead_letters=sum(sink.rejected for sink in runner.spec.sinks),
        bad_files=runner.files.bad.count,
        latest_bad_files=latest_bad_files(runner.files.bad),
    )


def with_chained(status: StageStatus, spec: StageSpec) -> tuple[StageStatus, ...]:
    """The stage, and before it those that are chained into it. These have no figures of their own: Spark counts a
    query."""
    chained = (
        StageStatus(
            uid=uid, state=status.state, batch=status.batch, rows_per_second=0.0, rows_in=0, rows_out=None,
            lag_rows=None, batch_ms=0.0, state_rows=None, restarts=0, chained_into=spec.uid,
        )
        for uid in spec.chained
    )  # fmt: skip
    return (*chained, status)


def rows_out(runner: StageRunner) -> int | None:
    """Since the driver started; None if neither channel nor sink counts."""
    if runner.output is not None:
        return runner.rows_out
    return next((sink.rows_taken for sink in runner.spec.sinks if sink.rows_taken is not None), None)


def channel_statuses(runners: Iterable[StageRunner]) -> tuple[ChannelStatus, ...]:
    """All channels, and links from chained stages, which have none, so that people see what reads what."""
    found = []
    for runner in runners:
        spec = runner.spec
        found += [ChannelStatus(uid, reader, False, 0, 0, chained=True) for uid, reader in spec.chained.items()]
        found += [
            ChannelStatus(producer, spec.uid, producer in spec.feedback, *runner.agent.lag_of(producer))
            for producer in runner.agent.inputs
        ]
    return tuple(found)


def barrier_statuses(runners: Mapping[NodeId, StageRunner], coordinator: CoordinatorHost) -> tuple[BarrierStatus, ...]:
    """Where the barrier of each snapshot is that is under way."""
    found = []
    for progress in coordinator.history:
        if progress.status != "in progress":
            continue
        done = coordinator.acknowledged(progress.snapshot)
        for uid, runner in runners.items():
            if uid in done:
                found.append(BarrierStatus(progress.snapshot, uid, "acknowledged"))
            else:
                found.append(_barrier(uid, runner.agent.machine, progress.snapshot))
    return tuple(found)


def _barrier(uid: NodeId, machine: Barriers | None, snapshot: SnapshotId) -> BarrierStatus:
    if machine is None:
        return BarrierStatus(snapshot, uid, "ahead")
    missing = machine.missing(snapshot)
    if snapshot == machine.aligning:
        return BarrierStatus(snapshot, uid, "aligning", tuple(sorted(machine.held)), missing)
    if snapshot in machine.recording:
        return BarrierStatus(snapshot, uid, "recording", tuple(c for c in machine.inputs if c not in missing), missing)
    if machine.passed(snapshot):
        return BarrierStatus(snapshot, uid, "storing", machine.inputs)
    return BarrierStatus(snapshot, uid, "ahead", (), missing)
