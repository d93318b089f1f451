"""Which files were hashed before, so that an unchanged file is neither read nor copied again.

For files that are written once and renamed into place, as Spark's checkpoint files are: such a file is the same if its
path, size, modification time and inode are. A file that is written to in place could slip through; Strobe uploads none.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final, TypeAlias

from strobe.store.manifest import BlobRef

__all__ = ["HashCache", "Stamp", "stamp"]

Stamp: TypeAlias = tuple[int, int, int]  # size, mtime_ns, inode

_LIMIT: Final = 200_000  # about 60 MB


def stamp(path: Path) -> Stamp:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ino


class HashCache:
    """Holds the files that were seen last."""

    def __init__(self, limit: int = _LIMIT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._seen: dict[Path, tuple[Stamp, BlobRef]] = {}

    def get(self, path: Path, now: Stamp) -> BlobRef | None:
        with self._lock:
            found = self._seen.pop(path, None)
            if found is None or found[0] != now:
                return None
            self._seen[path] = found  # to the end: the oldest are dropped first
            return found[1]

    def add(self, path: Path, when: Stamp, ref: BlobRef) -> None:
        with self._lock:
            self._seen.pop(path, None)
            self._seen[path] = (when, ref)
            while len(self._seen) > self._limit:
                del self._seen[next(iter(self._seen))]
