"""`strobe list`, `status`, `checkpoints`, `checkpoint`, `cancel`: jobs, seen from another process."""

from __future__ import annotations

from typing import Any

import click

from strobe.cli.live_view import checkpoint_table, human_bytes, human_ms, reasons, stage_table
from strobe.cli.output import Command, Session, common_options
from strobe.hosts.spark.control import call_job
from strobe.hosts.spark.home import is_live, read_runtime
from strobe.hosts.spark.metrics import progress_from_json, stage_from_json
from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import SnapshotId
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.locate import jobs_in
from strobe.store.snapshots import SnapshotStore

__all__ = ["cancel_command", "checkpoint_command", "checkpoints_command", "list_command", "status_command"]


@click.command("list", cls=Command, examples=(("strobe list", "the jobs of this home, and whether they run"),))
@common_options
def list_command(session: Session) -> None:
    """List the jobs of this home directory."""
    jobs = [_summary(session, job) for job in jobs_in(session.home)]
    if session.json:
        session.answer(jobs)
    elif not jobs:
        session.say(f"No job has run in {session.home}.")
    for job in jobs if not session.json else ():
        session.say(
            (f"{job['job']:<24}", "bold"), f"{job['state']:<12}",
            f"checkpoints {job['checkpoints'] or 'none'}", f"   started {job['started']}" if job["started"] else "",
        )  # fmt: skip


@click.command("status", cls=Command, examples=(("strobe status ledger", "the job, its stages, its checkpoints"),))
@click.argument("job")
@common_options
def status_command(job: str, session: Session) -> None:
    """Show a job: its stages and its recent checkpoints."""
    _check_known(session, job)
    if not is_live(session.home, job):
        summary = _summary(session, job)
        if session.json:
            session.answer(summary)
            return
        session.say((job, "bold"), f"  {summary['state']}  (not running)")
        if summary["error"]:
            session.say(("error: ", "red"), summary["error"])
        session.say(f"checkpoints: {', '.join(map(str, summary['checkpoints'])) or 'none'}")
        session.say("`strobe run` resumes it.")
        return
    status = call_job(session.home, job, "GET", "/v1/status")
    if session.json:
        session.answer(status)
        return
    session.say(
        (job, "bold"), f"  {status['state']}  {status['seconds']:.0f} s  pid {status['pid']}  "
        f"incarnation {status['incarnation']}  timeline {status['timeline']}",
    )  # fmt: skip
    stages = tuple(stage_from_json(s) for s in status["stages"])
    checkpoints = tuple(progress_from_json(p) for p in status["checkpoints"][-10:])
    session.console.print(stage_table(stages))
    session.console.print(checkpoint_table(checkpoints))
    for why in reasons(stages, checkpoints):
        session.console.print(why, soft_wrap=True)


@click.command(
    "checkpoints",
    cls=Command,
    examples=(("strobe checkpoints ledger", "which are kept, how large, how long they took"),),
)
@click.argument("job")
@common_options
def checkpoints_command(job: str, session: Session) -> None:
    """Show a job's checkpoints: those that are kept, and recent ones that failed."""
    _check_known(session, job)
    kept = [_kept(session, job, s) for s in _store(session, job).list()]
    recent: list[dict[str, Any]] = []
    if is_live(session.home, job):
        recent = call_job(session.home, job, "GET", "/v1/status")["checkpoints"]
    if session.json:
        session.answer({"job": job, "retained": kept, "recent": recent})
        return
    session.say(("retained", "bold"))
    for c in kept:
        if "damaged" in c:
            session.say((f"  {c['snapshot']:>6}  damaged: {c['damaged']}", "red"))
        else:
            session.say(
                f"  {c['snapshot']:>6}  {c['kind']}  {c['completed']}  {c['mode']}  "
                f"new {human_bytes(c['bytes_new'])} of {human_bytes(c['bytes_total'])}, "
                f"{c['rows_in_flight']:,} rows in flight"
            )
    if not kept:
        session.say("  none")
    if recent:
        session.say(("recent", "bold"))
        shown = tuple(progress_from_json(p) for p in recent[-20:])
        session.console.print(checkpoint_table(shown))
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
    session.say(
        f"checkpoint {done['snapshot']} of {job} is complete: {human_ms(done['duration_ms'])}, "
        f"new {human_bytes(done['bytes_new'])} of {human_bytes(done['bytes_total'])}"
    )
    session.say(f"next: strobe inspect {job}/{done['snapshot']}   strobe verify {job}/{done['snapshot']}")


@click.command("cancel", cls=Command, examples=(("strobe cancel ledger", "end the job"),))
@click.argument("job")
@common_options
def cancel_command(job: str, session: Session) -> None:
    """End a job. Its checkpoints are kept unless the pipeline says otherwise."""
    _check_live(session, job)
    answer = call_job(session.home, job, "POST", "/v1/cancel", timeout=None)
    if session.json:
        session.answer(answer)
    else:
        session.say(f"{job} is canceled.")


def _store(session: Session, job: str) -> SnapshotStore:
    return SnapshotStore(FilesystemStore(session.home), JobLayout(job), job)


def _summary(session: Session, job: str) -> dict[str, Json]:
    try:
        runtime = read_runtime(session.home, job) or {}
    except StrobeError as error:
        runtime = {"error": error.what}
    live = is_live(session.home, job)
    state = runtime.get("state", "unknown")
    if not live and state in ("starting", "running"):
        state = "dead"  # its driver was killed: it could not say so itself
    return {
        "job": job,
        "state": state,
        "live": live,
        "pid": runtime.get("pid"),
        "started": runtime.get("started", ""),
        "error": runtime.get("error", ""),
        "incarnation": runtime.get("incarnation"),
        "checkpoints": list(_store(session, job).list()),
    }


def _kept(session: Session, job: str, snapshot: SnapshotId) -> dict[str, Json]:
    try:
        manifest = _store(session, job).load(snapshot)
    except StrobeError as error:
        return {"snapshot": snapshot, "damaged": error.what}
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
    }


def _check_known(session: Session, job: str) -> None:
    if job not in jobs_in(session.home):
        known = ", ".join(jobs_in(session.home)) or "none"
        raise Misuse(
            f"There is no job {job!r} in {session.home}.",
            untouched="Nothing was changed.",
            next=f"The jobs there: {known}. Another home: --home DIR.",
        )


def _check_live(session: Session, job: str) -> None:
    _check_known(session, job)
    if not is_live(session.home, job):
        raise Misuse(
            f"Job {job!r} is not running.", untouched="Nothing was changed.", next="Start it with `strobe run`."
        )
