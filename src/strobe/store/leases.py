"""Who is looking at a snapshot: a lease keeps it, and what only it needs, until the reader is done.

A reader puts a file for itself below the job's home (`leases/12-5e1f…`) and holds a lock on it. The kernel lets go of
the lock when the process ends, however it ends, so a lease never outlives its reader. Whoever retires snapshots asks
`retiring` first, which removes the files of readers that are gone.

A reader that comes while snapshots are being retired must not find half of one. So both sides take one more lock, on
the job's directory: a reader for the moment in which it takes its lease, the retiring side for as long as it deletes.
The retiring side never waits: if a reader is just coming, it lets everything stay until the next time. A reader that
has its lease looks whether the snapshot is still there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from strobe.model.ids import SnapshotId
from strobe.store.layout import JobLayout
from strobe.store.tree import Tree, open_regular

__all__ = ["Lease", "retiring", "take_lease"]

_TRIES: Final = 5
_NAME: Final = re.compile(r"([1-9][0-9]{0,15})-[0-9a-f]{16}")


class Lease:
    """Held from when it is made until `release`, or until the process ends."""

    def __init__(self, path: Path, file: int) -> None:
        self._path, self._file, self._process = path, file, os.getpid()

    def release(self) -> None:
        """Letting go twice is not an error."""
        if self._file >= 0:
            file, self._file = self._file, -1
            if os.getpid() == self._process:
                self._path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # somebody else's lease is in it
                    self._path.parent.rmdir()
            os.close(file)


def take_lease(home: Path, job: str, snapshot: SnapshotId) -> Lease | None:
    """A lease on the job's snapshot. None where nothing can be written: then nobody runs the job there either.

    Taken before the snapshot's manifest is read: if it is there afterwards, it stays."""
    layout = JobLayout(job)
    directory, tree = home / layout.leases, Tree(home)
    try:
        tree.check_directory(layout.root)  # the home may be somebody else's: a link in it is not followed
        with _door(home / layout.root, fcntl.LOCK_SH):
            for _ in range(_TRIES):
                directory.mkdir(mode=0o700, exist_ok=True)
                path = directory / f"{snapshot}-{os.urandom(8).hex()}"
                with contextlib.suppress(FileNotFoundError):  # the last reader has just taken the directory away
                    tree.check_directory(layout.leases)
                    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                    fcntl.flock(file, fcntl.LOCK_EX)
                    return Lease(path, file)
    except OSError:
        pass
    return None


@contextlib.contextmanager
def retiring(home: Path, job: str) -> Iterator[frozenset[SnapshotId] | None]:
    """The snapshots that somebody looks at, for as long as the caller deletes others. None: a reader is just coming, so
    nothing may be deleted now."""
    layout = JobLayout(job)
    with contextlib.ExitStack() as held:
        leased: frozenset[SnapshotId] | None = None
        with contextlib.suppress(OSError):
            held.enter_context(_door(home / layout.root, fcntl.LOCK_EX | fcntl.LOCK_NB))
            leased = _held(home / layout.leases)
        yield leased


def _held(directory: Path) -> frozenset[SnapshotId]:
    held = set()
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return frozenset()
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        try:
            with open_regular(directory / name) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (directory / name).unlink(missing_ok=True)  # its reader is gone
        except FileNotFoundError:
            continue
        except OSError:
            held.add(SnapshotId(int(match[1])))
    return frozenset(held)


@contextlib.contextmanager
def _door(directory: Path, how: int) -> Iterator[None]:
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        os.close(file)
