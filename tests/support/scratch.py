"""Where the tests keep their files: in memory, on a machine that has the room.

Strobe syncs whatever must survive a power cut, and a disk takes milliseconds for each of these. No test cuts the power
of the machine, so none of them needs a disk. The run that made the directory removes it. After a failure it stays, to
be looked at, until the next run.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from tests.support.processes import alive

__all__ = ["forget", "use_memory"]

_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "strobe-tests-"  # and the number of the process that runs the tests
_ROOM: Final = 8 << 30  # bytes


def use_memory() -> None:
    """For this process and what it starts, unless TMPDIR says something else. Before anything asks for a directory."""
    if "TMPDIR" in os.environ or not _has_room():
        return
    for left in _MEMORY.glob(f"{_PREFIX}*"):
        if not alive(int(left.name.removeprefix(_PREFIX))):
            shutil.rmtree(left, ignore_errors=True)
    place = _MEMORY / f"{_PREFIX}{os.getpid()}"
    place.mkdir(mode=0o711)  # a server of another user finds its own directory in it
    os.environ["TMPDIR"] = str(place)
    tempfile.tempdir = None  # or it keeps what it has found before


def forget() -> None:
    """By the process that has made it."""
    place = _MEMORY / f"{_PREFIX}{os.getpid()}"
    if os.environ.get("TMPDIR") == str(place):
        shutil.rmtree(place, ignore_errors=True)


def _has_room() -> bool:
    """Programs can be started from there, and it can grow: a container's own has 64 MB by default."""
    if not os.access(_MEMORY, os.W_OK):
        return False
    found = os.statvfs(_MEMORY)
    free = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    room = min(found.f_bavail * found.f_frsize, int(free[1]) << 10 if free else 0)
    return room >= _ROOM and not found.f_flag & os.ST_NOEXEC
