"""The files of a stage's state in a snapshot, and the entries that they hold: pairs of bytes, a chunk at a time.

Spark keeps the state of an operator in stores, one for each partition and, for joins, for each purpose. A store at
version N is its newest full copy at or below N, and the changes of each version after that:

- RocksDB: `v.zip` with the names of its SST files, and `v.changelog`. The copy is laid together in a temporary
  directory and opened there: opening writes.
- Spark's own: `v.snapshot` and `v.delta`, both runs of entries.

Changes are compressed (`LZ4Block` frames, or Zstandard) runs of records. All of this is data from outside: names are
plain, lengths are held against what is there, and what is decompressed is bounded.
"""

from __future__ import annotations

import io
import itertools
import re
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import lz4.block
import pyarrow as pa

from strobe.look.types import Unsupported
from strobe.model.paths import check_file_name
from strobe.model.strict_json import parse
from strobe.store.manifest import BlobRef

__all__ = ["Chunk", "Entries", "StoreFiles", "changes_of", "read_entries", "stores_of"]

_PATH: Final = re.compile(
    r"state/(\d{1,9})/(\d{1,9})/(?:([^/]+)/)?(\d{1,18})(?:_[^/.]*)?\.(zip|changelog|snapshot|delta)"
)
_SST: Final = re.compile(r"state/(\d{1,9})/(\d{1,9})/(?:([^/]+)/)?SSTs/([^/]+)")
_FULL: Final = ("zip", "snapshot")
_CHUNK: Final = 1 << 17
_LARGEST: Final = 4 << 30  # of one file, decompressed
_LARGEST_BLOCK: Final = 1 << 25
_LARGEST_SMALL_FILE: Final = 1 << 26
_FRAME: Final = struct.Struct("<8sBiii")
_INT: Final = struct.Struct(">i")
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_DELETE, _PUT, _MERGE, _RANGE = 0x10, 0x01, 0x11, 0x20

Read = Callable[[str], bytes]


@dataclass(frozen=True)
class StoreFiles:
    """One store of one partition. `base` is its full copy, `changes` come after it in order; `ssts` by their names."""

    operator: int
    partition: int
    name: str
    base: str | None
    changes: tuple[str, ...]
    ssts: Mapping[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> tuple[str, ...]:
        return (*((self.base,) if self.base else ()), *self.changes, *self.ssts.values())


@dataclass(frozen=True)
class Chunk:
    keys: list[bytes]
    values: list[bytes]


@dataclass(frozen=True)
class Entries:
    """The entries of a store. `families` has the number of each column family, by which their keys begin; empty if the
    store has only one. `plain`: rows stand for themselves, without the byte for the version of their encoding."""

    chunks: Iterator[Chunk]
    families: Mapping[str, int] = field(default_factory=dict)
    plain: bool = False


def stores_of(files: Mapping[str, BlobRef]) -> tuple[StoreFiles, ...]:
    """The stores in the files of a stage. ValueError if changes are missing between the full copy and the last."""
    versions: dict[tuple[int, int, str], list[tuple[int, str, str]]] = {}
    ssts: dict[tuple[int, int, str], dict[str, str]] = {}
    for path in files:
        if match := _PATH.fullmatch(path):
            key = (int(match[1]), int(match[2]), match[3] or "default")
            versions.setdefault(key, []).append((int(match[4]), match[5], path))
        elif match := _SST.fullmatch(path):
            ssts.setdefault((int(match[1]), int(match[2]), match[3] or "default"), {})[match[4]] = path
    found = []
    for key, there in sorted(versions.items()):
        full = max(((v, path) for v, kind, path in there if kind in _FULL), default=(0, None))
        changes = sorted((v, path) for v, kind, path in there if kind not in _FULL and v > full[0])
        if [v for v, _ in changes] != list(range(full[0] + 1, full[0] + 1 + len(changes))):
            raise ValueError(f"versions of the state of operator {key[0]} are missing")
        found.append(StoreFiles(*key, full[1], tuple(path for _, path in changes), ssts.get(key, {})))
    return tuple(found)


def read_entries(store: StoreFiles, read: Read, lay_out: Callable[[str, Path], None], scratch: Path) -> Entries:
    """The entries of `store` at its last version. `scratch` is an empty directory that is the caller's to remove."""
    if any(path.endswith((".delta", ".snapshot")) for path in store.paths):
        return Entries(_chunked(iter(_plain_store(store, read).items())), plain=True)
    changed: dict[bytes, tuple[bool, bytes | None]] = {}
    ranges: list[tuple[bytes, bytes]] = []
    for path in store.changes:
        _apply(_records(_decompressed(read(path))), changed, ranges)
    if store.base is None:
        left = ((key, value) for key, (_, value) in changed.items() if value is not None)
        return Entries(_chunked(left))
    families = _lay_together(store, read, lay_out, scratch)
    return Entries(_overlaid(scratch, changed, ranges, families), families)


def changes_of(paths: tuple[str, ...], read: Read) -> dict[bytes, bytes | None] | None:
    """What some changes leave of each key that they touch: its value, or None if it is gone. None if that depends on
    what was there before, or if they are of another kind of store."""
    if not all(path.endswith(".changelog") for path in paths):
        return None
    changed: dict[bytes, tuple[bool, bytes | None]] = {}
    ranges: list[tuple[bytes, bytes]] = []
    for path in paths:
        _apply(_records(_decompressed(read(path))), changed, ranges)
    if ranges or any(append for append, _ in changed.values()):
        return None
    return {key: value for key, (_, value) in changed.items()}


# ── RocksDB ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _lay_together(store: StoreFiles, read: Read, lay_out: Callable[[str, Path], None], scratch: Path) -> dict[str, int]:
    """The full copy as RocksDB wants it. Returns its column families."""
    with zipfile.ZipFile(io.BytesIO(read(str(store.base)))) as archive:
        for entry in archive.infolist():
            name = check_file_name(entry.filename, "a file of the state")
            if entry.file_size > _LARGEST_SMALL_FILE:
                raise ValueError(f"its file {name} is too large")
            with archive.open(entry) as packed:
                content = packed.read(_LARGEST_SMALL_FILE + 1)
            if len(content) > _LARGEST_SMALL_FILE:
                raise ValueError(f"its file {name} is too large")
            if name == "metadata":
                metadata = content
            else:
                (scratch / name).write_bytes(content)
    head, _, body = metadata.partition(b"\n")
    if head != b"v1":
        raise Unsupported(f"state of the format {head.decode('utf-8', 'replace')!r:.40}")
    value = parse(body)
    if value.get("logFiles"):
        raise Unsupported("state with logs of RocksDB")
    for file in value.get("sstFiles") or ():
        local, stored = (check_file_name(file[name], name) for name in ("localFileName", "dfsSstFileName"))
        if stored not in store.ssts:
            raise ValueError(f"its file {stored} is missing")
        lay_out(store.ssts[stored], scratch / local)
    families = value.get("columnFamilyMapping") or {}
    if not all(number.__class__ is int and 0 <= number < 1 << 15 for number in families.values()):
        raise ValueError("its column families have no numbers")
    return dict(families)


def _overlaid(
    directory: Path,
    changed: dict[bytes, tuple[bool, bytes | None]],
    ranges: list[tuple[bytes, bytes]],
    families: Mapping[str, int],
) -> Iterator[Chunk]:
    """What the full copy has and no change has replaced, then the changes."""
    from rocksdict import AccessType, DbClosedError, Options, Rdict

    try:
        options = Options(raw_mode=True)
        if families:
            # Lists are appended to by RocksDB itself, with an operator that only the stored options name.
            options, _ = Options.load_latest(str(directory))
        db = Rdict(str(directory), options=options, access_type=AccessType.read_only())
    except Exception as error:
        raise ValueError(f"RocksDB cannot open it: {str(error)[:200]}") from error
    try:
        pending = dict(changed)
        keys: list[bytes] = []
        values: list[bytes] = []
        items: Iterator[tuple[bytes, bytes]] = iter(db.items())  # type: ignore[arg-type]
        while not pending and not ranges and (taken := list(itertools.islice(items, _CHUNK))):
            yield Chunk([key for key, _ in taken], [value for _, value in taken])
        for key, value in items:
            if pending and key in pending:
                append, newer = pending.pop(key)
                if newer is None:
                    continue
                value = value + newer if append else newer
            elif ranges and any(begin <= key < end for begin, end in ranges):
                continue
            keys.append(key)
            values.append(value)
            if len(keys) == _CHUNK:
                yield Chunk(keys, values)
                keys, values = [], []
        rest = [(key, value) for key, (_, value) in pending.items() if value is not None]
        yield Chunk(keys + [key for key, _ in rest], values + [value for _, value in rest])
    except DbClosedError as error:
        raise ValueError(f"RocksDB cannot read it: {str(error)[:200]}") from error
    finally:
        db.close()


def _apply(
    records: Iterator[tuple[int, bytes, bytes | None]],
    changed: dict[bytes, tuple[bool, bytes | None]],
    ranges: list[tuple[bytes, bytes]],
) -> None:
    """Notes for each key what it is now: (whether it is appended to what the full copy has, the value or None)."""
    for kind, key, value in records:
        if kind == _PUT:
            changed[key] = (False, value)
        elif kind == _MERGE:
            append, before = changed.get(key, (True, b""))
            changed[key] = (append, value) if before is None else (append, before + (value or b""))
        elif kind == _RANGE:
            end = value or b""
            ranges.append((key, end))
            for each in [k for k in changed if key <= k < end]:
                changed[each] = (False, None)
        else:
            changed[key] = (False, value)


# ── changes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _records(data: bytes) -> Iterator[tuple[int, bytes, bytes | None]]:
    """The records of a changelog, whichever of its formats it has. struct.error or ValueError if it is cut off."""
    version = _version(data)
    at = 4 if version > 1 else 0
    if version in (3, 4):
        at += 2 + int.from_bytes(data[at : at + 2], "big")  # the lineage of the store's checkpoints
    typed, unpack, end = version in (2, 4), _INT.unpack_from, len(data)
    while True:
        kind = _PUT
        if typed:
            kind = data[at]
            at += 1
            if kind == 0:
                return
        (size,) = unpack(data, at)
        at += 4
        if size == -1 and not typed:
            return
        key, at = data[at : at + size], at + size
        (length,) = unpack(data, at)
        at += 4
        if size < 0 or at + max(length, 0) > end:
            raise ValueError("a change leads out of its file")
        if length < 0:
            yield _DELETE, key, None
        else:
            if kind not in (_PUT, _MERGE, _RANGE):
                raise Unsupported(f"changes of kind {kind}")
            yield kind, key, data[at : at + length]
            at += length


def _version(data: bytes) -> int:
    """Only the first format does not say which it is: it begins with the length of a key."""
    if data[:3] == b"\x00\x02v" and len(data) > 3:
        if data[3:4] in b"234":
            return int(data[3:4])
        if data[3:4].isdigit():
            raise Unsupported(f"changes of format {data[3:4].decode()}")
    return 1


def _plain_store(store: StoreFiles, read: Read) -> dict[bytes, bytes]:
    """Spark's own store: all of it was in memory there."""
    entries: dict[bytes, bytes] = {}
    for path in (*((store.base,) if store.base else ()), *store.changes):
        for kind, key, value in _records_of_plain(_decompressed(read(path))):
            if kind == _DELETE or value is None:
                entries.pop(key, None)
            else:
                entries[key] = value
    return entries


def _records_of_plain(data: bytes) -> Iterator[tuple[int, bytes, bytes | None]]:
    at, unpack, end = 0, _INT.unpack_from, len(data)
    while True:
        (size,) = unpack(data, at)
        if size == -1:
            return
        key, at = data[at + 4 : at + 4 + size], at + 4 + size
        (length,) = unpack(data, at)
        at += 4
        if size < 0 or at + max(length, 0) > end:
            raise ValueError("an entry leads out of its file")
        yield (_DELETE, key, None) if length < 0 else (_PUT, key, data[at : at + length])
        at += max(length, 0)


def _decompressed(data: bytes) -> bytes:
    if data[:4] == _ZSTD:
        with pa.CompressedInputStream(pa.py_buffer(data), "zstd") as stream:
            out = bytes(stream.read(_LARGEST + 1))
        if len(out) > _LARGEST:
            raise ValueError("it is too large")
        return out
    if data[:8] != b"LZ4Block":
        raise Unsupported("a compression other than LZ4 and Zstandard")
    blocks: list[bytes] = []
    at = total = 0
    while at < len(data):
        magic, token, packed, size, _ = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if magic != b"LZ4Block" or not 0 <= size <= _LARGEST_BLOCK or not 0 <= packed <= len(data) - at:
            raise ValueError("it is not as it was compressed")
        if size == 0:
            break
        block = data[at : at + packed]
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
        blocks.append(block)
        at += packed
    return b"".join(blocks)


def _chunked(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[Chunk]:
    keys: list[bytes] = []
    values: list[bytes] = []
    for key, value in entries:
        keys.append(key)
        values.append(value)
        if len(keys) == _CHUNK:
            yield Chunk(keys, values)
            keys, values = [], []
    yield Chunk(keys, values)
