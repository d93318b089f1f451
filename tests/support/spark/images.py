"""Images of a job at its crash points: what a SIGKILL there would leave, without the death.

A driver runs a pipeline as `strobe run` does (`python -m tests.support.spark.images FILE …`). At each crash point
that its watcher waits for, it says so and stands still; the watcher stops every process of it, JVM and Python workers
included, copies its directory, and lets it go on. Nothing is flushed, closed or released, and a lock is not part of a
copy: the image is what a death of all of them at that moment leaves on the disk. Many images cost one driver. Each
is put back at the path where it was taken, and resumed from there, in the Spark session that the tests share.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark import crash_points
from tests.support.documents import ROOT
from tests.support.processes import family, fields

__all__ = ["Images", "WatchedDriver", "send", "stop_all"]

PATIENCE: Final = 180.0  # seconds; only a test that fails waits for so long
_GO: Final = "go"
_HEARD: Final = "heard"
_STANDS: Final = "TtZX"  # what /proc calls a thread that is stopped, or dead
_COMES_TO_A_STOP: Final = 2.0  # seconds


class WatchedDriver:
    """A driver in a process of its own, which stands still where it is told to."""

    def __init__(self, root: Path, *args: str, env: Mapping[str, str]) -> None:
        """Of the job in the directory `root`; what it prints goes beside that."""
        self._said = root.with_name(f"{root.name}.said")
        asks, answers = os.pipe(), os.pipe()
        with self._said.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark.images", str(answers[0]), str(asks[1]), *args],
                env={**os.environ, "PYTHONPATH": str(ROOT), **env}, stdout=said, stderr=said,
                pass_fds=(answers[0], asks[1]), start_new_session=True,
            )  # fmt: skip
        os.close(answers[0])
        os.close(asks[1])
        self._from: IO[str] = os.fdopen(asks[0])
        self._to: IO[str] = os.fdopen(answers[1], "w")
        self._stands = False

    def __enter__(self) -> WatchedDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._from.close()
        self._to.close()

    def reach(self, point: str, feed: Callable[[], object] = lambda: None) -> None:
        """Let it run until it stands at `point` (NAME or NAME@STAGE). It is told where before it goes on from where it
        stands, or it could be past that point. `feed` gives it something to do, for the same reason once it has heard
        that."""
        self._to.write(f"{point}\n{_GO}\n" if self._stands else f"{point}\n")
        self._to.flush()
        alarm = threading.Timer(PATIENCE, self.kill)
        alarm.start()
        try:
            said = [self._from.readline().strip()]
            if said[0]:  # else it has ended
                feed()
            said.append(self._from.readline().strip())
        finally:
            alarm.cancel()
        if sorted(said) != sorted((_HEARD, point)):  # it has ended
            pytest.fail(f"{point} was not reached (exit code {self.process.wait()}):\n{self.said()}", pytrace=False)
        self._stands = True

    def go_on(self) -> None:
        """From where it stands, and past every point."""
        self._to.write(f"{_GO}\n")
        self._to.flush()
        self._stands = False

    def kill(self) -> None:
        """SIGKILL, to driver and JVM."""
        send(family(self.process.pid), signal.SIGKILL)
        self.process.wait()

    def said(self) -> str:
        return self._said.read_text(errors="replace")[-3000:]


class Images:
    """The images of one job by their points, in the order in which they were taken."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.points: list[str] = []
        self._kept = root.with_name(f"{root.name}.images")
        self._kept.mkdir(exist_ok=True)  # of an earlier driver, too

    def take(self, driver: WatchedDriver, point: str, feed: Callable[[], object] = lambda: None) -> None:
        """At `point`, which the driver reaches now, as in `reach`; it stands there until it is to reach the next."""
        driver.reach(point, feed)
        with stopped(driver.process.pid):
            self.keep(point)
        self.points.append(point)

    def keep(self, name: str) -> None:
        """As it is now; nobody writes."""
        shutil.copytree(self.root, self._kept / name, symlinks=True)

    def put_back(self, name: str, spark: SparkSession) -> None:
        """To the path where it was taken, in place of what is there, to be resumed in `spark`. The driver must be dead.

        What ran at this path in the same JVM before is over, but its state stores are still looked after, now and then:
        that would write into the image. In a JVM of its own they would be gone.
        """
        jvm: Any = spark._jvm
        jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        shutil.rmtree(self.root)
        shutil.copytree(self._kept / name, self.root, symlinks=True)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Every process of the tree stands still."""
    while not (still := stop_all(pid)):
        continue
    try:
        yield
    finally:
        send(still, signal.SIGCONT)


def stop_all(pid: int) -> set[int]:
    """Stop the tree: which may have grown meanwhile, so until a look finds nothing new. Empty, and all of it goes on,
    if some thread does not come to a stop: it waits in the kernel for a child that it has just made and that stands."""
    still: set[int] = set()
    deadline = time.monotonic() + _COMES_TO_A_STOP
    while new := set(family(pid)) - still:
        send(new, signal.SIGSTOP)
        still |= new
        while any(state not in _STANDS for one in new for state in _threads(one)):
            if time.monotonic() > deadline:
                send(still, signal.SIGCONT)
                return set()
            time.sleep(0.001)
    return still


def _threads(pid: int) -> list[str]:
    """The state of each."""
    return [found[0] for path in Path(f"/proc/{pid}/task").glob("*/stat") if (found := fields(path))]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# ── in the driver ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Stops:
    """Stands at the points that the watcher names, one after the other; at the others it goes on."""

    def __init__(self, orders: IO[str], said: int) -> None:
        self._orders = orders
        self._said = said
        self._lock = threading.Lock()
        self._wanted = ""
        self._free = threading.Event()
        threading.Thread(target=self._listen, name="watcher", daemon=True).start()

    def _listen(self) -> None:
        for line in self._orders:
            if line.strip() == _GO:
                self._free.set()
            else:
                self._wanted = line.strip()
                self._say(_HEARD)
        os._exit(3)  # whoever watched is gone

    def point(self, name: str, stage: str = "") -> None:
        if self._wanted not in (name, f"{name}@{stage}"):
            return
        with self._lock:  # all that come by stand; the first one says so
            if self._wanted not in (name, f"{name}@{stage}"):
                return
            self._free.clear()
            reached, self._wanted = self._wanted, ""
            self._say(reached)
            self._free.wait()

    def _say(self, word: str) -> None:
        """From any thread, as a whole."""
        os.write(self._said, f"{word}\n".encode())


def _drive(orders: int, said: int, args: list[str]) -> None:
    from strobe.cli.main import main

    crash_points.point = _Stops(os.fdopen(orders), said).point
    main(args)


if __name__ == "__main__":
    _drive(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
