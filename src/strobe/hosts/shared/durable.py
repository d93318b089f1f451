"""Making what was written outlive a crash and a loss of power.

`write_durably` is the only way in which hosts put a small file in place of another one. A file that was only written
may be half there after a crash; one that was only renamed may have its old name, or no content, after a loss of power.
So: write under another name, sync the content, rename, sync the directory. The store has its own way
(`strobe.store.filesystem`), which does many files at once and passes crash points.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["fsync", "write_durably"]


def fsync(path: Path) -> None:
    """Make a file's content, or a directory's names, durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(
    path: Path,
    content: str | bytes,
    *,
    fresh: Path | None = None,
    replace: bool = True,
    opener: Callable[[str, int], int] | None = None,
    durable: bool = True,
) -> bool:
    """Put a file there as a whole: before, after and at any moment in between it is the old one or the new one.

    `fresh` is where it is written first, `.NAME.fresh` beside it unless told: where several may write at once, each
    needs a name of its own. Without `replace` a file that is there stays, and the answer is False. `opener` is as in
    `open`. Without `durable` it is as whole, but a loss of power may bring back the old one.
    """
    fresh = path.with_name(f".{path.name}.fresh") if fresh is None else fresh
    try:
        with open(fresh, "wb", opener=opener) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if replace:
            os.replace(fresh, path)
        else:
            os.link(fresh, path)
            fresh.unlink()
    except FileExistsError:
        fresh.unlink(missing_ok=True)
        return False
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    if durable:
        fsync(path.parent)
    return True
