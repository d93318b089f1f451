"""What a person sees of a running job: plain records, the same for the live view, `status` and the control API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from strobe.hosts.spark.coordinator_host import Progress
from strobe.protocol.coordination import Kind

__all__ = ["JobStatus", "StageStatus", "progress_from_json", "progress_json", "stage_from_json", "status_json"]


@dataclass(frozen=True, slots=True)
class StageStatus:
    uid: str
    state: str
    batch: int
    rows_per_second: float
    rows_in: int
    rows_out: int
    lag_rows: int
    batch_ms: float
    state_rows: int | None
    restarts: int
    error: str = ""


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


def progress_json(progress: Progress) -> dict[str, Any]:
    return {**asdict(progress), "kind": progress.kind.value}


def progress_from_json(value: Mapping[str, Any]) -> Progress:
    return Progress(**{**value, "kind": Kind(value["kind"])})


def stage_from_json(value: Mapping[str, Any]) -> StageStatus:
    return StageStatus(**value)


def status_json(status: JobStatus) -> dict[str, Any]:
    value = asdict(status)
    value["checkpoints"] = [progress_json(p) for p in status.checkpoints]
    value["stages"] = [asdict(s) for s in status.stages]
    return value
