"""One case: a snapshot, something done to it, and every command that a person might give it to.

What must hold, whatever the snapshot says: the canaries and everything beside the case's own places are as they were;
commands that only look leave the snapshot as it was; each ends with exit code 0, 1 or 2 and no other error; nothing
that commands a terminal is printed; no command takes more than ten seconds; memory stays within bounds.

Seconds are of the processor, so that a machine with other work says the same; who waits for something gets a minute,
in which the time is not counted that others had the processor.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import resource
import shutil
import signal
import stat
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, Final, TypeAlias, cast

from pyspark.sql import SparkSession

from strobe.cli.main import main
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.restore.context import RestoreContext
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.restore.planning import plan_restore
from strobe.hosts.spark.restore.restore import restore_job
from strobe.hosts.spark.snapshot.export import export_snapshot
from strobe.model.errors import StrobeError
from strobe.store.locate import locate
from tests.hostile.mutations import hostile, mutate
from tests.hostile.world import DESCRIPTIONS, JOB, drafts, picture, pipeline, world_of

__all__ = ["WAYS", "Case", "FakeSpark", "Violation", "alarm", "cli", "look", "noted", "run_case", "told", "watched"]

SECONDS: Final = 10
WAITING: Final = 60
MEMORY: Final = 400 << 10  # kilobytes by which one case may raise the peak
_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SNAPSHOTS: Final = {
    "savepoint": "savepoint", "checkpoint": f"home/jobs/{JOB}/snapshots/chk-000005", "live": "live",
}  # fmt: skip


class Violation(AssertionError):
    """What a case did that it must not; begins with how to repeat it."""


_Pictures: TypeAlias = tuple[list[Any], list[Any], int]  # canaries, the case, and the peak of memory


class _TooLong(BaseException):
    pass


@dataclass(frozen=True)
class Case:
    root: Path  # a copy of the template
    snapshot: Path
    canary: Path
    scratch: Path  # where commands may write
    dice: random.Random


def run_case(seed: int, number: int, root: Path, some: int | None = None) -> str:
    """Raises Violation. `root` has `template` and `canary`. Gives the snapshot to all commands, or to `some` of them.
    Says what was done."""
    dice = random.Random(f"{seed}/{number}")
    place = root / "case"
    _remove(place)
    shutil.copytree(root / "template", world_of(root), symlinks=True)
    kind = dice.choice(list(_SNAPSHOTS))
    case = Case(world_of(root), world_of(root) / _SNAPSHOTS[kind], root / "canary", place / "scratch", dice)
    done = f"seed {seed}, case {number}: {kind}: {mutate(dice, case.snapshot, case.canary)}"
    chosen = sorted(dice.sample(range(len(WAYS)), len(WAYS) if some is None else some))
    before = look(case)
    for index in chosen:
        name, way = list(WAYS.items())[index]
        before = watched(name, way, case, done, before, changes=name == "dispose")
    return done


def watched(
    name: str, way: Callable[[Case], int], case: Case, done: str, before: _Pictures, *, changes: bool = False
) -> _Pictures:
    """`changes`: the command may change what it is given, by its nature."""
    _remove(case.scratch)
    case.scratch.mkdir()
    out, here = io.StringIO(), Path.cwd()
    os.chdir(case.scratch)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), alarm():
            code = way(case)
    except _TooLong as late:
        raise Violation(f"{done}\n{name} {late}") from None
    except Exception:
        raise Violation(f"{done}\n{name} ends with an error of its own:\n{traceback.format_exc()}") from None
    finally:
        os.chdir(here)
    noted(name, code)
    said, after = out.getvalue(), look(case)
    problems = (
        (code not in (0, 1, 2), f"exit code {code}"),
        ("Traceback" in said, "a traceback is printed"),
        (_COMMANDS.search(said) is not None, "what it prints commands the terminal"),
        (after[0] != before[0], "a canary was touched"),
        (not changes and after[1] != before[1], "the snapshot, or what lies beside it, was changed"),
        (after[2] - before[2] > MEMORY, "it takes too much memory"),
        (_strangers(case), "something was left beside the case"),
    )
    for wrong, what in problems:
        if wrong:
            raise Violation(f"{done}\n{name}: {what}\n{said[-3000:]!a}")
    return after


def look(case: Case) -> _Pictures:
    return picture(case.canary), _unleased(case), _peak()


def _unleased(case: Case) -> list[Any]:
    """A lease comes into the job's directory and goes again, which its time tells; everything in it is looked at."""
    place = str(case.root / "home" / "jobs" / JOB)
    return [each for each in picture(case.root) if each[0] != place]


def noted(name: str, code: int) -> None:
    """For those who want to know how often a command gets how far."""


# ── what people do with a snapshot ──────────────────────────────────────────────────────────────────────────────────


def cli(*args: str) -> Callable[[Case], int]:
    def run(case: Case) -> int:
        words = [str(case.snapshot) if word == "SNAPSHOT" else word for word in args]
        try:
            main([*words, "--home", str(case.root / "home")])
        except SystemExit as stopped:
            return int(stopped.code or 0)

    return run


def _plan(case: Case) -> int:
    return told(lambda: _planned(case, _options(case)).exit_code)


def _planned(case: Case, options: RestoreOptions) -> Any:
    home, declared = JobHome(case.scratch / "home", JOB), pipeline()
    home.peek()
    found = locate(str(case.snapshot), case.root / "home")
    return plan_restore(
        RestoreContext(declared, drafts(declared), DESCRIPTIONS, home, case.scratch / "base", options), found
    )


def _options(case: Case) -> RestoreOptions:
    allowed = (str(case.root / "theirs"),) if case.dice.random() < 0.8 else ()
    return RestoreOptions(str(case.snapshot), sinks_from=allowed)


def _restore(case: Case) -> int:
    """Everything of a restore but Spark's part of it: files laid out, channels filled, sinks copied."""

    def run() -> int:
        options = replace(_options(case), sinks_from=(str(case.root / "theirs"),))
        declared, home = pipeline(), JobHome(case.scratch / "home", JOB)
        home.claim(lambda reason: None)
        try:
            base = case.scratch / "base"
            job = RestoreContext(declared, drafts(declared), DESCRIPTIONS, home, base, options)
            restore_job(job, cast(SparkSession, None))
        finally:
            home.release()
        return 0

    return told(run)


def _export(case: Case) -> int:
    """Names of operators come from the state's metadata, by way of Spark."""
    names = [hostile(case.dice, case.canary, text=True) for _ in range(3)]
    if case.dice.random() < 0.5:
        names[0] = f"x/{'../' * 40}{str(case.canary / 'empty')[1:]}"
    row = SimpleNamespace(operatorId=0, operatorName=names[0], stateStoreName=names[1], asDict=lambda: {})

    def run() -> int:
        found = locate(str(case.snapshot), case.root / "home")
        spark = cast(SparkSession, FakeSpark([row], case.scratch / "there" / "state" / "balances" / "0-x"))
        written = export_snapshot(found, case.scratch / "there", case.root / "home", spark)
        return 1 if any(each.error for each in written) else 0

    return told(run)


class FakeSpark:
    """Reads the metadata that it is given, and no state. `made` is what another operator's state has left there."""

    def __init__(self, rows: list[Any], made: Path) -> None:
        self._rows = rows
        self._made = made
        self._format = ""

    @property
    def read(self) -> FakeSpark:
        return self

    def format(self, name: str) -> FakeSpark:
        self._format = name
        return self

    def options(self, **options: str) -> FakeSpark:
        return self

    def load(self, path: str) -> FakeSpark:
        if self._format == "statestore":
            self._made.mkdir(parents=True, exist_ok=True)
            raise RuntimeError("no state here")
        return self

    def select(self, *names: str) -> FakeSpark:
        return self

    def collect(self) -> list[Any]:
        return self._rows


def told(run: Callable[[], int]) -> int:
    """As the command line does it."""
    try:
        return run()
    except StrobeError as error:
        return error.exit_code


WAYS: Final[dict[str, Callable[[Case], int]]] = {
    "inspect": cli("inspect", "SNAPSHOT"),
    "inspect --json": cli("inspect", "SNAPSHOT", "--json"),
    "verify": cli("verify", "SNAPSHOT"),
    "verify --json": cli("verify", "SNAPSHOT", "--json"),
    "transactions": cli("transactions", "SNAPSHOT"),
    "sql .tables": cli("sql", "SNAPSHOT", ".tables"),
    "sql .schema": cli("sql", "SNAPSHOT", ".schema"),
    "sql state": cli("sql", "SNAPSHOT", "from state.balances__1"),
    "sql strange state": cli("sql", "SNAPSHOT", "from state.balances"),
    "sql state of a node": cli("sql", "SNAPSHOT", "from state.a", "--format", "csv"),
    "sql in flight": cli("sql", "SNAPSHOT", "from in_flight.postings", "--format", "markdown"),
    "sql messages": cli("sql", "SNAPSHOT", "from in_flight.messages", "--json"),
    "sql channel": cli("sql", "SNAPSHOT", "from channel.postings"),
    "sql table": cli("sql", "SNAPSHOT", "from sink.balances"),
    "sql files": cli("sql", "SNAPSHOT", "from sink.postings"),
    "sql meta": cli("sql", "SNAPSHOT", "select * from meta.snapshot, meta.stages, meta.sinks, meta.sources"),
    "diff": cli("diff", "SNAPSHOT", "SNAPSHOT"),
    "plan": _plan,
    "restore": _restore,
    "export": _export,
    "checkpoints": cli("checkpoints", JOB),
    "dispose": cli("dispose", "SNAPSHOT"),
}


# ── the watch ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def alarm() -> Iterator[None]:
    began, starved = time.monotonic(), _starved()

    def late(number: int, frame: FrameType | None) -> None:
        raise _TooLong(f"takes more than {SECONDS} s of the processor")

    def ring(number: int, frame: FrameType | None) -> None:
        lost = max((wait - starved.get(thread, 0.0) for thread, wait in _starved().items()), default=0.0)
        left = WAITING + lost - (time.monotonic() - began)
        if left <= 0:
            raise _TooLong(f"takes more than {WAITING} s by the clock")
        signal.setitimer(signal.ITIMER_REAL, left)

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, SECONDS, late), (signal.ITIMER_REAL, signal.SIGALRM, WAITING, ring))
    before = [signal.signal(number, handler) for _, number, _, handler in timers]
    for timer, _, seconds, _ in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (timer, number, _, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def _starved() -> dict[str, float]:
    """For how many seconds each thread was ready to run while others had the processor; nothing where Linux does not
    say so. A run that yields to everything else must not take that for a command that hangs."""
    found = {}
    for thread in Path("/proc/self/task").glob("*"):
        with contextlib.suppress(OSError, LookupError):
            found[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _strangers(case: Case) -> bool:
    above = case.canary.parent
    allowed = {
        above: {"template", "canary", "case"},
        above / "case": {"world", "scratch"},
        case.scratch: {"home", "base", "there"},
        case.scratch / "base": {"out"},
        case.scratch / "base" / "out": {"table", ".table.restoring", "files"},
    }
    return any({p.name for p in place.iterdir()} - names for place, names in allowed.items() if place.is_dir())


def _remove(path: Path) -> None:
    if path.is_dir() and not stat.S_ISLNK(os.lstat(path).st_mode):
        shutil.rmtree(path)
