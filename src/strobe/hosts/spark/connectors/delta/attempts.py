"""Data files that an upsert has begun to write, so that none is left in the table if it dies before its commit.

A note stands beside the table before a directory with data files is made, and goes when the commit is there or has
failed. Whoever opens the table next, behind its fence, finds the notes of those that died: a directory that no entry
of the log has named since then is deleted. If the log no longer reaches back that far, the files stay.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from strobe.hosts.shared.durable import write_durably
from strobe.hosts.spark.channel.log import LOG, entry_name
from strobe.hosts.spark.channel.writer import ASIDE, DATA
from strobe.model.ids import Timeline

__all__ = ["Attempts", "sweep"]

_NOTE: Final = "writing-"
_LEFT: Final = ("staged-", "reading-")


class Attempts:
    """The directories of one upsert."""

    def __init__(self, where: Path, timeline: Timeline) -> None:
        self._where, self._timeline = where, timeline
        self._places: list[str] = []
        self.in_doubt = False  # the commit has begun, and nobody knows how it ended

    def begin(self, through: int, version: int) -> str:
        """A name for a new directory below the table, which has not been made yet."""
        place = f"{DATA}/{self._timeline}/{through}-{uuid.uuid4().hex[:8]}"
        note = json.dumps({"place": place, "version": version})
        (self._where / ASIDE).mkdir(exist_ok=True)
        write_durably(self._note(place), note, durable=False)
        self._places.append(place)
        return place

    def end(self, *, committed: bool) -> None:
        for place in self._places:
            if not committed:
                shutil.rmtree(self._where / place, ignore_errors=True)
            self._note(place).unlink(missing_ok=True)
        self._places, self.in_doubt = [], False

    def give_up(self) -> None:
        """After a failure. What a commit may have named is left to the next one who opens the table."""
        if not self.in_doubt:
            self.end(committed=False)

    def _note(self, place: str) -> Path:
        return self._where / ASIDE / f"{_NOTE}{place.rpartition('-')[2]}"


def sweep(where: Path) -> None:
    """Delete what upserts that died have left. Call it after the fence."""
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted((where / ASIDE).iterdir()):
            if entry.name.startswith(_LEFT):
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name.startswith(_NOTE):
                _settle(where, entry)


def _settle(where: Path, note: Path) -> None:
    try:
        said = json.loads(note.read_bytes())
        place, version = str(said["place"]), int(said["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    inside = Path(place).parts
    if len(inside) == 3 and inside[0] == DATA and ".." not in inside and not _is_named(where, place, version):
        shutil.rmtree(where / place, ignore_errors=True)
    note.unlink(missing_ok=True)


def _is_named(where: Path, place: str, version: int) -> bool:
    """Whether an entry after `version` names a file there, or may have."""
    for number in range(version + 1, DeltaTable(str(where)).version() + 1):
        try:
            if f"{place}/".encode() in (where / LOG / entry_name(number)).read_bytes():
                return True
        except FileNotFoundError:
            return True
    return False
