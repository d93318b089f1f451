"""`threading`, `queue` and thread pools as the host uses them, over the scheduler.

They take the place of these names in every module of the host that has them, so a module that starts to use threads is
simulated without being told. Nothing here can be seen by two tasks at once, so nothing needs a lock of its own.
"""

from __future__ import annotations

import queue as real_queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.hostsim.scheduler import Killed, Scheduler, Task

__all__ = ["Clock", "Pool", "SimQueue", "queue_module", "threading_module"]


class Clock:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now

    def time(self) -> float:
        return self._scheduler.now

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)

    def timer(self, seconds: float, act: Callable[[], None]) -> None:
        scheduler = self._scheduler
        assert scheduler.current is not None

        def later() -> None:
            scheduler.sleep(seconds)
            act()

        scheduler.start(scheduler.current.process, "timer", later)


class SimLock:
    """Re-entrant or not."""

    def __init__(self, scheduler: Scheduler, *, again: bool = False) -> None:
        self._scheduler, self._again = scheduler, again
        self.owner: Task | None = None
        self.depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._scheduler.current
        if me is None:
            return True
        if self._again and self.owner is me:
            self.depth += 1
            return True
        if self.owner is not None and not self._scheduler.wait(lambda: self.owner is None):
            return False
        self.owner, self.depth = me, 1
        return True

    def release(self) -> None:
        self.depth -= 1
        if self.depth <= 0:
            self.owner, self.depth = None, 0

    def locked(self) -> bool:
        return self.owner is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


class SimCondition:
    def __init__(self, scheduler: Scheduler, lock: SimLock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = lock or SimLock(scheduler, again=True)
        self._changes = 0

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        seen = self._changes
        return self._without_lock(lambda: self._changes != seen, timeout)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        return True if predicate() else self._without_lock(predicate, timeout)

    def notify_all(self) -> None:
        self._changes += 1

    notify = notify_all

    def _without_lock(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        owner, depth, lock = self._lock.owner, self._lock.depth, self._lock
        lock.owner, lock.depth = None, 0
        try:
            return self._scheduler.wait(lambda: ready() and lock.owner is None, timeout)
        finally:
            lock.owner, lock.depth = owner, depth


class SimEvent:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._set = scheduler, False

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or self._scheduler.wait(lambda: self._set, timeout)


class SimThread:
    def __init__(
        self,
        scheduler: Scheduler,
        target: Callable[..., Any],
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self._scheduler, self.name = scheduler, name
        self._act = partial(target, *args, **(kwargs or {}))
        self._task: Task | None = None

    def start(self) -> None:
        current = self._scheduler.current
        assert current is not None
        self._task = self._scheduler.start(current.process, self.name, self._act)
        self._task.thread = self
        self._scheduler.point(f"start {self.name}")

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.over

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            self._scheduler.wait(lambda: not self.is_alive(), timeout)


class SimQueue:
    def __init__(self, scheduler: Scheduler, *_: Any) -> None:
        self._scheduler, self._items = scheduler, deque[Any]()

    def put(self, item: Any) -> None:
        self._items.append(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and (not block or not self._scheduler.wait(lambda: bool(self._items), timeout)):
            raise real_queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items


class SimFuture:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.over, self.cancelled = False, False
        self.value: Any = None
        self.error: BaseException | None = None

    def result(self, timeout: float | None = None) -> Any:
        if not self.over and not self._scheduler.wait(lambda: self.over, timeout):
            raise TimeoutError
        if self.error is not None:
            raise self.error
        return self.value

    def cancel(self) -> bool:
        self.cancelled = True
        return not self.over


class Pool:
    """A ThreadPoolExecutor. Tasks come when there is work, and go with it."""

    def __init__(self, scheduler: Scheduler, max_workers: int, thread_name_prefix: str = "pool") -> None:
        self._scheduler, self._name, self._free = scheduler, thread_name_prefix, max_workers
        self._waiting = deque[tuple[SimFuture, Callable[[], Any]]]()
        self._running = 0
        self._closed = False

    def submit(self, act: Callable[..., Any], *args: Any) -> SimFuture:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = SimFuture(self._scheduler)
        self._waiting.append((future, lambda: act(*args)))
        if self._running < self._free:
            self._running += 1
            current = self._scheduler.current
            assert current is not None
            self._scheduler.start(current.process, f"{self._name}-{self._running}", self._work)
        return future

    def map(self, act: Callable[..., Any], items: Iterable[Any]) -> Iterator[Any]:
        return iter([f.result() for f in [self.submit(act, item) for item in items]])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        if cancel_futures:
            self._waiting.clear()
        if wait:
            self._scheduler.wait(lambda: not self._running)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def _work(self) -> None:
        try:
            while self._waiting:
                future, act = self._waiting.popleft()
                if future.cancelled:
                    continue
                try:
                    future.value = act()
                except Killed:
                    raise
                except BaseException as error:
                    future.error = error
                future.over = True
        finally:
            self._running -= 1


def threading_module(scheduler: Scheduler) -> SimpleNamespace:
    return SimpleNamespace(
        Thread=partial(SimThread, scheduler),
        Lock=lambda: SimLock(scheduler),
        RLock=lambda: SimLock(scheduler, again=True),
        Condition=lambda lock=None: SimCondition(scheduler, lock),
        Event=lambda: SimEvent(scheduler),
        current_thread=lambda: None if scheduler.current is None else scheduler.current.thread,
    )


def queue_module(scheduler: Scheduler) -> SimpleNamespace:
    def make(*_: Any) -> SimQueue:
        return SimQueue(scheduler)

    return SimpleNamespace(Queue=make, SimpleQueue=make, Empty=real_queue.Empty)
