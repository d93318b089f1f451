"""`strobe release JOB SNAPSHOT`: release what invariants hold back."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from typing import Any

import click

from strobe.cli.job_list import job_kind
from strobe.cli.output import Command, Session, common_options
from strobe.hosts.spark.commit.holding import held_on_disk, release_offline
from strobe.hosts.spark.home.job_home import host_name
from strobe.hosts.spark.job.control import call_job
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.store.holding import is_held
from strobe.store.jobs import check_known

__all__ = ["release_command"]


@click.command(
    "release",
    cls=Command,
    examples=(
        ("strobe release ledger 12", "what is held of snapshot 12 and before becomes visible"),
        ("strobe checks ledger", "what is held, and why"),
    ),
)
@click.argument("job")
@click.argument("snapshot")
@common_options
def release_command(job: str, snapshot: str, session: Session) -> None:
    """Release what invariants with on_violation="hold" hold back, up to and including SNAPSHOT.

    Their rows become visible, in order, whatever the invariants say. Later snapshots follow if they hold. Who said so,
    and when, is noted in the job's home. If JOB does not run, its next start makes them visible.
    """
    check_known(session.home, job)
    if job_kind(session, job) == "live":
        raise Misuse(f"{job!r} is a system of live processes, which has no sinks.", untouched="Nothing was changed.")
    number = _number(job, snapshot)
    by = f"{_user()}@{host_name()}"
    runs = is_held(session.home, job)
    if runs:
        done = call_job(session.home, job, "POST", "/v1/release", {"snapshot": number, "by": by}, timeout=60.0)
    else:
        done = asdict(release_offline(session.home, job, number, by))
    if session.json:
        session.answer({**done, "job": job, "running": runs})
        return
    session.say(f"{job}: {done['parts']} part(s) of snapshots up to {done['snapshot']} are released, by {by}.")
    _go_on(session, job, runs=runs)


def _go_on(session: Session, job: str, *, runs: bool) -> None:
    if runs:
        session.say(f"next: strobe status {job}   strobe transactions {job}")
        return
    still = held_on_disk(session.home, job)
    if still is not None:
        session.say(f"Still held: snapshots {still.snapshot} to {still.newest}.")
    session.say("The job is not running: the next `strobe run` makes them visible.")


def _number(job: str, text: str) -> SnapshotId:
    named, _, number = text.rpartition("/")
    if named not in ("", job) or not number.isascii() or not number.isdigit() or len(number) > 15:
        raise Misuse(
            f"{text!r} is not the number of a snapshot of job {job!r}.",
            untouched="Nothing was changed.",
            next=f"`strobe checks {job}` says what is held; then, for example: strobe release {job} 12.",
        )
    return SnapshotId(int(number))


def _user() -> Any:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without names for its users
        return "unknown"
