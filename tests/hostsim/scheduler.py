"""Who runs next: one thread at a time, chosen by a seed, on a clock that moves only when nobody has anything to do.

A *task* is a thread of the host as a greenlet. A *process* is a driver: its tasks die together, or stand still together
(SIGSTOP). A task gives way at *points*: before each system call that changes something, where it waits, and where it
starts another. What happens between two points happens at once, as far as others can see.

A process that was killed does nothing more: whatever its tasks are about to do at a point raises `Killed`, also in the
clean-up code that a real SIGKILL would not run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

__all__ = ["EPOCH", "TICK", "Killed", "Process", "Scheduler", "Stuck", "Task"]

EPOCH = 1_900_000_000.0
TICK = 0.0005  # seconds that a step takes


class Killed(BaseException):
    """The process of this task is gone."""


class Stuck(AssertionError):
    """Nobody can go on, or nothing comes to an end."""


@dataclass(eq=False)
class Process:
    name: str
    dead: bool = False
    suspended: bool = False
    handles: set[int] = field(default_factory=set)  # open files, which the kernel closes at its death


@dataclass(eq=False)
class Task:
    name: str
    process: Process
    glet: greenlet
    ready: Callable[[], bool] | None = None  # what it waits for
    deadline: float | None = None
    over: bool = False
    thread: object = None  # what the host has of it


class Scheduler:
    def __init__(self, seed: int, *, switching: float = 0.2, quiet_after: int | None = None) -> None:
        """`switching`: how often a point hands over to another task. From step `quiet_after` on, only where somebody
        waits."""
        self.rng = random.Random(seed)
        self.switching = switching
        self.quiet_after = quiet_after
        self.now = EPOCH
        self.steps = 0
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.trace: list[str] | None = None
        self.at_step: Callable[[int, str], None] = lambda step, what: None
        self._main = getcurrent()
        self.failure: BaseException | None = None
        self._ended = False  # some task is over, or its process dead

    # ── called by tasks ─────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, process: Process, name: str, act: Callable[[], Any]) -> Task:
        def run() -> None:
            try:
                act()
            except Killed:
                pass
            except BaseException as error:
                self.failure = self.failure or error
            finally:
                task.over = self._ended = True

        task = Task(name, process, greenlet(run, parent=self._main))
        self.tasks.append(task)
        return task

    def point(self, what: str) -> None:
        """Something is about to be done that others can see."""
        task = self.current
        if task is None:
            return
        self._step(task, what)
        noisy = self.quiet_after is None or self.steps < self.quiet_after
        if task.process.suspended or (noisy and self.rng.random() < self.switching):
            self._main.switch()
            if task.process.dead:
                raise Killed

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Until `ready`, or the time is up. Whether it is ready."""
        task = self.current
        if task is None:
            if ready():
                return True
            raise Stuck("nobody who is simulated may wait here")
        if task.process.dead:
            raise Killed
        if timeout is not None and timeout <= 0:
            return ready()
        task.ready = ready
        task.deadline = None if timeout is None else self.now + timeout
        self._main.switch()
        task.ready = task.deadline = None
        if task.process.dead:
            raise Killed
        return ready()

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, max(seconds, 1e-6))

    def _step(self, task: Task, what: str) -> None:
        if task.process.dead:
            raise Killed
        self.steps += 1
        self.now += TICK
        if self.trace is not None:
            self.trace.append(f"{self.steps:6d} {self.now - EPOCH:9.4f} {task.process.name}/{task.name}: {what}")
        self.at_step(self.steps, f"{task.name}: {what}")
        if task.process.dead:
            raise Killed

    # ── called by whoever runs the simulation ───────────────────────────────────────────────────────────────────────

    def run(self, until: Callable[[], bool], *, steps: int) -> None:
        """Until so, but no longer than `steps` steps more."""
        last, turns = self.steps + steps, 0
        while not until():
            turns += 1
            if self.steps > last or turns > 20 * steps:
                raise Stuck(f"it did not come to an end within {steps} steps; waiting: {self._waiting()}")
            task = self._next()
            self._resume(task)

    def kill(self, process: Process) -> None:
        """From whichever task, its own included. Its tasks are unwound when they would run next."""
        process.dead = self._ended = True
        process.suspended = False

    def bury(self) -> None:
        """Unwind the tasks of processes that are dead; not to be called by a task."""
        self._ended = False
        for task in [t for t in self.tasks if t.process.dead and not t.over]:
            if task.glet:
                self._resume(task)
            task.over = True
        self.tasks = [t for t in self.tasks if not t.over]

    def close(self) -> None:
        for task in self.tasks:
            task.process.dead = True
        self.bury()

    def _next(self) -> Task:
        if self._ended:
            self.bury()
        ready = [t for t in self.tasks if self._is_ready(t)]
        if not ready:
            times = [t.deadline for t in self.tasks if t.deadline is not None and not t.process.suspended]
            if not times:
                raise Stuck(f"nobody can go on: {self._waiting()}")
            self.now = max(self.now, min(times))
            ready = [t for t in self.tasks if self._is_ready(t)]
        return ready[0] if len(ready) == 1 else ready[int(self.rng.random() * len(ready))]

    def _is_ready(self, task: Task) -> bool:
        if task.over or task.process.suspended:
            return False
        if task.ready is None or (task.deadline is not None and task.deadline <= self.now):
            return True
        return task.ready()

    def _resume(self, task: Task) -> None:
        before, self.current = self.current, task
        try:
            task.glet.switch()
        finally:
            self.current = before
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def _waiting(self) -> str:
        return ", ".join(f"{t.process.name}/{t.name}" for t in self.tasks if not t.over)
