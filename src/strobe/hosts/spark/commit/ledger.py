"""A sink's ledger: which parts it has prepared, which were decided, made visible or thrown away. Durable.

Theory
------
One small file for each sink that delivers on snapshot, replaced as a whole by an atomic rename, and synced: each change
happens or does not. It is written through the driver's own directory, so one that was given up cannot write it any more
(`JobHome`). What is in it is always *behind* the world by at most the step under way, never ahead:

* `noted` before the sink prepares: whatever the sink holds under a handle, the ledger has the handle;
* `prepared` after it has, with what it returned: a vote names only what is in the ledger as prepared;
* `held` when a complete snapshot names it and its invariants do not hold: for people, and for a snapshot that may be
  anywhere by the next start;
* `decided` when a complete snapshot is known to name it, before the commit;
* forgotten (it moves to the history) only after the commit, or the abort.

*Boundary*: the last batch of the newest part that is prepared. The next part begins after it. A part that is only noted
when the driver dies is in no vote: it is dropped, and its batches, which are still staged, are in the next part.

*Origin*: the batch after which the sink takes part, on this timeline. It is settled once, before the first batch: who
lost the ledger would otherwise take staged rows for rows that were never there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from strobe.hosts.spark.connectors.base import Part
from strobe.hosts.spark.home.job_home import JobHome
from strobe.model.cut import Json
from strobe.model.errors import Damaged, HostFault
from strobe.model.ids import SnapshotId, Timeline
from strobe.store.layout import JobLayout
from strobe.store.manifest import NOTHING, Manifest
from strobe.store.small_files import as_kind, read_object

__all__ = ["Entry", "Ledger", "PartState", "SinkLedger", "named_handles", "read_ledgers"]

_FORMAT: Final = 1
_HISTORY: Final = 50  # parts that were made visible; those that were thrown away are remembered for good


class PartState(Enum):
    PREPARING = "preparing"
    PREPARED = "prepared"
    HELD = "held"  # a complete snapshot names it, and its invariants, or an earlier one's, hold it back
    DECIDED = "in doubt"  # a complete snapshot names it, and whether it is visible is not known yet
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Entry:
    """One part. `data` is what the sink returned when it prepared; `staged`: its batches were files of `Staging`."""

    part: Part
    state: PartState
    where: str  # the sink, in words
    noted: str
    changed: str
    data: Json = None
    by_hand: str = ""
    decided_by: SnapshotId | None = None
    staged: bool = False

    @property
    def handle(self) -> str:
        return self.part.handle


@dataclass(frozen=True, slots=True)
class Ledger:
    """`entries` are in doubt, oldest first; `done` is the history, oldest first. `kind` is the sink's class."""

    sink: str
    kind: str
    timeline: Timeline
    origin: int
    boundary: int
    entries: tuple[Entry, ...] = ()
    done: tuple[Entry, ...] = ()
    closed: bool = False  # it takes no part, yet or any more: later batches are not its own, should it come back

    def find(self, handle: str) -> Entry | None:
        return next((e for e in (*self.entries, *self.done) if e.handle == handle), None)


class SinkLedger:
    """The driver's hold on one sink's ledger. Used by one thread at a time; `now` tells the time in words."""

    def __init__(self, home: JobHome, sink: str, now: Callable[[], str]) -> None:
        self._home = home
        self._key = home.layout.ledger(sink)
        self._sink = sink
        self._now = now
        self._ledger = _read(home.path(self._key))

    @property
    def ledger(self) -> Ledger:
        assert self._ledger is not None
        return self._ledger

    @property
    def is_new(self) -> bool:
        return self._ledger is None

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The parts in doubt, oldest first."""
        return () if self._ledger is None else self._ledger.entries

    def open(self, kind: str, timeline: Timeline, committed: int, staging: Path) -> None:
        """At each start. `committed` is the stage's last batch; `staging` where this sink's batches are."""
        old = self._ledger
        if old is None and any(path.is_file() for path in staging.rglob("*")):
            raise Damaged(
                f"{self._home.path(self._key)} is gone, but {staging} has batches: which of them are visible in sink "
                f"{self._sink!r} is no longer known.",
                untouched="Nothing was started.",
                next="Put the file back, or restore the job from a snapshot. If the sink has delivered on batch until "
                "now: run the file as it was, end the job with `strobe stop`, then change it.",
            )
        if old is not None and old.timeline == timeline and not old.closed:
            # What was noted and not prepared is in no vote: its batches are in the next part. Written in any case: a
            # driver that was killed may have left a file that is there and not synced, and votes will name what it has.
            self._write(replace(old, kind=kind, entries=self._prepared(old)), again=True)
            return
        if old is not None and old.entries:
            raise HostFault(
                f"Sink {self._sink!r} has parts of timeline {old.timeline} in doubt on timeline {timeline}."
            )
        done = () if old is None else old.done
        self._write(Ledger(self._sink, kind, timeline, committed, committed, (), done, closed=True))

    @property
    def fresh(self) -> bool:
        """Whether this start is the first at which the sink delivers on snapshot."""
        return self.ledger.closed

    def begin(self) -> None:
        if self.fresh:
            self._write(replace(self.ledger, closed=False))

    def close(self) -> None:
        """The sink takes no part any more, and nothing of it is in doubt."""
        if self.entries:
            raise HostFault(f"The ledger of {self._sink!r} cannot be closed: parts are in doubt.")
        self._write(replace(self.ledger, closed=True))

    def note(self, part: Part, where: str) -> None:
        """The sink is about to prepare the part. One that was noted before and not prepared is contained in it."""
        now = self._now()
        entry = Entry(part, PartState.PREPARING, where, now, now)
        self._write(replace(self.ledger, entries=(*self._prepared(self.ledger), entry)))

    def prepared(self, handle: str, data: Json, by_hand: str, *, staged: bool) -> None:
        def change(entry: Entry) -> Entry:
            return replace(
                entry, state=PartState.PREPARED, data=data, by_hand=by_hand, staged=staged, changed=self._now()
            )

        ledger = self._changed({handle}, change)
        self._write(replace(ledger, boundary=max(e.part.through for e in ledger.entries)))

    def refused(self, handle: str) -> None:
        """The sink has not prepared it; its batches are in the next part."""
        self._write(replace(self.ledger, entries=tuple(e for e in self.entries if e.handle != handle)))

    def held(self, handles: Iterable[str], snapshot: SnapshotId) -> None:
        """A complete snapshot names them, and they are held back. The first such snapshot is what is noted."""
        news = {e.handle for e in self.entries if e.state is PartState.PREPARED} & set(handles)
        if news:
            self._write(
                self._changed(
                    news, lambda e: replace(e, state=PartState.HELD, decided_by=snapshot, changed=self._now())
                )
            )

    def decided(self, handles: Iterable[str], snapshot: SnapshotId) -> None:
        waiting = (PartState.PREPARED, PartState.HELD)
        news = {e.handle for e in self.entries if e.state in waiting} & set(handles)
        if news:
            self._write(
                self._changed(
                    news, lambda e: replace(e, state=PartState.DECIDED, decided_by=snapshot, changed=self._now())
                )
            )

    def forget(self, handle: str, state: PartState) -> None:
        """The part is visible, or thrown away: nobody is in doubt about it any more."""
        gone = [replace(e, state=state, changed=self._now(), by_hand="") for e in self.entries if e.handle == handle]
        done = [*self.ledger.done, *gone]
        committed = [e for e in done if e.state is PartState.COMMITTED]
        stale = {e.handle for e in committed[:-_HISTORY]}
        self._write(
            replace(
                self.ledger,
                entries=tuple(e for e in self.entries if e.handle != handle),
                done=tuple(e for e in done if e.handle not in stale),
            )
        )

    def _changed(self, handles: set[str], change: Callable[[Entry], Entry]) -> Ledger:
        entries = tuple(change(e) if e.handle in handles else e for e in self.entries)
        return replace(self.ledger, entries=entries)

    @staticmethod
    def _prepared(ledger: Ledger) -> tuple[Entry, ...]:
        return tuple(e for e in ledger.entries if e.state is not PartState.PREPARING)

    def _write(self, ledger: Ledger, *, again: bool = False) -> None:
        if again or ledger != self._ledger:
            self._home.write(self._key, msgspec.to_builtins(_LedgerFile.of(ledger)))
            self._ledger = ledger


def read_ledgers(home: Path, job: str) -> dict[str, Ledger]:
    """The ledgers of all sinks that the job has, or had, by the sinks' names. For whoever looks from outside."""
    found: dict[str, Ledger] = {}
    for path in sorted((home / JobLayout(job).sinks).glob("*/*/ledger.json")):
        ledger = _read(path)
        if ledger is not None:
            found[ledger.sink] = ledger
    return found


def named_handles(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """The handles that a snapshot names, by sink, oldest first."""
    named = {sink: tuple(p.handle for p in record.prepared) for sink, record in manifest.sinks.items()}
    return {sink: handles for sink, handles in named.items() if handles}


# ── the file ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _EntryFile(msgspec.Struct, frozen=True):
    handle: str
    snapshot: SnapshotId
    timeline: Timeline
    after: int
    through: int
    state: PartState
    where: str
    noted: str
    changed: str
    data: Any
    by_hand: str
    decided_by: SnapshotId | None
    staged: bool

    @classmethod
    def of(cls, entry: Entry) -> _EntryFile:
        part = entry.part
        return cls(
            part.handle, part.snapshot, part.timeline, part.after, part.through, entry.state, entry.where, entry.noted,
            entry.changed, entry.data, entry.by_hand, entry.decided_by, entry.staged,
        )  # fmt: skip

    def entry(self) -> Entry:
        part = Part(self.handle, self.snapshot, self.timeline, self.after, self.through)
        return Entry(
            part,
            self.state,
            self.where,
            self.noted,
            self.changed,
            self.data,
            self.by_hand,
            self.decided_by,
            self.staged,
        )


class _Format(msgspec.Struct, frozen=True):
    """Read first: a file of another format need not have the rest."""

    format: int


class _LedgerFile(_Format, frozen=True):
    sink: str
    kind: str
    timeline: Timeline
    origin: int
    boundary: Annotated[int, msgspec.Meta(ge=NOTHING)]
    entries: tuple[_EntryFile, ...]
    done: tuple[_EntryFile, ...]
    closed: bool

    @classmethod
    def of(cls, ledger: Ledger) -> _LedgerFile:
        return cls(
            _FORMAT, ledger.sink, ledger.kind, ledger.timeline, ledger.origin, ledger.boundary,
            tuple(_EntryFile.of(e) for e in ledger.entries), tuple(_EntryFile.of(e) for e in ledger.done),
            ledger.closed,
        )  # fmt: skip

    def ledger(self) -> Ledger:
        return Ledger(
            self.sink, self.kind, self.timeline, self.origin, self.boundary,
            tuple(e.entry() for e in self.entries), tuple(e.entry() for e in self.done), self.closed,
        )  # fmt: skip


def _read(path: Path) -> Ledger | None:
    try:
        value = read_object(path)
        found = as_kind(value, _Format).format
        if found != _FORMAT:
            raise ValueError(f"its format is {found}, and this Strobe reads {_FORMAT}")
        return as_kind(value, _LedgerFile).ledger()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Damaged(
            f"The ledger of a sink, {path}, cannot be read: {error}.",
            untouched="Nothing was changed.",
            next="Put back a copy of it, or restore the job from a snapshot.",
        ) from error
