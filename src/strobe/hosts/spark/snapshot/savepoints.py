"""Where a snapshot's parts go: a checkpoint's to the job's own store, a savepoint's to a place of its own.

A savepoint refers to nothing outside its place: every file of every stage and every row in flight is copied there, so
it can be moved, and outlives the job. One is under way at a time. The place is taken before anything starts, and the
manifest is the last thing that is written there.

*Rows in flight.* Channels are trimmed as checkpoints are retired, so nothing is trimmed while a savepoint is under way.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.snapshot.targets import SavepointTarget, check_room, check_target, take_target
from strobe.model.cut import Json
from strobe.model.errors import Failed, StrobeError
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind
from strobe.store.codec import root_of
from strobe.store.layout import SavepointLayout
from strobe.store.manifest import BlobRef, ChannelRecord, Manifest
from strobe.store.session import Session
from strobe.store.snapshots import SnapshotStore

if TYPE_CHECKING:
    from strobe.hosts.spark.channel.writer import ChannelWriter

__all__ = ["Savepoint", "SnapshotStores"]

_POLL: Final = 0.02
_PATIENCE: Final = 60.0  # seconds for uploads of a savepoint that was given up to notice it


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint that is complete. `path` is where: a directory, or `s3://bucket/prefix`."""

    snapshot: SnapshotId
    job: str
    path: str
    root: str
    bytes_total: int
    rows_in_flight: int


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
        # What `strobe.open_snapshot` takes: of all checkpoints, and of savepoints of this run.
        self._names = {snapshot: f"{home.job}/{snapshot}" for snapshot in checkpoints.list()}
        self.failure: StrobeError | None = None  # why the ordered savepoint could not even begin

    # ── what the job orders ─────────────────────────────────────────────────────────────────────────────────────────

    def order(self, place: str | Path | None, room: int) -> None:
        """The next savepoint goes to `place`, or below the job's home. Refused if it cannot be, or if there is less
        than `room` bytes."""
        self.completed = self.failure = None
        self.check(place, room)
        self._target = None if place is None else take_target(place, self._home)
        self._ordered = True

    def check(self, place: str | Path | None, room: int) -> None:
        """What `order` would refuse, without taking the place."""
        if place is None:
            check_room(self._home.home, room)
        else:
            check_target(place, self._home, room)

    def settle(self) -> None:
        """The order is over, however it went: nothing of a savepoint that failed is left once its uploads end."""
        with self._lock:
            self._ordered = False
            savepoint, self._savepoint = self._savepoint, None
            target, self._target = self._target, None
        if savepoint is not None:
            snapshot, store = savepoint
            deadline = SYSTEM.monotonic() + _PATIENCE
            with contextlib.suppress(Failed):
                store.session(snapshot).abort()
                while SYSTEM.monotonic() < deadline:
                    store.session(snapshot)  # Failed once the last upload has let go
                    SYSTEM.sleep(_POLL)
        if target is not None:
            target.give_up()
            self._forget_target()

    def _forget_target(self) -> None:
        with contextlib.suppress(StrobeError, OSError):  # whoever finds it shuts a place that nobody uses
            self._home.discard(self._home.path(self._home.layout.savepoint_under_way))

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
                self._target = take_target(place, self._home)
            self._home.write(self._home.layout.savepoint_under_way, {"place": self._target.where})
            store = SnapshotStore(
                self._target.objects, SavepointLayout("", snapshot), self.checkpoints.job,
                guard=self._home.check_owner, on_point=crash_points.point, sign=self.checkpoints.sign,
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
        """Make the snapshot exist. The place of a savepoint is kept locked meanwhile: an order that is given up waits,
        and finds either nothing begun or a savepoint that is complete."""
        with self._lock:
            target = self._target if self._savepoint is not None and self._savepoint[0] == manifest.snapshot else None
            if target is not None:
                self.session(manifest.snapshot).complete(manifest)
                crash_points.point("savepoint.complete")
                self._target = self._savepoint = None
        if target is None:
            self.session(manifest.snapshot).complete(manifest)
            self._names[manifest.snapshot] = f"{self._home.job}/{manifest.snapshot}"
            return
        target.done()
        self._forget_target()
        self._names[manifest.snapshot] = target.where
        self.completed = Savepoint(
            manifest.snapshot, manifest.job, target.where, root_of(manifest), manifest.bytes_total,
            manifest.rows_in_flight,
        )  # fmt: skip

    def name(self, snapshot: SnapshotId) -> str | None:
        """What `strobe.open_snapshot` takes for a complete snapshot. None if nobody knows where it is: a savepoint of
        an earlier run may be anywhere by now."""
        return self._names.get(snapshot)

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
        crash_points.point("savepoint.rows-copied", record.producer)
        extra = {**record.extra, "commits": commits}
        return replace(record, location=None, content=content, extra=extra)
