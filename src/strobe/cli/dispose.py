"""`strobe dispose`: delete a savepoint or a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from strobe.cli.figures import human_bytes
from strobe.cli.output import Command, Session, common_options
from strobe.hosts.spark.home.job_home import JobHome
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.store.disposal import dispose, find
from strobe.store.fencing import take_over
from strobe.store.holding import is_held
from strobe.store.layout import JobLayout
from strobe.store.locate import Located, locate
from strobe.store.snapshots import SnapshotStore

__all__ = ["dispose_command"]


@click.command(
    "dispose",
    cls=Command,
    examples=(
        ("strobe dispose /backup/before-upgrade", "a savepoint, by its directory"),
        ("strobe dispose ledger/12", "checkpoint 12 of job ledger, which does not run"),
    ),
)
@click.argument("snapshot")
@click.option("--force", is_flag=True, help="Delete a checkpoint although nobody can tell here whether its job runs.")
@common_options
def dispose_command(snapshot: str, force: bool, session: Session) -> None:
    """Delete a snapshot, and what only it needs.

    What is not a snapshot is refused, and so is a checkpoint of a job that runs: its own retention deletes those. If
    it is interrupted, the same command finishes.
    """
    if snapshot.count("/") == 0 and not Path(snapshot).is_dir():
        raise Misuse(
            f"{snapshot!r} does not say which snapshot: the newest one must be named.",
            untouched="Nothing was deleted.",
            next=f"Name it by its number, as {snapshot}/12, or by its directory. `strobe checkpoints` shows them.",
        )
    found = find(snapshot, session.home)
    size = _size(found)
    if isinstance(found.store.layout, JobLayout):
        _checkpoint(found, force=force)
    else:
        dispose(found)
    if session.json:
        session.answer({"job": found.store.job, "snapshot": found.snapshot, "where": found.where, "bytes": size})
        return
    held = "" if size is None else f"; it held {human_bytes(size)}, what other snapshots share of it stays"
    session.say(f"snapshot {found.snapshot} of job {found.store.job} is gone{held}")


def _checkpoint(found: Located, *, force: bool) -> None:
    job = found.store.job
    if found.home is None or not (found.home / JobLayout(job).incarnation).is_file():
        if not force:
            raise Misuse(
                f"{found.where} is a checkpoint of {job!r}, and nobody can tell from here whether that still runs.",
                untouched="Nothing was deleted.",
                next="Name the job's home with --home DIR, or, if you know that it does not run, add --force.",
            )
        dispose(found)
        return
    if is_held(found.home, job):
        raise Misuse(
            f"Job {job!r} is running, and what it stores now may rest on checkpoint {found.snapshot}.",
            untouched="Nothing was deleted.",
            next=f"Its retention deletes old checkpoints; or stop it first: `strobe stop {job}`.",
        )
    home = JobHome(found.home, job)
    home.claim(lambda reason: None)  # nobody starts the job meanwhile
    try:
        restoring = home.record.restoring
        if restoring is not None and _same(restoring.snapshot, found):
            raise Misuse(
                f"Job {job!r} is in the middle of a restore from {found.where}.",
                untouched="Nothing was deleted.",
                next="Start the job, which finishes the restore; then dispose of it.",
            )
        record = home.record
        objects, layout = take_over(
            found.store.objects, job, incarnation=record.incarnation, generation=record.generation
        )
        dispose(replace(found, store=SnapshotStore(objects, layout, job)), home.check_owner)
    finally:
        home.release()


def _same(name: str, found: Located) -> bool:
    try:
        return found.home is not None and locate(name, found.home).where == found.where
    except StrobeError:
        return False


def _size(found: Located) -> int | None:
    try:
        return found.load().bytes_total
    except Failed:
        raise
    except StrobeError:
        return None  # damaged, or half gone already
