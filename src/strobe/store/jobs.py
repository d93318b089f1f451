"""The jobs of a home directory, by name. Kept apart, and small: `strobe list` imports it."""

from __future__ import annotations

from pathlib import Path

from strobe.model.errors import Misuse
from strobe.model.ids import check_uid
from strobe.model.suggest import did_you_mean
from strobe.store.layout import JOBS

__all__ = ["check_known", "is_job_name", "jobs_in"]


def jobs_in(home: Path) -> tuple[str, ...]:
    """The jobs that have ever run in this home."""
    root = home / JOBS
    return tuple(sorted(p.name for p in root.iterdir() if p.is_dir() and is_job_name(p.name))) if root.is_dir() else ()


def check_known(home: Path, job: str) -> None:
    """Misuse, with the name that was probably meant, if no such job has ever run in this home."""
    known = jobs_in(home)
    if job not in known:
        raise Misuse(
            f"There is no job {job!r} in {home}.",
            untouched="Nothing was changed.",
            next=f"{did_you_mean(job, known)}The jobs there: {', '.join(known) or 'none'}. Another home: --home DIR.",
        )


def is_job_name(name: str) -> bool:
    """Whether a directory can be a job's: people keep other things beside."""
    try:
        check_uid(name)
    except Misuse:
        return False
    return True
