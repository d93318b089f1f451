"""The producer's end of a channel: every commit of a channel is made here.

**A commit is one file.** Delta's protocol lets whoever creates `_delta_log/<version>.json` own that version. The
entry is written aside and hard-linked to its name, which fails if the name is taken: an atomic compare-and-swap on
the table's version. `deltalake` makes the table and the log's checkpoints; its own commit path re-reads the log
twice per commit and costs a hundred times as much.

**Exactly once per batch.** A batch's commit carries the app transaction (job, stage, timeline; batch id). A batch
that is already in the log is skipped. The incarnation is not part of it, or a restart would write its replayed
batch again; the timeline is, because a restore takes the batch ids back.

**Fencing.** A writer that opens the table commits a fence with its incarnation. A writer commits version v only
when it has read everything before v and found no newer incarnation there; whoever loses the race for v reads v and
looks again. So once a fence is in the log, no older incarnation commits after it.

**Durability.** Nothing is synced on the way; `sync(upto)` makes everything up to a version survive a power cut, and
is called before a snapshot that names that version is complete. A log entry that a power cut tore is therefore
later than any version that a snapshot names, and `truncate_to` moves it aside.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructType

from strobe.hosts.shared.durable import fsync
from strobe.hosts.spark.channel.columns import Columns, Renamed, evolve
from strobe.hosts.spark.channel.entries import Entry, LogCheckpoints, add, millis, remove
from strobe.hosts.spark.channel.log import LOG, ChannelLog, Commit, DataFile, entry_name
from strobe.hosts.spark.channel.old_files import Known, note_columns
from strobe.hosts.spark.channel.others import check_definition, let_go_by_others, tell_last_batch
from strobe.hosts.spark.channel.schema import channel_schema
from strobe.model.errors import Damaged, Failed, Fenced, Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.events import ORDINARY, BarrierOptions

__all__ = [
    "ASIDE",
    "DATA",
    "PROPERTIES",
    "ChannelLog",
    "ChannelWriter",
    "Commit",
    "DataFile",
    "table_columns",
    "table_schema",
]

DATA: Final = "data"  # the table's data files: data/<timeline>/<batch>-<attempt>/*.parquet
ASIDE: Final = "_strobe"  # entries being written, and torn ones; Delta ignores names with an underscore

PROPERTIES: Final = {
    # Rows that a snapshot on an abandoned branch needs must survive a VACUUM, and the log must not be cleaned up by
    # age: only `trim` knows what is still needed.
    "delta.deletedFileRetentionDuration": "interval 3650 days",
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.enableExpiredLogCleanup": "false",
}


def table_schema(path: str | Path) -> StructType:
    """The columns of the channel at `path`."""
    try:
        return StructType.fromJson(json.loads(DeltaTable(str(path)).schema().to_json()))
    except (DeltaError, OSError) as e:
        raise Failed(f"Channel {Path(path).name} cannot be opened: {_first_line(e)}.") from e


def table_columns(path: str | Path) -> Columns:
    return Columns.of(table_schema(path))


class ChannelWriter:
    """Writes the channel at `path` for stage `producer`. One per channel and incarnation; threads may share it.

    `cut_to` is for a restore: the table is cut back to that version, torn log entries after it are moved aside.
    `renamed` is what the user says of columns that have another name now; None: the columns must not change at all.
    `held` are those of the rows that are there, by default the table's: a restore knows better.
    `files_at` is for a table that others change as well: what it holds at a version, by its whole log.
    """

    def __init__(
        self,
        path: str | Path,
        schema: StructType,
        *,
        job: str,
        producer: NodeId,
        timeline: Timeline,
        incarnation: Incarnation,
        cut_to: int | None = None,
        renamed: Renamed | None = None,
        held: Columns | None = None,
        files_at: Callable[[int], Sequence[DataFile]] | None = None,
    ) -> None:
        if "://" in str(path):
            raise Misuse(
                f"Channel {str(path)!r} is not a directory: channels live on a file system that all workers share.",
                next="Give a plain path as the home directory.",
            )
        self.path = Path(path)
        self.job = job
        self.producer = producer
        self.timeline = timeline
        self.incarnation = incarnation
        self.schema = channel_schema(schema, producer)
        self._lock = threading.RLock()
        self._sync_lock = threading.Lock()
        self._trim_lock = threading.Lock()
        self._synced = -1
        self._doomed: list[DataFile] = []
        self._files_at = files_at
        self._create()
        if cut_to is not None:
            self._move_torn_aside(cut_to)
        self.log = ChannelLog(self.path)
        there = table_columns(self.path)
        self.columns = self._evolved(held or there, renamed)
        self._defined = self.log.redefined
        if files_at is not None:
            tell_last_batch(self.log, self.timeline, self._app)
        self._checkpoints = LogCheckpoints(self.path)
        if self._publish(self._fence) is not None:
            self.sweep()
        if cut_to is not None:
            self.truncate_to(cut_to)
        if self.columns != there:
            self._publish(lambda: Entry("schema", {}, (self._metadata(),)))
        if renamed is not None:
            by_place = Columns.of(self.schema) == self.columns
            note_columns(self.path, None if by_place else [Known(c.number, c.first) for c in self.columns.columns])

    # Traffic

    def append(self, files: Sequence[DataFile], batch: int, *, even_if_empty: bool = False) -> Commit | None:
        """Make the files of the producer's batch visible. None when the batch is already written, or has no files."""
        if not files and not even_if_empty:
            return None
        actions = (self._transaction(batch), *(add(f) for f in files))

        def entry() -> Entry | None:
            if self.has_batch(batch):
                return None
            check_definition(self.log, self._defined)
            return Entry("data", {"strobe.batch": batch}, actions)

        version = self._publish(entry)
        return None if version is None else self.log.commit(version)

    def append_restored(self, files: Sequence[DataFile], version: int) -> int:
        """Make a commit of a snapshot's content visible, which was `version` there; returns its version here. It
        belongs to no batch of this timeline."""
        made = self._publish(lambda: Entry("data", {"strobe.restored": version}, tuple(add(f) for f in files)))
        assert made is not None
        return made

    def has_batch(self, batch: int) -> bool:
        """Whether `append` would skip the batch: a replay need not compute it again."""
        last = self.log.last_batch(self.timeline)
        return last is not None and batch <= last

    def place_barrier(self, snapshot: SnapshotId, options: BarrierOptions = ORDINARY) -> Commit:
        """Put the barrier of `snapshot` behind everything committed so far, once."""
        asked = {"strobe.last": options.last, "strobe.aligned": options.aligned}
        notes = {"strobe.barrier": snapshot, **{name: True for name, holds in asked.items() if holds}}

        def entry() -> Entry | None:
            return None if self.log.find_barrier(snapshot) else Entry("barrier", notes)

        self._publish(entry)
        barrier = self.log.find_barrier(snapshot)
        assert barrier is not None
        return barrier

    def end(self) -> Commit:
        """Say that the producer will write no more. A later `append` takes it back."""
        self._publish(lambda: None if self.log.ended else Entry("end"))
        return self.log.commits(self.log.trimmed)[-1]

    # Housekeeping

    def truncate_to(self, version: int) -> None:
        """The table reads as of `version` again. What is cut off stays on disk until it is trimmed."""

        def entry() -> Entry | None:
            log = self.log
            if not 0 <= version <= log.head:
                raise Failed(
                    f"Channel {self.path.name} cannot be cut back to version {version}: its log ends at {log.head}.",
                    untouched="The channel is unchanged.",
                    next="Restore from a snapshot of this job in this home directory.",
                )
            if self._files_at is None and log.is_live(version) and version >= log.end:
                return None
            files_at = self._files_at or log.files_at
            now, then = ({f.path: f for f in files_at(at)} for at in (log.head, version))
            if self._files_at is not None and now.keys() == then.keys():
                return None
            removed = (remove(f, millis()) for path, f in now.items() if path not in then)
            added = (add(f) for path, f in then.items() if path not in now)
            return Entry("cut", {"strobe.to": version}, (*removed, *added))

        self._publish(entry)
        with self._sync_lock:
            self._synced = min(self._synced, version)

    def trim(self, upto: int) -> int:
        """Let go of the rows of all commits up to `upto`, on every branch; returns the number of files removed.

        The caller knows that no consumer and no retained snapshot needs them. The files are deleted by the next call:
        whoever opened the table just before can still read it.
        """
        with self._trim_lock:
            return self._trim(upto)

    def _trim(self, upto: int) -> int:
        for file in self._doomed:
            _delete(self.path / file.path)
        self._doomed = []
        files: tuple[DataFile, ...] = ()

        def entry() -> Entry | None:
            nonlocal files
            log = self.log
            files = log.files_upto(upto)
            if not files:
                return None
            live = set(log.files_at(log.head))
            notes = {
                "strobe.to": log.last_data(upto),
                "strobe.batches": {str(t): b for t, b in log.batches().items()},
                "strobe.ended": log.ended,
            }
            # Deleted "long ago": a younger tombstone would be carried along in every checkpoint of the log.
            return Entry("trim", notes, tuple(remove(f, 1) for f in files if f in live))

        version = self._publish(entry)
        if version is None:
            return 0
        # Nothing may be deleted before the log entry that says so is durable.
        self._checkpoints.sync_entries(version - 1, version)
        self._doomed = list(files)
        self._checkpoints.delete_entries(self.log.trimmed)
        return len(files)

    def sync(self, upto: int) -> int:
        """Make all commits up to `upto` durable: files, log entries and their names. Returns the files synced."""
        with self._sync_lock:
            after = max(self._synced, self.log.trimmed)
            if upto <= after:
                return 0
            files = [(c.version, self.path / f.path) for c in self.log.commits(after, upto) for f in c.files]
            entries = [(v, self.path / LOG / entry_name(v)) for v in range(max(after + 1, 0), upto + 1)]
            attempts = dict.fromkeys((version, path.parent) for version, path in files)
            names = {self.path / LOG, *(above for _, a in attempts for above in (a.parent, a.parent.parent, self.path))}
            if self._synced < 0:
                names |= {self.path, self.path.parent}
            try:
                for version, path in (*files, *attempts, *entries):
                    self._sync_unless_trimmed(version, path)
                for path in sorted(names):
                    fsync(path)
            except FileNotFoundError as e:
                raise Damaged(
                    f"Channel {self.path.name} has lost a file: {e.filename} was deleted, and no snapshot can be "
                    "complete without it.",
                    untouched="What the job's stages have done is as it was.",
                    next="Put the file back, or restore the job from a snapshot.",
                ) from e
            except OSError as e:
                raise Failed(
                    f"Channel {self.path.name} could not be made durable up to version {upto}: "
                    f"{e.filename or self.path}: {e.strerror or e}.",
                    untouched="The channel is intact and in use.",
                    next="Make room on the disk, or check it; the next checkpoint tries again.",
                ) from e
            self._synced = upto
            return len(files) + len(entries)

    def _sync_unless_trimmed(self, version: int, path: Path) -> None:
        try:
            fsync(path)
        except FileNotFoundError:
            if version > self.log.trimmed and not (self._files_at and let_go_by_others(self.log, path, self._files_at)):
                raise

    def sweep(self) -> int:
        """Delete what attempts left that died before their commit; returns the number of directories removed."""
        # Listed before the fence is checked: what a newer incarnation writes comes after its fence, so it is not among
        # these, however long this one is stopped here.
        attempts = list((self.path / DATA).glob("*/*"))
        left_aside = list((self.path / ASIDE).glob("*.tmp"))
        self.log.refresh()
        self._check_fence()
        keep = {os.path.dirname(f.path) for f in self.log.referenced()}
        swept = 0
        if self._files_at is not None and not self.log.is_whole:
            return swept  # the entries that name the files are gone
        left = [attempt for attempt in attempts if attempt.relative_to(self.path).as_posix() not in keep]
        try:
            if left and self.log.trimmed >= 0:  # the writer of the trim may have died before the entry was durable
                self._checkpoints.sync_entries(self.log.trimmed, self.log.head)
        except OSError:
            left = []  # later
        for attempt in left:
            shutil.rmtree(attempt, ignore_errors=True)
            swept += 1
        for aside in left_aside:
            aside.unlink(missing_ok=True)
        return swept

    def close(self) -> None:
        """Wait for what runs in the background. The channel can be opened again."""
        self._checkpoints.join()

    # How a commit is made

    def _publish(self, build: Callable[[], Entry | None]) -> int | None:
        """Commit the entry that `build` returns for the newest version; None when it returns none."""
        with self._lock:
            while True:
                self.log.refresh()
                self._check_fence()
                entry = build()
                if entry is None:
                    return None
                version = self.log.head + 1
                if self._claim(version, entry):
                    self.log.refresh()
                    self._checkpoints.committed(version)
                    self.log.announce()
                    return version

    def _claim(self, version: int, entry: Entry) -> bool:
        """Create log entry `version`, whole or not at all; False when someone else has it."""
        tmp = self.path / ASIDE / f"{self.incarnation}-{os.urandom(8).hex()}.tmp"
        try:
            tmp.parent.mkdir(exist_ok=True)
            tmp.write_bytes(entry.encode(self.incarnation, self.timeline))
            os.link(tmp, self.path / LOG / entry_name(version))
        except FileExistsError:
            return False
        except FileNotFoundError:
            if not tmp.exists() and (self.path / LOG).is_dir():
                return False  # a newer incarnation swept it away: the fence check says so
            raise
        except OSError as e:
            raise Failed(
                f"Channel {self.path.name}: version {version} could not be written: {e.strerror or e}.",
                untouched="Everything committed before is intact.",
                next="Make room on the disk, or check it; the batch is written again when the stage restarts.",
            ) from e
        finally:
            with contextlib.suppress(OSError):
                tmp.unlink(missing_ok=True)
        return True

    def _check_fence(self) -> None:
        log = self.log
        if log.incarnation > self.incarnation or log.timeline > self.timeline:
            raise Fenced(
                f"Channel {self.path.name}: incarnation {self.incarnation} of job {self.job} is fenced off by "
                f"incarnation {log.incarnation}.",
                untouched="Nothing was written.",
                next="A newer run of this job has taken over; this one must stop.",
            )

    def _fence(self) -> Entry | None:
        known = self.log.incarnation == self.incarnation and self.log.timeline == self.timeline
        return None if known else Entry("fence")

    def _transaction(self, batch: int) -> dict[str, Any]:
        return {"txn": {"appId": self._app, "version": batch, "lastUpdated": millis()}}

    @property
    def _app(self) -> str:
        return f"strobe/{self.job}/{self.producer}/{self.timeline}"

    def _create(self) -> None:
        try:
            if not DeltaTable.is_deltatable(str(self.path)):
                DeltaTable.create(
                    str(self.path),
                    Schema.from_json(self.schema.json()),
                    mode="ignore",
                    name=f"{self.job}/{self.producer}",
                    configuration=PROPERTIES,
                )
        except (DeltaError, OSError) as e:
            raise Failed(
                f"Channel {self.path.name} of stage {self.producer!r} cannot be created: {_first_line(e)}.",
                next="Check that the home directory can be written to and has room.",
            ) from e

    def _evolved(self, held: Columns, renamed: Renamed | None) -> Columns:
        if renamed is not None:
            return evolve(held, self.schema, renamed, self.producer).columns
        if held.schema != self.schema:
            raise Misuse(
                f"Stage {self.producer!r} now returns {self.schema.simpleString()}, but {self.path} holds "
                f"{held.schema.simpleString()}.",
                untouched="It is unchanged.",
                next="Return the same columns as before, or write to another table.",
            )
        return held

    def _metadata(self) -> dict[str, Any]:
        about = DeltaTable(str(self.path)).metadata()
        return {
            "metaData": {
                "id": str(about.id),
                "name": about.name,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": self.columns.numbered.json(),
                "partitionColumns": list(about.partition_columns),
                "configuration": dict(about.configuration),
                "createdTime": about.created_time,
            }
        }

    def _move_torn_aside(self, version: int) -> None:
        torn = ChannelLog.first_unreadable(self.path, version)
        aside = self.path / ASIDE / f"torn-{self.incarnation}"
        # From the newest down, so that the log never has a gap that it did not have.
        for entry in sorted((self.path / LOG).glob("*.json"), reverse=True):
            if entry.name >= entry_name(torn):
                aside.mkdir(parents=True, exist_ok=True)
                entry.rename(aside / entry.name)
        if aside.is_dir():
            fsync(self.path / LOG)  # one that reappeared would follow entries that are newer than it


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _delete(path: Path) -> None:
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()  # the attempt's directory, once its last file is gone
