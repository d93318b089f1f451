"""Input files that a query has been told to leave out, kept as `bad-files/N` beside Spark's own files.

The note is the decision: it is durable before batch N is run again, and each start takes the files out of that batch
(`checkpoint.source_files`) before Spark looks at it. So a batch that is run again, and a job that is restored from a
snapshot, give the same rows.

Each note holds everything that was decided up to its batch, so the newest one is all that a snapshot needs. It counts
all files and names the last thousand.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from strobe.hosts.shared.durable import write_durably
from strobe.model.errors import Damaged

__all__ = ["MOST", "BadFile", "BadFiles", "add", "newest", "read", "renumber", "shown"]

_DIRECTORY: Final = "bad-files"
MOST: Final = 1000  # files that are named
_KEPT: Final = 100  # batches, as many as Spark keeps


@dataclass(frozen=True, slots=True)
class BadFile:
    """`path` is Spark's name for it, `batch` the one that it was taken out of, `time` when."""

    path: str
    reason: str
    time: str
    batch: int

    @property
    def name(self) -> str:
        return shown(self.path)


@dataclass(frozen=True, slots=True)
class BadFiles:
    """All that were set aside: how many, and the last ones, oldest first."""

    count: int = 0
    files: tuple[BadFile, ...] = ()


class _Noted(msgspec.Struct, frozen=True):
    """The file."""

    version: Literal[1]
    count: int
    files: tuple[BadFile, ...]


_decode = msgspec.json.Decoder(_Noted).decode


def shown(path: str) -> str:
    """A name in Spark's log, as a person writes it."""
    return unquote(urlsplit(path).path) if path.startswith("file:") else unquote(path)


def newest(checkpoint: Path, batch: int) -> Path | None:
    """The note that says what was set aside up to `batch`; None if nothing was."""
    last = max((n for n in _numbers(checkpoint) if n <= batch), default=None)
    return None if last is None else checkpoint / _DIRECTORY / str(last)


def read(checkpoint: Path, batch: int) -> BadFiles:
    path = newest(checkpoint, batch)
    if path is None:
        return BadFiles()
    try:
        noted = _decode(path.read_bytes())
        return BadFiles(noted.count, noted.files)
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise Damaged(
            f"{path}, which names the input files that were set aside, cannot be read: {error}.",
            untouched="Nothing was changed.",
            next="Restore the job from a snapshot.",
        ) from error


def add(checkpoint: Path, batch: int, files: Sequence[BadFile]) -> BadFiles:
    """Note them, `MOST` at a time, for `batch`, which has not run. Returns everything that was set aside by then."""
    before = read(checkpoint, batch)
    known = {(file.path, file.batch) for file in before.files}
    fresh = tuple(file for file in files if (file.path, file.batch) not in known)
    found = BadFiles(before.count + len(fresh), (*before.files, *fresh)[-MOST:])
    directory = checkpoint / _DIRECTORY
    directory.mkdir(exist_ok=True)
    write_durably(directory / str(batch), msgspec.json.encode(_Noted(1, found.count, found.files)))
    old = sorted(n for n in _numbers(checkpoint) if n <= batch - _KEPT)
    for number in old[:-1]:  # the last of the older ones holds everything from before
        (directory / str(number)).unlink(missing_ok=True)
    return found


def renumber(checkpoint: Path, batch: int) -> None:
    """Make what was set aside up to `batch` count as set aside before batch 0: batch numbers begin again."""
    path = newest(checkpoint, batch)
    if path is not None:
        value = path.read_bytes()
        shutil.rmtree(path.parent)
        path.parent.mkdir()
        write_durably(path.with_name("0"), value)


def _numbers(checkpoint: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(checkpoint / _DIRECTORY) if name.isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        return []
