"""The entries of a store as Arrow columns: keys by their encoding, values by their schema.

An encoded row is one byte for the version of the encoding (0) and an UnsafeRow. A key is encoded whole; or the columns
that it is looked up by come first, with their length; or columns by which entries are ordered come first, each as bytes
that sort as the values do; or a time comes first or last, in eight bytes. Lists are runs of values with their lengths.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from strobe.look.gather import Positions, Rows, as_column, numbers
from strobe.look.state_schema import Family
from strobe.look.types import Field, SparkType, Unsupported
from strobe.look.unsafe_rows import decode_rows

__all__ = ["decode_keys", "decode_lists", "decode_values"]

_ORDERED = SparkType("bytes", pa.binary(), inline=False)


def decode_keys(
    keys: Rows, family: Family, *, plain: bool = False, skip: int = 0, places: frozenset[int] | None = None
) -> list[pa.Array]:
    """A column for each column of the key; of those that are not in `places`, if that is given, perhaps without rows.
    `skip`: how many bytes stand ahead of each (the number of its family)."""
    rows = Rows(keys.data, keys.starts + skip, keys.ends)
    if plain:
        return decode_rows(rows, family.key, places)
    if family.encoding == "whole":
        return decode_rows(_unversioned(rows), family.key, places)
    if family.encoding in ("prefix", "range"):
        return _split(rows, family)
    return _timed(rows, family)


def decode_values(
    values: Rows, fields: tuple[Field, ...], *, plain: bool = False, places: frozenset[int] | None = None
) -> list[pa.Array]:
    return decode_rows(values if plain else _unversioned(values), fields, places)


def decode_lists(values: Rows, fields: tuple[Field, ...]) -> tuple[Positions, Positions, list[pa.Array]]:
    """The elements of all lists, in order: the place of the entry that each belongs to, its place in the list, and a
    column for each field."""
    owners: list[int] = []
    places: list[int] = []
    elements: list[bytes] = []
    for owner, value in enumerate(values.to_list()):
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
    columns = decode_values(Rows.join(elements), fields)
    return np.array(owners, np.int64), np.array(places, np.int64), columns


def _unversioned(rows: Rows) -> Rows:
    if len(rows):
        if int((rows.ends - rows.starts).min()) < 1:
            raise ValueError("a row is empty")
        if bool(numbers(rows.data, rows.starts, "u1").any()):
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
    return numbers(rows.data, rows.starts, "<i4").astype(np.int64)


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
    time = (numbers(rows.data, at, ">u8") ^ np.uint64(1 << 63)).astype(np.int64)
    rest = Rows(rows.data, rows.starts + 8 if ahead else rows.starts, rows.ends if ahead else rows.ends - 8)
    return [*decode_rows(_unversioned(rest), family.key[:-1]), as_column(time)]
