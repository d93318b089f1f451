"""The changes of a store's entries: what they leave of each key that they touch.

Changes are compressed (`LZ4Block` frames, or Zstandard) runs of records. Those that only put and remove are read all at
once (`records`), and what a key is at last is found by its hash (`key_hashes`). Those that append to what was there, or
remove a range of keys, are read one by one. Spark's own store is runs of the same records, which put and remove.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import lz4.block
import numpy as np
import pyarrow as pa

from strobe.look.gather import Bytes, Flags, Rows, number_at
from strobe.look.key_hashes import last_of_each
from strobe.look.records import record_starts
from strobe.look.types import Unsupported

__all__ = ["Changes", "Read", "StepByStep", "last_changes"]

_LARGEST: Final = 4 << 30  # of one file, decompressed
_ALWAYS: Final = 256 << 20  # however small it is compressed
_RATIO: Final = 300  # to its compressed size, above that; LZ4 cannot do better
_LARGEST_BLOCK: Final = 1 << 25
_FRAME: Final = struct.Struct("<8sBiii")
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_PUT, _MERGE, _RANGE = 0x01, 0x11, 0x20

Read = Callable[[str], bytes]


@dataclass(frozen=True)
class Changes:
    """Each key that was touched, once. Where it is `gone`, its value is empty."""

    keys: Rows
    values: Rows
    gone: Flags


@dataclass(frozen=True)
class StepByStep:
    """Each key that was touched: whether its value is appended to what was there before, and the value, or None if it
    is gone. Whatever was there in one of the ranges, from its first key up to its end, is gone, too. The ranges are in
    order, and none overlaps another."""

    changed: dict[bytes, tuple[bool, bytes | None]]
    ranges: list[tuple[bytes, bytes]]


def last_changes(paths: Iterable[str], read: Read) -> Changes | StepByStep:
    """What some files leave of each key, the later ones after the earlier. ValueError if one is cut off, `Unsupported`
    if it is of a format that is not known."""
    blocks: list[bytes] = []
    files: list[tuple[int, int, bool]] = []  # from where to where they lie, one behind the other; whether plain
    at = 0
    for path in paths:
        found = _decompressed(read(path))
        files.append((at, at := at + sum(map(len, found)), not path.endswith(".changelog")))
        blocks += found
    data = np.frombuffer(b"".join(blocks), np.uint8)
    del blocks
    keys, values, gone, kinds = _joined([_records(data, *file) for file in files], data)
    others = kinds[~gone & (kinds != _PUT)]
    if len(others):
        if bool(((others != _MERGE) & (others != _RANGE)).any()):
            raise Unsupported(f"changes of kind {int(others.max())}")
        return _step_by_step(keys, values, gone, kinds)
    last = last_of_each(keys)
    return Changes(keys.take(last), values.take(last), gone[last])


_Found = tuple[Rows, Rows, Flags, "np.ndarray[Any, np.dtype[np.uint8]]"]


def _records(data: Bytes, begin: int, end: int, plain: bool) -> _Found:
    """The records of one file: their keys, their values, which have none, and their kinds."""
    version, at = (1, begin) if plain else _version(data[begin:end].data[:4], begin)
    if version in (3, 4):
        at += 2 + int.from_bytes(data[at : at + 2].tobytes(), "big")  # the lineage of the store's checkpoints
    typed = version in (2, 4)
    starts = begin + record_starts(data[begin:end], at - begin, typed=typed)
    ints = number_at(data, ">i4")
    kinds = data[starts] if typed else np.full(len(starts), _PUT, np.uint8)
    key_starts = starts + (5 if typed else 4)
    key_ends = key_starts + ints[key_starts - 4]
    sizes = ints[key_ends].astype(np.int64)
    values = Rows(data, key_ends + 4, key_ends + 4 + np.maximum(sizes, 0))
    return Rows(data, key_starts, key_ends), values, sizes < 0, kinds


def _version(head: memoryview, at: int) -> tuple[int, int]:
    """Of a changelog, and where it goes on. Only the first format does not say which it is: it begins with the length
    of a key."""
    if bytes(head[:3]) == b"\x00\x02v" and len(head) > 3:
        if head[3] in b"234":
            return head[3] - ord("0"), at + 4
        if chr(head[3]).isdigit():
            raise Unsupported(f"changes of format {chr(head[3])}")
    return 1, at


def _joined(files: list[_Found], data: Bytes) -> _Found:
    files = [file for file in files if len(file[0])]
    if len(files) == 1:
        return files[0]
    none = np.zeros(0, np.int64)

    def rows(side: int) -> Rows:
        parts: list[Rows] = [file[side] for file in files]  # type: ignore[misc]
        return Rows(data, np.concatenate([none, *(p.starts for p in parts)]),
                    np.concatenate([none, *(p.ends for p in parts)]))  # fmt: skip

    gone = np.concatenate([np.zeros(0, np.bool_), *(file[2] for file in files)])
    return rows(0), rows(1), gone, np.concatenate([np.zeros(0, np.uint8), *(file[3] for file in files)])


def _step_by_step(keys: Rows, values: Rows, gone: Flags, kinds: np.ndarray[Any, np.dtype[np.uint8]]) -> StepByStep:
    """As if each change were made after the one before, in a time that their number explains."""
    records = list(zip(kinds.tolist(), keys.to_list(), values.to_list(), gone.tolist(), strict=True))
    touched: dict[bytes, list[int]] = {}
    ranges: list[tuple[int, bytes, bytes]] = []
    for number, (kind, key, value, removed) in enumerate(records):
        if kind == _RANGE and not removed:
            ranges.append((number, key, value))
        else:
            touched.setdefault(key, []).append(number)
    wiped = _last_ranges(sorted(touched), ranges)
    changed: dict[bytes, tuple[bool, bytes | None]] = {}
    for key, numbers in touched.items():
        last = wiped.get(key, -1)
        append = last < 0
        parts: list[bytes] | None = [] if append else None
        for kind, _, value, removed in (records[n] for n in numbers if n > last):
            if removed:
                append, parts = False, None
            elif kind == _MERGE and parts is not None:
                parts.append(value)
            else:
                append, parts = append and kind == _MERGE, [value]
        changed[key] = (append, None if parts is None else b"".join(parts))
    return StepByStep(changed, _disjoint((begin, end) for _, begin, end in ranges))


def _last_ranges(keys: list[bytes], ranges: list[tuple[int, bytes, bytes]]) -> dict[bytes, int]:
    """The number of the last range that each of the sorted keys lies in, where there is one. The last range goes first;
    a key that has one is passed over from then on."""
    following = list(range(len(keys) + 1))  # the next key that has none, or a key before that

    def next_without(at: int) -> int:
        while following[at] != at:
            following[at] = following[following[at]]
            at = following[at]
        return at

    found: dict[bytes, int] = {}
    for number, begin, end in reversed(ranges):
        stop = bisect_left(keys, end)
        at = next_without(bisect_left(keys, begin))
        while at < stop:
            found[keys[at]] = number
            following[at] = at + 1
            at = next_without(at + 1)
    return found


def _disjoint(ranges: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The same, in order, without those that hold nothing; what overlaps is one."""
    found: list[tuple[bytes, bytes]] = []
    for begin, end in sorted(each for each in ranges if each[0] < each[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _decompressed(data: bytes) -> list[bytes]:
    """The bytes, in pieces."""
    most = min(_LARGEST, max(_ALWAYS, _RATIO * len(data)))
    if data[:4] == _ZSTD:
        with pa.CompressedInputStream(pa.py_buffer(data), "zstd") as stream:
            out = bytes(stream.read(most + 1))
        if len(out) > most:
            raise ValueError("it is too large")
        return [out]
    if data[:8] != b"LZ4Block":
        raise Unsupported("a compression other than LZ4 and Zstandard")
    blocks: list[bytes] = []
    content = memoryview(data)
    at = total = 0
    while at < len(data):
        if len(data) - at < _FRAME.size:
            raise ValueError("it is cut off")
        magic, token, packed, size, _ = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if magic != b"LZ4Block" or not 0 <= size <= _LARGEST_BLOCK or not 0 <= packed <= len(data) - at:
            raise ValueError("it is not as it was compressed")
        if size == 0:
            break
        block: bytes | memoryview = content[at : at + packed]
        total += size
        if total > most:
            raise ValueError("it is too large")
        method = token & 0xF0
        if method == 0x20:
            try:
                block = lz4.block.decompress(block, uncompressed_size=size)
            except lz4.block.LZ4BlockError as error:
                raise ValueError(f"it is not as it was compressed: {error}") from error
        elif method != 0x10:
            raise ValueError("it is not as it was compressed")
        if len(block) != size:
            raise ValueError("it is not as it was compressed")
        blocks.append(bytes(block))
        at += packed
    return blocks
