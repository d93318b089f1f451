"""The changes of a store's entries: what they leave of each key that they touch.

Changes are compressed (`LZ4Block` frames, or Zstandard) runs of records. Those that only put and remove are read all at
once (`records`), and what a key is at last is found by its hash (`key_hashes`). Those that append to what was there, or
remove a range of keys, are read one by one. Spark's own store is runs of the same records, which put and remove.
"""

from __future__ import annotations

import struct
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
    is gone. Whatever was there in one of the ranges, from its first key up to its end, is gone, too."""

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
    changed: dict[bytes, tuple[bool, bytes | None]] = {}
    ranges: list[tuple[bytes, bytes]] = []
    for kind, key, value, removed in zip(kinds.tolist(), keys.to_list(), values.to_list(), gone.tolist(), strict=True):
        if removed:
            changed[key] = (False, None)
        elif kind == _MERGE:
            append, before = changed.get(key, (True, b""))
            changed[key] = (append, value) if before is None else (append, before + value)
        elif kind == _RANGE:
            ranges.append((key, value))
            for each in [k for k in changed if key <= k < value]:
                changed[each] = (False, None)
        else:
            changed[key] = (False, value)
    return StepByStep(changed, ranges)


def _decompressed(data: bytes) -> list[bytes]:
    """The bytes, in pieces."""
    if data[:4] == _ZSTD:
        with pa.CompressedInputStream(pa.py_buffer(data), "zstd") as stream:
            out = bytes(stream.read(_LARGEST + 1))
        if len(out) > _LARGEST:
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
        if total > _LARGEST:
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
