"""A file of lines that are appended and synced, one by one.

The last line may be torn by a crash; the next one begins below it, and readers pass over what they cannot read.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Final

from strobe.store.private import open_private
from strobe.store.small_files import open_regular, read_small

__all__ = ["AppendedLines", "append_line", "read_lines"]

_LARGEST: Final = 256 << 20  # bytes: more is not what such a file should be


def append_line(path: Path, line: bytes) -> None:
    """Durable on return."""
    with open(path, "ab", opener=open_private) as file:
        end = file.tell()
        torn = end > 0 and not _ends_whole(path, end)
        file.write((b"\n" if torn else b"") + line + b"\n")
        file.flush()
        os.fsync(file.fileno())


class AppendedLines:
    """The file that has this name now, whose last line is whole; whatever has the name later."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0, opener=open_private)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._torn = False

    def append(self, line: bytes) -> None:
        """Durable on return."""
        whole = (b"\n" if self._torn else b"") + line + b"\n"
        self._torn = True
        while whole:
            whole = whole[self._file.write(whole) :]
        self._torn = False
        os.fsync(self._file.fileno())


def read_lines(path: Path) -> list[bytes]:
    """None if the file is not there, or cannot be read."""
    try:
        return [line for line in read_small(path, _LARGEST).split(b"\n") if line]
    except OSError:
        return []


def _ends_whole(path: Path, end: int) -> bool:
    with open(path, "rb", opener=open_regular) as file:
        file.seek(end - 1)
        return file.read(1) == b"\n"
