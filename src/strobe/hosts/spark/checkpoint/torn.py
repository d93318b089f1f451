"""State files that a loss of power has cut off.

Spark syncs nothing. After a loss of power a file may have its name and not its content, while the commit of its batch
is whole. Spark reads the state only when there is a batch to run, so a stage with nothing to do would not notice: its
next snapshot would hold the torn file, and older snapshots, which are whole, would be deleted. So the files that the
state after the last batch consists of are looked at before a stage starts.

What is looked at is where a file ends, not what is in it: the frames of compressed changes, which close with an empty
one, and the size of each SST file, which the full copy knows. That takes a few reads, whatever the size of the state.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["check_changes"]

_FRAME: Final = struct.Struct("<8sBiii")  # magic, token, bytes as stored, bytes as they were, checksum
_MAGIC: Final = b"LZ4Block"


def check_changes(path: Path) -> None:
    """ValueError if a file of changes, or Spark's own full copy, is cut off. With a compression other than LZ4, only an
    empty file is noticed."""
    with path.open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        if size == 0:
            raise ValueError("it is empty")
        if file.read(len(_MAGIC)) == _MAGIC:
            file.seek(0)
            _follow_frames(file, size)
        elif size < len(_MAGIC):
            raise ValueError("it is cut off")


def _follow_frames(file: BinaryIO, size: int) -> None:
    while True:
        head = file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            raise ValueError("it is cut off")
        magic, _, stored, original, _ = _FRAME.unpack(head)
        if magic != _MAGIC or stored < 0:
            raise ValueError("it is not as it was compressed")
        if original == 0:
            return
        if file.seek(stored, io.SEEK_CUR) > size:
            raise ValueError("it is cut off")
