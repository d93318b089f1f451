"""`strobe run --supervise`: a driver that dies is started again.

The supervisor is a small process that runs the same command as a child and waits for it. A driver that ended well ends
it. One that was killed, or whose Spark was, or whose job has failed, is started again: it resumes. Between two starts
the supervisor waits, longer each time, and after `limit` failures in a row it gives up; after a driver that ran for a
while, earlier failures no longer count.

What cannot succeed the next time is not tried again: a wrong call, a bad pipeline file, a restore that is refused
(`Misuse`), damaged files. The first start of a detached job is not tried again either: the user who typed it is told.

*A restore happens once.* `-s` goes to the first driver. A later one is given it again only if the first one died before
the restore began, which the job's timeline tells; otherwise it resumes.

*Nothing is left behind.* What a dead driver has started (Spark's JVM, Python workers) is adopted by the supervisor and
must have ended, or is ended, before the next driver starts. If the supervisor itself dies, the driver stops the job.

*Signals* go on to the driver: it ends the job between two batches, as without a supervisor.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

import click

from strobe.cli.detach import Starter
from strobe.cli.output import ARGUMENTS
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.home.job_state import UNFINISHED
from strobe.hosts.spark.home.supervision import Supervision, SupervisorStatus, note_supervision
from strobe.model.backoff import backoff
from strobe.model.errors import Damaged, Failed, Misuse, StrobeError
from strobe.store.runtime import UNKNOWN, read_runtime
from strobe.store.times import utc_text

__all__ = [
    "HOPELESS",
    "SUPERVISED",
    "Backoff",
    "Supervised",
    "Supervisor",
    "obey_supervisor",
    "supervise",
    "supervisor_of",
]

_log = logging.getLogger("strobe.supervisor")
HOPELESS: Final = 78  # exit code of a driver that need not be started again, as in sysexits.h
SUPERVISED: Final = "STROBE_SUPERVISED"  # what the supervisor tells its driver
_MARK: Final = "STROBE_SUPERVISED_BY"  # inherited by everything that a driver starts
_MISUSE: Final = Misuse.exit_code
_LEFTOVERS: Final = 10.0  # seconds for what a dead driver had started to end by itself
_LOOK: Final = 0.05
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True, slots=True)
class Backoff:
    """When to start a driver again. After `limit` failures in a row it gives up. Pauses double from `first` to
    `longest`, in seconds; after a driver that ran for `healthy` seconds, earlier failures no longer count."""

    limit: int = 10
    first: float = 1.0
    longest: float = 60.0
    healthy: float = 600.0

    def pause(self, failures: int) -> float:
        return backoff(failures, self.first, self.longest)


@dataclass(frozen=True, slots=True)
class Supervised:
    """What a driver is told by its supervisor. `resume`: what the first driver was asked to do has begun, so only
    resume."""

    status: SupervisorStatus
    resume: bool


def supervise(
    job: str,
    home: Path,
    told: Starter,
    backoff: Backoff,
    tell: Callable[[str, str], None],
    *,
    capture: bool = False,
) -> int:
    """Run this very command as a driver, and again when it dies. Returns the last driver's code. `tell` is given the
    type and the words of what went wrong. `capture`: only the last driver's standard output is wanted."""
    arguments: list[str] = click.get_current_context().meta[ARGUMENTS]
    command = [sys.executable, "-P", "-m", "strobe.cli.main", "run", *arguments]
    with tempfile.TemporaryFile() if capture else contextlib.nullcontext() as output:
        code = Supervisor(job, home, command, told, backoff, tell, output).run()
        if output is not None:
            output.seek(0)
            sys.stdout.write(output.read().decode())
        return code


class Supervisor:
    def __init__(
        self,
        job: str,
        home: Path,
        command: Sequence[str],
        told: Starter,
        backoff: Backoff,
        tell: Callable[[str, str], None],
        output: IO[bytes] | None = None,
    ) -> None:
        """`command` runs a driver; it is given `--starter-pipe` besides."""
        self._output = output
        self._mark = f"{os.getpid()}.{time.time_ns()}"
        self._job, self._home, self._backoff, self._tell = job, home.absolute(), backoff, tell
        self._told: Starter | None = told
        self._command = list(command)
        self._timeline = self._memory_timeline()
        self._driver: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._status = SupervisorStatus(os.getpid(), 0, backoff.limit)

    def run(self) -> int:
        _adopt_orphans()
        with self._signals():
            failures = 0
            while True:
                began = time.monotonic()
                code, ran = self._drive(again=self._status.restarts > 0)
                left = _end_leftovers(f"{_MARK}={self._mark}".encode())
                if left:
                    _log.warning("ended what the driver had left: %s", ", ".join(map(str, left)))
                if code == 0 or self._stopping.is_set():
                    return max(code, 0)
                cause = self._cause(code)
                if code in (_MISUSE, HOPELESS) or (self._status.restarts == 0 and not ran and self._told_starter):
                    return code if code > 0 else 1
                failures = 1 if time.monotonic() - began >= self._backoff.healthy else failures + 1
                if failures > self._backoff.limit:
                    self._note(Supervision(self._status))
                    self._tell("job.given_up", f"{failures} failures in a row; the last: {cause}")
                    raise Failed(
                        f"The driver of job {self._job!r} died {failures} times in a row; the last time: {cause}",
                        untouched="Its checkpoints, channels and sinks are intact.",
                        next="Fix the cause and run it again: it resumes where it was.",
                    )
                self._wait(failures, cause)
                if self._stopping.is_set():
                    return 0

    def _wait(self, failures: int, cause: str) -> None:
        pause = self._backoff.pause(failures)
        self._status = replace(self._status, restarts=self._status.restarts + 1, cause=cause, at=utc_text(time.time()))
        self._note(Supervision(self._status, time.time() + pause))
        _log.warning(
            "job %s: %s; it starts again in %.0f s (%d of %d in a row)",
            self._job, cause, pause, failures, self._backoff.limit,
        )  # fmt: skip
        self._tell("job.restarted", cause)
        self._stopping.wait(pause)

    def _drive(self, *, again: bool) -> tuple[int, bool]:
        """One driver from start to end: its exit code, and whether the job ran."""
        listen, speak = os.pipe()
        told = {**asdict(self._status), "resume": again and self._restored}
        if self._output is not None:
            self._output.truncate(0)
            self._output.seek(0)
        try:
            driver = self._driver = subprocess.Popen(
                [*self._command, "--starter-pipe", str(speak)],
                pass_fds=(speak,),
                env={**os.environ, SUPERVISED: json.dumps(told), _MARK: self._mark},
                stdout=self._output,
                start_new_session=True,  # a Ctrl-C in the terminal is for the supervisor, which hands it on, once
            )
        finally:
            os.close(speak)
        if self._stopping.is_set():  # a signal came while it was being started
            driver.terminate()
        with os.fdopen(listen, "rb") as pipe:
            word = pipe.read()  # until the job runs, or it is known why not, or the driver is dead
        said: dict[str, Any] = json.loads(word) if word else {}
        self._pass_on(said)
        if said.get("running"):
            self._note(Supervision(self._status))
        return driver.wait(), bool(said.get("running"))

    def _pass_on(self, said: dict[str, Any]) -> None:
        """Tell whoever waits for the first start how it went."""
        if self._told is not None and said:
            self._told.pass_on(said)
            self._told = None

    @property
    def _told_starter(self) -> bool:
        """Whether somebody was waiting for the first start."""
        return "--starter-pipe" in self._command

    @property
    def _restored(self) -> bool:
        """Whether a restore, if one was asked for, has begun: the job finishes it by itself."""
        return self._memory_timeline() > self._timeline

    def _memory_timeline(self) -> int:
        home = JobHome(self._home, self._job)
        with contextlib.suppress(Damaged):
            home.peek()
        return home.record.timeline

    def _cause(self, code: int) -> str:
        if code < 0:
            return f"its driver was killed by signal {-code}"
        try:
            runtime = read_runtime(self._home, self._job) or UNKNOWN
        except StrobeError:
            runtime = UNKNOWN
        if runtime.state in UNFINISHED or not runtime.error:
            return f"its driver ended with code {code}"
        return runtime.error

    def _note(self, supervision: Supervision) -> None:
        note_supervision(self._home, self._job, supervision)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def hand_on(number: int, frame: FrameType | None) -> None:
            self._stopping.set()
            driver = self._driver
            if driver is not None and driver.poll() is None:
                driver.send_signal(signal.SIGTERM)

        before = {each: signal.signal(each, hand_on) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


# ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _prctl(option: int, value: int) -> None:
    """Call prctl. Linux only; elsewhere what a dead driver leaves ends by itself, as without a supervisor."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _adopt_orphans() -> None:
    """What a driver has started becomes a child of this process when the driver dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _children() -> list[int]:
    found: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, file.read_text().split())
    return found


def _end_leftovers(mark: bytes) -> list[int]:
    """Wait until no process of the dead driver is left. Those that do not end by themselves are ended, and returned.
    All that a driver starts carries the `mark` in its environment; what the supervisor itself starts does not."""
    deadline = time.monotonic() + _LEFTOVERS
    seen: set[int] = set()
    killed: set[int] = set()
    while True:
        seen.update(pid for pid in _children() if _is_marked(pid, mark))
        for pid in tuple(seen):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            seen.discard(pid)
        if not seen:
            return sorted(killed)
        if time.monotonic() > deadline:
            for pid in seen:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= seen
        time.sleep(_LOOK)


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


# ── in the driver ───────────────────────────────────────────────────────────────────────────────────────────────────


def supervisor_of(environment: MutableMapping[str, str]) -> Supervised | None:
    """Who supervises this process; None without one. It is taken out of the environment: no child of this process is a
    driver."""
    told = environment.pop(SUPERVISED, "")
    if not told:
        return None
    value = json.loads(told)
    resume = bool(value.pop("resume"))
    return Supervised(SupervisorStatus(**value), resume)


def obey_supervisor(supervisor: SupervisorStatus) -> None:
    """End this driver cleanly when its supervisor dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != supervisor.pid:  # it has died already
        os.kill(os.getpid(), signal.SIGTERM)
