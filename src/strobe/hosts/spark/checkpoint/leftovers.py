"""What a Spark that was killed leaves in a query's checkpoint directory, swept before the query starts again.

Spark writes each file under a hidden name, `.NAME.UUID.tmp`, and renames it when it is whole. Killed in between, it
leaves that file behind. Where the offset log has an entry this only takes room. But a query without one must find
`offsets`, `commits` and `state` empty, else Spark refuses to start it, at every try.

Only files that can never be needed are swept: files under such a name, checksums of files that are gone, and the state
of a query that has logged no batch. Spark logs a batch before it runs it, so that state belongs to a batch 0 whose
entry was lost with the power. State of a later batch without a log is another matter: then somebody has taken the log
away.

The logs have one writer, which has ended when the query starts again. The state has more: tasks that were given up, and
the upload of full copies in the background. So there only files are swept that are older than this process.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.model.errors import Damaged, Failed

__all__ = ["sweep"]

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UNFINISHED: Final = re.compile(rf"\..+\.{_UUID}(?:\.TID\d+)?\.tmp|\.\d+\.(?:strobe|fresh)")
_CHECKSUM: Final = re.compile(r"\.(.+)\.crc")
_STATE: Final = re.compile(r"(\d+)(?:_[^.]*)?\.(?:changelog|delta|zip|snapshot)")
_BEGAN: Final = SYSTEM.time()  # before this process had a query


def sweep(checkpoint: Path) -> None:
    """Sweep. Raises Damaged, with nothing changed, if the query has state but no log of its batches."""
    try:
        begun = (
            spark_checkpoint.last_logged(checkpoint) is not None
            or spark_checkpoint.last_committed(checkpoint) is not None
        )
        if not begun:
            _check_unlogged(checkpoint)
        for directory in (checkpoint, checkpoint / "offsets", checkpoint / "commits", *_below(checkpoint / "sources")):
            _sweep_directory(directory, before=None)
        for directory in _below(checkpoint / "state"):
            _sweep_directory(directory, before=_BEGAN)
        if not begun:
            _sweep_first_batch(checkpoint)
    except OSError as error:
        raise Failed(
            f"What an earlier run has left in {checkpoint} could not be removed: {error.filename}: {error.strerror}.",
            untouched="What counts there is as it was.",
            next="Make the directory writable, and run again.",
        ) from error


def _check_unlogged(checkpoint: Path) -> None:
    """A query without a log can at most have tried its batch 0, which makes version 1 of the state."""
    versions = [int(m[1]) for d in _below(checkpoint / "state") for n in os.listdir(d) if (m := _STATE.fullmatch(n))]
    if versions and max(versions) > 1:
        raise Damaged(
            f"Spark's checkpoint {checkpoint} has the state after batch {max(versions) - 1}, but its log of offsets is "
            "gone.",
            untouched="Nothing was changed.",
            next="Put the directories offsets and commits back, or restore the job from a snapshot.",
        )
    for directory in (checkpoint / "offsets", checkpoint / "commits"):
        unknown = [n for n in _names(directory) if not (_UNFINISHED.fullmatch(n) or _CHECKSUM.fullmatch(n))]
        if unknown:
            raise Damaged(
                f"Spark's checkpoint has no batch yet, but a file that is not Spark's: {directory / unknown[0]}. Spark "
                "does not start a query there.",
                untouched="Nothing was changed.",
                next="Move that file away, and run again.",
            )


def _sweep_directory(directory: Path, before: float | None) -> None:
    for name in _names(directory):
        if _UNFINISHED.fullmatch(name):
            _remove(directory / name, before)
    there = set(_names(directory))
    for name in there:
        match = _CHECKSUM.fullmatch(name)
        if match is not None and match[1] not in there:
            _remove(directory / name, before)


def _remove(path: Path, before: float | None) -> None:
    try:
        if before is None or path.stat().st_mtime < before:
            path.unlink()
    except FileNotFoundError:
        pass  # its writer was alive, and is done


def _sweep_first_batch(checkpoint: Path) -> None:
    for name in _names(checkpoint / "state"):
        path = checkpoint / "state" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    metadata = checkpoint / "metadata"
    if metadata.is_file() and metadata.stat().st_size == 0:
        metadata.unlink()


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _below(root: Path) -> Iterator[Path]:
    for directory, _, _ in os.walk(root):
        yield Path(directory)
