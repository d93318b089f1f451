"""Where a snapshot's parts go: a checkpoint's to the job's own store, a savepoint's to a directory of its own.

A savepoint refers to nothing outside its directory: every file of every stage and every row in flight is copied there,
so it can be moved, and outlives the job. One is under way at a time.

*The target.* While a savepoint is being written its directory holds a marker, locked for as long as the writer lives.
The manifest comes last; a directory with a marker and no manifest is what a savepoint left that died, and the next one
to the same place replaces it. Anything else that is not empty is somebody's, and is refused before anything starts.

*Rows in flight.* Channels are trimmed as checkpoints are retired, so nothing is trimmed while a savepoint is under way.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from strobe.hosts.spark import faults
from strobe.hosts.spark.channel import ChannelWriter
from strobe.hosts.spark.home import JobHome
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.ids import SnapshotId
from strobe.protocol.coordination import Kind
from strobe.store.codec import root_of
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import MANIFEST, SavepointLayout
from strobe.store.manifest import BlobRef, ChannelRecord, Manifest
from strobe.store.session import Session
from strobe.store.snapshots import SnapshotStore

__all__ = ["MARKER", "Savepoint", "SavepointTarget", "SnapshotStores"]

MARKER: Final = ".savepoint-under-way"
_OURS: Final = {MARKER, "blobs", ".tmp"}
_POLL: Final = 0.02
_PATIENCE: Final = 60.0  # seconds for uploads of a savepoint that was given up to notice it


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint that is complete."""

    snapshot: SnapshotId
    job: str
    path: Path
    root: str
    bytes_total: int
    rows_in_flight: int


class SavepointTarget:
    """The directory of a savepoint under way. `take` it before anything starts; then it is `done` or given up."""

    def __init__(self, path: Path, lock: int, *, made: bool) -> None:
        self.path = path
        self._lock = lock
        self._made = made

    @classmethod
    def take(cls, path: Path, job: str) -> SavepointTarget:
        path = path.absolute()
        made = not path.exists()
        try:
            if not made:
                _check_free(path)
            path.mkdir(parents=True, exist_ok=True)
            lock = _lock(path)
            try:
                for name in _OURS - {MARKER}:
                    shutil.rmtree(path / name, ignore_errors=True)
                os.truncate(lock, 0)
                os.write(lock, json.dumps({"job": job, "pid": os.getpid()}).encode())
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise Misuse(
                f"The savepoint cannot be written to {path}: {error.strerror or error}.",
                untouched="Nothing was started; the job goes on.",
                next="Name a directory that can be made and written to.",
            ) from error
        faults.point("savepoint.target-taken")
        return cls(path, lock, made=made)

    def done(self) -> None:
        with contextlib.suppress(OSError):  # the manifest says that it is complete, whatever else lies beside it
            (self.path / MARKER).unlink(missing_ok=True)
            (self.path / ".tmp").rmdir()
        os.close(self._lock)

    def give_up(self) -> None:
        """Leave the place as it was before. What cannot be removed is for the next savepoint that goes there."""
        try:
            for name in _OURS - {MARKER}:
                shutil.rmtree(self.path / name, ignore_errors=True)
            if {p.name for p in self.path.iterdir()} <= {MARKER}:
                (self.path / MARKER).unlink()
                if self._made:
                    self.path.rmdir()
        except OSError:
            pass
        finally:
            os.close(self._lock)


class SnapshotStores:
    """The stores of one job. Ordered by the job, used by the coordinator's writer and by the uploads."""

    def __init__(self, checkpoints: SnapshotStore, home: JobHome) -> None:
        self.checkpoints = checkpoints
        self._home = home
        self._lock = threading.Lock()
        self._target: SavepointTarget | None = None
        self._savepoint: tuple[SnapshotId, SnapshotStore] | None = None
        self._ordered = False
        self.completed: Savepoint | None = None
        self.failure: StrobeError | None = None  # why the ordered savepoint could not even begin

    # ── what the job orders ─────────────────────────────────────────────────────────────────────────────────────────

    def order(self, directory: Path | None, room: int) -> None:
        """The next savepoint goes to `directory`, or to its place in the job's home. Refused if it cannot be, or if
        there is less than `room` bytes."""
        self.completed = self.failure = None
        self.check(directory, room)
        self._target = None if directory is None else SavepointTarget.take(directory, self.checkpoints.job)
        self._ordered = True

    def check(self, directory: Path | None, room: int) -> None:
        """What `order` would refuse, without taking the place."""
        if directory is not None and directory.exists():
            _check_free(directory)
        _check_room(directory if directory is not None else self._home.home, room)

    def settle(self) -> None:
        """The order is over, however it went: nothing of a savepoint that failed is left once its uploads end."""
        with self._lock:
            self._ordered = False
            savepoint, self._savepoint = self._savepoint, None
            target, self._target = self._target, None
        if savepoint is not None:
            snapshot, store = savepoint
            deadline = time.monotonic() + _PATIENCE
            with contextlib.suppress(Failed):
                store.session(snapshot).abort()
                while time.monotonic() < deadline:
                    store.session(snapshot)  # Failed once the last upload has let go
                    time.sleep(_POLL)
        if target is not None:
            target.give_up()

    # ── what the coordinator's writer does ──────────────────────────────────────────────────────────────────────────

    @property
    def holds_rows(self) -> bool:
        """Whether a savepoint is under way: channels must keep their rows."""
        return self._ordered

    def begin(self, snapshot: SnapshotId, kind: Kind) -> None:
        if kind is Kind.CHECKPOINT:
            self.checkpoints.begin(snapshot)
            return
        try:
            if self._target is None:
                place = self._home.path(self._home.layout.savepoint(snapshot))
                self._target = SavepointTarget.take(place, self.checkpoints.job)
            objects = FilesystemStore(self._target.path, on_point=faults.point)
            store = SnapshotStore(
                objects, SavepointLayout("", snapshot), self.checkpoints.job,
                guard=self._home.check_owner, on_point=faults.point,
            )  # fmt: skip
            store.begin(snapshot)
        except StrobeError as error:
            self.failure = error
            raise
        self._savepoint = (snapshot, store)

    def session(self, snapshot: SnapshotId) -> Session:
        savepoint = self._savepoint
        store = savepoint[1] if savepoint is not None and savepoint[0] == snapshot else self.checkpoints
        return store.session(snapshot)

    def give_up(self, snapshot: SnapshotId) -> None:
        """What was stored for this snapshot alone goes."""
        with contextlib.suppress(Failed):  # it was over already
            self.session(snapshot).abort()

    def complete(self, manifest: Manifest) -> None:
        """Make the snapshot exist."""
        self.session(manifest.snapshot).complete(manifest)
        with self._lock:
            if self._savepoint is None or self._savepoint[0] != manifest.snapshot or self._target is None:
                return
            faults.point("savepoint.complete")
            target, self._target, self._savepoint = self._target, None, None
        target.done()
        self.completed = Savepoint(
            manifest.snapshot, manifest.job, target.path, root_of(manifest), manifest.bytes_total,
            manifest.rows_in_flight,
        )  # fmt: skip

    def with_content(self, record: ChannelRecord, channel: ChannelWriter, snapshot: SnapshotId) -> ChannelRecord:
        """The channel's record with its rows in flight copied: every commit that some consumer had yet to read."""
        assert record.barrier is not None
        first = min((flight.after for flight in record.in_flight.values()), default=record.barrier)
        commits: list[Json] = []
        files: dict[str, Path] = {}
        for commit in channel.log.commits(first, record.barrier):
            if commit.files:
                names = {f"{commit.version:020d}/{Path(f.path).name}": f for f in commit.files}
                files.update((name, channel.path / f.path) for name, f in names.items())
                of: list[Json] = [{"path": name, "rows": f.rows, "size": f.size} for name, f in names.items()]
                commits.append({"version": commit.version, "batch": commit.batch, "files": of})
        content: Mapping[str, BlobRef] = self.session(snapshot).put_files(dict(files)).files if files else {}
        faults.point("savepoint.rows-copied", record.producer)
        schema: Json = json.loads(channel.schema.json())
        return replace(record, location=None, content=content, extra={"commits": commits, "schema": schema})


def _check_free(path: Path) -> None:
    if not path.is_dir():
        raise _taken(path, "it is not a directory", "Name a directory that does not exist yet, or is empty.")
    names = {p.name for p in path.iterdir()}
    if MANIFEST in names:
        raise _taken(
            path, "it holds a snapshot already", f"Name another directory, or delete that one: strobe dispose {path}"
        )
    if names and (MARKER not in names or names - _OURS):
        raise _taken(path, "it is not empty", "Name a directory that does not exist yet, or is empty.")


def _lock(path: Path) -> int:
    lock = os.open(path / MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise _taken(path, "another savepoint is being written there", "Name another directory.") from None
    return lock


def _taken(path: Path, why: str, next: str) -> Misuse:
    return Misuse(
        f"The savepoint cannot go to {path}: {why}.", untouched="Nothing was started; the job goes on.", next=next
    )


def _check_room(place: Path, needed: int) -> None:
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
