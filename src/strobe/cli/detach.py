"""`strobe run -d`: the job in a process of its own, which outlives the terminal.

The child is the same command in a new session: no terminal, no signals meant for others, its output in the job's log.
It is given one end of a pipe and sends one message through it: the job runs, or why it does not. The parent tells the
user and exits with the child's code. A child that dies without a message is an error, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from strobe.cli.output import ARGUMENTS, Session
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.store.layout import JobLayout
from strobe.store.private import make_private, open_private

__all__ = ["Detached", "Starter", "run_detached", "show_detached", "starter"]


@dataclass(frozen=True, slots=True)
class Detached:
    """A job that runs in the background."""

    job: str
    pid: int
    log: Path


def run_detached(job: str, home: Path, command: tuple[str, ...] = ("run",)) -> Detached:
    """Run this very command in the background; returns when the job runs, raises the child's error if it does not."""
    arguments: list[str] = click.get_current_context().meta[ARGUMENTS]
    log = home.absolute() / JobLayout(job).driver_log
    told, tell = os.pipe()
    try:
        directory = home.absolute() / JobLayout(job).root
        if not directory.exists():
            make_private(directory)
        log.parent.mkdir(exist_ok=True)
        with open(log, "ab", opener=open_private) as output:
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "strobe.cli.main", *command, *arguments, "--starter-pipe", str(tell)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(tell,),
                start_new_session=True,
            )
    except OSError as error:
        os.close(told)
        raise Failed(
            f"Job {job!r} could not be started in the background: {error.strerror or error}.",
            untouched="Nothing was started.",
            next="Choose another --home, or make it writable.",
        ) from error
    finally:
        os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        word = pipe.read()  # until the child has sent its message, or has ended
    if not word:
        code = child.wait()
        raise Failed(
            f"The driver of job {job!r} ended with code {code} before the job ran.",
            untouched="What the job had done before is as it was.",
            next=f"Its log: {log}",
        )
    said: dict[str, Any] = json.loads(word)
    if "error" in said:
        child.wait()
        kind = Misuse if said["exit_code"] == 2 else Failed
        raise kind(said["error"], untouched=said["untouched"], next=said["next"])
    return Detached(job, child.pid, log)


def show_detached(session: Session, started: Detached) -> None:
    if session.json:
        session.answer({"job": started.job, "pid": started.pid, "log": str(started.log)})
        return
    session.say((started.job, "bold"), f" runs in the background as process {started.pid}.")
    session.say(("log  ", "bold"), str(started.log))
    session.say(f"next: strobe status {started.job}   strobe logs {started.job} -f   strobe stop {started.job}")


class Starter:
    """The child's end of the pipe: the process that started it waits for one message."""

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe

    def running(self) -> None:
        self._say({"running": True})

    def failed(self, error: StrobeError) -> None:
        self._say({"error": error.what, "untouched": error.untouched, "next": error.next, "exit_code": error.exit_code})

    def pass_on(self, word: dict[str, Any]) -> None:
        """Pass on the message of a process that this one has started."""
        self._say(word)

    def _say(self, word: dict[str, Any]) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            with contextlib.suppress(OSError), os.fdopen(pipe, "wb") as file:  # the starter may have ended
                file.write(json.dumps(word).encode())


@contextlib.contextmanager
def starter(pipe: int | None) -> Iterator[Starter]:
    """A context around everything that a run does. Without a pipe nothing is sent."""
    if pipe is not None:
        os.set_inheritable(pipe, False)  # Spark's processes must not keep it open
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    told = Starter(pipe)
    try:
        yield told
    except StrobeError as error:
        told.failed(error)
        raise
