"""One stage at this moment, as `strobe status` shows it: from Spark's account of its last batch, and from its agent."""

from __future__ import annotations

from strobe.hosts.spark.snapshot.metrics import StageStatus
from strobe.hosts.spark.stage.runner import StageRunner

__all__ = ["rows_out", "stage_status"]


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
    )


def rows_out(runner: StageRunner) -> int | None:
    """Since the driver started; None if neither channel nor sink counts."""
    if runner.output is not None:
        return runner.rows_out
    return next((sink.rows_taken for sink in runner.spec.sinks if sink.rows_taken is not None), None)
