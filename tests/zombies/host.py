"""The process that is stopped: one Spark, and many jobs in it, each of which stands at a crash point of its own.

A driver that learns that it is fenced off ends its process at once. Here it only says so, and goes on trying: what it
has yet to do must be kept from it by the fence, not by a quick end. And one process can hold many jobs.

A job is told by the thread: what a thread starts belongs to the job that the thread belongs to.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import IO, Any

from pyspark.sql import DataFrame

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.job import job as job_module
from strobe.hosts.spark.job.job import JobState
from strobe.hosts.spark.jvm.session import POLLING_DELAY, spark_session
from strobe.hosts.spark.stage.writing import BatchWriting
from strobe.model.errors import StrobeError
from tests.support.waiting import PATIENCE
from tests.zombies.plays import PLAYS, Play, Stand


class Zombie:
    """One job: the point at which it will stand, and what has become of it."""

    def __init__(self, point: str, play: Play, said: Any) -> None:
        self.point, self.play, self._say = point, play, said
        self.armed = False
        self.fenced = threading.Event()
        self.go = threading.Event()
        self._lock = threading.Lock()
        self._stands = False
        self._stand = Stand()

    def arm(self) -> Stand:
        self.armed = True
        return self._stand

    def at(self, name: str) -> None:
        """All threads that come by after it was armed stand; the first one says so."""
        if not self.armed or name != self.point or self.go.is_set():
            return
        with self._lock:
            if not self._stands:
                self._stands = True
                self._stand.reach()
                self._say("stands", self.point)
        self.go.wait()

    def is_fenced(self, reason: str) -> None:
        if not self.fenced.is_set():
            self.fenced.set()
            self._say("fenced", self.point, reason)

    def live(self, spark: Any) -> None:
        try:
            self.play.live(spark, self.arm)
        except BaseException as error:
            if not self._stands:
                self._say("failed", self.point, "".join(traceback.format_exception(error)))

    def end(self) -> None:
        """Returns when no thread of the job does anything any more."""
        if (job := self.play.job) is not None:
            with contextlib.suppress(StrobeError):  # what it would still do at its end is refused, too
                job._finish(JobState.FAILED, "it is fenced off", said=True)
            assert job.wait(PATIENCE), f"{self.point}: it does not end"


class Host:
    def __init__(self, orders: IO[str], said: IO[str]) -> None:
        self._orders, self._said, self._lock = orders, said, threading.Lock()

    def say(self, *words: str) -> None:
        with self._lock:
            self._said.write(json.dumps(words) + "\n")
            self._said.flush()

    def run(self, cases: list[list[str]]) -> None:
        zombies = [Zombie(p, PLAYS[p](Path(root), store or None), self.say) for p, root, store in cases]
        self._watch()
        spark = spark_session("zombies", "local[4]", extra={POLLING_DELAY: "20ms"})
        threads = [threading.Thread(target=z.live, args=(spark.newSession(),), daemon=True) for z in zombies]
        for thread, zombie in zip(threads, zombies, strict=True):
            _mark(thread, zombie)
            thread.start()
        self._orders.readline()  # it comes while everything stands still
        faulthandler.dump_traceback_later(60, repeat=True)  # what it waits for, if it does not end
        for zombie in zombies:
            zombie.go.set()
        pairs = zip(zombies, threads, strict=True)
        ends = [threading.Thread(target=self._end, args=pair) for pair in pairs]
        for thread, zombie in zip(ends, zombies, strict=True):
            _mark(thread, zombie)
            thread.start()
        for thread in ends:
            thread.join()
        os._exit(0)

    def _end(self, zombie: Zombie, living: threading.Thread) -> None:
        if not zombie.fenced.wait(PATIENCE):
            self.say("failed", zombie.point, "it was never told that it is fenced off")
        living.join(PATIENCE)
        zombie.end()
        self.say("ended", zombie.point)

    def _watch(self) -> None:
        real_start, real_write = threading.Thread.start, BatchWriting.write
        real_init = BatchWriting.__init__

        def start(thread: threading.Thread) -> None:
            if _of(thread) is None and (mine := _of(threading.current_thread())) is not None:
                _mark(thread, mine)
            real_start(thread)

        def made(writing: BatchWriting, *args: Any, **named: Any) -> None:
            real_init(writing, *args, **named)
            _mark(writing, _of(threading.current_thread()))

        def write(writing: BatchWriting, batch: DataFrame, batch_id: int) -> None:
            _mark(threading.current_thread(), _of(writing))  # one of Spark's, which serves any job
            real_write(writing, batch, batch_id)

        def point(name: str, stage: str = "") -> None:
            zombie = _of(threading.current_thread())
            if zombie is not None:
                zombie.at(name)

        def fenced(reason: str) -> None:
            zombie = _of(threading.current_thread())
            assert zombie is not None, threading.current_thread()
            zombie.is_fenced(reason)

        threading.Thread.start = start  # type: ignore[method-assign, assignment]
        BatchWriting.__init__ = made  # type: ignore[method-assign, assignment]
        BatchWriting.write = write  # type: ignore[method-assign, assignment]
        crash_points.point = point
        job_module.end_at_once = fenced  # type: ignore[attr-defined]


def _mark(thing: object, zombie: Zombie | None) -> None:
    thing._zombie = zombie  # type: ignore[attr-defined]


def _of(thing: object) -> Zombie | None:
    found: Zombie | None = getattr(thing, "_zombie", None)
    return found


if __name__ == "__main__":
    Host(os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")).run(json.loads(sys.argv[3]))
