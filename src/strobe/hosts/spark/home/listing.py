"""The jobs of a home directory, seen from outside: what `strobe list` and the control API say of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from strobe.hosts.spark.home.job_state import UNFINISHED
from strobe.hosts.spark.home.silence import silence
from strobe.model.errors import StrobeError
from strobe.store.holding import is_held
from strobe.store.jobs import jobs_in
from strobe.store.places import checkpoint_ids
from strobe.store.runtime import UNKNOWN, Runtime, read_runtime

__all__ = ["JobSummary", "list_jobs", "summarise"]


@dataclass(frozen=True, slots=True)
class JobSummary:
    """`state` is the last that its driver said of itself, or "dead" for one that was killed and could not say so, and
    "suspended" or "silent" for one that holds the job and does not answer.
    `checkpoints` is None if their store cannot be asked now: that is not the same as having none."""

    job: str
    state: str
    live: bool
    pid: int | None
    started: str
    error: str
    incarnation: int | None
    checkpoints: tuple[int, ...] | None


def list_jobs(home: Path) -> tuple[JobSummary, ...]:
    return tuple(summarise(home, job) for job in jobs_in(home))


def summarise(home: Path, job: str, checkpoints: Callable[[str], Sequence[int] | None] | None = None) -> JobSummary:
    """`checkpoints`: how to get those of a job, for whoever looks often and keeps what it has seen."""
    try:
        runtime = read_runtime(home, job) or UNKNOWN
    except StrobeError as error:
        runtime = Runtime(error=error.what)
    try:
        live = is_held(home, job)
    except StrobeError as error:  # another user's
        runtime, live = Runtime(error=error.what), False
    state = runtime.state
    quiet = silence(home, job) if live else None
    if quiet is not None:
        state = quiet.state
    elif not live and state in UNFINISHED:
        state = "dead"
    return JobSummary(
        job=job,
        state=state,
        live=live,
        pid=runtime.pid,
        started=runtime.started,
        error=runtime.error,
        incarnation=runtime.incarnation,
        checkpoints=_checkpoints(home, job) if checkpoints is None else _as_tuple(checkpoints(job)),
    )


def _as_tuple(found: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if found is None else tuple(found)


def _checkpoints(home: Path, job: str) -> tuple[int, ...] | None:
    """A list of jobs must not fail for a store that does. `strobe checkpoints` says why."""
    try:
        return checkpoint_ids(home, job)
    except (StrobeError, PermissionError):
        return None
