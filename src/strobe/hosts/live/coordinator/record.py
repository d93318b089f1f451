"""What a live system remembers between starts: the two numbers that order time, and the highest snapshot id.

One coordinator at a time runs a system: it holds the job's lock, which the kernel lets go of when it dies. A number is
taken by making it durable first; a coordinator that finds a higher one there has been replaced.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from strobe.hosts.shared.durable import write_durably
from strobe.model.errors import Damaged, Failed, Fenced, Misuse
from strobe.model.ids import Incarnation, SnapshotId, Timeline
from strobe.store.layout import JobLayout
from strobe.store.private import make_private
from strobe.store.small_files import open_regular, read_as

__all__ = ["RecordFile", "SystemRecord"]

_log = logging.getLogger("strobe.live")


@dataclass(frozen=True, slots=True)
class SystemRecord:
    """As it is in the file: numbers that must never go back have no default there."""

    incarnation: Incarnation
    timeline: Timeline
    snapshot: SnapshotId
    generation: int = 0


_NEW: Final = SystemRecord(Incarnation(0), Timeline(0), SnapshotId(0))


class RecordFile:
    def __init__(self, home: Path, job: str) -> None:
        self._layout = JobLayout(job)
        self._root = home.absolute()
        self._path = self._root / self._layout.incarnation
        self._job = job
        self._lock = -1
        self.now = _NEW

    def open(self) -> None:
        """Takes the lock, or Misuse if somebody runs the system."""
        lock = self._root / self._layout.lock
        try:
            if make_private(lock.parent):
                _log.warning("Everybody could read %s. Now only you can.", lock.parent)
            self._lock = open_regular(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise Misuse(
                f"System {self._job} runs already in {self._root}.",
                untouched="Nothing was started.",
                next=f"Stop it first (strobe live down {self._job}), or choose another home.",
            ) from None
        except OSError as error:
            raise Failed(
                f"The home directory {self._root} cannot be used: {error.filename or ''}: {error.strerror or error}.",
                untouched="Nothing was started.",
                next="Choose another, or make it writable.",
            ) from error
        self.now = self._read()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def claim(self, incarnation: Incarnation, timeline: Timeline) -> None:
        """Durable when it returns; `Fenced` if a higher incarnation has been claimed."""
        there = self._read()
        if there.incarnation >= incarnation:
            raise Fenced(f"Incarnation {there.incarnation} of {self._job} has been claimed by another coordinator.")
        self._write(replace(self.now, incarnation=incarnation, timeline=timeline))

    def reserve(self, snapshot: SnapshotId) -> None:
        """Ids up to this one are taken."""
        if snapshot > self.now.snapshot:
            self._write(replace(self.now, snapshot=snapshot))

    def _read(self) -> SystemRecord:
        try:
            return read_as(self._path, SystemRecord)
        except FileNotFoundError:
            return _NEW
        except (OSError, ValueError) as error:
            raise Damaged(
                f"{self._path} cannot be read: {error}.",
                untouched="Nothing was started.",
                next="Put back a copy of it; it must not be lower than what was claimed before.",
            ) from error

    def _write(self, value: SystemRecord) -> None:
        try:
            write_durably(self._path, json.dumps(asdict(value)))
        except OSError as error:
            raise Failed(f"{self._path} could not be written: {error.strerror}.") from error
        self.now = value
