"""Every snapshot that a job has tried, with what became of it: a file of lines in the job's home.

A manifest goes when its checkpoint is past its retention, and what the driver remembers goes with the driver. This file
stays. One line per snapshot, written when it is complete or has failed, whichever driver took it. What is shown of it
is never needed for going on, so nothing waits for the disk: a crash may lose the last lines, or leave half of one,
which readers pass over. Past `LARGEST` bytes the older half goes.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from strobe.hosts.shared.durable import write_durably
from strobe.model.redaction import redact
from strobe.store.manifest import Manifest
from strobe.store.private import open_private
from strobe.store.small_files import open_regular
from strobe.store.times import milliseconds_between

__all__ = [
    "LARGEST", "PastFigures", "PastSnapshot", "PastStage", "SnapshotHistory", "past_of_manifest", "read_history",
    "read_past",
]  # fmt: skip

_log = logging.getLogger("strobe.home")
LARGEST: Final = 16 << 20


class PastStage(msgspec.Struct, frozen=True):
    """One stage's part: how long each phase took, in milliseconds and in their order, and what it came to."""

    phases: dict[str, float] = {}
    bytes_new: int = 0
    bytes_total: int = 0
    rows_in_flight: int = 0
    batch: int | None = None
    state_rows: int | None = None


class PastFigures(msgspec.Struct, frozen=True):
    """`phases` are those of the `slowest` stage, and the manifest's: they add up to the duration."""

    snapshot: int
    kind: str
    status: str
    started: str
    ended: str
    incarnation: int
    timeline: int
    duration_ms: float = 0.0
    phases: dict[str, float] = {}
    slowest: str = ""
    bytes_new: int = 0
    bytes_total: int = 0
    rows_in_flight: int = 0
    reason: str = ""


class PastSnapshot(PastFigures, frozen=True):
    """`stages` has those whose part had come. `everywhere`: all stages were told to start at the same time."""

    stages: dict[str, PastStage] = {}
    everywhere: bool = False


_encode: Final = msgspec.json.Encoder().encode
_decode_figures: Final = msgspec.json.Decoder(PastFigures).decode
_decode: Final = msgspec.json.Decoder(PastSnapshot).decode


class SnapshotHistory:
    """Written by the job's driver, from one thread. `guard` raises if it is no longer that."""

    def __init__(self, path: Path, guard: Callable[[], None] = lambda: None, largest: int = LARGEST) -> None:
        self._path = path
        self._guard = guard
        self._largest = largest

    def note(self, past: PastSnapshot) -> None:
        line = _encode(msgspec.structs.replace(past, reason=redact(past.reason))) + b"\n"
        try:
            self._guard()
            self._mend()
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, line)
                size = os.fstat(handle).st_size
            finally:
                os.close(handle)
            if size > self._largest:
                self._shorten()
        except OSError as error:
            _log.warning("snapshot %d could not be noted in %s: %s", past.snapshot, self._path, error)

    def _mend(self) -> None:
        """A killed driver may have left half a line: the next one must not be glued to it."""
        try:
            with self._path.open("rb+") as file:
                if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n":
                    file.write(b"\n")
        except FileNotFoundError:
            return

    def _shorten(self) -> None:
        data = self._path.read_bytes()
        keep = data[data.index(b"\n", len(data) // 2) + 1 :]
        write_durably(self._path, keep, opener=open_private)


def read_history(path: Path) -> list[PastFigures]:
    """Oldest first; empty if there is none. What is not such a line is passed over. Without the stages, which are most
    of a long history and hardly ever looked at."""
    found = []
    for line in _lines(path):
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            found.append(_decode_figures(line))
    return found


def read_past(path: Path, snapshot: int) -> PastSnapshot | None:
    """This snapshot with its stages, or None if it was not noted. The last line counts."""
    found = None
    for line in _lines(path):
        if b'"snapshot":%d,' % snapshot in line:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                past = _decode(line)
                found = past if past.snapshot == snapshot else found
    return found


def past_of_manifest(manifest: Manifest) -> PastSnapshot:
    """What the history would have said."""
    nodes = {str(uid): node for uid, node in manifest.nodes.items()}
    stages = {
        uid: PastStage(node.phases, node.bytes_new, node.bytes_total, 0, node.batch, node.state_rows)
        for uid, node in nodes.items()
    }
    took = {uid: node.duration_ms or 0.0 for uid, node in nodes.items()}
    slowest = max(took, key=lambda uid: took[uid]) if any(took.values()) else ""
    duration = max(milliseconds_between(manifest.started, manifest.completed), took.get(slowest, 0.0))
    phases = {**nodes[slowest].phases, "manifest": round(duration - took[slowest], 3)} if slowest else {}
    return PastSnapshot(
        manifest.snapshot, manifest.kind.value, "complete", manifest.started, manifest.completed, manifest.incarnation,
        manifest.timeline, duration, phases, slowest, manifest.bytes_new, manifest.bytes_total, manifest.rows_in_flight,
        stages=stages,
    )  # fmt: skip


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb", opener=open_regular) as file:
            if os.fstat(file.fileno()).st_size <= 4 * LARGEST:
                yield from file
    except OSError:
        return
