"""State that was decoded once: files of rows by the hashes of what they were decoded from.

A file holds the rows of one table in one partition, as they were after some changes, each with its key as bytes. The
next snapshot has the same changes and a few more: then only those are decoded, and take the place of the rows with
their keys. When they have become many, the result is kept, too. What is not found, damaged, or of another format is
decoded again: the cache is never needed for a right answer.

Only the columns that are asked for are decoded, or read from a file. What was read of a snapshot stays in memory until
`keep`: then whatever is new is decoded whole, and written. Whoever only wants an answer does not wait for that.

The directory is private to the user and bounded: what was not used for longest goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

import pyarrow as pa

from strobe.look.gather import Positions
from strobe.look.kept_rows import HASH, KEY, KeptRows, NotAsWritten, key_columns, without, write_rows
from strobe.look.state_files import Chunk, StoreFiles, changes_of
from strobe.look.state_tables import StateTable, TableEntries, batch_of, entries_of, rows_of
from strobe.store.manifest import BlobRef

__all__ = ["LARGEST", "StateCache", "cache_directory", "side_by_side"]

LARGEST: Final = 4 << 30
_FORMAT: Final = 2
_FEW: Final = 0.1  # share of the rows: fewer changes than this are applied each time instead of being kept

A = TypeVar("A")
B = TypeVar("B")


def cache_directory() -> Path | None:
    """Where decoded state is kept: `STROBE_CACHE` if it is set, nowhere if that is empty."""
    given = os.environ.get("STROBE_CACHE")
    if given == "":
        return None
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strobe" / "state"
    return Path(given) if given else place


class StateCache:
    """A directory of decoded state; without one, everything is decoded each time."""

    def __init__(self, directory: Path | None, largest: int = LARGEST) -> None:
        self._directory, self._largest = directory, largest
        self._lock = threading.Lock()  # guards the two below
        self._parts: dict[str, _Part] = {}
        self.decoded = 0  # rows, to see what the cache has saved

    def rows(
        self,
        table: StateTable,
        wanted: StateTable,
        store: StoreFiles,
        files: Mapping[str, BlobRef],
        read: Callable[[str], bytes],
        lay_out: Callable[[str, Path], None],
    ) -> list[pa.RecordBatch]:
        """The rows of a table in one partition. `wanted` is the table with the columns that are asked for."""
        names = _names(table, store, files)
        part = self._parts.get(names[-1])
        if part is None:
            part = self._known(table, store, names, read) if self._directory else None
        if part is not None:
            try:
                return self._noted(names[-1], part).batches(wanted)
            except NotAsWritten:
                self._discard(names)
        entries = entries_of(table, store, read, lay_out)
        return self._noted(names[-1], _Decoded(table, entries), len(entries)).batches(wanted)

    def keep(self) -> None:
        """Write what was decoded, and forget it."""
        with self._lock:
            parts, self._parts = self._parts, {}
        if self._directory is not None:
            side_by_side(lambda each: self._write(*each), [each for each in parts.items() if each[1].is_new])
            with contextlib.suppress(OSError):
                self._shrink()

    def _noted(self, name: str, part: _Part, decoded: int = 0) -> _Part:
        with self._lock:
            self._parts[name] = part
            self.decoded += decoded
        return part

    def _known(
        self, table: StateTable, store: StoreFiles, names: list[str], read: Callable[[str], bytes]
    ) -> _Part | None:
        """What is kept of the table after all changes, or after some, and the others."""
        for count in range(len(store.changes), -1, -1):
            kept = self._open(names[count], table)
            if kept is None:
                continue
            if count == len(store.changes):
                return _Kept(table, kept)
            changes = changes_of(store.changes[count:], read) if _keyed(table) else None
            if changes is None:
                return None  # they can only be applied to what was decoded
            try:
                replaced = kept.rows_with(changes.keys)
            except NotAsWritten:
                self._discard(names)
                return None
            there = ~changes.gone
            chunk = Chunk(changes.keys.take(there), changes.values.take(there))
            with self._lock:
                self.decoded += len(chunk)
            return _Changed(table, kept, replaced, chunk, len(changes.gone) > _FEW * max(len(kept), 1))
        return None

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, name: str, table: StateTable) -> KeptRows | None:
        assert self._directory is not None
        path = self._directory / name
        try:
            kept = KeptRows(path, _kept_schema(table))
            os.utime(path)
        except (OSError, NotAsWritten):
            return None
        return kept

    def _discard(self, names: list[str]) -> None:
        with self._lock:
            self._parts.pop(names[-1], None)
        for name in names if self._directory is not None else ():
            with contextlib.suppress(OSError):
                (Path(str(self._directory)) / name).unlink(missing_ok=True)

    def _write(self, name: str, part: _Part) -> None:
        """Write a file, if possible: it is skipped if the directory cannot be written, or if a column cannot be
        decoded."""
        directory = self._directory
        assert directory is not None
        with contextlib.suppress(
            OSError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError, pa.ArrowException
        ):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", dir=directory)
            os.close(handle)
            try:
                write_rows(Path(temporary), part.to_keep(), _kept_schema(part.table))
                os.replace(temporary, directory / name)
            finally:
                Path(temporary).unlink(missing_ok=True)

    def _shrink(self) -> None:
        assert self._directory is not None
        with os.scandir(self._directory) as entries:
            files = [(e.stat().st_mtime_ns, e.stat().st_size, e.path) for e in entries if e.is_file()]
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._largest:
                return
            Path(path).unlink(missing_ok=True)
            total -= size


# ── parts: the rows of a table in one partition ─────────────────────────────────────────────────────────────────────


class _Part(Protocol):
    @property
    def table(self) -> StateTable: ...

    @property
    def is_new(self) -> bool:
        """Whether it is worth keeping."""
        ...

    def batches(self, wanted: StateTable) -> list[pa.RecordBatch]: ...

    def to_keep(self) -> list[pa.RecordBatch]:
        """All columns, and what tells rows apart."""
        ...


@dataclass(frozen=True)
class _Decoded:
    table: StateTable
    entries: TableEntries
    is_new: bool = True

    def batches(self, wanted: StateTable) -> list[pa.RecordBatch]:
        return list(rows_of(wanted, self.entries))

    def to_keep(self) -> list[pa.RecordBatch]:
        rows = rows_of(self.table, self.entries)
        return [_with_key(self.table, *each) for each in zip(rows, self.entries.chunks, strict=True)]


@dataclass(frozen=True)
class _Kept:
    table: StateTable
    kept: KeptRows
    is_new: bool = False

    def batches(self, wanted: StateTable) -> list[pa.RecordBatch]:
        return self.kept.batches([c.name for c in wanted.columns])

    def to_keep(self) -> list[pa.RecordBatch]:
        return self.kept.batches(_kept_schema(self.table).names)


@dataclass(frozen=True)
class _Changed:
    """Rows that are kept, without those that were replaced, and what has taken their place."""

    table: StateTable
    kept: KeptRows
    replaced: list[Positions]
    changed: Chunk
    is_new: bool

    def batches(self, wanted: StateTable) -> list[pa.RecordBatch]:
        return [*self._left([c.name for c in wanted.columns]), batch_of(wanted, self.changed)]

    def to_keep(self) -> list[pa.RecordBatch]:
        new = _with_key(self.table, batch_of(self.table, self.changed), self.changed)
        return [*self._left(_kept_schema(self.table).names), new]

    def _left(self, names: list[str]) -> Iterable[pa.RecordBatch]:
        return (without(*each) for each in zip(self.kept.batches(names), self.replaced, strict=True))


def _keyed(table: StateTable) -> bool:
    """Whether each entry is one row, which its key identifies."""
    return not (table.many or table.numbered) and not {KEY.name, HASH.name} & {c.name for c in table.columns}


def _kept_schema(table: StateTable) -> pa.Schema:
    return table.schema.append(KEY).append(HASH) if _keyed(table) else table.schema


def _with_key(table: StateTable, rows: pa.RecordBatch, chunk: Chunk) -> pa.RecordBatch:
    if not _keyed(table):
        return rows
    return pa.RecordBatch.from_arrays([*rows.columns, *key_columns(chunk.keys)], schema=_kept_schema(table))


def _names(table: StateTable, store: StoreFiles, files: Mapping[str, BlobRef]) -> list[str]:
    """The names of the table's rows after no change, after the first, and so on to the last."""
    digest = hashlib.sha256(repr((_FORMAT, table.columns, table.family, table.many)).encode())
    for path in (*((store.base,) if store.base else ()), *sorted(store.ssts.values())):
        digest.update(path.rpartition("/")[2].encode() + bytes.fromhex(files[path].sha256))
    names = [f"{digest.hexdigest()}.rows"]
    for path in store.changes:
        digest.update(bytes.fromhex(files[path].sha256))
        names.append(f"{digest.hexdigest()}.rows")
    return names


def side_by_side(act: Callable[[A], B], items: list[A]) -> list[B]:
    """What `act` gives for each, with as many at a time as there are processors."""
    workers = min(len(items), os.cpu_count() or 1)
    if workers < 2:
        return [act(each) for each in items]
    with ThreadPoolExecutor(workers, thread_name_prefix="strobe-look") as pool:
        return list(pool.map(act, items))
