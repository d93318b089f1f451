"""What invariants were found to be, snapshot by snapshot: a file of lines in the job's home that outlives its runs.

A verdict is one line of JSON, appended and synced. The last line may be torn by a crash; readers pass over it. The file
is bounded: when a driver starts and there are too many lines, the oldest go.

Each driver puts a file of its own in place of the one before, with the same lines, and holds it open. So a driver that
was given up appends to a file that has no name any more.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from strobe.model.invariants import Verdict
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.line_file import AppendedLines, read_lines

__all__ = ["VerdictLog", "read_verdicts"]

_KEPT: Final = 10_000
_ROOM: Final = 2 * _KEPT
_decode = msgspec.json.Decoder(Verdict).decode


def _path(home: Path, job: str) -> Path:
    return home / JobLayout(job).verdicts


class VerdictLog:
    """The verdicts of a job, written by the driver that owns it."""

    def __init__(self, home: Path, job: str) -> None:
        path = _path(home, job)
        lines = read_lines(path)
        kept = lines[-_KEPT:] if len(lines) > _ROOM else lines
        FilesystemStore(home).put(JobLayout(job).verdicts, b"".join(line + b"\n" for line in kept))
        self._lines = AppendedLines(path)

    def append(self, verdict: Verdict) -> None:
        self._lines.append(msgspec.json.encode(verdict))


def read_verdicts(home: Path, job: str) -> tuple[Verdict, ...]:
    """All that are kept, oldest first; what cannot be read is passed over."""
    found = []
    for line in read_lines(_path(home, job)):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            found.append(_decode(line))
    return tuple(found)
