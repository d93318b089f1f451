"""Stops a process full of drivers, has others finish their jobs, continues it, and looks at what has changed.

What a driver that was given up does must not be seen: no file of the job or of its outputs is changed or deleted, and
none comes that anybody would read. It may still write where nobody looks: into the Spark checkpoints of its own
generation, files of rows that no log names, its own epoch in a bucket. Its leases are its own, like any reader's. It
may add a checkpoint of a channel's log, too: entries of a log are only ever added, so it says what they say.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from pyspark.sql import SparkSession

from strobe.model.ids import NodeId, Timeline
from strobe.store.fencing import current_layout
from strobe.store.layout import MANIFEST, SAVEPOINT_MARKER, JobLayout
from strobe.store.s3 import S3Store
from tests.support import waiting
from tests.support.documents import ROOT
from tests.support.processes import family
from tests.support.spark.images import send, stop_all
from tests.zombies.plays import PLAYS, Play

__all__ = ["differences", "everything", "haunt"]

PATIENCE = waiting.PATIENCE  # seconds for each step; only a test that fails waits for so long
AT_ONCE: Final = 3  # jobs that are finished side by side
_OF_A_CHANNEL: Final = r"home/jobs/[\w-]+/channels/[\w-]+/_delta_log/"
LONG_AGO: Final = 1_000_000_000  # no lease lasts so long


def haunt(
    points: Sequence[str],
    where: Path,
    session: Callable[[], SparkSession],
    stores: Mapping[str, str],
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, str]:
    """One process with a job at each of these points is stopped, given up and continued. Returns what was wrong, by
    point. `stores` are the buckets of those that have their checkpoints in one."""
    plays = {point: PLAYS[point](where / point, stores.get(point)) for point in points}
    for play in plays.values():
        play.root.mkdir(parents=True)
    wrong: dict[str, str] = {}
    with Process(where / "said", [[p, str(play.root), play.store or ""] for p, play in plays.items()]) as old:
        spark = session()  # while the other one starts, too
        old.hear("stands", points)
        old.stop()
        tell("all stand")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(_take_over, play, spark.newSession()) for play in plays.values()]:
                done.result()
        _close_state_stores(spark)
        seen = {point: everything(play) for point, play in plays.items()}
        tell("all jobs are finished by others")
        old.go_on()
        for point, reason in old.hear("fenced", points).items():
            assert "fenced off" in reason, reason
            tell(f"{point}: {reason}")
        old.hear("ended", points)
    for point, play in plays.items():
        if harm := differences(play, seen[point], everything(play)):
            wrong[point] = harm
            continue
        play.check()
        assert play.snapshots()
    return wrong


def _take_over(play: Play, spark: SparkSession) -> None:
    """Another driver finishes the job."""
    os.utime(play.home / "jobs" / play.name / "lock", (LONG_AGO, LONG_AGO))
    play.take_over(spark)
    play.check()
    assert play.snapshots()


def _close_state_stores(spark: SparkSession) -> None:
    """Spark looks after those of queries that are over, now and then, and would write what this looks for."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


# ── what there is ───────────────────────────────────────────────────────────────────────────────────────────────────


def everything(play: Play) -> dict[str, str]:
    """The hash of each file below the job's directory, and of each object in its bucket."""
    found = {
        str(path.relative_to(play.root)): _hash(path)
        for path in sorted(play.root.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    if play.store is not None:
        objects = S3Store(play.store)
        found |= {f"s3:{key}": hashlib.sha256(objects.get(key)).hexdigest() for key in objects.list("")}
    return found


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return "gone"


def differences(play: Play, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    changed = [f"deleted: {name}" for name in before if name not in after and not _nobodys(play, name)]
    changed += [f"changed: {n}" for n in before if n in after and before[n] != after[n] and not _nobodys(play, n)
                and not re.fullmatch(_OF_A_CHANNEL + "_last_checkpoint", n)]  # fmt: skip
    changed += [f"new: {name}" for name in after if name not in before and not _unread(play, name)]
    return "\n".join(changed)


def _nobodys(play: Play, name: str) -> bool:
    """Whether only the driver that was given up uses the file."""
    job = f"home/jobs/{play.name}"
    if name.startswith("s3:"):
        assert play.store is not None
        now = current_layout(S3Store(play.store), play.name)
        left = re.match(rf"s3:{now.root}/(snapshots|blobs|epoch-\d+)/", name) is not None
        return left and not name.startswith(f"s3:{now.checkpoints}")
    if name.startswith((f"{job}/logs/", f"{job}/leases/")) or name == "out/log":  # the diary of the tests' own sink
        return True
    if name == f"ordered/{SAVEPOINT_MARKER}" and not (play.root / "ordered" / MANIFEST).exists():
        return True  # it had taken the place, which nobody else could: it holds the lock
    memory = json.loads((play.root / job / "incarnation.json").read_bytes())
    found = re.match(rf"{job}/stages/([\w-]+)/[^/]+/spark/", name)
    if found is None:
        return False
    current = JobLayout(play.name).stage_checkpoint(
        NodeId(found[1]), Timeline(memory["timeline"]), memory.get("generation", 0)
    )
    return not name.startswith(f"home/{current}/")


def _unread(play: Play, name: str) -> bool:
    """Whether a new file is one that nobody reads: no log names it, and no driver looks there."""
    if _nobodys(play, name) or re.fullmatch(_OF_A_CHANNEL + r"(\d{20}\.checkpoint\.parquet|_last_checkpoint)", name):
        return True
    return "_delta_log" not in name and name.endswith((".parquet", ".parquet.crc", "_SUCCESS", ".crc"))


# ── the process ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Process:
    def __init__(self, said: Path, cases: list[list[str]]) -> None:
        said.parent.mkdir(parents=True, exist_ok=True)
        self._said = said
        asks, answers = os.pipe(), os.pipe()
        with said.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.zombies.host", str(answers[0]), str(asks[1]), json.dumps(cases)],
                env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=output, stderr=output,
                pass_fds=(answers[0], asks[1]), start_new_session=True,
            )  # fmt: skip
        os.close(answers[0])
        os.close(asks[1])
        self._from: IO[str] = os.fdopen(asks[0])
        self._to: IO[str] = os.fdopen(answers[1], "w")
        self._still: set[int] = set()
        self._heard: dict[str, dict[str, str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._kill()
        self._process.wait()
        self._from.close()
        self._to.close()

    def hear(self, what: str, points: Iterable[str]) -> dict[str, str]:
        """Until it has said so of all these points."""
        heard = self._heard.setdefault(what, {})
        alarm = threading.Timer(PATIENCE, self._kill)
        alarm.start()
        try:
            while missing := set(points) - set(heard):
                line = self._from.readline()
                assert line, f"never {what}: {', '.join(sorted(missing))}\n{self._said.read_text(errors='replace')}"
                word, point, *more = json.loads(line)
                assert word != "failed", f"{point}: {more}"
                self._heard.setdefault(word, {})[point] = "".join(more)
        finally:
            alarm.cancel()
        return heard

    def stop(self) -> None:
        """Every process of it stands still."""
        while not self._still:
            self._still = stop_all(self._process.pid)

    def go_on(self) -> None:
        """Everything at once, from where it stands."""
        self._to.write("go\n")
        self._to.flush()
        send(self._still, signal.SIGCONT)

    def _kill(self) -> None:
        send(family(self._process.pid), signal.SIGKILL)
