"""`strobe list`: the jobs of a home. It imports what reads their directories, and nothing of how they run."""

from __future__ import annotations

from dataclasses import asdict

import click

from strobe.cli.output import Command, Session, common_options
from strobe.hosts.spark.home.listing import list_jobs
from strobe.model.errors import StrobeError
from strobe.store.runtime import SPARK, UNKNOWN, read_runtime

__all__ = ["job_kind", "list_command", "newest_checkpoint"]


@click.command("list", cls=Command, examples=(("strobe list", "the jobs of this home, and whether they run"),))
@common_options
def list_command(session: Session) -> None:
    """List the jobs of this home directory."""
    jobs = [{**asdict(job), "kind": job_kind(session, job.job)} for job in list_jobs(session.home)]
    if session.json:
        session.answer(jobs)
    elif not jobs:
        session.say(f"No job has run in {session.home}.")
    for job in jobs if not session.json else ():
        session.say(
            (f"{job['job']:<24}", "bold"), f"{job['state']:<12}", "live  " if job["kind"] == "live" else "",
            newest_checkpoint(job["job"], job["checkpoints"]),
            f"   started {job['started']}" if job["started"] else "",
        )  # fmt: skip


def job_kind(session: Session, job: str) -> str:
    """Which host runs it: `spark`, or `live`."""
    try:
        return (read_runtime(session.home, job) or UNKNOWN).kind
    except StrobeError:
        return SPARK


def newest_checkpoint(job: str, checkpoints: tuple[int, ...] | None) -> str:
    """A job's newest checkpoint and how many are kept, in words. `checkpoints` are ids, the oldest first."""
    if checkpoints is None:
        return f"checkpoints unknown: their store cannot be asked, `strobe checkpoints {job}` says why"
    if not checkpoints:
        return "no checkpoint"
    kept = f" ({len(checkpoints)} are kept)" if len(checkpoints) > 1 else ""
    return f"newest checkpoint {checkpoints[-1]}{kept}"
