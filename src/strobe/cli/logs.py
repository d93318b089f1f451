"""`strobe logs`: what a job's driver has written."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import BinaryIO

import click

from strobe.cli.output import Command, Session, Whole, common_options, printable
from strobe.model.errors import Failed, Misuse
from strobe.store.holding import is_held
from strobe.store.jobs import check_known
from strobe.store.layout import JobLayout

__all__ = ["logs_command"]

_POLL = 0.2


@click.command(
    "logs",
    cls=Command,
    examples=(
        ("strobe logs ledger", "the last lines"),
        ("strobe logs ledger -f", "and what comes, until the job ends"),
        ("strobe logs ledger -n 1000", "more of them"),
    ),
)
@click.argument("job")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until the job ends.")
@click.option("--lines", "-n", type=Whole(0), default=50, show_default=True, metavar="N", help="How many lines.")
@common_options
def logs_command(job: str, follow: bool, lines: int, session: Session) -> None:
    """Show what a job's driver has logged. Spark's own log is spark.log beside it."""
    check_known(session.home, job)
    if follow and session.json:
        raise Misuse("--follow and --json do not go together: there is no end to what comes.", next="Leave one out.")
    path = session.home / JobLayout(job).driver_log
    try:
        with path.open("rb") as file:
            last = [line.decode(errors="replace").rstrip("\n") for line in deque(file, maxlen=lines)]
            if session.json:
                session.answer({"job": job, "log": str(path), "lines": last})
                return
            for line in last:
                click.echo(printable(line))
            if follow:
                _follow(file, session.home, job)
    except FileNotFoundError:
        raise Failed(
            f"Job {job!r} has no log: {path} is not there.", next="It is written by `strobe run` once the job starts."
        ) from None


def _follow(file: BinaryIO, home: Path, job: str) -> None:
    while True:
        live = is_held(home, job)  # asked before the file is read, so that what it wrote before its end is not missed
        while data := file.read(1 << 16):
            click.echo(printable(data.decode(errors="replace")), nl=False)
        if not live:
            return
        time.sleep(_POLL)
