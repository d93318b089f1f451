"""`strobe checkpoints`, `checkpoint`, `savepoint`, `stop`, `cancel`: jobs, from another process."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from strobe.cli.figures import human_bytes, human_ms
from strobe.cli.job_list import job_kind
from strobe.cli.live_view import reasons
from strobe.cli.operator_view import checkpoint_tables
from strobe.cli.output import Command, Session, common_options
from strobe.hosts.spark.commit.holding import explain_held, held_on_disk
from strobe.hosts.spark.commit.ledger import PartState, read_ledgers
from strobe.hosts.spark.home.history import PastFigures, read_history
from strobe.hosts.spark.home.supervision import read_supervision
from strobe.hosts.spark.job.control import call_job
from strobe.hosts.spark.snapshot.metrics import progress_from_json
from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import SnapshotId
from strobe.store.holding import is_held
from strobe.store.jobs import check_known
from strobe.store.layout import JobLayout
from strobe.store.places import checkpoints_of
from strobe.store.scheme import is_s3
from strobe.store.snapshots import SnapshotStore

__all__ = [
    "cancel_command", "checkpoint_command", "checkpoints_command", "savepoint_command", "show_doubt",
    "stop_command",
]  # fmt: skip


@click.command(
    "checkpoints",
    cls=Command,
    examples=(
        ("strobe checkpoints ledger", "which are kept, how large, how long they took"),
        ("strobe checkpoints ledger --all", "all that were ever tried, failed ones too, whichever run took them"),
    ),
)
@click.argument("job")
@click.option("--all", "everything", is_flag=True, help="Every snapshot that was tried, across restarts of the job.")
@common_options
def checkpoints_command(job: str, everything: bool, session: Session) -> None:
    """Show a job's checkpoints: those that are kept, and recent ones that failed."""
    check_known(session.home, job)
    store = checkpoints_of(session.home, job)
    kept = [_kept(session, store, s) for s in store.list()]
    recent: list[dict[str, Any]] = []
    if is_held(session.home, job):
        recent = call_job(session.home, job, "GET", "/v1/status").get("checkpoints", [])
    if session.json:
        past = {"history": [to_builtins(p) for p in _history(session, job)]} if everything else {}
        session.answer({"job": job, "retained": kept, "recent": recent, **past})
        return
    session.say(("retained", "bold"))
    for c in kept:
        if "damaged" in c:
            session.say((f"  {c['snapshot']:>6}  damaged: {c['damaged']}", "red"))
        else:
            why = c["not_restorable"]
            session.say(
                f"  {c['snapshot']:>6}  {c['kind']}  {c['completed']}  {c['mode']}  "
                f"new {human_bytes(c['bytes_new'])} of {human_bytes(c['bytes_total'])}, "
                f"{c['rows_in_flight']:,} rows in flight, ",
                ("restorable", "green") if why is None else (f"not restorable: {why}", "red"),
            )
    if not kept:
        session.say("  none")
    if everything:
        _show_history(session, _history(session, job))
    elif recent:
        session.say(("recent", "bold"))
        shown = tuple(progress_from_json(p) for p in recent[-20:])
        for table in checkpoint_tables(shown):
            session.console.print(table)
        for why in reasons((), shown):
            session.console.print(why, soft_wrap=True)


@click.command("checkpoint", cls=Command, examples=(("strobe checkpoint ledger", "take one now, and wait for it"),))
@click.argument("job")
@common_options
def checkpoint_command(job: str, session: Session) -> None:
    """Take a checkpoint now; returns when it is complete."""
    _check_live(session, job)
    done = call_job(session.home, job, "POST", "/v1/checkpoint", timeout=None)
    if session.json:
        session.answer(done)
        return
    taken = progress_from_json(done)
    session.say(
        f"checkpoint {taken.snapshot} of {job} is complete: {human_ms(taken.duration_ms)}, "
        f"new {human_bytes(taken.bytes_new)} of {human_bytes(taken.bytes_total)}"
    )
    session.say(f"next: strobe inspect {job}/{taken.snapshot}   strobe verify {job}/{taken.snapshot}")


@click.command(
    "savepoint",
    cls=Command,
    examples=(
        ("strobe savepoint ledger", "into the job's home"),
        ("strobe savepoint ledger /backup/before-upgrade", "into a new directory"),
        ("strobe savepoint ledger s3://bucket/before-upgrade", "into a bucket, below a new prefix"),
    ),
)
@click.argument("job")
@click.argument("directory", required=False, metavar="[PLACE]")
@common_options
def savepoint_command(job: str, directory: str | None, session: Session) -> None:
    """Copy everything that a running job is to a place of its own: a directory, or s3://bucket/prefix.

    State and rows in flight are copied, the job runs on. A savepoint needs nothing of the job: it can be moved, and
    Strobe never deletes it by itself.
    """
    _check_live(session, job)
    done = call_job(session.home, job, "POST", "/v1/savepoint", _target(directory), timeout=None)
    held = held_on_disk(session.home, job)
    _show_savepoint(session, done, held=held is not None and bool(held.reason))


@click.command(
    "stop",
    cls=Command,
    examples=(
        ("strobe stop ledger", "take a savepoint, then end"),
        ("strobe stop ledger --savepoint /backup/before-upgrade", "with the savepoint in that directory"),
        ("strobe stop ledger --drain", "after everything has run through"),
    ),
)
@click.argument("job")
@click.option("--savepoint", "directory", metavar="PLACE", help="Where the savepoint goes.  [default: the job's home]")
@click.option("--drain", is_flag=True, help="Let the sources end and everything run through first.")
@common_options
def stop_command(job: str, directory: str | None, drain: bool, session: Session) -> int:
    """End a job with a savepoint: nothing that it does after the savepoint becomes visible.

    With --drain no more is read from the sources, the channels run empty, and event time comes to its end: all windows
    are closed and all event-time timers fire. Use it when the job is not to go on.

    If the savepoint fails, the job goes on. Rows that invariants hold back stay where they are; after --drain, which is
    to deliver everything, the exit code is 1 then.
    """
    _check_live(session, job)
    done = call_job(session.home, job, "POST", "/v1/stop", {**_target(directory), "drain": drain}, timeout=None)
    held = held_on_disk(session.home, job)
    if session.json:
        session.answer({**done, "held": None if held is None else asdict(held)})
        return int(drain and held is not None)
    session.say(f"{job} is stopped.")
    show_doubt(session, job)
    if drain and held is not None:
        rest = "keep its home until the rows that are held are released, or thrown away."
        session.say((f"{job} is drained, but not everything is delivered: {rest}", "bold red"))
    _show_savepoint(session, done, held=held is not None)
    return int(drain and held is not None)


@click.command(
    "cancel",
    cls=Command,
    examples=(
        ("strobe cancel ledger", "end the job"),
        ("strobe cancel ledger --delete", "and delete its checkpoints, whatever the pipeline says"),
    ),
)
@click.argument("job")
@click.option("--retain", "retention", flag_value="retain", help="Keep its checkpoints.")
@click.option("--delete", "retention", flag_value="delete", help="Delete its checkpoints; savepoints always stay.")
@common_options
def cancel_command(job: str, retention: str | None, session: Session) -> None:
    """End a job. Its checkpoints are kept unless the pipeline, or an option, says otherwise."""
    _check_live(session, job)

    def waiting() -> None:
        if not session.json:
            session.say(
                "waiting for the batches that run; one that does not end within 30 s is given up, and run again"
            )

    body = {"retention": retention}
    answer = call_job(session.home, job, "POST", "/v1/cancel", body, timeout=None, waiting=waiting)
    if session.json:
        session.answer(answer)
    else:
        session.say(f"{job} is {answer['state']}.")
        show_doubt(session, job)


def _history(session: Session, job: str) -> list[PastFigures]:
    return read_history(session.home / JobLayout(job).history)


def _show_history(session: Session, history: list[PastFigures]) -> None:
    session.say(("all that were tried", "bold"))
    for p in history:
        session.say(
            f"  {p.snapshot:>6}  {p.kind:<10}  {p.started}  run {p.incarnation}  ",
            (f"{p.status:<8}", "red" if p.status == "failed" else "green"), f"  {human_ms(p.duration_ms)}  ",
            p.reason if p.reason else f"new {human_bytes(p.bytes_new)} of {human_bytes(p.bytes_total)}, "
            f"{p.rows_in_flight:,} rows in flight, slowest {p.slowest}",
        )  # fmt: skip
    if not history:
        session.say("  none")


def show_doubt(session: Session, job: str) -> None:
    """Show what a complete snapshot names and no sink has committed yet."""
    entries = [e for ledger in read_ledgers(session.home, job).values() for e in ledger.entries]
    doubt = [e for e in entries if e.state is PartState.DECIDED]
    held = held_on_disk(session.home, job)
    if held is not None:
        session.say((explain_held(job, held), "bold red"))
    if doubt:
        session.say(("in doubt: ", "yellow"), ", ".join(e.handle for e in doubt))
        session.say(f"  nothing is lost: `strobe run` commits it; see `strobe transactions {job}`")


def _target(directory: str | None) -> dict[str, Any]:
    if directory is None:
        return {}
    return {"directory": directory if is_s3(directory) else str(Path(directory).absolute())}


def _show_savepoint(session: Session, done: dict[str, Any], *, held: bool = False) -> None:
    if session.json:
        session.answer(done)
        return
    session.say(
        f"savepoint {done['snapshot']} of {done['job']} is complete: {human_bytes(done['bytes_total'])}, "
        f"{done['rows_in_flight']:,} rows in flight"
    )
    session.say(("at   ", "bold"), done["path"])
    session.say(("root ", "bold"), done["root"])
    first = ", once what is held in it is released" if held else ""
    place = shlex.quote(done["path"])
    session.say(f"next: strobe run -s {place} FILE   goes on from it{first}")
    session.say(f"      strobe verify {place} --root {done['root']}   checks every byte, wherever it is")


def _kept(session: Session, store: SnapshotStore, snapshot: SnapshotId) -> dict[str, Json]:
    try:
        manifest = store.load(snapshot)
    except StrobeError as error:
        return {"snapshot": snapshot, "damaged": error.what}
    why = None
    if manifest.host == "spark":
        from strobe.hosts.spark.restore.restorable import why_not_restorable  # reads Delta tables, which needs an extra

        why = why_not_restorable(manifest, session.home)
    return {
        "snapshot": snapshot,
        "kind": manifest.kind.value,
        "mode": manifest.mode,
        "started": manifest.started,
        "completed": manifest.completed,
        "timeline": manifest.timeline,
        "incarnation": manifest.incarnation,
        "bytes_new": manifest.bytes_new,
        "bytes_total": manifest.bytes_total,
        "rows_in_flight": manifest.rows_in_flight,
        "phases": {uid: node.phases for uid, node in manifest.nodes.items()},
        "not_restorable": why,
    }


def _check_live(session: Session, job: str) -> None:
    check_known(session.home, job)
    if job_kind(session, job) == "live":
        raise Misuse(
            f"{job!r} is a system of live processes, not a pipeline.",
            untouched="Nothing was changed.",
            next=f"See: strobe live --help, for example `strobe live snapshot {job}` and `strobe live down {job}`.",
        )
    if not is_held(session.home, job):
        supervision = read_supervision(session.home, job)
        after = "Start it with `strobe run`."
        if supervision is not None:
            pid = supervision.status.pid
            after = f"Its supervisor, process {pid}, starts it again soon; `kill {pid}` ends it for good."
        raise Misuse(f"Job {job!r} is not running.", untouched="Nothing was changed.", next=after)
