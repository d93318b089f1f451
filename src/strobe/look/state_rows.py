"""The entries of a store as Arrow columns: keys by their encoding, values by their schema.

An encoded row is one byte for the version of the encoding (0) and an UnsafeRow. A key is encoded whole; or the columns
that it is looked up by come first, with their length; or columns by which entries are ordered come first, each as bytes
that sort as the values do; or a time comes first or last, in eight bytes. Lists are runs of values with their lengths.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from strobe.look.state_files import Chunk
from strobe.look.state_schema import Family
from strobe.look.types import Field, SparkType, Unsupported
from strobe.look.unsafe_rows import Positions, Rows, decode_rows

__all__ = ["decode_keys", "decode_lists", "decode_values"]

_ORDERED = SparkType("bytes", pa.binary(), inline=False)


def decode_keys(keys: list[bytes], family: Family, *, plain: bool = False, skip: int = 0) -> list[pa.Array]:
    """A column for each column of the key. `skip`: how many bytes stand ahead of each (the number of its family)."""
    rows = Rows.join(keys)
    rows = Rows(rows.data, rows.starts + skip, rows.ends)
    if plain:
        return decode_rows(rows, family.key)
    if family.encoding == "whole":
        return decode_rows(_unversioned(rows), family.key)
    if family.encoding in ("prefix", "range"):
        return _split(rows, family)
    return _timed(rows, family)


def decode_values(values: list[bytes], fields: tuple[Field, ...], *, plain: bool = False) -> list[pa.Array]:
    rows = Rows.join(values)
    return decode_rows(rows if plain else _unversioned(rows), fields)


def decode_lists(chunk: Chunk, fields: tuple[Field, ...]) -> tuple[np.ndarray, np.ndarray, list[pa.Array]]:
    """The elements of all lists, in order: the place of the entry that each belongs to, its place in the list, and a
    column for each field."""
    owners: list[int] = []
    places: list[int] = []
    elements: list[bytes] = []
    for owner, value in enumerate(chunk.values):
        at, place = 0, 0
        while at < len(value):
            if value[at : at + 1] == b"," and place:
                at += 1  # between elements, in the older of the two formats; a length never begins so far up
            size = int.from_bytes(value[at : at + 4], "little")
            if at + 4 + size > len(value) or size < 1:
                raise ValueError("an element leads out of its list")
            elements.append(value[at + 4 : at + 4 + size])
            owners.append(owner)
            places.append(place)
            at, place = at + 4 + size, place + 1
    columns = decode_values(elements, fields)
    return np.array(owners, np.int64), np.array(places, np.int64), columns


def _unversioned(rows: Rows) -> Rows:
    if len(rows):
        if int((rows.ends - rows.starts).min()) < 1:
            raise ValueError("a row is empty")
        if bool(rows.data[rows.starts].any()):
            raise Unsupported("rows of another encoding")
    return Rows(rows.data, rows.starts + 1, rows.ends)


def _split(rows: Rows, family: Family) -> list[pa.Array]:
    first = [family.key[place] for place in family.first]
    others = [place for place in range(len(family.key)) if place not in family.first]
    middle = rows.starts + 4 + _ints(rows)
    if bool((middle < rows.starts + 4).any()) or bool((middle > rows.ends).any()):
        raise ValueError("the first part of a key leads out of it")
    ahead = _unversioned(Rows(rows.data, rows.starts + 4, middle))
    if family.encoding == "prefix":
        columns = decode_rows(ahead, tuple(first))
    else:
        raw = decode_rows(ahead, tuple(Field(f.name, _ORDERED) for f in first))
        columns = [_ordered(column, field.type) for column, field in zip(raw, first, strict=True)]
    found = dict(zip(family.first, columns, strict=True))
    if others:
        rest = decode_rows(_unversioned(Rows(rows.data, middle, rows.ends)), tuple(family.key[p] for p in others))
        found.update(zip(others, rest, strict=True))
    return [found[place] for place in range(len(family.key))]


def _ints(rows: Rows) -> Positions:
    if not len(rows):
        return np.zeros(0, np.int64)
    if int((rows.ends - rows.starts).min()) < 4:
        raise ValueError("a key is cut off")
    raw = np.ascontiguousarray(rows.data[rows.starts[:, None] + np.arange(4)])
    return raw.view("<i4").reshape(-1).astype(np.int64)


def _ordered(column: pa.Array, kind: SparkType) -> pa.Array:
    """Values whose bytes sort as they do: a mark (0 negative, 1 positive, 2 null), then the value, big end first."""
    width = kind.arrow.bit_width // 8
    if kind.name != "integer":
        raise Unsupported(f"keys that are ordered by {kind.name}")
    rows = Rows.join(column.to_pylist())
    if len(rows) and bool((rows.ends - rows.starts != width + 1).any()):
        raise ValueError("a column that orders keys has another length")
    raw = rows.data.reshape(-1, width + 1)
    nulls = raw[:, 0] == 2
    body = raw[:, 1:][:, ::-1]
    if pa.types.is_floating(kind.arrow):
        body = np.where((raw[:, 0] == 0)[:, None], ~body, body)
    valid = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if bool(nulls.any()) else None
    return pa.Array.from_buffers(kind.arrow, len(raw), [valid, pa.py_buffer(np.ascontiguousarray(body))])


def _timed(rows: Rows, family: Family) -> list[pa.Array]:
    if len(rows) and int((rows.ends - rows.starts).min()) < 8:
        raise ValueError("a key is cut off")
    ahead = family.encoding == "timestamp first"
    at = rows.starts if ahead else rows.ends - 8
    raw = np.ascontiguousarray(rows.data[at[:, None] + np.arange(8)]) if len(rows) else np.zeros((0, 8), np.uint8)
    time = (raw.view(">u8").reshape(-1) ^ np.uint64(1 << 63)).astype(np.int64)
    rest = Rows(rows.data, rows.starts + 8 if ahead else rows.starts, rows.ends if ahead else rows.ends - 8)
    return [*decode_rows(_unversioned(rest), family.key[:-1]), pa.array(time, pa.int64())]
