"""The metrics of a job on Spark: a pure function of its status, wherever that comes from.

Names are Flink's where Flink has the metric, in Prometheus' spelling: words joined by underscores, base units, `_total`
for what only rises. A test compares `docs/reference/metrics.md` with these tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strobe.hosts.spark.home.job_state import UNFINISHED, JobState
from strobe.hosts.spark.snapshot.metrics import JobStatus, SinkStatus, StageStatus, StateStatus
from strobe.hosts.spark.snapshot.progress import Progress
from strobe.model.kind import Kind
from strobe.store.times import utc_seconds
from strobe.telemetry.families import Family, Metric, MetricKind, Of, Values, gather
from strobe.telemetry.invariant_metrics import invariant_metrics

__all__ = ["INVARIANT_METRICS", "JOB_METRICS", "SINK_METRICS", "STAGE_METRICS", "job_families"]

_JOB_STATES: Final = (*dict.fromkeys((*UNFINISHED, *(state.value for state in JobState))),)
_STAGE_STATES: Final = ("starting", "running", "restarting", "ended", "failed", "stopped")


def job_families(status: JobStatus) -> list[Family]:
    job = (status.job,)
    return [
        *gather(JOB_METRICS, [(job, status)]),
        *gather(STAGE_METRICS, [((*job, stage.uid), stage) for stage in status.stages if not stage.chained_into]),
        *gather(SINK_METRICS, [((*job, *_place(sink)), sink) for sink in status.sinks]),
        *gather(INVARIANT_METRICS, [((*job, invariant.name), invariant) for invariant in status.invariants]),
    ]


def _place(sink: SinkStatus) -> tuple[str, str]:
    stage, _, name = sink.sink.partition("/")
    return stage, name


# ── of the job ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _job(
    name: str, kind: MetricKind, help: str, value: Callable[[JobStatus], Values], *, label: str = "", flink: str = ""
) -> Of[JobStatus]:
    labels = ("job_name", label) if label else ("job_name",)
    return Of(Metric(f"strobe_job_{name}", kind, help, labels, flink), value)


def _last(status: JobStatus) -> Progress | None:
    """The newest complete checkpoint that the status knows."""
    done = (p for p in reversed(status.checkpoints) if p.status == "complete" and p.kind is Kind.CHECKPOINT)
    return next(done, None)


def _of_last(value: Callable[[Progress], Values]) -> Callable[[JobStatus], Values]:
    return lambda status: None if (last := _last(status)) is None else value(last)


JOB_METRICS: Final = (
    _job("state", MetricKind.GAUGE, "1 for the state that the job is in, 0 for the others",
         lambda s: {state: float(s.state == state) for state in _JOB_STATES}, label="state"),
    _job("uptime_seconds", MetricKind.GAUGE, "Since the driver started", lambda s: s.seconds, flink="uptime"),
    _job("num_restarts_total", MetricKind.COUNTER, "Times that the supervisor has started the driver again",
         lambda s: float(s.supervisor.restarts) if s.supervisor is not None else 0.0, flink="numRestarts"),
    _job("incarnation", MetricKind.GAUGE, "Rises with every start of the job", lambda s: float(s.incarnation)),
    _job("timeline", MetricKind.GAUGE, "Rises with every restore of the job", lambda s: float(s.timeline)),
    _job("number_of_completed_checkpoints_total", MetricKind.COUNTER,
         "Snapshots that are complete, savepoints included",
         lambda s: float(s.completed), flink="numberOfCompletedCheckpoints"),
    _job("number_of_failed_checkpoints_total", MetricKind.COUNTER, "Snapshots that failed",
         lambda s: float(s.failed), flink="numberOfFailedCheckpoints"),
    _job("number_of_in_progress_checkpoints", MetricKind.GAUGE, "Snapshots that are under way",
         lambda s: float(sum(p.status == "in progress" for p in s.checkpoints)), flink="numberOfInProgressCheckpoints"),
    _job("checkpoint_failures_in_a_row", MetricKind.GAUGE, "Checkpoints that failed since the last complete one",
         lambda s: float(s.failures_in_a_row)),
    _job("next_checkpoint_seconds", MetricKind.GAUGE, "Until the next checkpoint is due",
         lambda s: s.next_checkpoint_s),
    _job("last_completed_checkpoint_id", MetricKind.GAUGE, "Id of the last complete checkpoint",
         _of_last(lambda p: float(p.snapshot)), flink="lastCompletedCheckpointId"),
    _job("last_checkpoint_timestamp_seconds", MetricKind.GAUGE, "When the last complete checkpoint was, in Unix time",
         _of_last(lambda p: utc_seconds(p.started) + p.duration_ms / 1000)),
    _job("last_checkpoint_duration_seconds", MetricKind.GAUGE, "How long the last complete checkpoint took",
         _of_last(lambda p: p.duration_ms / 1000), flink="lastCheckpointDuration"),
    _job("last_checkpoint_phase_seconds", MetricKind.GAUGE,
         "How long each phase of it took at its slowest stage; together they are its duration",
         _of_last(lambda p: {name: ms / 1000 for name, ms in p.phases.items()}), label="phase"),
    _job("last_checkpoint_size_bytes", MetricKind.GAUGE, "What the last complete checkpoint has newly stored",
         _of_last(lambda p: float(p.bytes_new)), flink="lastCheckpointSize"),
    _job("last_checkpoint_full_size_bytes", MetricKind.GAUGE, "All that it consists of",
         _of_last(lambda p: float(p.bytes_total)), flink="lastCheckpointFullSize"),
    _job("last_checkpoint_in_flight_rows", MetricKind.GAUGE, "Rows in channels that belong to it",
         _of_last(lambda p: float(p.rows_in_flight)), flink="lastCheckpointPersistedData"),
)  # fmt: skip


# ── of a stage ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _stage(
    name: str, kind: MetricKind, help: str, value: Callable[[StageStatus], Values], *, label: str = "", flink: str = ""
) -> Of[StageStatus]:
    labels = ("job_name", "stage", label) if label else ("job_name", "stage")
    return Of(Metric(f"strobe_stage_{name}", kind, help, labels, flink), value)


def _state(name: str, help: str, value: Callable[[StateStatus], float], *, flink: str = "") -> Of[StageStatus]:
    taken: Callable[[StageStatus], Values] = lambda s: None if s.state_store is None else value(s.state_store)  # noqa: E731
    return _stage(name, MetricKind.GAUGE, help, taken, flink=flink)


def _maybe(value: float | None) -> float | None:
    return None if value is None else float(value)


STAGE_METRICS: Final = (
    _stage("state", MetricKind.GAUGE, "1 for the state that the stage is in, 0 for the others",
           lambda s: {state: float(s.state == state) for state in _STAGE_STATES}, label="state"),
    _stage("num_records_in_total", MetricKind.COUNTER, "Rows that the stage has read",
           lambda s: float(s.rows_in_total), flink="numRecordsIn"),
    _stage("num_records_in_per_second", MetricKind.GAUGE, "The same, a second, over the last minute",
           lambda s: s.rows_in_per_second, flink="numRecordsInPerSecond"),
    _stage("num_records_out_total", MetricKind.COUNTER, "Rows that it has written to its channel, or its first sink",
           lambda s: _maybe(s.rows_out), flink="numRecordsOut"),
    _stage("num_records_out_per_second", MetricKind.GAUGE, "The same, a second, over the last minute",
           lambda s: s.rows_out_per_second, flink="numRecordsOutPerSecond"),
    _stage("num_late_records_dropped_total", MetricKind.COUNTER, "Rows dropped because they were behind the watermark",
           lambda s: float(s.late_rows), flink="numLateRecordsDropped"),
    _stage("current_input_watermark_timestamp_seconds", MetricKind.GAUGE, "The stage's watermark, in Unix time",
           lambda s: None if s.watermark is None else utc_seconds(s.watermark), flink="currentInputWatermark"),
    _stage("busy_time_ms_per_second", MetricKind.GAUGE, "Time in batches, a second, over the last minute",
           lambda s: None if s.busy is None else 1000 * s.busy, flink="busyTimeMsPerSecond"),
    _stage("num_batches_total", MetricKind.COUNTER, "Batches that the stage has run", lambda s: float(s.batches)),
    _stage("last_batch_duration_seconds", MetricKind.GAUGE, "How long its last batch took",
           lambda s: s.batch_ms / 1000),
    _stage("lag_records", MetricKind.GAUGE, "Rows that wait in the channels that it reads",
           lambda s: _maybe(s.lag_rows)),
    _stage("pending_records", MetricKind.GAUGE, "Rows that its sources still have, if they can tell",
           lambda s: None if s.backlog is None else _maybe(s.backlog.rows), flink="pendingRecords"),
    _stage("pending_files", MetricKind.GAUGE, "Files that it has yet to read",
           lambda s: None if s.backlog is None else _maybe(s.backlog.files)),
    _stage("pending_bytes", MetricKind.GAUGE, "The size of these files",
           lambda s: None if s.backlog is None else _maybe(s.backlog.bytes), flink="pendingBytes"),
    _stage("num_restarts_total", MetricKind.COUNTER, "Times that the stage has started again",
           lambda s: float(s.restarts)),
    _stage("dead_letters", MetricKind.GAUGE, "Rows that its sinks have set aside", lambda s: float(s.dead_letters)),
    _stage("bad_files", MetricKind.GAUGE, "Input files that it could not read and has set aside",
           lambda s: float(s.bad_files)),
    _state("state_rows", "Rows in the stage's state", lambda s: float(s.rows)),
    _state("state_size_bytes", "Memory that the state uses", lambda s: float(s.bytes)),
    _state("state_rows_updated", "Rows of state that the last batch changed", lambda s: float(s.rows_updated)),
    _state("state_rows_removed", "Rows of state that the last batch removed", lambda s: float(s.rows_removed)),
    _state("state_commit_seconds", "How long the last batch's state took to commit, all tasks together",
           lambda s: s.commit_ms / 1000),
    _state("rocksdb_total_sst_files_size_bytes", "RocksDB's files on disk", lambda s: float(s.rocksdb_sst_bytes),
           flink="rocksdb.total-sst-files-size"),
    _state("rocksdb_block_cache_pinned_usage_bytes", "Blocks that RocksDB holds in memory",
           lambda s: float(s.rocksdb_pinned_bytes), flink="rocksdb.block-cache-pinned-usage"),
    _state("rocksdb_gets", "Reads by key in the last batch", lambda s: float(s.rocksdb_gets)),
    _state("rocksdb_puts", "Writes by key in the last batch", lambda s: float(s.rocksdb_puts)),
    _state("rocksdb_bytes_read", "Bytes read by key in the last batch", lambda s: float(s.rocksdb_bytes_read),
           flink="rocksdb.bytes-read"),
    _state("rocksdb_bytes_written", "Bytes written in the last batch", lambda s: float(s.rocksdb_bytes_written),
           flink="rocksdb.bytes-written"),
    _state("rocksdb_block_cache_hit", "Blocks found in the cache in the last batch",
           lambda s: float(s.rocksdb_cache_hits), flink="rocksdb.block-cache-hit"),
    _state("rocksdb_block_cache_miss", "Blocks not found in the cache in the last batch",
           lambda s: float(s.rocksdb_cache_misses), flink="rocksdb.block-cache-miss"),
    _state("rocksdb_compaction_seconds", "Time in compactions in the last batch",
           lambda s: s.rocksdb_compaction_ms / 1000),
    _state("rocksdb_stall_seconds", "Time that writers waited for RocksDB in the last batch",
           lambda s: s.rocksdb_stall_ms / 1000, flink="rocksdb.stall-micros"),
)  # fmt: skip


# ── of a sink ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _sink(
    name: str, kind: MetricKind, help: str, value: Callable[[SinkStatus], Values], *, flink: str = ""
) -> Of[SinkStatus]:
    return Of(Metric(f"strobe_sink_{name}", kind, help, ("job_name", "stage", "sink"), flink), value)


SINK_METRICS: Final = (
    _sink("num_records_send_total", MetricKind.COUNTER, "Rows that the sink has taken, if it counts them",
          lambda s: _maybe(s.rows), flink="numRecordsSend"),
    _sink("num_records_send_per_second", MetricKind.GAUGE, "The same, a second, over the last minute",
          lambda s: s.rows_per_second),
    _sink("dead_letters", MetricKind.GAUGE, "Rows that the sink has set aside", lambda s: float(s.dead_letters),
          flink="numRecordsSendErrors"),
    _sink("parts_in_doubt", MetricKind.GAUGE, "Parts that a complete snapshot names and that may not be visible yet",
          lambda s: float(s.in_doubt)),
    _sink("parts_held", MetricKind.GAUGE, "Parts that invariants hold back", lambda s: float(s.held)),
    _sink("parts_prepared", MetricKind.GAUGE, "Parts that wait for their snapshot", lambda s: float(s.prepared)),
    _sink("failures_in_a_row", MetricKind.GAUGE, "Failed attempts to do what is due, since the last that succeeded",
          lambda s: float(s.failures)),
)  # fmt: skip


# ── of an invariant ─────────────────────────────────────────────────────────────────────────────────────────────────

INVARIANT_METRICS: Final = invariant_metrics(
    "strobe_invariant", "job_name", "checkpoint", "were not asked because the one before took too long"
)
