"""How far each watermark of a query has come after batch N, kept as `watermarks/N` beside Spark's own files.

A query with several watermarks, such as an outer join, goes by the slowest of them (or the fastest). Spark logs only
the one that it went by. The others are in its memory: a query that starts from a checkpoint takes each of them to be at
zero until rows come on that side again, so windows stay open, and rows without a partner are held back, although a
query that had never stopped would have emitted them.

A watermark is named by its column and delay, and by its number among those with the same name. A file counts only for a
query with the same names.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

from strobe.hosts.shared.durable import write_durably
from strobe.model.errors import Damaged

__all__ = ["DIRECTORY", "newest", "read", "write"]

DIRECTORY: Final = "watermarks"
_KEPT: Final = 100  # as many as Spark keeps batches

Watermarks = Mapping[str, int | None]  # milliseconds by name; None where no row has come yet


class _Noted(msgspec.Struct, frozen=True):
    """The file."""

    version: Literal[1]
    watermarks: dict[str, int | None]


_decode = msgspec.json.Decoder(_Noted).decode


def write(checkpoint: Path, batch: int, watermarks: Watermarks) -> None:
    """Whole or not at all. What is too old to be needed goes."""
    directory = checkpoint / DIRECTORY
    directory.mkdir(exist_ok=True)
    write_durably(directory / str(batch), msgspec.json.encode(_Noted(1, dict(watermarks))))
    (directory / str(batch - _KEPT)).unlink(missing_ok=True)


def newest(checkpoint: Path, batch: int) -> Path | None:
    """The file with the watermarks after `batch`: that batch's own, or an older one's if Spark ran no batch in between,
    as after a change of the number of partitions."""
    try:
        numbers = [int(name) for name in os.listdir(checkpoint / DIRECTORY) if name.isdecimal()]
    except (FileNotFoundError, NotADirectoryError):
        return None
    last = max((n for n in numbers if n <= batch), default=None)
    return None if last is None else checkpoint / DIRECTORY / str(last)


def read(checkpoint: Path, batch: int) -> Watermarks | None:
    """None if nothing is known."""
    path = newest(checkpoint, batch)
    if path is None:
        return None
    try:
        return _decode(path.read_bytes()).watermarks
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise Damaged(
            f"{path}, which says how far each watermark has come, cannot be read: {error}.",
            untouched="Nothing was changed.",
            next="Restore the job from a snapshot. Without that file Spark begins with the slowest watermark.",
        ) from error
