"""The files of a stage's state in a snapshot, and the entries that they hold: pairs of bytes, a chunk at a time.

Spark keeps the state of an operator in stores, one for each partition and, for joins, for each purpose. A store at
version N is its newest full copy at or below N, and the changes of each version after that:

- RocksDB: `v.zip` with the names of its SST files, and `v.changelog`. The copy is laid together in a temporary
  directory and opened there: opening writes.
- Spark's own: `v.snapshot` and `v.delta`, both runs of entries.

`state_changes` reads the changes. All of this is data from outside: names must be plain, lengths are compared with what
is there, and decompressed sizes are bounded. RocksDB gets the files that are its own and nothing else: the library that
opens it would unpickle values if a file beside them said so, and options can make RocksDB take all memory.
"""

from __future__ import annotations

import io
import itertools
import re
import zipfile
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from strobe.look.gather import Rows
from strobe.look.state_changes import Changes, Read, StepByStep, last_changes
from strobe.look.types import Unsupported
from strobe.model.paths import check_file_name
from strobe.model.strict_json import parse
from strobe.store.manifest import BlobRef

__all__ = ["Chunk", "Entries", "StoreFiles", "changes_of", "overlaid", "read_entries", "stores_of"]

_PATH: Final = re.compile(
    r"state/(\d{1,9})/(\d{1,9})/(?:([^/]+)/)?(\d{1,18})(?:_[^/.]*)?\.(zip|changelog|snapshot|delta)"
)
_SST: Final = re.compile(r"state/(\d{1,9})/(\d{1,9})/(?:([^/]+)/)?SSTs/([^/]+)")
_ROCKSDB_FILE: Final = re.compile(r"CURRENT|IDENTITY|MANIFEST-\d{1,20}|OPTIONS-\d{1,20}")
_ROCKSDB_TABLE: Final = re.compile(r"\d{1,20}\.sst")
# All that reading needs of the options: which of RocksDB's own operators puts lists together.
_SECTION: Final = re.compile(r'\[(?:Version|DBOptions|(?:CFOptions|TableOptions/BlockBasedTable) "default")\]')
_OPTION: Final = re.compile(
    r"(?:rocksdb_version|options_file_version)=[\d.]{1,20}"
    r"|merge_operator=\{?(?:id=)?\w{1,60}(?:;delimiter=[^{}]{0,20})?;?\}?"
)
_RAW: Final = '{"raw_mode":true,"prefix_extractors":{}}'  # what rocksdict asks its own file
_FULL: Final = ("zip", "snapshot")
_CHUNK: Final = 1 << 17  # entries, as Python's objects
_MANY: Final = 1 << 19  # entries, as places in a buffer
_LARGEST_SMALL_FILE: Final = 1 << 26
_LARGEST_TOGETHER: Final = 4  # times the largest file: all that one archive may hold


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
    keys: Rows
    values: Rows

    def __len__(self) -> int:
        return len(self.keys)


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
        left = last_changes((*((store.base,) if store.base else ()), *store.changes), read)
        return Entries(_left(left), plain=True)
    changes = last_changes(store.changes, read)
    if store.base is None:
        return Entries(_left(changes))
    families = _lay_together(store, read, lay_out, scratch)
    return Entries(_overlaid(scratch, changes, families), families)


def changes_of(paths: tuple[str, ...], read: Read) -> Changes | None:
    """What some changes leave of each key that they touch. None if that depends on what was there before, or if they
    are of another kind of store."""
    if not all(path.endswith(".changelog") for path in paths):
        return None
    changes = last_changes(paths, read)
    return changes if isinstance(changes, Changes) else None


def _left(changes: Changes | StepByStep) -> Iterator[Chunk]:
    """What changes leave where nothing was before."""
    if isinstance(changes, StepByStep):
        yield from _chunked((key, value) for key, (_, value) in changes.changed.items() if value is not None)
        return
    there = np.flatnonzero(~changes.gone)
    for at in range(0, len(there), _MANY):
        which = there[at : at + _MANY]
        yield Chunk(changes.keys.take(which), changes.values.take(which))


# ── RocksDB ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _lay_together(store: StoreFiles, read: Read, lay_out: Callable[[str, Path], None], scratch: Path) -> dict[str, int]:
    """The full copy as RocksDB wants it. Returns its column families."""
    metadata, total = None, 0
    with zipfile.ZipFile(io.BytesIO(read(str(store.base)))) as archive:
        for entry in archive.infolist():
            name = check_file_name(entry.filename, "a file of the state")
            if entry.file_size > _LARGEST_SMALL_FILE:
                raise ValueError(f"its file {name} is too large")
            with archive.open(entry) as packed:
                content = packed.read(_LARGEST_SMALL_FILE + 1)
            total += len(content)
            if len(content) > _LARGEST_SMALL_FILE or total > _LARGEST_TOGETHER * _LARGEST_SMALL_FILE:
                raise ValueError(f"its file {name} is too large")
            if name == "metadata":
                metadata = content
            elif _ROCKSDB_FILE.fullmatch(name):
                (scratch / name).write_bytes(_needed(content) if name.startswith("OPTIONS") else content)
    if metadata is None:
        raise ValueError("it has no metadata")
    head, _, body = metadata.partition(b"\n")
    if head != b"v1":
        raise Unsupported(f"state of the format {head.decode('utf-8', 'replace')!r:.40}")
    value = parse(body)
    if value.get("logFiles"):
        raise Unsupported("state with logs of RocksDB")
    for file in value.get("sstFiles") or ():
        local, stored = (check_file_name(file[name], name) for name in ("localFileName", "dfsSstFileName"))
        if not _ROCKSDB_TABLE.fullmatch(local):
            raise ValueError(f"its file {local} is no table of RocksDB")
        if stored not in store.ssts:
            raise ValueError(f"its file {stored} is missing")
        lay_out(store.ssts[stored], scratch / local)
    families = value.get("columnFamilyMapping") or {}
    if not all(number.__class__ is int and 0 <= number < 1 << 15 for number in families.values()):
        raise ValueError("its column families have no numbers")
    return dict(families)


def _needed(options: bytes) -> bytes:
    """What is needed of an options file."""
    kept, inside = [], False
    for line in options.decode(errors="replace").splitlines():
        text = line.strip()
        if text.startswith("["):
            inside = _SECTION.fullmatch(text) is not None
        if inside and (text.startswith("[") or _OPTION.fullmatch(text)):
            kept.append(text)
    return "\n".join((*kept, "")).encode()


def _overlaid(directory: Path, changes: Changes | StepByStep, families: Mapping[str, int]) -> Iterator[Chunk]:
    """What the full copy has and no change has replaced, then the changes."""
    from rocksdict import AccessType, DbClosedError, Options, Rdict

    try:
        options = Options(raw_mode=True)
        if families:
            # Lists are appended to by RocksDB itself, with an operator that only the stored options name.
            (directory / "rocksdict-config.json").write_text(_RAW)
            options, _ = Options.load_latest(str(directory))
        db = Rdict(str(directory), options=options, access_type=AccessType.read_only())
    except Exception as error:
        raise ValueError(f"RocksDB cannot open it: {str(error)[:200]}") from error
    try:
        items: Iterator[tuple[bytes, bytes]] = iter(db.items())  # type: ignore[arg-type]
        if isinstance(changes, Changes):
            replaced = set(changes.keys.to_list())
            while taken := list(itertools.islice(items, _CHUNK)):
                yield _chunk([each for each in taken if each[0] not in replaced] if replaced else taken)
            yield from _left(changes)
        else:
            yield from _chunked(overlaid(items, changes))
    except DbClosedError as error:
        raise ValueError(f"RocksDB cannot read it: {str(error)[:200]}") from error
    finally:
        db.close()


def overlaid(items: Iterator[tuple[bytes, bytes]], changes: StepByStep) -> Iterator[tuple[bytes, bytes]]:
    """What changes make of the entries of a full copy."""
    pending, ranges = dict(changes.changed), changes.ranges
    begins = [begin for begin, _ in ranges]

    def is_gone(key: bytes) -> bool:
        at = bisect_right(begins, key) - 1
        return at >= 0 and key < ranges[at][1]

    for key, value in items:
        if key in pending:
            append, newer = pending.pop(key)
            if newer is not None:
                yield key, value + newer if append else newer
        elif not is_gone(key):
            yield key, value
    for key, (_, newer) in pending.items():
        if newer is not None:
            yield key, newer


def _chunked(entries: Iterator[tuple[bytes, bytes]]) -> Iterator[Chunk]:
    while taken := list(itertools.islice(entries, _CHUNK)):
        yield _chunk(taken)


def _chunk(entries: list[tuple[bytes, bytes]]) -> Chunk:
    return Chunk(Rows.join([key for key, _ in entries]), Rows.join([value for _, value in entries]))
