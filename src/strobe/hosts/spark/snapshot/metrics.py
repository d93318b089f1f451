"""What a person sees of a running job: plain records, the same for the live view, `status` and the control API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from strobe.hosts.spark.snapshot.coordinator import Progress
from strobe.model.redaction import redact
from strobe.protocol.coordinator.messages import Kind

__all__ = [
    "JobStatus", "SinkStatus", "StageStatus", "progress_from_json", "progress_json", "sink_from_json",
    "stage_from_json", "status_json",
]  # fmt: skip


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", redact(self.error))


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """A sink that delivers on snapshot: parts `in_doubt` are named by a complete snapshot and not yet known to be
    visible, those `prepared` wait for one. `failures` in a row to do what is due, and why."""

    sink: str
    where: str
    in_doubt: int
    prepared: int
    failures: int = 0
    error: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", redact(self.where))
        object.__setattr__(self, "error", redact(self.error))


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


def progress_json(progress: Progress) -> dict[str, Any]:
    return {**asdict(progress), "kind": progress.kind.value}


def progress_from_json(value: Mapping[str, Any]) -> Progress:
    return Progress(**{**value, "kind": Kind(value["kind"])})


def stage_from_json(value: Mapping[str, Any]) -> StageStatus:
    return StageStatus(**value)


def sink_from_json(value: Mapping[str, Any]) -> SinkStatus:
    return SinkStatus(**value)


def status_json(status: JobStatus) -> dict[str, Any]:
    value = asdict(status)
    value["checkpoints"] = [progress_json(p) for p in status.checkpoints]
    value["stages"] = [asdict(s) for s in status.stages]
    value["sinks"] = [asdict(s) for s in status.sinks]
    return value
