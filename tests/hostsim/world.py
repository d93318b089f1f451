"""One schedule: a job from its first start to its end, with whatever the plan does to it.

A `Plan` is all that decides what happens: the same plan, the same trace. Its seed chooses who runs next; its faults say
at which step what breaks. When the last fault is over the job must come to its end by itself, as often as its driver is
started again, and the outside world must hold every row once.
"""

from __future__ import annotations

import errno
import gc
import logging
import tempfile
import traceback
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, cast

from pyspark.sql import DataFrame

import strobe
from strobe.hosts.spark.job.job import Job, JobState
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Fenced, Misuse, StrobeError
from strobe.store.holding import LEASE
from strobe.store.layout import MANIFEST
from tests.hostsim.bucket import Bucket
from tests.hostsim.disk import Disk
from tests.hostsim.install import installed
from tests.hostsim.laws import Laws
from tests.hostsim.orders import Order, Orders, is_savepoint
from tests.hostsim.scheduler import TICK, Process, Scheduler, Stuck
from tests.hostsim.sink import Outside, PlayedSink
from tests.hostsim.threads import Clock

__all__ = ["JOB", "SHAPES", "Break", "Fault", "Outcome", "Plan", "run"]

JOB = "job"
STEPS = 60_000  # within which a job must come to its end
FAILURES = 50  # in a row, more than any fault causes: a job that cannot complete a checkpoint ends, and says why
_AGAIN = 0.5  # seconds until a driver that ended is started again

# What each stage reads, and whether it has a sink.
SHAPES: dict[str, dict[str, tuple[tuple[str, ...], bool]]] = {
    "line": {"a": ((), False), "b": (("a",), True)},
    "chain": {"a": ((), False), "b": (("a",), False), "c": (("b",), True)},
    "join": {"a": ((), False), "b": ((), False), "c": (("a", "b"), True)},
    "diamond": {"a": ((), False), "b": (("a",), False), "c": (("a",), False), "d": (("b", "c"), True)},
    "sinks": {"a": ((), True), "b": (("a",), True)},
}


class Break(Enum):
    KILL = "the driver is killed"
    POWER = "power fails"
    STATE = "power fails, and takes what Spark has written of its state, and nothing else"
    SUSPEND = "the driver stands still until another one has taken over, and then goes on"
    RIVAL = "a second driver is started"
    ROOM = "there is no room on the disk"
    DISK = "the disk has errors"
    SINK = "the system behind the sink does not answer"
    STOP = "the job is stopped in an orderly way"
    SAVEPOINT = "a savepoint is ordered"
    STOP_SAVING = "the job is stopped with a savepoint"
    DRAIN = "the job is drained, and stopped with a savepoint"
    BUCKET = "requests to the bucket fail"
    LATE = "a put to the bucket is given up, and carried out later"
    STALL = "one thread waits for its disk, and all others go on"


@dataclass(frozen=True)
class Fault:
    """What breaks at which step, or at the first step from there on whose name has `at` in it. `size`: for how many
    requests, or steps (of a stall: as much time as so many take)."""

    step: int
    what: Break
    size: int = 1
    at: str = ""


@dataclass(frozen=True)
class Plan:
    seed: int
    shape: str = "line"
    bucket: bool = False  # whether checkpoints go there
    mode: str = "aligned"
    rows: int = 8
    retained: int = 1
    concurrent: int = 1
    interval: float = 0.1
    switching: float = 0.2
    faults: tuple[Fault, ...] = ()
    quiet_after: int | None = None


@dataclass
class Outcome:
    """`violation` is empty if all laws hold."""

    plan: Plan
    violation: str = ""
    steps: int = 0
    drivers: int = 0
    snapshots: int = 0
    trace: list[str] = field(default_factory=list)


@dataclass(eq=False)
class _Driver:
    process: Process
    job: Job
    refused: int  # how often anything was, before it was started
    over: bool = False
    error: StrobeError | None = None
    restoring: str | None = None
    order: Order | None = None  # which ends it


def run(plan: Plan, root: Path | None = None, *, trace: bool = False) -> Outcome:
    """Below `root`, or in memory."""
    if root is None:
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(prefix="strobe-hostsim-", dir=memory if memory.is_dir() else None) as scratch:
            return run(plan, Path(scratch).resolve(), trace=trace)
    return _World(plan, root, trace=trace).run()


class _World:
    def __init__(self, plan: Plan, root: Path, *, trace: bool) -> None:
        self.plan = plan
        self.home = root / "strobe-home"
        self.base = root / "base"
        self.base.mkdir()
        self.home.mkdir()
        self.scheduler = Scheduler(plan.seed, switching=plan.switching, quiet_after=plan.quiet_after)
        self.scheduler.trace = [] if trace else None
        self.scheduler.at_step = self._at_step
        self.disk = Disk(self.scheduler, root)
        self.bucket = Bucket(self.scheduler)
        self.outside = Outside(self.scheduler)
        self.faults = sorted(plan.faults, key=lambda f: f.step)
        self.drivers: list[_Driver] = []
        self.finished = False
        self.powerless = False  # power fails now
        self.taken = ""  # by that: the contents of which files; if empty, as the seed says
        self.power_failures = 0
        self.resumed: list[tuple[int, Process]] = []  # who goes on at which step
        self.stopping: set[Process] = set()
        self.laws = Laws(
            self.home, JOB, SHAPES[plan.shape], plan.rows, self.disk, self.bucket if plan.bucket else None,
            self.outside, self.scheduler,
        )  # fmt: skip
        self.orders = Orders(self.home, self.base, self.disk, self.bucket, self.outside, self.laws)
        self.disk.on_named = self._named
        self.disk.on_removed = self.laws.at_removed
        self.bucket.on_put = self._put
        self.outside.on_commit = self.laws.at_commit

    def run(self) -> Outcome:
        logging.disable(logging.CRITICAL)
        gc.disable()  # it would run destructors in the middle of any task
        outcome = Outcome(self.plan)
        try:
            with installed(self.scheduler, self.disk, self.bucket, self._supply):
                try:
                    self.scheduler.start(Process("world"), "supervisor", self._supervise)
                    self.scheduler.run(self._is_over, steps=STEPS)
                    self.laws.at_end(quiet=not self.plan.faults)
                    self.orders.at_rest()
                except Stuck as error:
                    self.laws.found.append(f"law 2: {error}")
                except Exception:
                    self.laws.found.append(f"a thread ended: {traceback.format_exc()}")
                finally:
                    self.scheduler.close()
                    for driver in self.drivers:
                        self._close_handles(driver.process)
        finally:
            gc.enable()
            logging.disable(logging.NOTSET)
        outcome.violation = self.laws.found[0] if self.laws.found else ""
        outcome.steps, outcome.drivers = self.scheduler.steps, len(self.drivers)
        outcome.snapshots = len(self.laws.completed)
        outcome.trace = self.scheduler.trace or []
        return outcome

    def _is_over(self) -> bool:
        if self.powerless and not self.laws.found:
            self._restore_power()
        return self.finished or bool(self.laws.found)

    def _supply(self, uid: str) -> tuple[int, bool]:
        """A row comes about every 20 ms."""
        first = self.scheduler.now - self.laws.began
        there = min(self.plan.rows, 1 + int(first / 0.02))
        return there, there < self.plan.rows

    # ── drivers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _supervise(self) -> None:
        """Whoever runs `strobe run` again and again, and `strobe run -s` when it says that something is damaged."""
        restore: str | None = None
        savepoint: str | None = None
        while not self._any_finished():
            driver = self._start(snapshot=savepoint or restore)
            self._await(driver)
            if driver.process.suspended:
                self.scheduler.sleep(LEASE + 1)
            elif driver.process.dead:
                self.laws.at_rest()
                self.orders.at_rest()
            restore = self._to_be_restored(driver) if driver.over else None
            savepoint = self._stopped_with(driver)
            if savepoint is None:
                self.scheduler.sleep(_AGAIN)
        for driver in self.drivers:
            driver.process.suspended = False
        self.scheduler.wait(lambda: all(d.over or d.process.dead for d in self.drivers), 100 * LEASE)
        self.finished = True

    def _stopped_with(self, driver: _Driver) -> str | None:
        """The savepoint from which the job is to go on that has just ended with it."""
        order = driver.order
        if order is None or not order.done or not driver.over or driver is not self.drivers[-1]:
            return None
        self.orders.at_stop(order, driver.job, SHAPES[self.plan.shape])
        return order.place if order.restores else None

    def _await(self, driver: _Driver) -> None:
        """Until it has ended, however, or stands still, or another one has finished the job."""
        self.scheduler.wait(
            lambda: driver.over or driver.process.dead or driver.process.suspended or self._any_finished()
        )

    def _any_finished(self) -> bool:
        return any(d.job.state is JobState.FINISHED and (d.over or d.process.dead) for d in self.drivers)

    def _to_be_restored(self, driver: _Driver) -> str | None:
        """After a loss of power a job may have to go back to its newest snapshot: what Spark writes is not synced. At
        no other time; but a restore that was refused is tried again."""
        error, failed = driver.error, driver.job.state is JobState.FAILED
        if isinstance(error, Fenced) or (isinstance(error, Misuse) and "already running" in error.what):
            return driver.restoring
        if not (error or failed):
            return None
        if self.refused != driver.refused:
            return driver.restoring  # it was told why, and is tried again
        why = str(error or driver.job.error)
        newest = max(self.laws.snapshots(), default=0)
        if not self.power_failures:
            self.laws.found.append(f"law 5: nothing was lost, and the job does not start: {why}")
        elif (savepoint := self.orders.newest(than=newest)) not in (None, driver.restoring):
            return savepoint
        elif not newest and not driver.restoring:
            self._begin_again(why)
            return None
        elif driver.restoring:
            self.laws.found.append(f"law 5: a complete snapshot cannot be restored: {why}")
        return JOB

    @property
    def refused(self) -> int:
        """How often disk and outside world have refused something."""
        return self.disk.refused + self.outside.refused + self.bucket.refused

    def _begin_again(self, why: str) -> None:
        """There is no snapshot, and Spark's own files are damaged: a new job, if nobody has seen anything of it."""
        if self.outside.visible:
            self.laws.found.append(f"law 4: rows are visible, there is no snapshot, and the job does not start: {why}")
        self.disk.remove(self.home)
        self.outside.prepared.clear()
        self.bucket.objects.clear()
        self.laws.begin_again()

    def _start(self, snapshot: str | None = None) -> _Driver:
        number = len(self.drivers) + 1
        options = RestoreOptions(snapshot=snapshot)
        spark = cast(Any, object())
        job = Job(self._pipeline(), self.home, "local", self.base, spark, options, Clock(self.scheduler))
        driver = _Driver(Process(f"driver-{number}"), job, self.refused, restoring=snapshot)
        self.drivers.append(driver)
        self.scheduler.start(driver.process, "main", lambda: self._drive(driver))
        return driver

    def _drive(self, driver: _Driver) -> None:
        try:
            driver.job.start()
            self.laws.at_start(driver.process.name, driver.job.home.record.incarnation)
            self.scheduler.wait(lambda: driver.job._over.is_set() or driver.process in self.stopping)
            if not driver.job._over.is_set():
                driver.job.stop()
        except StrobeError as error:
            driver.error = error
        except Exception as error:
            self.laws.found.append(f"a start ended with a raw {type(error).__name__}: {traceback.format_exc()}")
        driver.over = True

    def _pipeline(self) -> strobe.Pipeline:
        plan = self.plan
        config = strobe.CheckpointConfig(
            interval=plan.interval, timeout=20.0, tolerable_failures=FAILURES, retained=plan.retained, mode=plan.mode,
            max_concurrent=plan.concurrent, alignment_timeout=0.05, store="s3://bucket/jobs" if plan.bucket else None,
        )  # fmt: skip
        restart = strobe.RestartPolicy(attempts=6, first_pause=0.05, longest_pause=0.5)
        pipeline = strobe.Pipeline(JOB, checkpoint=config, restart=restart, chain=False)  # only Spark can join plans
        for uid, (reads, has_sink) in SHAPES[plan.shape].items():
            to = [PlayedSink(self.outside)] if has_sink else []
            pipeline.stage(uid=uid, reads=reads or None, to=to)(_stage)
        return pipeline

    # ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _at_step(self, step: int, what: str) -> None:
        self.bucket.at_step(step)
        if self.resumed:
            for at, process in [r for r in self.resumed if r[0] <= step]:
                self.resumed.remove((at, process))
                process.suspended = False
        for fault in self.faults:
            if fault.step > step:
                break
            if fault.at in what:
                self.faults.remove(fault)
                self._break(fault)
                break

    def _break(self, fault: Fault) -> None:
        running = [d for d in self.drivers if not d.over and not d.process.dead and not d.process.suspended]
        process = running[-1].process if running else None
        match fault.what:
            case Break.KILL if process is not None:
                self._kill(process)
            case Break.POWER | Break.STATE:
                self.powerless = True
                self.taken = "/spark/state/" if fault.what is Break.STATE else ""
                for driver in self.drivers:
                    self._kill(driver.process)
            case Break.SUSPEND if process is not None:
                process.suspended = True
                self.resumed.append((self.scheduler.steps + fault.size, process))
            case Break.STOP if process is not None:
                self.stopping.add(process)
            case Break.SAVEPOINT | Break.STOP_SAVING | Break.DRAIN if process is not None:
                self._order(running[-1], fault)
            case Break.RIVAL:
                self._start()
            case Break.ROOM | Break.DISK:
                self.disk.refusals = fault.size
                self.disk.error = errno.ENOSPC if fault.what is Break.ROOM else errno.EIO
            case Break.BUCKET:
                self.bucket.refusals = fault.size
            case Break.LATE:
                self.bucket.lateness = 10 * fault.size
            case Break.SINK:
                self.outside.refusals = fault.size
            case Break.STALL:
                self.scheduler.sleep(fault.size * TICK)

    def _order(self, driver: _Driver, fault: Fault) -> None:
        drains, stops = fault.what is Break.DRAIN, fault.what is not Break.SAVEPOINT
        order = self.orders.new(fault.size, stops=stops, drains=drains, bucket=self.plan.bucket)
        driver.order = order if stops else driver.order
        self.scheduler.start(driver.process, "order", lambda: self.orders.carry_out(driver.job, order))

    def _kill(self, process: Process) -> None:
        self.scheduler.kill(process)
        self._close_handles(process)

    def _close_handles(self, process: Process) -> None:
        for handle in process.handles:
            self.disk.close_handle(handle)
        process.handles.clear()

    def _restore_power(self) -> None:
        """Called when no task runs."""
        self.powerless = False
        self.power_failures += 1
        self.scheduler.bury()
        self.disk.fail_power(takes=self.taken)

    def _put(self, store: str, key: str, data: bytes, by: str) -> None:
        if key == MANIFEST:
            self.orders.at_put(store, data, by)
        else:
            self.laws.at_put(key, data)

    def _named(self, path: str) -> None:
        current = self.scheduler.current
        if current is not None:
            try:
                self.laws.at_named(path, current.process.name)
                if path.endswith(f"/{MANIFEST}") and is_savepoint(path):
                    self.orders.at_named(Path(path))
            except Exception:  # the host would take it for its own
                self.laws.found.append(f"the laws could not be checked: {traceback.format_exc()}")


def _stage(**frames: DataFrame) -> DataFrame:
    """Nothing is computed here: the stand-in for Spark does."""
    raise NotImplementedError
