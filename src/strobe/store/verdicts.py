"""What invariants were found to be, snapshot by snapshot: a file of lines in the job's home that outlives its runs.

A verdict is one line of JSON, appended and synced. The last line may be torn by a crash; readers pass over it. The file
is bounded: when a driver starts and there are too many lines, the oldest go.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from strobe.model.invariants import Verdict
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.private import open_private

__all__ = ["VerdictLog", "read_verdicts"]

_KEPT: Final = 10_000
_ROOM: Final = 2 * _KEPT
_LARGEST: Final = 256 << 20  # bytes: more is not what this file should be
_decode = msgspec.json.Decoder(Verdict).decode


def _path(home: Path, job: str) -> Path:
    return home / JobLayout(job).verdicts


class VerdictLog:
    """For the driver that owns the job."""

    def __init__(self, home: Path, job: str) -> None:
        self._path = _path(home, job)
        lines = _lines(self._path)
        if len(lines) > _ROOM:
            FilesystemStore(home).put(JobLayout(job).verdicts, b"".join(line + b"\n" for line in lines[-_KEPT:]))

    def append(self, verdict: Verdict) -> None:
        with open(self._path, "ab", opener=open_private) as file:
            end = file.tell()
            torn = end > 0 and not self._ends_whole(end)
            file.write((b"\n" if torn else b"") + msgspec.json.encode(verdict) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _ends_whole(self, end: int) -> bool:
        with open(self._path, "rb") as file:
            file.seek(end - 1)
            return file.read(1) == b"\n"


def read_verdicts(home: Path, job: str) -> tuple[Verdict, ...]:
    """All that are kept, oldest first; what cannot be read is passed over."""
    found = []
    for line in _lines(_path(home, job)):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            found.append(_decode(line))
    return tuple(found)


def _lines(path: Path) -> list[bytes]:
    try:
        if path.stat().st_size > _LARGEST:
            return []
        return [line for line in path.read_bytes().split(b"\n") if line]
    except OSError:
        return []
