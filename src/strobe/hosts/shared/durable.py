"""Making what was written outlive a loss of power."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["fsync"]


def fsync(path: Path) -> None:
    """Make a file's content, or a directory's names, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
