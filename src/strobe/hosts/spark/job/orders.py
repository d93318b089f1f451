"""What people order a running job to do: a savepoint, a stop, a cancel. One at a time, never mixed.

Also a release of what invariants hold back, at any time.

A savepoint or stop that comes while another is under way is refused at once, and says which. A cancel is never refused:
it ends whatever is under way, and its caller gets an error. A savepoint whose manifest was written by then is
complete, and is answered as such.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.job.drain import Drain
from strobe.hosts.spark.snapshot.coordinator import CoordinatorHost
from strobe.hosts.spark.snapshot.savepoints import Savepoint, SnapshotStores
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind
from strobe.store.releases import Release

__all__ = ["Orders"]


class Orders:
    def __init__(
        self,
        job: str,
        coordinator: CoordinatorHost,
        stores: SnapshotStores,
        *,
        over: Callable[[], str | None],
        end: Callable[[], None],
        drain: Drain,
        release: Callable[[SnapshotId, str], Release],
    ) -> None:
        """`over` says what has become of a job that no longer runs; `end` ends it as stopped; `release` lets go."""
        self.release = release
        self._job = job
        self._coordinator = coordinator
        self._stores = stores
        self._over = over
        self._end = end
        self._drain = drain
        self._lock = threading.Lock()
        self._under_way = ""

    def savepoint(self, place: str | Path | None) -> Savepoint:
        with self._alone("savepoint"):
            return self._take(place, last=False)

    def stop(self, place: str | Path | None, *, drain: bool = False) -> Savepoint:
        """Take a savepoint after which no stage does anything more, then end the job. With `drain`: let the sources end
        and everything run through first, to the end of event time."""
        with self._alone("stop"):
            try:
                if drain:
                    self._stores.check(place, self._room())
                    self._drain.run()
                savepoint = self._take(place, last=True)
            except BaseException:
                if drain and self._over() is None:
                    self._drain.undo()
                raise
            crash_points.point("stop.savepoint-complete")
            self._end()
            return savepoint

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        with self._lock:
            over = self._over()
            if over is not None:
                raise _is_over(self._job, over)
            if self._under_way:
                raise Misuse(
                    f"Job {self._job!r} is busy: a {self._under_way} is under way.",
                    untouched=f"That {self._under_way} goes on; nothing else was started.",
                    next=f"Ask again when it is done: `strobe status {self._job}`.",
                )
            self._under_way = what
        try:
            yield
        finally:
            self._under_way = ""

    def _take(self, place: str | Path | None, *, last: bool) -> Savepoint:
        self._stores.order(place, self._room())
        try:
            self._coordinator.snapshot(Kind.SAVEPOINT, last=last)
        except StrobeError as error:
            if self._stores.completed is None:
                over = self._over()
                if over is not None:
                    raise Failed(
                        f"The savepoint was given up: job {self._job!r} was {over} meanwhile.",
                        untouched="Nothing is left of it; earlier snapshots are intact.",
                        next="Start the job again with `strobe run`.",
                    ) from error
                raise self._stores.failure or error from None
        finally:
            self._stores.settle()
        savepoint = self._stores.completed
        assert savepoint is not None
        return savepoint

    def _room(self) -> int:
        """About as much as the last snapshot held."""
        return next((p.bytes_total for p in reversed(self._coordinator.history) if p.status == "complete"), 0)


def _is_over(job: str, state: str) -> Failed:
    return Failed(
        f"Job {job!r} is {state}.", untouched="Nothing was changed.", next="Start it again with `strobe run`."
    )
