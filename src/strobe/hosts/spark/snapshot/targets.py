"""The place of a savepoint that is being written: a directory, or a prefix of a bucket.

*A directory* holds a marker, locked for as long as the writer lives. The manifest comes last; a directory with a marker
and no manifest is what a savepoint left that died, and the next one to the same place replaces it.

*A bucket* knows no locks. There the marker is put on condition that there is none, and names the job, its home and its
incarnation. A driver takes one savepoint at a time: a marker of its own was left by a savepoint that failed, and is
replaced with what belongs to it. One of another job, or of an earlier driver of this one, may be of a writer that lives
and wakes, and is refused.

Anything else that is not empty is somebody's, and is refused before anything starts.

*Fencing.* A driver that was given up must not complete a savepoint later: the one that took over has decided by then
what becomes of the sinks' parts that it names. So a driver notes in its home where it writes, and whoever takes over
shuts that place for it (`fence_target`), in one step with whatever the old one does: in a directory the manifest comes
out of a directory of the writer's own, which is moved away; in a bucket it is put on condition that nothing is there,
and something is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Final, Protocol

from strobe.hosts.shared.durable import fsync
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.home.job_home import JobHome, host_name
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.store.base import Absent, AlreadyThere, ObjectStore
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import BUCKET_SAVEPOINT_MARKER as BUCKET_MARKER
from strobe.store.layout import MANIFEST, SIGNATURE
from strobe.store.layout import SAVEPOINT_MARKER as MARKER
from strobe.store.s3 import CHECKS, S3Store
from strobe.store.scheme import is_s3
from strobe.store.scratch import DIRECTORY as TEMPORARY
from strobe.store.tree import Tree

__all__ = [
    "BucketTarget", "DirectoryTarget", "SavepointTarget", "check_room", "check_target", "fence_target", "mark_of",
    "take_target",
]  # fmt: skip

_OURS: Final = {MARKER, "blobs", TEMPORARY, SIGNATURE}
_BLOBS: Final = "blobs/"
_WRITER: Final = "writer-"  # in `.tmp`: what is there becomes visible by being moved out


class SavepointTarget(Protocol):
    """Taken before anything starts; then it is `done` or given up."""

    @property
    def where(self) -> str:
        """What `strobe run -s` takes."""
        ...

    @property
    def objects(self) -> ObjectStore: ...

    def done(self) -> None: ...

    def give_up(self) -> None:
        """Leave the place as it was before. What cannot be removed is for the next savepoint that goes there."""
        ...


def take_target(place: str | Path, home: JobHome) -> SavepointTarget:
    home.check_owner()  # a driver that was given up does not shut a place that nobody would open again
    if isinstance(place, str) and is_s3(place):
        return BucketTarget.take(place, home)
    return DirectoryTarget.take(Path(place), home.job)


def check_target(place: str | Path, home: JobHome, room: int) -> None:
    """What `take_target` would refuse, without taking the place; and less than `room` bytes on that disk."""
    if isinstance(place, str) and is_s3(place):
        _check_prefix(S3Store(place), mark_of(home))
        return
    if Path(place).exists():
        _check_free(Path(place))
    check_room(Path(place), room)


def fence_target(place: str) -> None:
    """From now on an older writer of a savepoint there can neither complete nor delete it. One that is complete stays
    as it is."""
    if is_s3(place):
        S3Store(place).occupy(MANIFEST)
        return
    temporary = Path(place) / TEMPORARY
    for own in () if temporary.is_symlink() else temporary.glob(f"{_WRITER}*"):
        gone = own.with_name(f"gone-{own.name}")
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            os.rename(own, gone)
        shutil.rmtree(gone, ignore_errors=True)


class DirectoryTarget:
    def __init__(self, path: Path, lock: int, *, made: bool) -> None:
        self.path = path
        self.where = str(path)
        self._own = path / TEMPORARY / f"{_WRITER}{os.urandom(8).hex()}"
        self._own.parent.mkdir(exist_ok=True)
        Tree(path).check_directory(TEMPORARY)
        self._own.mkdir(mode=0o700)  # what is under way is nobody else's to read
        self.objects = FilesystemStore(path, on_point=crash_points.point, own=self._own)
        self._lock = lock
        self._made = made

    @classmethod
    def take(cls, path: Path, job: str) -> DirectoryTarget:
        path = path.absolute()
        made = not path.exists()
        try:
            if not made:
                _check_free(path)
            _make(path)
            lock = _lock(path)
            try:
                (path / SIGNATURE).unlink(missing_ok=True)
                for name in _OURS - {MARKER}:
                    shutil.rmtree(path / name, ignore_errors=True)
                os.truncate(lock, 0)
                os.write(lock, json.dumps({"job": job, "pid": os.getpid()}).encode())
                target = cls(path, lock, made=made)
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise Misuse(
                f"The savepoint cannot be written to {path}: {error.strerror or error}.",
                untouched="Nothing was started; the job goes on.",
                next="Name a directory that can be made and written to.",
            ) from error
        crash_points.point("savepoint.target-taken")
        return target

    def done(self) -> None:
        with contextlib.suppress(OSError):  # the manifest says that it is complete, whatever else lies beside it
            os.rename(self.path / MARKER, self._own / MARKER)  # if this driver was given up, that fails
        self.objects.close()
        with contextlib.suppress(OSError):
            (self.path / TEMPORARY).rmdir()
        os.close(self._lock)

    def give_up(self) -> None:
        try:
            for name in (SIGNATURE, "blobs"):  # moved first: if this driver was given up, that fails
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self.path / name, self._own / name)
            if {p.name for p in self.path.iterdir()} <= {MARKER, TEMPORARY}:
                os.rename(self.path / MARKER, self._own / MARKER)
            self.objects.close()
            (self.path / TEMPORARY).rmdir()
            if self._made:
                self.path.rmdir()
        except OSError:
            pass
        finally:
            os.close(self._lock)


class BucketTarget:
    def __init__(self, store: S3Store, home: JobHome) -> None:
        self.where = store.url
        self.objects: ObjectStore = store
        self._home = home

    @classmethod
    def take(cls, url: str, home: JobHome) -> BucketTarget:
        store = S3Store(url)
        store.check(writable=True)
        mark = mark_of(home)
        keys = _check_prefix(store, mark)
        if BUCKET_MARKER not in keys:
            try:
                store.put(BUCKET_MARKER, mark, if_absent=True)
            except AlreadyThere:
                raise _busy(url) from None
        store.discard(key for key in keys if key != BUCKET_MARKER)
        crash_points.point("savepoint.target-taken")
        return cls(store, home)

    def done(self) -> None:
        with contextlib.suppress(StrobeError):
            self._home.check_owner()  # one that was given up leaves the marker: others may use the place by now
            self.objects.delete(BUCKET_MARKER)

    def give_up(self) -> None:
        with contextlib.suppress(StrobeError):
            self._home.check_owner()  # the driver that has taken over may be writing there by now
            self.objects.discard([*self.objects.list(_BLOBS), SIGNATURE])
            self.objects.delete(BUCKET_MARKER)


def mark_of(home: JobHome) -> bytes:
    """What the marker of this driver's savepoints says."""
    incarnation = home.record.incarnation
    return json.dumps(
        {"job": home.job, "host": host_name(), "home": str(home.home), "incarnation": incarnation}
    ).encode()


def _check_prefix(store: S3Store, mark: bytes) -> list[str]:
    """What is there, if all of it was left by a savepoint with this mark that died."""
    keys = list(store.list(""))
    others = [key for key in keys if not key.startswith(CHECKS)]
    if MANIFEST in others:
        raise _holds_one(store.url)
    if store.is_withdrawn(MANIFEST):
        raise _taken(
            store.url, "a savepoint failed there, and its manifest may still be on its way", "Name another prefix."
        )
    if BUCKET_MARKER in others and all(key in (BUCKET_MARKER, SIGNATURE) or key.startswith(_BLOBS) for key in others):
        with contextlib.suppress(Absent):
            if store.get(BUCKET_MARKER) == mark:
                return keys
        raise _busy(store.url)
    if others:
        raise _taken(store.url, "it is not empty", "Name a prefix below which there is nothing.")
    return keys


def _busy(url: str) -> Misuse:
    return _taken(
        url, "another job, or an earlier run of this one, is writing a savepoint there",
        f"Name another prefix. If that writer is gone for good, delete what it left below {url}/.",
    )  # fmt: skip


def _check_free(path: Path) -> None:
    if not path.is_dir():
        raise _taken(path, "it is not a directory", "Name a directory that does not exist yet, or is empty.")
    names = {p.name for p in path.iterdir()}
    if MANIFEST in names:
        raise _holds_one(path)
    if names and (MARKER not in names or names - _OURS):
        raise _taken(path, "it is not empty", "Name a directory that does not exist yet, or is empty.")


def _make(path: Path) -> None:
    """Make the directory, and make the names that lead to it durable: if a loss of power takes a directory, its files
    are gone too, however well they were synced. If it is there already, its name may not have been synced either."""
    there = next(above for above in path.parents if above.exists())
    path.mkdir(parents=True, exist_ok=True)
    for above in (a for a in path.parents if a == there or there in a.parents):
        with contextlib.suppress(PermissionError):  # one that may be passed through, and not read
            fsync(above)


def _lock(path: Path) -> int:
    lock = Tree(path).open_file(MARKER, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise _taken(path, "another savepoint is being written there", "Name another directory.") from None
    return lock


def _holds_one(place: str | Path) -> Misuse:
    return _taken(
        place, "it holds a snapshot already", f"Name another place, or delete that one: strobe dispose {place}"
    )


def _taken(place: str | Path, why: str, next: str) -> Misuse:
    return Misuse(
        f"The savepoint cannot go to {place}: {why}.", untouched="Nothing was started; the job goes on.", next=next
    )


def check_room(place: Path, needed: int) -> None:
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        return  # whoever writes there will say what is wrong
    if free < needed:
        raise Failed(
            f"There is too little room for a savepoint at {place}: it needs about {needed:,} bytes, {free:,} are free.",
            untouched="Nothing was started; the job goes on.",
            next="Make room, or name a directory on another disk.",
        )
