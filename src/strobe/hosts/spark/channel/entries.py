"""The log entries of a channel as Delta's protocol spells them, and the checkpoints that let old entries go.

A log checkpoint sums up the table so that others need not read every entry from the first one. Strobe's own index
does not use them; they are written in the background, every few hundred commits, and synced before any entry that they
replace is deleted.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.shared.durable import fsync
from strobe.hosts.spark.channel.log import LOG, DataFile, entry_name

__all__ = ["Entry", "LogCheckpoints", "add", "millis", "remove"]

CHECKPOINT_EVERY: Final = 200  # commits

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a commit says: its kind, what Strobe notes about it, and Delta's actions."""

    kind: str
    notes: dict[str, Any] = field(default_factory=dict)
    actions: tuple[dict[str, Any], ...] = ()

    def encode(self, incarnation: int, timeline: int) -> bytes:
        info = {
            "timestamp": millis(),
            "operation": f"STROBE {self.kind.upper()}",
            "operationParameters": {},
            "engineInfo": "strobe",
            "strobe.kind": self.kind,
            "strobe.incarnation": incarnation,
            "strobe.timeline": timeline,
            **self.notes,
        }
        lines = ({"commitInfo": info}, *self.actions)
        return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()


def add(file: DataFile) -> dict[str, Any]:
    return {
        "add": {
            "path": quote(file.path),
            "partitionValues": {},
            "size": file.size,
            "modificationTime": millis(),
            "dataChange": True,
            "stats": json.dumps({"numRecords": file.rows}),
        }
    }


def remove(file: DataFile, deleted: int) -> dict[str, Any]:
    return {
        "remove": {
            "path": quote(file.path),
            "deletionTimestamp": deleted,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": file.size,
        }
    }


def millis() -> int:
    return int(SYSTEM.time() * 1000)


class LogCheckpoints:
    """The log checkpoints of the table at `path`, written by one background thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = path / LOG
        self._done = self._last()
        self._next = self._done + CHECKPOINT_EVERY
        self._failures = 0
        self._thread: threading.Thread | None = None

    def committed(self, version: int) -> None:
        """`version` is in the log: write a checkpoint if it is time."""
        busy = self._thread is not None and self._thread.is_alive()
        if not busy and version >= self._next:
            self._next = version + CHECKPOINT_EVERY
            self._thread = threading.Thread(target=self._write, name=f"log-{self._path.name}", daemon=True)
            self._thread.start()

    def sync_entries(self, after: int, upto: int) -> None:
        """Make the entries in (after, upto] durable, as far as they are still there."""
        for version in range(after + 1, upto + 1):
            with contextlib.suppress(FileNotFoundError):
                fsync(self._log / entry_name(version))
        fsync(self._log)

    def delete_entries(self, upto: int) -> None:
        """Delete the log entries up to `upto` that the last checkpoint covers, oldest first: the log has no gaps."""
        last = min(upto, self._done - 1)
        for entry in sorted(self._log.glob("*.json")):
            if entry.name > entry_name(last):
                break
            entry.unlink(missing_ok=True)
        for old in self._log.glob("*.checkpoint*.parquet"):
            if int(old.name[:20]) < self._done:
                old.unlink(missing_ok=True)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _write(self) -> None:
        try:
            DeltaTable(str(self._path)).create_checkpoint()
            done = self._last()
            for path in (
                *self._log.glob(f"{done:020d}.checkpoint*.parquet"),
                self._log / "_last_checkpoint",
                self._log,
            ):
                fsync(path)
            self._done, self._failures = done, 0
        except (DeltaError, OSError) as e:
            # A listing of the log while entries are added may miss one and show a later one: the next try mends that.
            self._failures += 1
            level = logging.WARNING if self._failures % 5 == 0 else logging.DEBUG
            _logger.log(level, "channel %s: no log checkpoint: %s", self._path.name, str(e).partition("\n")[0][:200])

    def _last(self) -> int:
        try:
            return int(json.loads((self._log / "_last_checkpoint").read_bytes())["version"])
        except (FileNotFoundError, ValueError, KeyError):
            return -1
