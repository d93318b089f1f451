"""Numbers and runs of bytes at many places of one buffer, read at once.

A buffer is seen as numbers that begin at every one of its bytes, so a number anywhere in it is an element of that view,
and numbers at a million places are read by one array operation. No place is trusted: each is compared with the buffer's
ends first.

Arrow columns are made of buffers here. Making them of lists or of numpy's arrays imports pandas where it is installed,
which takes longer than decoding a million rows.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

__all__ = ["Bytes", "Flags", "Positions", "Rows", "as_column", "number_at", "numbers", "pieces", "valid"]

Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
Positions: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

_LARGEST_PIECES: Final = 1 << 31


class Rows:
    """A buffer, and where in it each row starts and ends."""

    __slots__ = ("data", "ends", "starts")

    def __init__(self, data: Bytes, starts: Positions, ends: Positions) -> None:
        self.data, self.starts, self.ends = data, starts, ends

    def __len__(self) -> int:
        return len(self.starts)

    @classmethod
    def join(cls, rows: list[bytes]) -> Rows:
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ends = np.cumsum(lengths)
        return cls(np.frombuffer(b"".join(rows), np.uint8), ends - lengths, ends)

    def take(self, which: slice | Positions | Flags) -> Rows:
        return Rows(self.data, self.starts[which], self.ends[which])

    def to_list(self) -> list[bytes]:
        content = self.data.data
        return [bytes(content[start:end]) for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]


def numbers(data: Bytes, places: Positions, kind: str) -> np.ndarray[Any, Any]:
    """The number of this kind (`<i8`, `>i4`, …) that begins at each place. ValueError if one leads out of the data."""
    width = np.dtype(kind).itemsize
    if not len(places):
        return np.zeros(0, kind)
    if int(places.min()) < 0 or int(places.max()) + width > len(data):
        raise ValueError("a field leads out of the data")
    return number_at(data, kind)[places]


def number_at(data: Bytes, kind: str) -> np.ndarray[Any, Any]:
    """A view whose element at each place is the number of this kind that begins there."""
    width = np.dtype(kind).itemsize
    return np.ndarray((max(len(data) - width + 1, 0),), kind, np.ascontiguousarray(data).data, strides=(1,))


def pieces(rows: Rows) -> tuple[np.ndarray[Any, np.dtype[np.int32]], pa.Buffer]:
    """The bytes of all rows without what lies between them, and where each begins; the last number is the end."""
    sizes = rows.ends - rows.starts
    upto = np.cumsum(sizes)
    total = int(upto[-1]) if len(upto) else 0
    if total >= _LARGEST_PIECES:
        raise ValueError("its texts are too long")
    if len(sizes) and (int(sizes.min()) < 0 or int(rows.starts.min()) < 0 or int(rows.ends.max()) > len(rows.data)):
        raise ValueError("a value leads out of the data")
    offsets = np.concatenate((np.zeros(1, np.int32), upto.astype(np.int32)))
    if not total:
        return offsets, pa.py_buffer(b"")
    if bool((rows.starts[1:] < rows.ends[:-1]).any()):  # not one behind the other
        return offsets, pa.py_buffer(rows.data[np.arange(total) + np.repeat(rows.starts - (upto - sizes), sizes)])
    # What is wanted and what lies between, in turn: Arrow takes every second one.
    bounds = np.stack((rows.starts, rows.ends), axis=1).reshape(-1)
    turns = pa.Array.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(rows.data)]
    )
    taken = turns.take(as_column(np.arange(0, len(bounds), 2)))
    return offsets, taken.buffers()[2]


def as_column(values: np.ndarray[Any, Any], nulls: Flags | None = None) -> pa.Array:
    """Numbers as a column."""
    kind = pa.from_numpy_dtype(values.dtype)
    buffers = [None if nulls is None else valid(nulls), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def valid(nulls: Flags) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(~nulls, bitorder="little")) if bool(nulls.any()) else None
