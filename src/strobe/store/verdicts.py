"""What invariants were found to be, snapshot by snapshot: a file of lines in the job's home that outlives its runs.

A verdict is one line of JSON, appended and synced. The last line may be torn by a crash; readers pass over it. The file
is bounded: when a driver starts and there are too many lines, the oldest go.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from strobe.model.invariants import Verdict
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.line_file import append_line, read_lines

__all__ = ["VerdictLog", "read_verdicts"]

_KEPT: Final = 10_000
_ROOM: Final = 2 * _KEPT
_decode = msgspec.json.Decoder(Verdict).decode


def _path(home: Path, job: str) -> Path:
    return home / JobLayout(job).verdicts


class VerdictLog:
    """The verdicts of a job, written by the driver that owns it."""

    def __init__(self, home: Path, job: str) -> None:
        self._path = _path(home, job)
        lines = read_lines(self._path)
        if len(lines) > _ROOM:
            FilesystemStore(home).put(JobLayout(job).verdicts, b"".join(line + b"\n" for line in lines[-_KEPT:]))

    def append(self, verdict: Verdict) -> None:
        append_line(self._path, msgspec.json.encode(verdict))


def read_verdicts(home: Path, job: str) -> tuple[Verdict, ...]:
    """All that are kept, oldest first; what cannot be read is passed over."""
    found = []
    for line in read_lines(_path(home, job)):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            found.append(_decode(line))
    return tuple(found)
