"""Temporary files next to what they become, and never anybody else's.

Each writer has a directory of its own below `<root>/.tmp` and holds a lock in it for as long as it lives; the kernel
lets go of the lock when the process ends, however it ends. A directory whose lock is free is stale, and any writer may
remove it. So nothing half-written outlives the next start, and no writer ever removes what another is writing, be it
in this process or in another one. What is not our directory (a link, above all) is neither written to nor removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from strobe.store.tree import NotPlain, Tree

__all__ = ["Scratch", "remove_stale"]

DIRECTORY: Final = ".tmp"
_LOCK: Final = "lock"


class Scratch:
    """A directory for temporary files on the same file system as `root`."""

    def __init__(self, root: Path) -> None:
        self._names = itertools.count(1)
        tree = Tree(root)
        (root / DIRECTORY).mkdir(parents=True, exist_ok=True)
        tree.check_directory(DIRECTORY)
        while True:
            key = f"{DIRECTORY}/{os.urandom(8).hex()}"
            self.path = root / key
            self.path.mkdir(mode=0o700)  # what is under way is nobody else's to read
            lock = _try_lock(tree, key)
            if lock is not None:  # None: somebody took the new directory, still without a lock, for a stale one
                self._end = weakref.finalize(self, _remove_own, self.path, lock, os.getpid())
                return

    def new_path(self) -> Path:
        return self.path / str(next(self._names))

    def close(self) -> None:
        """Also done when the object goes, or the process ends in an orderly way."""
        self._end()


def remove_stale(root: Path) -> int:
    """Removes what writers left behind that are gone. Returns how many they were."""
    removed, tree = 0, Tree(root)
    with contextlib.suppress(FileNotFoundError, NotPlain):
        for name in tree.children(DIRECTORY):
            key = f"{DIRECTORY}/{name}"
            lock = _try_lock(tree, key)
            if lock is not None:
                with _closing(lock), contextlib.suppress(FileNotFoundError):
                    for file in tree.names(key):  # the lock's own file goes last, as below
                        if file != _LOCK:
                            tree.unlink(f"{key}/{file}")
                    tree.remove_tree(key)
                removed += 1
    return removed


def _try_lock(tree: Tree, directory: str) -> int | None:
    """A lock on the directory, or None if somebody else has it or removes the directory at this moment, or if what has
    the lock's name is no regular file."""
    key = f"{directory}/{_LOCK}"
    try:
        lock = tree.open_file(key, os.O_RDWR | os.O_CREAT)
    except (FileNotFoundError, NotPlain):
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A lock on a file that was removed meanwhile is a lock on nothing.
        there = tree.find(key)
        if there is not None and os.path.samestat(os.fstat(lock), there):
            return lock
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.ENOENT):
            os.close(lock)
            raise
    os.close(lock)
    return None


@contextlib.contextmanager
def _closing(file: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(file)


def _remove_own(directory: Path, lock: int, process: int) -> None:
    # A child that was forked has a copy of the object, but the files are its parent's.
    if os.getpid() == process:
        with contextlib.suppress(OSError):  # then it is stale, and the next writer removes it
            _remove(directory, lock)


def _remove(directory: Path, lock: int) -> None:
    # The lock's own file goes last: while it is there, nobody else takes the directory for stale.
    try:
        for entry in directory.iterdir():
            if entry.name != _LOCK:
                entry.unlink(missing_ok=True)
        shutil.rmtree(directory)
    except FileNotFoundError:
        pass  # somebody removed it by hand
    finally:
        os.close(lock)
