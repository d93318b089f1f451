"""The directory of a Spark session: what its processes share, readable by its owner alone, gone when they are.

It is made below the system's temporary directory, with mode 0700. Its file `lock` is locked for as long as a process of
the session lives: the driver hands the open lock to its JVM, and the kernel lets go of it when both have ended, however
they end. A directory whose lock is free belongs to nobody, and the next session of the same user removes it. One
without a lock file is left alone: nobody can tell whose it is.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["SessionDirectory", "sweep", "write_private"]

PREFIX: Final = "strobe-spark-"
_LOCK: Final = "lock"
_NO_LINK: Final = os.O_NOFOLLOW | os.O_CLOEXEC


class SessionDirectory:
    """Made when a session starts; removed when the process ends in an orderly way."""

    def __init__(self) -> None:
        sweep(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX))  # mode 0700
            lock = _lock(self.path, os.O_CREAT)
            if lock is not None:  # None: another session took the new directory, still without a lock, for a stale one
                break
        self.lock = lock
        atexit.register(self._remove, os.getpid())

    def _remove(self, maker: int) -> None:
        if os.getpid() == maker:  # a forked child has a copy of this object, but the files are its parent's
            with contextlib.suppress(OSError):
                _remove(self.path)


def sweep(temporary: Path) -> int:
    """Remove the directories of this user's sessions whose processes are all gone. Returns how many they were."""
    removed = 0
    for path in temporary.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # somebody else removes it, or may not be looked at
            about = path.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
                continue
            lock = _lock(path, 0)
            if lock is not None:
                try:
                    _remove(path)
                    removed += 1
                finally:
                    os.close(lock)
    return removed


def write_private(path: Path, text: str) -> None:
    """A new file that only its owner may read."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _lock(directory: Path, create: int) -> int | None:
    """The lock of the directory, or None if a process holds it, there is none, or the directory is being removed."""
    path = directory / _LOCK
    try:
        lock = os.open(path, os.O_RDWR | create | _NO_LINK, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), path.lstat()):  # else it is a lock on a file that is gone
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _remove(directory: Path) -> None:
    # The lock's file goes last: while it is there, what is left can still be removed by the next session.
    for entry in directory.iterdir():
        if entry.name != _LOCK:
            if stat.S_ISDIR(entry.lstat().st_mode):
                shutil.rmtree(entry)
            else:
                entry.unlink(missing_ok=True)
    (directory / _LOCK).unlink(missing_ok=True)
    directory.rmdir()
