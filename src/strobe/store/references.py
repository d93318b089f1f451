"""Who still needs a blob: complete snapshots by their manifests, running ones by their pins.

Theory
------
A blob may be deleted when no manifest names it and nobody has pinned it. Both can change while a deletion is under way,
so there is a third state, *doomed*: decided upon, not yet gone. Whoever pins a doomed blob waits until it is gone and
then finds it absent, and stores it again. The order of events is therefore always: pin, then look; doom, then delete.

A blob that is visible need not be durable: another thread may be about to sync its directory. A blob counts as
durable when a complete snapshot names it, or since this process itself has made it so.

One process writes a job's snapshots (the job's lock sees to that), so this lives in memory. After a crash there are no
pins left, and what only they protected is swept at the next start.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from strobe.model.ids import SnapshotId

__all__ = ["References"]


class References:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._named: dict[SnapshotId, frozenset[str]] = {}
        self._count: Counter[str] = Counter()  # how many complete snapshots name a blob
        self._unreadable: set[SnapshotId] = set()
        self._durable: set[str] = set()
        self._pins: Counter[str] = Counter()
        self._doomed: set[str] = set()

    # ── complete snapshots ──────────────────────────────────────────────────────────────────────────────────────────

    def name(self, snapshot: SnapshotId, blobs: Iterable[str]) -> None:
        """The snapshot is complete and needs these blobs."""
        with self._changed:
            self._forget(snapshot)
            self._named[snapshot] = frozenset(blobs)
            self._count.update(self._named[snapshot])

    def name_unknown(self, snapshot: SnapshotId) -> None:
        """The snapshot is there, but its manifest cannot be read: it might need any blob, so none may go."""
        with self._changed:
            self._forget(snapshot)
            self._unreadable.add(snapshot)

    def forget(self, snapshot: SnapshotId) -> frozenset[str]:
        """The snapshot is gone. Returns what it needed."""
        with self._changed:
            return self._forget(snapshot)

    def __contains__(self, snapshot: object) -> bool:
        """Whether it is known what the snapshot needs."""
        with self._changed:
            return snapshot in self._named

    def unreadable(self) -> frozenset[SnapshotId]:
        with self._changed:
            return frozenset(self._unreadable)

    # ── blobs ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def pin(self, blob: str) -> None:
        """Nobody deletes the blob until it is unpinned as often as it was pinned."""
        with self._changed:
            self._pins[blob] += 1
            self._changed.wait_for(lambda: blob not in self._doomed)

    def unpin(self, blobs: Iterable[str]) -> None:
        with self._changed:
            for blob in blobs:
                self._pins[blob] -= 1
                if not self._pins[blob]:
                    del self._pins[blob]

    def made_durable(self, blobs: Iterable[str]) -> None:
        """Note that these blobs, which the caller has pinned, are durable."""
        with self._changed:
            self._durable.update(blobs)

    def is_durable(self, blob: str) -> bool:
        with self._changed:
            return blob in self._durable or self._count[blob] > 0

    def is_seen(self, blob: str) -> bool:
        """Whether this process has put it, or compared what is there."""
        with self._changed:
            return blob in self._durable

    def free(self, blobs: Iterable[str]) -> list[str]:
        """Those of `blobs` that nobody is known to need at this moment."""
        with self._changed:
            return [b for b in dict.fromkeys(blobs) if not (self._count[b] or self._pins[b] or b in self._doomed)]

    def doom(self, blobs: Iterable[str]) -> list[str]:
        """Those of `blobs` that nobody needs. The caller deletes them, then says so with `gone`."""
        with self._changed:
            if self._unreadable:
                return []
            doomed = self.free(blobs)
            self._doomed.update(doomed)
            self._durable.difference_update(doomed)
            return doomed

    def gone(self, blobs: Iterable[str]) -> None:
        with self._changed:
            self._doomed.difference_update(blobs)
            self._changed.notify_all()

    def _forget(self, snapshot: SnapshotId) -> frozenset[str]:
        self._unreadable.discard(snapshot)
        blobs = self._named.pop(snapshot, frozenset())
        for blob in blobs:
            self._count[blob] -= 1
            if not self._count[blob]:
                del self._count[blob]
        return blobs
