"""What a person sees of a running job: plain records, the same for the live view, `status` and the control API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import msgspec

from strobe.hosts.spark.checkpoint.bad_files import BadFiles
from strobe.hosts.spark.home.supervision import SupervisorStatus
from strobe.hosts.spark.snapshot.coordinator import Progress
from strobe.model.errors import Failed
from strobe.model.redaction import redact

__all__ = [
    "Backlog", "BadFileStatus", "BarrierStatus", "ChannelStatus", "HeldStatus", "InvariantStatus", "JobStatus",
    "SinkStatus", "StageStatus", "StateStatus", "SupervisorStatus", "latest_bad_files", "progress_from_json",
    "progress_json", "status_from_json", "status_json",
]  # fmt: skip

T = TypeVar("T")

_LATEST = 20  # bad files that are named


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a stage's sources still have for it. None is what they cannot tell: Kafka counts rows, directories count
    files and bytes."""

    rows: int | None = None
    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StateStatus:
    """A stage's state after its last batch, all operators together. What begins with `rocksdb` is RocksDB's own."""

    rows: int
    bytes: int  # in memory
    rows_updated: int
    rows_removed: int
    commit_ms: float
    rocksdb_sst_bytes: int = 0  # on disk
    rocksdb_pinned_bytes: int = 0
    rocksdb_gets: int = 0
    rocksdb_puts: int = 0
    rocksdb_bytes_read: int = 0
    rocksdb_bytes_written: int = 0
    rocksdb_cache_hits: int = 0
    rocksdb_cache_misses: int = 0
    rocksdb_compaction_ms: float = 0.0
    rocksdb_stall_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class BadFileStatus:
    """An input file that a stage has set aside: why, when, and the batch that it was to be part of."""

    file: str
    reason: str
    time: str
    batch: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", redact(self.file))


def latest_bad_files(bad: BadFiles) -> tuple[BadFileStatus, ...]:
    return tuple(BadFileStatus(file.name, file.reason, file.time, file.batch) for file in bad.files[-_LATEST:])


@dataclass(frozen=True, slots=True)
class StageStatus:
    uid: str
    state: str
    batch: int
    rows_per_second: float
    rows_in: int
    rows_out: int | None  # since it started here; None if neither channel nor sink counts
    lag_rows: int | None  # that wait in its channels; None for a stage that reads a source only
    batch_ms: float
    state_rows: int | None
    restarts: int
    error: str = ""
    dead_letters: int = 0  # rows that its sinks have set aside
    watermark: str | None = None  # event time up to which it is complete; None if it has none, or none yet
    busy: float | None = None  # share of the last minute that it spent in batches
    backlog: Backlog | None = None  # None if no source of it can tell
    state_store: StateStatus | None = None
    batches: int = 0  # this one and those below: since the driver started
    rows_in_total: int = 0
    late_rows: int = 0  # dropped because they were behind the watermark
    rows_in_per_second: float = 0.0  # over the last minute, as the next
    rows_out_per_second: float | None = None
    bad_files: int = 0  # input files that it has set aside, in all of its life
    latest_bad_files: tuple[BadFileStatus, ...] = ()  # oldest first
    chained_into: str = ""  # the stage whose query computes it; figures are that one's

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", redact(self.error))


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """Of one that delivers on snapshot, parts `in_doubt` are named by a complete snapshot and not yet known to be
    visible, those `prepared` wait for one. `failures` in a row to do what is due, and why. `rows` that it has taken
    since the driver started are None if it does not count them."""

    sink: str
    where: str
    in_doubt: int
    prepared: int
    failures: int = 0
    error: str = ""
    delivery: str = "on_snapshot"
    rows: int | None = None
    rows_per_second: float | None = None  # over the last minute
    dead_letters: int = 0
    held: int = 0  # parts that a complete snapshot names and that invariants hold back

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", redact(self.where))
        object.__setattr__(self, "error", redact(self.error))


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """What waits in a channel for one of its readers. `feedback`: it closes a loop. `chained`: there is no channel, the
    reader's query computes the producer."""

    producer: str
    consumer: str
    feedback: bool
    rows_waiting: int
    commits_waiting: int
    chained: bool = False


@dataclass(frozen=True, slots=True)
class BarrierStatus:
    """How far a stage is with a snapshot that is under way: `ahead` (the barrier has not come to it), `aligning` (it
    holds the inputs that have `arrived`), `recording` (its state is recorded, channels are open), `storing` (its part
    is being made durable), `acknowledged`. `waits_for`: the stages whose barrier it has not got."""

    snapshot: int
    stage: str
    phase: str
    arrived: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InvariantStatus:
    """The last verdict: `outcome` is "holds", "violated", "failed", or empty if there is none yet. `skipped` snapshots
    were not asked because the one before was still being evaluated."""

    name: str
    on_violation: str
    outcome: str = ""
    snapshot: int | None = None
    violations: int = 0  # since the driver started, as the next
    skipped: int = 0
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class HeldStatus:
    """What invariants hold back: `parts` of sinks, since `snapshot`, up to the `newest`. `reason` is its verdict, in
    words; `judging` more snapshots are still being asked. `snapshot` is None if it is only that. `good` is the newest
    checkpoint from before, to go back to."""

    snapshot: int | None
    newest: int | None
    parts: int
    since: str
    reason: str
    judging: int = 0
    good: int | None = None


@dataclass(frozen=True, slots=True)
class JobStatus:
    job: str
    state: str
    pid: int
    incarnation: int
    timeline: int
    started: str
    seconds: float
    stages: tuple[StageStatus, ...]
    completed: int
    failed: int
    failures_in_a_row: int
    checkpoints: tuple[Progress, ...] = field(default=())
    error: str = ""
    sinks: tuple[SinkStatus, ...] = field(default=())
    next_checkpoint_s: float | None = None  # seconds; None if none is scheduled, 0 if one is due or under way
    spark_ui: str = ""  # the address of Spark's own page, if it is on
    supervisor: SupervisorStatus | None = None
    channels: tuple[ChannelStatus, ...] = field(default=())
    barriers: tuple[BarrierStatus, ...] = field(default=())
    invariants: tuple[InvariantStatus, ...] = field(default=())
    held: HeldStatus | None = None


def progress_json(progress: Progress) -> dict[str, Any]:
    return {**asdict(progress), "kind": progress.kind.value}


def progress_from_json(value: Mapping[str, Any]) -> Progress:
    """Part of what the control API answered, as `status_from_json`."""
    return _converted(value, Progress)


def status_from_json(value: Mapping[str, Any]) -> JobStatus:
    """What the control API answered. Fields that this version does not know are passed over."""
    return _converted(value, JobStatus)


def _converted(value: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Failed(
            f"The job's answer cannot be read: {error}.", next="Use the same version of Strobe for both."
        ) from None


def status_json(status: JobStatus) -> dict[str, Any]:
    value = asdict(status)
    value["checkpoints"] = [progress_json(p) for p in status.checkpoints]
    value["stages"] = [asdict(s) for s in status.stages]
    value["sinks"] = [asdict(s) for s in status.sinks]
    return value
