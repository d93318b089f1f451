"""A file of decoded rows: Arrow's own format, mapped into memory, with a checksum for each column.

What is not asked for is not read: a file of a million rows is open in a millisecond, and a column costs its checksum.
Beside the table's columns a row has the bytes of its key and their hash, so that rows of some keys are found without
reading the keys of all.

After Arrow's bytes come the checksums as JSON, their length, and a mark. A file that is cut off, or has other bytes
than were written, is refused: `NotAsWritten`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from strobe.look.gather import Flags, Positions, Rows, as_column, pieces
from strobe.look.key_hashes import hashes_of, rows_with

__all__ = ["HASH", "KEY", "KeptRows", "NotAsWritten", "key_columns", "without", "write_rows"]

KEY: Final = pa.field("__key", pa.binary())
HASH: Final = pa.field("__hash", pa.uint64())
_MARK: Final = b"strobe rows 1"
_END: Final = struct.Struct(f"<I{len(_MARK)}s")


class NotAsWritten(ValueError):
    """A file of rows is not what was written."""


def key_columns(keys: Rows) -> list[pa.Array]:
    """The columns `KEY` and `HASH`."""
    offsets, content = pieces(keys)
    key = pa.Array.from_buffers(KEY.type, len(keys), [None, pa.py_buffer(offsets), content])
    return [key, as_column(hashes_of(keys))]


def write_rows(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    # The checksums are of the bytes as a reader finds them.
    with pa.memory_map(str(path)) as file:
        table = _opened(file.read_buffer())
        sums = json.dumps({name: _checksum(table, name) for name in schema.names}).encode()
    with path.open("ab") as end:
        end.write(sums + _END.pack(len(sums), _MARK))


class KeptRows:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        """OSError if there is no file, `NotAsWritten` if it is not a file of rows with this schema."""
        with pa.memory_map(str(path)) as file:
            data = file.read_buffer()
        try:
            size, mark = _END.unpack(data[-_END.size :] if data.size >= _END.size else b"")
            if mark != _MARK:
                raise NotAsWritten("it has another mark")
            inner = data.size - _END.size - size
            self._sums: dict[str, Any] = json.loads(bytes(data[inner : data.size - _END.size]))
            self._table = _opened(data.slice(0, inner))
        except (struct.error, ValueError, OSError, pa.ArrowException) as error:
            raise NotAsWritten(f"it is not a file of rows: {error!s:.200}") from error
        if not self._table.schema.equals(schema) or not isinstance(self._sums, dict):
            raise NotAsWritten("it has other columns")
        self._believed: set[str] = set()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def batches(self, names: list[str]) -> list[pa.RecordBatch]:
        """The rows with some of the columns. `NotAsWritten` if one of these is damaged."""
        self._check(names)
        found: list[pa.RecordBatch] = self._table.select(names).to_batches()
        return found

    def rows_with(self, wanted: Rows) -> list[Positions]:
        """The rows with these keys, of each batch. `NotAsWritten` if that cannot be told."""
        self._check([HASH.name])
        found = []
        for batch in self._table.select([HASH.name, KEY.name]).to_batches():
            try:
                keys = partial(_key_rows, batch.column(1))
                rows, others = rows_with(keys, _numbers_of(batch.column(0)), wanted)
            except (ValueError, IndexError) as error:
                raise NotAsWritten(f"its keys are damaged: {error}") from error
            if others:
                # Hashes of different keys agree, which hardly ever happens; or keys were damaged.
                self._check([KEY.name])
            found.append(rows)
        return found

    def _check(self, names: list[str]) -> None:
        for name in names:
            if name not in self._believed:
                if self._sums.get(name) != _checksum(self._table, name):
                    raise NotAsWritten(f"its column {name} is damaged")
                self._believed.add(name)


def without(batch: pa.RecordBatch, rows: Positions) -> pa.RecordBatch:
    if not len(rows):
        return batch
    keep = np.ones(batch.num_rows, np.bool_)
    keep[rows] = False
    return pa.RecordBatch.from_arrays([_kept(column, keep) for column in batch.columns], schema=batch.schema)


def _kept(column: pa.Array, keep: Flags) -> pa.Array:
    if pa.types.is_primitive(column.type) and column.type.bit_width == 64 and not column.null_count:
        values = _numbers_of(column)[keep]
        return pa.Array.from_buffers(column.type, len(values), [None, pa.py_buffer(values)])
    mask = pa.Array.from_buffers(pa.bool_(), len(keep), [None, pa.py_buffer(np.packbits(keep, bitorder="little"))])
    return column.filter(mask)


def _opened(content: pa.Buffer) -> pa.Table:
    with pa.ipc.open_file(content) as reader:
        return reader.read_all()


def _checksum(table: pa.Table, name: str) -> int:
    found = 0
    for part in table.column(name).chunks:
        for buffer in part.buffers():
            found = zlib.crc32(b"" if buffer is None else buffer, found)
    return found


def _numbers_of(column: pa.Array) -> np.ndarray[Any, Any]:
    kind = np.uint64 if column.type == HASH.type else np.int64
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def _key_rows(column: pa.Array, rows: Positions) -> Rows:
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset :]
    content = column.buffers()[2]
    data = np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(0, np.uint8)
    return Rows(data, offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64))
