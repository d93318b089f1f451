"""Reading a query's own Spark checkpoint directory: where it is, and which files hold batch N.

Spark's contract, as observed on 4.3: `offsets/N` is written before batch N runs, `commits/N` after it; state version
N+1 is what batch N left; every file is written once and renamed into place. So the files of batch N can be picked by
name at any later time, while newer batches run, as long as Spark keeps them (minBatchesToRetain).

For a state store that is: the newest full snapshot at or below N+1 (`v.zip` with the SST files that it lists, or
`v.snapshot`), and the changelog (`v.changelog` or `v.delta`) of each later version up to N+1.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from strobe.model.cut import Json
from strobe.model.errors import Damaged

__all__ = ["OffsetEntry", "batch_files", "is_committed", "last_committed", "last_logged", "read_offsets"]

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
        return sorted(int(name) for name in os.listdir(directory) if name.isdigit())
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
        version, meta, *sources = path.read_text().splitlines()
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
    except (OSError, ValueError, KeyError) as error:
        raise Damaged(
            f"Spark's checkpoint entry {path} cannot be read: {error}.",
            untouched="Nothing was changed.",
            next="Restore the job from a snapshot with `strobe run -s SNAPSHOT`.",
        ) from error


def batch_files(checkpoint: Path, batch: int) -> tuple[Path, ...]:
    """The files, relative to `checkpoint`, that a restart right after batch `batch` needs. Sorted."""
    if not is_committed(checkpoint, batch):
        raise Damaged(f"Batch {batch} of {checkpoint} is not committed, so it cannot be part of a snapshot.")
    files = [Path("metadata")]
    for log in ("offsets", "commits"):
        files += [Path(log, str(b)) for b in _batches(checkpoint / log) if batch - 1 <= b <= batch]
    files += _source_files(checkpoint, batch)
    state = checkpoint / "state"
    if state.is_dir():
        for directory in sorted(_directories(state)):
            files += _state_files(checkpoint, directory, batch + 1)
    return tuple(sorted(files))


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
    for v, kind, name in found:
        if (kind in _FULL and v == base) or (kind not in _FULL and v > base):
            files.append(relative / name)
            if kind == "zip":
                files += [relative / "SSTs" / sst for sst in _sst_files(directory / name)]
    return files


def _sst_files(snapshot: Path) -> list[str]:
    with zipfile.ZipFile(snapshot) as archive:
        _, body = archive.read("metadata").decode().split("\n", 1)
    listed = json.loads(body)
    return [f["dfsSstFileName"] for f in listed.get("sstFiles", [])]
