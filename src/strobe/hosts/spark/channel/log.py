"""The commits of a channel, read from its Delta log.

A channel is a Delta table with one producer, so the order of its log is the channel's FIFO order, and a commit's
version is a position: "everything up to and including version v". Three kinds of commits are *traffic* and make a
`Commit`: a batch of the producer (data files), a barrier, and the producer's end. The others are housekeeping and
carry nothing: the table's creation, a fence, a trim, a cut, a change of columns. What Strobe needs to know of a commit
stands in its `commitInfo`:

    strobe.kind         data | barrier | end | fence | trim | cut | schema
    strobe.incarnation  who wrote it; never falls along the log
    strobe.timeline     which line of history it belongs to
    strobe.batch        data: the producer's batch, once per timeline
    strobe.barrier      barrier: the snapshot's id
    strobe.last         barrier: true if the job ends with this snapshot; else it is not there
    strobe.to           trim: rows up to this version are gone; cut: the version that the table reads as again
    strobe.batches      trim: each timeline's last batch, for the log entries before it may be deleted
    strobe.ended        trim: whether the producer had ended

**History is a tree.** A cut at version c back to version b makes b, not c-1, the parent of c. The *live* commits
are the ancestors of the newest one. Nothing in the log is rewritten, so a snapshot on a branch that was left can be
returned to for as long as its files are there.

The index reads each log entry once, in order. Entries are immutable and appear atomically and without gaps, so
reading is the same whether this process or another writes them.
"""

from __future__ import annotations

import json
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from strobe.model.errors import Damaged, Failed
from strobe.model.ids import Incarnation, SnapshotId, Timeline
from strobe.model.paths import from_delta_log
from strobe.protocol.events import ORDINARY, BarrierOptions

__all__ = ["LOG", "ChannelLog", "Commit", "DataFile", "entry_name"]

LOG: Final = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.")
_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError, Damaged)


def entry_name(version: int) -> str:
    return f"{version:020d}.json"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of the table; `path` is relative to the table, and stays below it."""

    path: str
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of the producer: a batch, a barrier or the end."""

    version: int
    rows: int
    bytes: int
    files: tuple[DataFile, ...]
    barrier: SnapshotId | None
    batch: int | None
    timeline: Timeline
    ended: bool
    options: BarrierOptions = ORDINARY  # of the barrier


class ChannelLog:
    """An index of the commits at `path`, safe to share between threads. `refresh()` takes in what is new.

    `torn_after` is for a restore, which cuts the log off there: what a power cut has left of it behind that version
    does not count. For everybody else a log that is torn, or has a gap, is damaged.
    """

    def __init__(self, path: str | Path, *, torn_after: int | None = None) -> None:
        self.path = Path(path)
        self._torn_after = torn_after
        self._dir = self.path / LOG
        self._lock = threading.RLock()
        self._head = -1
        self._next = 0  # the entry to read next: head + 1 once there is a head
        self._all: dict[int, Commit] = {}
        self._live: list[Commit] = []
        self._live_versions: list[int] = []
        self._cuts: list[tuple[int, int]] = []  # (version of the cut, version it goes back to), ascending
        self._trimmed = -1
        self._batches: dict[Timeline, int] = {}
        self._told: dict[Timeline, int] = {}  # last batches by the table's own marks
        self._ended = False
        self.redefined = -1  # the newest version in which somebody else changed columns, properties or protocol
        self.incarnation = Incarnation(0)
        self.timeline = Timeline(0)
        self._watchers: list[Callable[[], None]] = []
        self.refresh()

    @property
    def exists(self) -> bool:
        return self._head >= 0

    @property
    def head(self) -> int:
        """The newest version, housekeeping included; -1 when there is no table yet."""
        return self._head

    @property
    def is_whole(self) -> bool:
        """Whether the log still begins with the table's creation."""
        return (self._dir / entry_name(0)).exists()

    @property
    def end(self) -> int:
        """The version of the newest live commit: where a consumer that has read everything stands. 0 when none."""
        with self._lock:
            return self._live_versions[-1] if self._live_versions else max(self.trimmed, 0)

    @property
    def trimmed(self) -> int:
        """Rows up to this version are gone from the live history; -1 when none are."""
        return self.trimmed_at(self._head)

    @property
    def ended(self) -> bool:
        """Whether the producer has said that it has ended, and has written nothing since."""
        with self._lock:
            return self._live[-1].ended if self._live else self._ended

    def last_batch(self, timeline: Timeline) -> int | None:
        """The last batch that was committed on `timeline`."""
        known = (self._batches.get(timeline), self._told.get(timeline))
        return max((batch for batch in known if batch is not None), default=None)

    def tell(self, timeline: Timeline, batch: int) -> None:
        """Set a timeline's last batch from the table's own mark, which survives a clean-up of the log."""
        with self._lock:
            self._told[timeline] = max(self._told.get(timeline, -1), batch)

    def batches(self) -> Mapping[Timeline, int]:
        with self._lock:
            return dict(self._batches)

    def commits(self, after: int, upto: int | None = None) -> tuple[Commit, ...]:
        """The live commits in (after, upto], in order. Failed when some of them were trimmed or are not live."""
        with self._lock:
            if upto is not None and upto > self._head:
                self.refresh()
            self._check_readable(after, upto)
            first = bisect_right(self._live_versions, after)
            last = len(self._live) if upto is None else bisect_right(self._live_versions, upto)
            return tuple(self._live[first:last])

    def find_barrier(self, snapshot: SnapshotId) -> Commit | None:
        """The live barrier of `snapshot`."""
        with self._lock:
            return next((c for c in reversed(self._live) if c.barrier == snapshot), None)

    def referenced(self) -> tuple[DataFile, ...]:
        """Every data file that some commit of some branch still names."""
        with self._lock:
            return tuple(f for c in self._all.values() for f in c.files)

    def files_at(self, version: int) -> tuple[DataFile, ...]:
        """The files that make up the table as it reads at `version`, whichever branch that is on."""
        with self._lock:
            chain = self._chain(version)
            return tuple(f for c in self._all.values() if _on(chain, c.version) for f in c.files)

    def history(self, after: int, upto: int) -> tuple[Commit, ...]:
        """The commits in (after, upto] as they were when `upto` was written, whichever branch that is on. Failed when
        some of their rows are gone."""
        with self._lock:
            if upto > self._head:
                raise Failed(f"Channel {self.path.name} ends at version {self._head}: version {upto} is not there.")
            chain = self._chain(upto)
            gone = self.trimmed_at(upto)
            if after < gone:
                raise Failed(
                    f"Channel {self.path.name} no longer holds the rows after version {after}: they are trimmed up to "
                    f"version {gone}."
                )
            return tuple(c for c in self._all.values() if after < c.version and _on(chain, c.version))

    def trimmed_at(self, version: int) -> int:
        """Rows up to this version are gone from the history of `version`; -1 when none are."""
        with self._lock:
            return max((min(hi, self._trimmed) for lo, hi in self._chain(version) if lo <= self._trimmed), default=-1)

    def files_upto(self, version: int) -> tuple[DataFile, ...]:
        """The files of all commits with a version up to `version`, on every branch."""
        with self._lock:
            return tuple(f for c in self._all.values() if c.version <= version for f in c.files)

    def last_data(self, upto: int) -> int:
        """The version of the last commit with files up to `upto`, on any branch; -1 when there is none."""
        with self._lock:
            return max((c.version for c in self._all.values() if c.version <= upto and c.files), default=-1)

    def commit(self, version: int) -> Commit:
        with self._lock:
            return self._all[version]

    def is_live(self, version: int) -> bool:
        with self._lock:
            return _on(self._chain(self._head), version)

    def refresh(self) -> int:
        """Take in new log entries; returns `head`."""
        with self._lock:
            before = self._head
            if before < 0 or not os.path.exists(self._entry(before)):
                # Nothing read yet, or the log was trimmed past where this index stood: start at its first entry.
                self._restart()
            while (raw := _read(self._entry(self._next))) is not None:
                try:
                    self._absorb(self._next, raw)
                except Damaged:
                    if self._torn_after is None or self._next <= self._torn_after:
                        raise
                    break
            return self._head

    def _entry(self, version: int) -> str:
        """The entry's path, as text, which is cheap: every question of an idle query needs it."""
        return f"{self._dir}/{entry_name(version)}"

    def watch(self, grew: Callable[[], None]) -> None:
        """Call `grew` after each commit that `announce` reports. It must not block: the producer waits for it."""
        with self._lock:
            self._watchers.append(grew)

    def unwatch(self, grew: Callable[[], None]) -> None:
        with self._lock:
            self._watchers = [watcher for watcher in self._watchers if watcher != grew]

    def announce(self) -> None:
        """Called by the producer after a commit. Commits of other processes are seen only by `refresh`."""
        for grew in tuple(self._watchers):
            grew()

    @staticmethod
    def first_unreadable(path: Path, after: int) -> int:
        """The first version after `after` whose entry cannot be read, or is not there: a power cut tears, or loses,
        what was never synced."""
        version = after + 1
        while (raw := _read(path / LOG / entry_name(version))) is not None:
            try:
                _decode(version, raw)
            except _UNREADABLE:
                return version
            version += 1
        return version

    def _restart(self) -> None:
        names = [p.name for p in self._dir.iterdir()] if self._dir.is_dir() else []
        entries = [int(m[1]) for n in names if (m := _ENTRY.fullmatch(n))]
        # A clean-up of the log may leave nothing but a checkpoint of it: the next version comes behind that.
        summed_up = max((int(m[1]) for n in names if (m := _CHECKPOINT.match(n))), default=-1)
        self._next = min(entries, default=summed_up + 1)
        self._check_gaps(entries, summed_up)
        self._head = -1 if entries else summed_up
        self._all, self._live, self._live_versions, self._cuts = {}, [], [], []
        self._trimmed, self._ended, self._batches = -1, False, {}

    def _check_gaps(self, entries: list[int], summed_up: int) -> None:
        """An entry behind a gap was written before a power cut that lost the entries in the gap: it must never follow a
        newer one. Up to a checkpoint of the log others may delete entries in any order."""
        if not entries or len(entries) == max(entries) - min(entries) + 1:
            return
        there = set(entries)
        gap = next((v for v in range(max(min(entries), summed_up) + 1, max(entries)) if v not in there), None)
        # A listing may miss what came, or show what went, meanwhile: the oldest entries go first.
        if gap is None or (self._dir / entry_name(gap)).exists() or not (self._dir / entry_name(min(entries))).exists():
            return
        if self._torn_after is None or gap <= self._torn_after:
            raise Damaged(
                f"Entry {gap} of the log of channel {self.path.name} is gone, and later ones are there.",
                untouched="The entries before it are intact.",
                next="It was lost before it reached the disk, or deleted: restore the job from its last checkpoint.",
            )

    def _absorb(self, version: int, raw: bytes) -> None:
        try:
            info, commit = _decode(version, raw)
            self._take_in(version, info, commit)
            if "strobe.kind" not in info and (b'"metaData"' in raw or b'"protocol"' in raw):
                self.redefined = version
        except _UNREADABLE as e:
            raise Damaged(
                f"Entry {version} of the log of channel {self.path.name} cannot be read ({e}).",
                untouched="The entries before it are intact.",
                next="It was cut off before it reached the disk, or edited: restore the job from its last checkpoint.",
            ) from e

    def _take_in(self, version: int, info: Mapping[str, Any], commit: Commit | None) -> None:
        self._head, self._next = version, version + 1
        kind = info.get("strobe.kind")
        if kind is None:
            return  # the table's creation, or a commit that is not Strobe's: no traffic
        self.incarnation = max(self.incarnation, Incarnation(info["strobe.incarnation"]))
        self.timeline = max(self.timeline, Timeline(info["strobe.timeline"]))
        if kind == "trim":
            self._trimmed = max(self._trimmed, info["strobe.to"])
            self._ended = info["strobe.ended"]
            for name, batch in info["strobe.batches"].items():
                line = Timeline(int(name))
                self._batches[line] = max(self._batches.get(line, -1), batch)
            self._all = {v: c for v, c in self._all.items() if v > self._trimmed or not c.files}
            self._rebuild()
        elif kind == "cut":
            self._cuts.append((version, info["strobe.to"]))
            self._rebuild()
        elif commit is not None:
            self._all[version] = commit
            self._live.append(commit)
            self._live_versions.append(version)
            if commit.batch is not None:
                self._batches[commit.timeline] = max(self._batches.get(commit.timeline, -1), commit.batch)

    def _rebuild(self) -> None:
        chain = self._chain(self._head)
        self._live = [c for c in self._all.values() if _on(chain, c.version)]
        self._live_versions = [c.version for c in self._live]

    def _chain(self, version: int) -> list[tuple[int, int]]:
        """The ancestors of `version` and itself, as closed ranges, newest first."""
        ranges = []
        for cut, back in reversed(self._cuts):
            if cut <= version:
                ranges.append((cut, version))
                version = back
        ranges.append((0, version))
        return ranges

    def _check_readable(self, after: int, upto: int | None) -> None:
        trimmed = self.trimmed
        if after < trimmed:
            raise Failed(
                f"Channel {self.path.name} no longer holds the rows after version {after}: "
                f"it is trimmed up to {trimmed}.",
                untouched="The rows after that version are intact.",
                next="Start the consumer from a snapshot that is still retained, or as a new stage with a new uid.",
            )
        for position in (after, upto):
            if position is not None and 0 < position <= self._head and not _on(self._chain(self._head), position):
                raise Failed(
                    f"Version {position} of channel {self.path.name} belongs to a line of history that "
                    "a restore has left.",
                    untouched="Nothing was read.",
                    next="The consumer's checkpoint does not fit this channel: restore the job from a snapshot.",
                )
        if upto is not None and upto > self._head:
            raise Failed(
                f"Version {upto} of channel {self.path.name} does not exist: its log ends at {self._head}.",
                untouched="Nothing was read.",
                next="The consumer's checkpoint is ahead of the channel: restore the job from a snapshot.",
            )


def _on(ranges: Iterable[tuple[int, int]], version: int) -> bool:
    return any(lo <= version <= hi for lo, hi in ranges)


def _read(path: str | Path) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _data_file(add: Mapping[str, Any]) -> DataFile:
    rows, size = json.loads(add["stats"])["numRecords"], add["size"]
    if rows.__class__ is not int or size.__class__ is not int or rows < 0 or size < 0:
        raise ValueError(f"{rows!r:.40} rows in {size!r:.40} bytes")
    return DataFile(from_delta_log(add["path"]), rows, size)


def _decode(version: int, raw: bytes) -> tuple[Mapping[str, Any], Commit | None]:
    actions = [json.loads(line) for line in raw.splitlines()]
    if not actions:
        raise ValueError("it is empty")
    info: Mapping[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
    kind = info.get("strobe.kind")
    if kind not in ("data", "barrier", "end"):
        return info, None
    adds = [a["add"] for a in actions if "add" in a]
    files = tuple(_data_file(add) for add in adds)
    barrier = info.get("strobe.barrier")
    return info, Commit(
        version,
        sum(f.rows for f in files),
        sum(f.size for f in files),
        files,
        None if barrier is None else SnapshotId(barrier),
        info.get("strobe.batch"),
        Timeline(info["strobe.timeline"]),
        kind == "end",
        BarrierOptions(last=info.get("strobe.last") is True, aligned=info.get("strobe.aligned") is True),
    )
