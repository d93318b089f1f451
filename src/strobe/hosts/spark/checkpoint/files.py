"""Reading a query's own Spark checkpoint directory: where it is, and which files hold batch N.

Spark's contract, as observed on 4.3: `offsets/N` is written before batch N runs, `commits/N` after it; state version
N+1 is what batch N left; every file is written once and renamed into place. So the files of batch N can be picked by
name at any later time, while newer batches run, as long as Spark keeps them (minBatchesToRetain).

For a state store that is: the newest full snapshot at or below N+1 (`v.zip` with the SST files that it lists, or
`v.snapshot`), and the changelog (`v.changelog` or `v.delta`) of each later version up to N+1.

None of these files may be missing: what is copied into a snapshot must be enough to start from, and a query that
starts without one of them would fail in Spark's words, or read its source again from the start.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from strobe.hosts.spark.checkpoint import bad_files, torn, watermarks
from strobe.model.cut import Json
from strobe.model.errors import Damaged
from strobe.store.small_files import read_object

__all__ = [
    "OffsetEntry",
    "batch_files",
    "check",
    "is_committed",
    "last_committed",
    "last_logged",
    "read_offsets",
    "state_is_written",
]

_VERSIONED = re.compile(r"(\d+)(?:_[^.]*)?\.(changelog|delta|zip|snapshot)")
_FULL = {"zip", "snapshot"}


@dataclass(frozen=True, slots=True)
class OffsetEntry:
    """One `offsets/N`: where batch N ends on each source, by position in the plan."""

    batch: int
    timestamp_ms: int
    watermark_ms: int
    partitions: int | None
    sources: tuple[Json, ...]


def _batches(directory: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(directory) if name.isdecimal())
    except FileNotFoundError:
        return []


def last_logged(checkpoint: Path) -> int | None:
    batches = _batches(checkpoint / "offsets")
    return batches[-1] if batches else None


def last_committed(checkpoint: Path) -> int | None:
    batches = _batches(checkpoint / "commits")
    return batches[-1] if batches else None


def is_committed(checkpoint: Path, batch: int) -> bool:
    return (checkpoint / "commits" / str(batch)).exists()


def read_offsets(checkpoint: Path, batch: int) -> OffsetEntry:
    path = checkpoint / "offsets" / str(batch)
    try:
        version, meta, *sources = _lines(path)
        if version != "v1":
            raise ValueError(f"its version is {version!r}, and only v1 is known")
        head = json.loads(meta)
        partitions = head.get("conf", {}).get("spark.sql.shuffle.partitions")
        return OffsetEntry(
            batch=batch,
            timestamp_ms=int(head["batchTimestampMs"]),
            watermark_ms=int(head["batchWatermarkMs"]),
            partitions=None if partitions is None else int(partitions),
            sources=tuple(None if line == "-" else json.loads(line) for line in sources),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error


def _lines(path: Path) -> list[str]:
    lines = path.read_text().splitlines()
    if len(lines) < 2:
        raise ValueError("it is cut off")
    return lines


def check(checkpoint: Path) -> None:
    """Check that a query can start from here. Raises Damaged with the first file that is missing or cannot be read."""
    committed, logged = last_committed(checkpoint), last_logged(checkpoint)
    if committed is not None:
        _read_json_after_version(checkpoint / "commits" / str(committed))
        for file in batch_files(checkpoint, committed):
            _check_state_file(checkpoint / file)
    if logged is not None:
        _read_id(checkpoint / "metadata")
        read_offsets(checkpoint, logged)
        if logged > 0:
            read_offsets(checkpoint, logged - 1)  # where batch `logged` begins
            if committed is None or committed < logged - 1:
                raise _missing(checkpoint / "commits" / str(logged - 1))


def _check_state_file(path: Path) -> None:
    match = _VERSIONED.fullmatch(path.name)
    if match is not None and match[2] != "zip":
        try:
            torn.check_changes(path)
        except (OSError, ValueError) as error:
            raise _damaged(path, error) from error


def batch_files(checkpoint: Path, batch: int) -> tuple[Path, ...]:
    """The files, relative to `checkpoint`, that a restart right after batch `batch` needs. Sorted."""
    if not is_committed(checkpoint, batch):
        raise Damaged(f"Batch {batch} of {checkpoint} is not committed, so it cannot be part of a snapshot.")
    files = [Path("metadata"), *(Path("offsets", str(b)) for b in (batch - 1, batch) if b >= 0)]
    for needed in files:
        if not (checkpoint / needed).exists():
            raise _missing(checkpoint / needed)
    files += [Path("commits", str(b)) for b in _batches(checkpoint / "commits") if batch - 1 <= b <= batch]
    files += _source_files(checkpoint, batch)
    kept = (watermarks.newest(checkpoint, batch), bad_files.newest(checkpoint, batch))
    files += [path.relative_to(checkpoint) for path in kept if path is not None]
    state = checkpoint / "state"
    if state.is_dir():
        partitions = read_offsets(checkpoint, batch).partitions
        for directory in sorted(_directories(state)):
            if not _is_left(directory.relative_to(state), partitions):
                files += _state_files(checkpoint, directory, batch + 1)
    return tuple(sorted(files))


def state_is_written(checkpoint: Path, batch: int) -> bool:
    """Whether the state after the batch is there in every partition; also if the query keeps none."""
    state = checkpoint / "state"
    operators = [entry for entry in state.iterdir() if entry.name.isdigit()] if state.is_dir() else []
    if not operators:
        return True
    partitions = read_offsets(checkpoint, batch).partitions or 1
    return all(_has_version(operator / str(n), batch + 1) for operator in operators for n in range(partitions))


def _has_version(directory: Path, version: int) -> bool:
    """Whether a partition has this version. It has one state store, or several, as in a join."""
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return False
    stores = [e.path for e in entries if e.is_dir() and e.name not in ("SSTs", "_metadata")]
    if stores:
        return all(_has_version(Path(store), version) for store in stores)
    return any((match := _VERSIONED.fullmatch(e.name)) is not None and int(match[1]) == version for e in entries)


def _is_left(directory: Path, partitions: int | None) -> bool:
    """Whether this is `<operator>/<partition>/…` of a partition that no longer exists: the state had more of them
    before."""
    number = directory.parts[1] if len(directory.parts) > 1 else ""
    return partitions is not None and number.isdigit() and int(number) >= partitions


def _directories(root: Path) -> Iterator[Path]:
    for directory, names, _ in os.walk(root):
        yield Path(directory)
        names[:] = [n for n in names if n != "SSTs"]


def _visible(directory: Path) -> list[str]:
    return [e.name for e in os.scandir(directory) if e.is_file() and not e.name.startswith(".")]


def _source_files(checkpoint: Path, batch: int) -> list[Path]:
    """Spark's file source keeps a log of the files it has seen, numbered by its own offset; others a file or two."""
    files: list[Path] = []
    offsets = read_offsets(checkpoint, batch).sources
    for position, offset in enumerate(offsets):
        directory = checkpoint / "sources" / str(position)
        if not directory.is_dir():
            continue
        last = offset.get("logOffset") if isinstance(offset, dict) else None
        numbered = {name: int(name.split(".")[0]) for name in _visible(directory) if name.split(".")[0].isdigit()}
        if last is None:
            files += [Path("sources", str(position), name) for name in _visible(directory)]
            continue
        full = [n for name, n in numbered.items() if name.endswith(".compact") and n <= last]
        first = max(full, default=0)
        for n in range(first, last + 1):
            if n not in numbered.values():
                raise _missing(directory / str(n))  # Spark would take the files that it names for new ones
        files += [
            Path("sources", str(position), name)
            for name, n in numbered.items()
            if first <= n <= last and (n > first or not full or name.endswith(".compact"))
        ]
    return files


def _state_files(checkpoint: Path, directory: Path, version: int) -> list[Path]:
    found: list[tuple[int, str, str]] = []
    files: list[Path] = []
    relative = directory.relative_to(checkpoint)
    for name in _visible(directory):
        match = _VERSIONED.fullmatch(name)
        if match is None:
            files.append(relative / name)  # metadata and schemas: few, small, written once
        elif int(match[1]) <= version:
            found.append((int(match[1]), match[2], name))
    base = max((v for v, kind, _ in found if kind in _FULL), default=0)
    there = {v for v, _, _ in found}
    for v in range(base + 1, version + 1 if there else base + 1):
        if v not in there:
            raise _missing(directory / f"{v}.changelog")
    for v, kind, name in found:
        if (kind in _FULL and v == base) or (kind not in _FULL and v > base):
            files.append(relative / name)
            if kind == "zip":
                files += [relative / "SSTs" / sst for sst in _sst_files(directory / name)]
    return files


def _sst_files(snapshot: Path) -> list[str]:
    try:
        with zipfile.ZipFile(snapshot) as archive:
            _, body = archive.read("metadata").decode().split("\n", 1)
        sizes = {f["dfsSstFileName"]: f.get("sizeBytes") for f in json.loads(body).get("sstFiles", [])}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise _damaged(snapshot, error) from error
    for name, size in sizes.items():
        path = snapshot.parent / "SSTs" / name
        if not path.exists():
            raise _missing(path)
        if size is not None and path.stat().st_size != size:
            raise _damaged(path, ValueError("it is cut off"))
    return list(sizes)


def _read_json_after_version(path: Path) -> None:
    try:
        version, body, *_ = _lines(path)
        if not version.startswith("v") or not isinstance(json.loads(body), dict):
            raise ValueError("it is not a version and an object")
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _read_id(path: Path) -> None:
    try:
        if not read_object(path)["id"]:
            raise ValueError("it has no id")
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def _missing(path: Path) -> Damaged:
    return Damaged(
        f"Spark's checkpoint file {path} is missing.",
        untouched="Nothing was changed.",
        next="Put it back, or restore the job from a snapshot.",
    )


def _damaged(path: Path, error: Exception) -> Damaged:
    if isinstance(error, FileNotFoundError):
        return _missing(path)
    return Damaged(
        f"Spark's checkpoint file {path} cannot be read: {error}.",
        untouched="Nothing was changed.",
        next="Put back a copy of it, or restore the job from a snapshot.",
    )
