"""State that was decoded once: Parquet files by the hashes of what they were decoded from.

A file holds the rows of one table in one partition, as they were after some changes, each with its key as bytes. The
next snapshot has the same changes and a few more: then only those are decoded, and take the place of the rows with
their keys. When they have become many, the result is kept, too. What is not found, damaged, or of another format is
decoded again; a cache never has the last word.

The directory is private to the user and bounded: what was not used for longest goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strobe.look.state_files import Chunk, StoreFiles, changes_of
from strobe.look.state_tables import KEY, StateTable, batch_of, rows_of
from strobe.store.manifest import BlobRef

__all__ = ["LARGEST", "StateCache", "cache_directory"]

LARGEST: Final = 4 << 30
_FORMAT: Final = 1
_FEW: Final = 0.1  # of the rows: so many changes are applied each time rather than kept


def cache_directory() -> Path | None:
    """Where decoded state is kept; `STROBE_CACHE` says otherwise, and nowhere if it is empty."""
    given = os.environ.get("STROBE_CACHE")
    if given == "":
        return None
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strobe" / "state"
    return Path(given) if given else place


class StateCache:
    """A directory of decoded state; without one, everything is decoded each time."""

    def __init__(self, directory: Path | None, largest: int = LARGEST) -> None:
        self._directory, self._largest = directory, largest
        self.decoded = 0  # rows, for those who want to know what was saved

    def rows(
        self,
        table: StateTable,
        store: StoreFiles,
        files: Mapping[str, BlobRef],
        read: Callable[[str], bytes],
        lay_out: Callable[[str, Path], None],
    ) -> pa.Table:
        """The rows of a table in one partition."""
        if self._directory is None:
            return self._decode(table, store, read, lay_out)
        names = _names(table, store, files)
        for count in range(len(store.changes), -1, -1):
            known = self._load(names[count], table)
            if known is None:
                continue
            if count == len(store.changes):
                return known
            later = self._applied(known, table, store.changes[count:], read)
            if later is not None:
                rows, changed = later
                if changed > _FEW * max(known.num_rows, 1):
                    self._keep(names[-1], rows)
                return rows
        rows = self._decode(table, store, read, lay_out)
        self._keep(names[-1], rows)
        return rows

    def _decode(
        self, table: StateTable, store: StoreFiles, read: Callable[[str], bytes], lay_out: Callable[[str, Path], None]
    ) -> pa.Table:
        batches = rows_of(table, (store,), read, lay_out, keys=True)
        rows = pa.Table.from_batches(batches, table.schema.append(KEY))
        self.decoded += rows.num_rows
        return rows

    def _applied(
        self, known: pa.Table, table: StateTable, changes: tuple[str, ...], read: Callable[[str], bytes]
    ) -> tuple[pa.Table, int] | None:
        """`known` with the changes, and how many there are. None if they can only be applied to what was decoded."""
        if table.many or table.numbered:
            return None
        changed = changes_of(changes, read)
        if changed is None:
            return None
        if not len(changed.keys):
            return known, 0
        there = ~changed.gone
        self.decoded += int(there.sum())
        old = pc.is_in(known.column(KEY.name), value_set=pa.array(changed.keys.to_list(), pa.binary()))
        new = batch_of(table, Chunk(changed.keys.take(there), changed.values.take(there)), keys=True)
        rows = pa.concat_tables([known.filter(pc.invert(old)), pa.Table.from_batches([new])])
        return rows, len(changed.keys)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _load(self, name: str, table: StateTable) -> pa.Table | None:
        assert self._directory is not None
        path = self._directory / name
        try:
            rows = pq.read_table(path, memory_map=True)
            os.utime(path)
        except (OSError, pa.ArrowException):
            return None
        wanted = table.schema.append(KEY)
        return rows.cast(wanted) if rows.schema.names == wanted.names else None

    def _keep(self, name: str, rows: pa.Table) -> None:
        """A cache that cannot be written is none."""
        directory = self._directory
        assert directory is not None
        with contextlib.suppress(OSError, pa.ArrowException):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".", dir=directory)
            os.close(handle)
            try:
                pq.write_table(rows, temporary, compression="lz4", use_dictionary=False, write_statistics=False)
                os.replace(temporary, directory / name)
            finally:
                Path(temporary).unlink(missing_ok=True)
            self._shrink()

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


def _names(table: StateTable, store: StoreFiles, files: Mapping[str, BlobRef]) -> list[str]:
    """The names of the table's rows after no change, after the first, and so on to the last."""
    digest = hashlib.sha256(repr((_FORMAT, table.columns, table.family, table.many)).encode())
    for path in (*((store.base,) if store.base else ()), *sorted(store.ssts.values())):
        digest.update(path.rpartition("/")[2].encode() + bytes.fromhex(files[path].sha256))
    names = [f"{digest.hexdigest()}.parquet"]
    for path in store.changes:
        digest.update(bytes.fromhex(files[path].sha256))
        names.append(f"{digest.hexdigest()}.parquet")
    return names
