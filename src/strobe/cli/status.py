"""`strobe status`: one job, once or again and again."""

from __future__ import annotations

import time
from dataclasses import asdict

import click
from rich.console import RenderableType
from rich.live import Live
from rich.text import Text

from strobe.cli.job_list import job_kind, newest_checkpoint
from strobe.cli.jobs import show_doubt
from strobe.cli.live_view import bad_files_line
from strobe.cli.operator_view import job_view
from strobe.cli.output import Command, Session, common_options
from strobe.hosts.spark.checkpoint.bad_files import BadFiles
from strobe.hosts.spark.checkpoint.stage_files import bad_files_on_disk
from strobe.hosts.spark.commit.holding import held_on_disk
from strobe.hosts.spark.home.listing import summarise
from strobe.hosts.spark.home.supervision import Supervision, read_supervision
from strobe.hosts.spark.job.control import call_job
from strobe.hosts.spark.snapshot.metrics import latest_bad_files, status_from_json
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.ids import NodeId
from strobe.store.holding import is_held
from strobe.store.jobs import check_known

__all__ = ["status_command"]

_EVERY = 1.0  # seconds between two looks
_PIPED_EVERY = 5.0  # where nothing can be overwritten
_CHECKPOINTS = 5  # while it is watched


@click.command(
    "status",
    cls=Command,
    examples=(
        ("strobe status ledger", "the job, its stages, its sinks, its checkpoints"),
        ("strobe status ledger --watch", "the same, kept up to date until Ctrl-C"),
    ),
)
@click.argument("job")
@click.option("--watch", "-w", is_flag=True, help="Keep it up to date until Ctrl-C, or until the job ends.")
@common_options
def status_command(job: str, watch: bool, session: Session) -> None:
    """Show a job: its stages, its sources and sinks, and its recent checkpoints."""
    check_known(session.home, job)
    if watch:
        if session.json:
            raise Misuse(
                "--watch shows a table, again and again; --json is one value.",
                next=f"Ask again when you want to know: `strobe status {job} --json`.",
            )
        _watch(job, session)
        return
    if not _runs(session, job):
        _show_summary(session, job)
        return
    status = call_job(session.home, job, "GET", "/v1/status")
    if session.json:
        session.answer(status)
        return
    session.console.print(job_view(status_from_json(status)))


def _runs(session: Session, job: str) -> bool:
    return job_kind(session, job) != "live" and is_held(session.home, job)


def _show_summary(session: Session, job: str) -> None:
    """Show a job that does not run, or that is a live system."""
    kind = job_kind(session, job)
    summary = {**asdict(summarise(session.home, job)), "kind": kind}
    supervision = read_supervision(session.home, job)
    bad = _bad_files(session, job) if kind != "live" else {}
    if session.json:
        held = held_on_disk(session.home, job) if kind != "live" else None
        session.answer({
            **summary, "supervisor": None if supervision is None else supervision.to_json(),
            "held": None if held is None else asdict(held),
            "bad_files": {
                uid: {"count": files.count, "latest": [asdict(file) for file in latest_bad_files(files)]}
                for uid, files in bad.items()
            },
        })  # fmt: skip
        return
    session.say((job, "bold"), f"  {summary['state']}", "" if summary["live"] else "  (not running)")
    if summary["error"]:
        session.say(("error: ", "red"), summary["error"])
    session.say(newest_checkpoint(job, summary["checkpoints"]))
    for uid, files in bad.items():
        session.console.print(bad_files_line(uid, files.count, latest_bad_files(files)[-1]), soft_wrap=True)
    if kind == "live":
        session.say(f"It is a system of live processes: `strobe live status {job}` shows its nodes.")
    else:
        show_doubt(session, job)
        session.say("`strobe run` resumes it." if supervision is None else supervised(supervision))


def _bad_files(session: Session, job: str) -> dict[NodeId, BadFiles]:
    try:
        return bad_files_on_disk(session.home, job)
    except (StrobeError, OSError):  # a damaged record, or another user's: `strobe run` says so
        return {}


def supervised(supervision: Supervision) -> str:
    """What the supervisor of a job that is not running will do."""
    status = supervision.status
    when = "" if supervision.next_start is None else f" in {max(0.0, supervision.next_start - time.time()):.0f} s"
    cause = f" Why: {status.cause}." if status.cause else ""
    return (
        f"Its supervisor, process {status.pid}, starts it{when}; restarts: {status.restarts}.{cause} "
        f"`kill {status.pid}` ends it for good."
    )


def _watch(job: str, session: Session) -> None:
    """Show it again and again, until the job is over, or until Ctrl-C, which is not an error here."""
    console = session.console
    try:
        if not console.is_terminal:
            while (view := _look(job, session)) is not None:
                console.print(view)
                time.sleep(_PIPED_EVERY)
        else:
            with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
                while (view := _look(job, session)) is not None:
                    live.update(view, refresh=True)
                    time.sleep(_EVERY)
    except KeyboardInterrupt:
        return
    _show_summary(session, job)


def _look(job: str, session: Session) -> RenderableType | None:
    """None if the job is not running. One that does not answer now may do so later, as may one with a supervisor."""
    if not _runs(session, job):
        supervision = read_supervision(session.home, job)
        return None if supervision is None else Text(supervised(supervision), style="yellow")
    try:
        status = call_job(session.home, job, "GET", "/v1/status")
    except Failed as error:
        return Text(str(error), style="yellow") if _runs(session, job) else _look(job, session)
    return job_view(status_from_json(status), _CHECKPOINTS)
