"""Spark's UnsafeRow as Arrow columns, many rows at a time.

A row is a bit for each field that is set when the field is null, in words of eight bytes; then eight bytes for each
field; then what is longer. A field that is not of fixed length has its place, counted from the row's start, in the
upper half of its eight bytes and its length in the lower one. A struct is a row within. An array is the number of its
elements, their null bits, their slots, and what is longer; a map is the length of its keys, and two arrays.

All rows lie in one buffer. A column is read by arithmetic on the positions of all its slots at once. No position is
trusted: each is compared with the buffer's end before it is read, and `ValueError` says which one leads out of it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from strobe.look.gather import Bytes, Flags, Positions, Rows, as_column, numbers, pieces, valid
from strobe.look.types import Field, SparkType

__all__ = ["decode_rows"]

_MOST_ELEMENTS: Final = 1 << 31


def decode_rows(rows: Rows, fields: tuple[Field, ...], places: frozenset[int] | None = None) -> list[pa.Array]:
    """A column for each field; of those that are not asked for by their `places`, one without rows. ValueError if the
    bytes are not such rows."""
    head = (len(fields) + 63) // 64 * 8
    if len(rows) and int((rows.ends - rows.starts).min()) < head + 8 * len(fields):
        raise ValueError("a row is shorter than its fields")
    columns = []
    for place, field in enumerate(fields):
        if places is not None and place not in places:
            columns.append(pa.nulls(0, field.type.arrow))
            continue
        nulls = _bits(rows.data, rows.starts, np.int64(place))
        columns.append(_column(rows.data, field.type, rows.starts + (head + 8 * place), rows.starts, rows.ends, nulls))
    return columns


def _column(
    data: Bytes, kind: SparkType, slots: Positions, bases: Positions, ends: Positions, nulls: Flags
) -> pa.Array:
    """The values in `slots`, which belong to rows or arrays that lie from `bases` to `ends`."""
    if kind.name == "void":
        return pa.nulls(len(slots))
    if kind.inline:
        return _fixed(data, kind, slots, nulls)
    places = numbers(data, slots, "<i8")
    there = np.flatnonzero(~nulls)
    starts = bases[there] + (places[there] >> 32)
    sizes = places[there] & 0xFFFFFFFF
    stops = starts + sizes
    if len(there) and (bool((starts < bases[there]).any()) or bool((stops > ends[there]).any())):
        raise ValueError("a value leads out of its row")
    values = _elsewhere(data, kind, starts, stops)
    return values if len(there) == len(slots) else _spread(values, there, len(slots))


def _fixed(data: Bytes, kind: SparkType, slots: Positions, nulls: Flags) -> pa.Array:
    raw = numbers(data, slots, f"<i{kind.width}")
    if kind.name == "boolean":
        buffers = [valid(nulls), pa.py_buffer(np.packbits(raw != 0, bitorder="little"))]
        return pa.Array.from_buffers(kind.arrow, len(slots), buffers)
    if kind.name == "decimal":
        raw = np.stack((raw, raw >> 63), axis=1)
    return pa.Array.from_buffers(kind.arrow, len(slots), [valid(nulls), pa.py_buffer(np.ascontiguousarray(raw))])


def _elsewhere(data: Bytes, kind: SparkType, starts: Positions, stops: Positions) -> pa.Array:
    """Values that are there, none of them null."""
    if kind.name in ("text", "bytes"):
        return _texts(data, kind, starts, stops)
    if kind.name == "decimal":
        return _large_decimals(data, kind, starts, stops)
    if kind.name == "struct":
        columns = decode_rows(Rows(data, starts, stops), kind.fields)
        if not columns:
            return pa.array([{}] * len(starts), kind.arrow)
        return pa.StructArray.from_arrays(columns, fields=list(kind.arrow))
    if kind.name == "array":
        offsets, elements = _elements(data, kind.fields[0].type, starts, stops)
        return pa.ListArray.from_arrays(offsets, elements, type=kind.arrow)
    if bool((stops - starts < 8).any()):
        raise ValueError("a map is shorter than its head")
    middle = starts + 8 + numbers(data, starts, "<i8")
    if bool((middle < starts + 8).any()) or bool((middle > stops).any()):
        raise ValueError("the keys of a map lead out of it")
    offsets, keys = _elements(data, kind.fields[0].type, starts + 8, middle)
    others, items = _elements(data, kind.fields[1].type, middle, stops)
    if not offsets.equals(others):
        raise ValueError("a map has more keys than values, or fewer")
    if keys.null_count:
        raise ValueError("a key of a map is null")
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind.arrow)


def _elements(data: Bytes, kind: SparkType, starts: Positions, stops: Positions) -> tuple[pa.Array, pa.Array]:
    """The elements of all arrays in a row, and where each array begins among them."""
    if bool((stops - starts < 8).any()):
        raise ValueError("an array is shorter than its head")
    counts = numbers(data, starts, "<i8")
    heads = 8 + (counts + 63) // 64 * 8
    if (
        bool((counts < 0).any())
        or bool((counts > _MOST_ELEMENTS).any())
        or bool((starts + heads + counts * kind.width > stops).any())
    ):
        raise ValueError("an array has more elements than bytes")
    upto = np.cumsum(counts)
    if len(upto) and int(upto[-1]) >= _MOST_ELEMENTS:
        raise ValueError("its arrays have too many elements")
    number = np.arange(int(upto[-1]) if len(upto) else 0) - np.repeat(upto - counts, counts)
    bases, ends = np.repeat(starts, counts), np.repeat(stops, counts)
    nulls = _bits(data, bases + 8, number)
    slots = bases + np.repeat(heads, counts) + number * kind.width
    offsets = as_column(np.concatenate((np.zeros(1, np.int32), upto.astype(np.int32))))
    return offsets, _column(data, kind, slots, bases, ends, nulls)


def _texts(data: Bytes, kind: SparkType, starts: Positions, stops: Positions) -> pa.Array:
    offsets, content = pieces(Rows(data, starts, stops))
    buffers = [None, pa.py_buffer(offsets), content]
    values = pa.Array.from_buffers(kind.arrow, len(starts), buffers)
    if kind.name == "text":
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:  # Spark does not check that a string is UTF-8: other bytes become "�"
            raw = pa.Array.from_buffers(pa.binary(), len(starts), buffers)
            return pa.array([each.decode("utf-8", "replace") for each in raw.to_pylist()], pa.string())
    return values


def _large_decimals(data: Bytes, kind: SparkType, starts: Positions, stops: Positions) -> pa.Array:
    """Decimals of more than 18 digits: big-endian, as many bytes as are needed, at most 16."""
    sizes = stops - starts
    if len(sizes) and (int(sizes.max()) > 16 or int(sizes.min()) < 1):
        raise ValueError("a decimal has more bytes than digits")
    places = (stops - 16)[:, None] + np.arange(16)
    inside = places >= starts[:, None]
    raw = data[np.where(inside, places, starts[:, None])]
    sign = np.where(data[starts] >= 128, np.uint8(255), np.uint8(0)) if len(starts) else np.zeros(0, np.uint8)
    raw = np.where(inside, raw, sign[:, None])[:, ::-1]
    return pa.Array.from_buffers(kind.arrow, len(starts), [None, pa.py_buffer(np.ascontiguousarray(raw))])


def _bits(data: Bytes, starts: Positions, number: Positions | np.int64) -> Flags:
    """Bit `number` of the bits that begin at each start."""
    byte = numbers(data, starts + (number >> 3), "u1")
    return ((byte >> (number & 7).astype(np.uint8)) & 1).astype(np.bool_)


def _spread(values: pa.Array, there: Positions, count: int) -> pa.Array:
    """`values` at the places where they are there, null elsewhere."""
    index, nulls = np.zeros(count, np.int64), np.ones(count, np.bool_)
    index[there], nulls[there] = np.arange(len(there)), False
    return values.take(as_column(index, nulls))
