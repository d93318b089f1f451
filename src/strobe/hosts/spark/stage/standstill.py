"""Whether a stage may begin another batch.

A stage that has been recorded for the savepoint that ends the job stands still: what it would do next belongs to
whoever goes on from that savepoint, and must not become visible here. A batch that Spark brings meanwhile waits in
front of the stage's function. If the savepoint is given up, it goes on; if the job ends, it is left for the next start.

That a snapshot is the last one is said by its barriers, so no stage can be recorded for it without knowing. It outlives
a restart of the stage: one that was recorded, failed and came back still stands.
"""

from __future__ import annotations

import threading

from strobe.model.ids import SnapshotId

__all__ = ["Standstill"]

_POLL = 0.1  # seconds between looks whether the stage was stopped meanwhile


class Standstill:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._recorded: SnapshotId | None = None
        self._last: int | None = None  # the last batch that the savepoint admits; None: all
        self._end: int | None = None  # the last batch of this life of the stage; None: it goes on

    @property
    def stands(self) -> bool:
        return self._last is not None or self._end is not None

    def admits(self, batch: int) -> bool:
        return all(last is None or batch <= last for last in (self._last, self._end))

    def recorded(self, snapshot: SnapshotId, batch: int) -> None:
        """The stage's part of `snapshot`, which is the last one, is its state after `batch`."""
        self._recorded, self._last = snapshot, batch

    def given_up(self, snapshot: SnapshotId) -> None:
        if snapshot == self._recorded:
            with self._changed:
                self._recorded = self._last = None
                self._changed.notify_all()

    def stand_after(self, batch: int) -> None:
        """Stand still after this batch, whatever is recorded, until `let_go`."""
        self._end = batch

    def let_go(self) -> None:
        with self._changed:
            self._end = None
            self._changed.notify_all()

    def holds(self, batch: int, lock: threading.RLock) -> bool:
        """Wait a moment in front of `batch`, with the stage's lock let go. False once it is admitted."""
        if self.admits(batch):
            return False
        lock.release()
        try:
            with self._changed:
                self._changed.wait(_POLL)
        finally:
            lock.acquire()
        return True
