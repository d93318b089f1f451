"""Who is looking at a snapshot: a lease keeps it, and what only it needs, until the reader is done.

A reader puts a file for itself below the job's home (`leases/12-5e1f…`) and holds a lock on it. The kernel lets go of
the lock when the process ends, however it ends, so a lease never outlives its reader. Whoever retires snapshots asks
`retiring` first, which removes the files of readers that are gone.

A reader that comes while snapshots are being retired must not find half of one. So both sides take one more lock, the
door: a reader for the moment in which it takes its lease and sees that the snapshot is there, the retiring side for as
long as it deletes. The retiring side never waits: if the door is held, it lets everything stay until the next time.
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
from strobe.store.tree import open_regular

__all__ = ["Lease", "retiring", "take_lease"]

_DOOR: Final = "door"
_NAME: Final = re.compile(r"([1-9][0-9]{0,15})-[0-9a-f]{16}")


class Lease:
    """Held from when it is made until `release`, or until the process ends."""

    def __init__(self, path: Path, file: int) -> None:
        self._path, self._file, self._process = path, file, os.getpid()

    def release(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            if os.getpid() == self._process:
                self._path.unlink(missing_ok=True)
            os.close(file)


def take_lease(home: Path, job: str, snapshot: SnapshotId) -> Lease | None:
    """A lease on the job's snapshot. None where nothing can be written: then nobody runs the job there either.

    Taken before the snapshot's manifest is read: if it is there afterwards, it stays."""
    directory = home / JobLayout(job).leases
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        with _door(directory, fcntl.LOCK_SH):
            path = directory / f"{snapshot}-{os.urandom(8).hex()}"
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            return Lease(path, file)
    except OSError:
        return None


@contextlib.contextmanager
def retiring(home: Path, job: str) -> Iterator[frozenset[SnapshotId] | None]:
    """The snapshots that somebody looks at, for as long as the caller deletes others. None: a reader is just coming, so
    nothing may be deleted now."""
    directory = home / JobLayout(job).leases
    if not directory.is_dir():
        # The first reader ever makes it. One that comes now may find that its snapshot has gone, and is told so.
        yield frozenset()
        return
    with contextlib.ExitStack() as held:
        leased: frozenset[SnapshotId] | None = None
        with contextlib.suppress(OSError):
            held.enter_context(_door(directory, fcntl.LOCK_EX | fcntl.LOCK_NB))
            leased = _held(directory)
        yield leased


def _held(directory: Path) -> frozenset[SnapshotId]:
    held = set()
    for name in os.listdir(directory):
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
    file = os.open(directory / _DOOR, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        os.close(file)
