"""Where a job keeps its checkpoints: below its home, in another directory, or in a bucket.

The job's home notes the place (`store.json`), so that whoever knows the home finds the checkpoints. A place outside the
home notes the home that writes there (`owner.json`, put on condition that there is none): each job of each home has a
random name of its own, and a second home that would write the same job's checkpoints to the same place is refused
before it could sweep away what the first one is writing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import SnapshotId
from strobe.store.base import AlreadyThere, ObjectStore
from strobe.store.fencing import current_layout
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.points import OnPoint, no_point
from strobe.store.private import make_private
from strobe.store.scheme import is_s3
from strobe.store.small_files import read_as

if TYPE_CHECKING:
    from strobe.store.snapshots import SnapshotStore

__all__ = ["checkpoint_ids", "checkpoints_of", "note_place", "open_objects", "place_of", "settle"]


@dataclass(frozen=True, slots=True)
class _Note:
    """What a home knows of a job's store: None is the home itself; `owner` is its name there. `home` is where the home
    stood when this was noted."""

    store: str | None
    owner: str
    home: str = ""

    def place(self, home: Path) -> str | None:
        """Where the store is now. One that moved along with its home is at the same place relative to it."""
        if self.store is None or is_s3(self.store) or not self.home or self.home == str(home.absolute()):
            return self.store
        moved = os.path.normpath(home.absolute() / os.path.relpath(self.store, self.home))
        return moved if os.path.isdir(moved) else self.store


def open_objects(place: str | Path, *, on_point: OnPoint = no_point) -> ObjectStore:
    """The store at an address: `s3://bucket/prefix`, or a directory. A bucket must be there."""
    if isinstance(place, str) and is_s3(place):
        from strobe.store.s3 import S3Store

        store = S3Store(place)
        store.check()
        return store
    return FilesystemStore(Path(place), on_point=on_point)


def place_of(home: Path, job: str) -> str:
    """The address of the store that holds the job's checkpoints."""
    note = _read(home, job)
    place = None if note is None else note.place(home)
    return str(home.absolute()) if place is None else place


def checkpoints_of(home: Path, job: str) -> SnapshotStore:
    """A job's checkpoints, for reading."""
    from strobe.store.snapshots import SnapshotStore

    objects = open_objects(place_of(home, job))
    return SnapshotStore(objects, current_layout(objects, job), job)


def checkpoint_ids(home: Path, job: str) -> tuple[SnapshotId, ...]:
    """Which checkpoints a job has, oldest first, by their ids alone."""
    objects = open_objects(place_of(home, job))
    layout = current_layout(objects, job)
    found = (layout.snapshot_of(key) for key in objects.list(layout.manifests))
    return tuple(sorted(snapshot for snapshot in found if snapshot is not None))


def settle(
    home: Path,
    job: str,
    place: str | None,
    *,
    on_point: OnPoint = no_point,
    write: Callable[[str, dict[str, Any]], None] | None = None,
) -> ObjectStore:
    """The store that the job's driver writes its checkpoints to, and keeps to until it is told another. `write` is how
    it writes to its home, by key: a driver that was given up must not name another place, or another owner of it."""
    layout, local = JobLayout(job), FilesystemStore(home, on_point=on_point)

    def note_down(note: _Note) -> None:
        if write is None:
            _write(local, layout, note)
        else:
            write(layout.store, asdict(note))

    if place is not None and not is_s3(place):
        place = str(Path(place).absolute())
    if place == str(home.absolute()):
        place = None
    note = _read(home, job) or _Note(None, os.urandom(16).hex())
    if place is None:
        if note.store is not None:
            note_down(_Note(None, note.owner))
        return local
    if note.store != place:
        note_down(note)  # the name first: a place that is taken must be ours again after a crash
    objects = open_objects(place, on_point=on_point)
    if isinstance(objects, FilesystemStore):
        make_private(objects.root / layout.root)
    else:
        from strobe.store.s3 import S3Store

        if isinstance(objects, S3Store):
            objects.check(writable=True)
    _take(objects, layout, note.owner)
    settled = _Note(place, note.owner, str(home.absolute()))
    if note != settled:
        note_down(settled)
    return objects


def note_place(home: Path, job: str, place: str) -> None:
    """A home that only looks: the job's checkpoints are at `place`, and nobody writes them from here."""
    _write(FilesystemStore(home), JobLayout(job), _Note(place, ""))


def _take(objects: ObjectStore, layout: JobLayout, owner: str) -> None:
    data = json.dumps({"owner": owner}).encode()
    try:
        objects.put(layout.owner, data, if_absent=True)
    except AlreadyThere:
        if objects.get(layout.owner) == data:
            return
        raise Misuse(
            f"The checkpoints of job {layout.job!r} at {objects.describe()} are written from another home directory.",
            untouched="Nothing was started, and nothing there was changed.",
            next="Choose another place or another job name. If that home is gone for good, delete "
            f"{objects.describe(layout.owner)} and start again.",
        ) from None


def _read(home: Path, job: str) -> _Note | None:
    path = home / JobLayout(job).store
    try:
        note = read_as(path, _Note)
        for place in (note.store or "", note.home):
            if b"\0" in os.fsencode(place):
                raise ValueError(f"{place!r:.80} is no path")
        return note
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise Damaged(
            f"{path}, which says where the checkpoints of job {job!r} are, cannot be read: {error}.",
            untouched="Nothing was changed.",
            next="Put back a copy of it, or delete it if the checkpoints are in the home directory.",
        ) from error


def _write(local: FilesystemStore, layout: JobLayout, note: _Note) -> None:
    local.put(layout.store, json.dumps(asdict(note)).encode())
