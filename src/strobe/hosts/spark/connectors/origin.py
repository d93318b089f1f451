"""Where a sink's rows were at a snapshot, and whether a restore may go there.

A position is what a sink said of itself at the snapshot. It comes back from a manifest, which anybody may have written,
so it is decoded here before it decides anything: a path must be absolute and plain, a number must be possible.

A restore reads and writes at the sink's own place. It copies from another place only if the snapshot is one of the
job's own home, whose manifests nobody but the job writes, or if a person has named that place (`--sinks-from DIR`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from strobe.hosts.spark.connectors.base import SinkContext
from strobe.model.cut import Json
from strobe.model.errors import Damaged, Misuse, StrobeError
from strobe.model.paths import check_absolute

__all__ = ["below", "damaged", "place_in", "position_number", "why_foreign"]

_MOST: Final = (1 << 53) - 1


def place_in(position: Json) -> Path | None:
    """The place that the position names, links resolved; None if it names none."""
    if not isinstance(position, dict) or position.get("path") is None:
        return None
    try:
        return Path(os.path.realpath(check_absolute(position["path"], "the place of a sink")))
    except Misuse as error:
        raise damaged(error.what) from None


def position_number(value: object, what: str) -> int:
    """A version, batch or timeline of a position."""
    if value.__class__ is not int or not -1 <= int(str(value)) <= _MOST:
        raise damaged(f"{what} {value!r:.80} is not a possible number.")
    return int(str(value))


def damaged(why: str) -> Damaged:
    """The error for a position that no sink would write."""
    return Damaged(
        f"The snapshot holds a position that no sink has written: {why}",
        untouched="Nothing was changed.",
        next="Find out where this snapshot comes from; restore another one.",
    )


def why_foreign(path: Path, what: str, context: SinkContext) -> StrobeError | None:
    """Why a restore does not copy from `path`, which is not the sink's own place; None if it may. Touches nothing."""
    if context.copies_from is None or any(below(path, allowed) for allowed in context.copies_from):
        return None
    return Misuse(
        f"{what} would begin as a copy of {path}: the snapshot says so, and nobody else. It is not a snapshot of this "
        "home, so that may be any place that its writer has chosen.",
        untouched="Nothing was changed, and nothing was read there.",
        next=f"If that is where the rows are that it should begin with, say so: --sinks-from {path} (or a directory "
        "above it).",
    )


def below(path: Path, directory: Path) -> bool:
    """Whether `path` leads to the directory or below it, with links followed."""
    real, above = os.path.realpath(path), os.path.realpath(directory)
    return os.path.commonpath((real, above)) == above
