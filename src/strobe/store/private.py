"""What only its owner may read: the directory of a job, and its logs.

A job's directory holds states, rows, logs and the token that commands the job. It is made with mode 0700, so the modes
of what is in it, some of it written by Spark, do not matter to anybody else. One that everybody may enter, from an
older version or made by hand, is closed at the next start. One that its owner has opened to a group, and to nobody
else, stays open to that group: this is how others may read channels.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

__all__ = ["close_to_others", "make_private", "open_private"]

_OTHERS: Final = stat.S_IRWXO


def make_private(directory: Path) -> bool:
    """Make a directory, and those above it, and close it to everybody but its owner. True if it was there, and open."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return close_to_others(directory, 0o700)
    return False


def close_to_others(path: Path, mode: int) -> bool:
    """Whether everybody could use what is there, and now only its owner can."""
    about = path.stat()
    if not about.st_mode & _OTHERS or about.st_uid != os.geteuid():
        return False
    path.chmod(mode)
    return True


def open_private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file that is made is for its owner alone, and one that everybody may read is closed."""
    handle = os.open(path, flags | os.O_CLOEXEC, 0o600)
    about = os.fstat(handle)
    if about.st_mode & _OTHERS and about.st_uid == os.geteuid() and stat.S_ISREG(about.st_mode):
        os.fchmod(handle, 0o600)
    return handle
