"""One stage at this moment, as `strobe status` shows it: from Spark's account of its last batch, and from its agent."""

from __future__ import annotations

from strobe.hosts.spark.metrics import StageStatus
from strobe.hosts.spark.stage import StageRunner

__all__ = ["stage_status"]


def stage_status(runner: StageRunner) -> StageStatus:
    progress = runner.progress
    return StageStatus(
        uid=runner.spec.uid,
        state=runner.state.value,
        batch=runner.agent.batch,
        rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
        rows_in=int(progress.get("numInputRows") or 0),
        rows_out=runner.rows_out,
        lag_rows=runner.agent.lag()[0],
        batch_ms=float((progress.get("durationMs") or {}).get("triggerExecution") or 0.0),
        state_rows=runner.state_rows(),
        restarts=runner.restarts,
        error=runner.trouble or next((sink.trouble for sink in runner.spec.sinks if sink.trouble), ""),
        dead_letters=sum(sink.rejected for sink in runner.spec.sinks),
    )
