"""Staged batches as Parquet files: durable, invisible, replaceable. For sinks that deliver on snapshot.

Each batch is a directory. Spark writes it under a temporary name; its files are synced, then the directory gets its
name: a crash halfway leaves a temporary one, which the next start sweeps, and never half a batch. Writing a batch again
replaces it.

*Fencing.* The directory's name also has the incarnation that wrote it, and of several the newest counts. So a driver
that was given up and wakes again cannot replace what its successor has staged.

A batch that a part names and that is not there is damage, not an empty batch: one without rows has a directory too.
A sink asks its own mark of what is visible before it reads a part that it may have forgotten already.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from strobe.hosts.spark.connectors.base import Part, SinkContext
from strobe.hosts.spark.writer import write_parquet
from strobe.model.errors import Damaged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Staging"]

_BATCH: Final = re.compile(r"batch-([0-9]{8,})\.([0-9]+)")
_EMPTY: Final = "empty.parquet"  # keeps the schema of a batch without rows
_TEMPORARY: Final = ".tmp"
_REPLACED: Final = ".old"


class Staging:
    """The staged batches of one sink. Make it in `open`."""

    def __init__(self, context: SinkContext, *, options: Mapping[str, str] | None = None) -> None:
        """`options` are given to Spark's Parquet writer."""
        self.directory = context.staging
        self._incarnation = int(context.incarnation)
        self._options = dict(options or {})
        for entry in self._entries():
            if entry.name.endswith((_TEMPORARY, _REPLACED)):
                shutil.rmtree(entry.path, ignore_errors=True)

    def write(self, batch: DataFrame, batch_id: int, *, max_files: int | None = None) -> None:
        """Stage the batch, durably. Of a batch that was staged before nothing is left."""
        target = self.directory / f"batch-{batch_id:08d}.{self._incarnation}"
        fresh, old = target.with_name(target.name + _TEMPORARY), target.with_name(target.name + _REPLACED)
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
        try:
            write_parquet(batch, fresh, max_files=max_files, options=self._options)
            _tidy(fresh)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        # A crash between the two leaves no such batch: Spark has not committed it, and runs it again.
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, old)
        os.rename(fresh, target)
        _sync(self.directory)
        shutil.rmtree(old, ignore_errors=True)

    def files(self, part: Part) -> list[Path]:
        """The files with the part's rows, in the order of batches, and within a batch of Spark's partitions."""
        return [f for directory in self._directories(part) for f in _parquet(directory) if f.name != _EMPTY]

    def rows(self, part: Part) -> int:
        return sum(pq.read_metadata(f).num_rows for f in self.files(part))

    def frame(self, spark: SparkSession, part: Part) -> DataFrame:
        """The part's rows."""
        files = [f for directory in self._directories(part) for f in _parquet(directory)]
        told = [f for f in files if f.name != _EMPTY] or files[:1]
        return spark.read.parquet(*(str(f) for f in told))

    def forget(self, part: Part) -> None:
        """Delete the part's batches. Those that are gone already are no fault."""
        for entry in self._entries():
            match = _BATCH.fullmatch(entry.name)
            if match is not None and part.after < int(match[1]) <= part.through:
                shutil.rmtree(entry.path, ignore_errors=True)

    def missing(self, part: Part) -> list[int]:
        """Which of the part's batches are not staged, neither with rows nor without."""
        held = self._held()
        return [batch for batch in range(part.after + 1, part.through + 1) if batch not in held]

    def last_batch(self) -> int | None:
        """The newest batch that is staged as a whole."""
        return max(self._held(), default=None)

    def _directories(self, part: Part) -> list[Path]:
        held, missing = self._held(), self.missing(part)
        if missing:
            raise Damaged(
                f"Batch {missing[0]} of {part.handle} is not staged any more: nothing is at "
                f"{self.directory}/batch-{missing[0]:08d}.*.",
                untouched="None of the part's rows was made visible by this.",
                next="Put the files back, or restore the job from a snapshot.",
            )
        return [held[batch] for batch in range(part.after + 1, part.through + 1)]

    def _held(self) -> dict[int, Path]:
        found: dict[int, tuple[int, Path]] = {}
        for entry in self._entries():
            match = _BATCH.fullmatch(entry.name)
            if match is not None:
                batch, incarnation = int(match[1]), int(match[2])
                found[batch] = max(found.get(batch, (-1, Path())), (incarnation, Path(entry.path)))
        return {batch: path for batch, (_, path) in found.items()}

    def _entries(self) -> list[os.DirEntry[str]]:
        try:
            return list(os.scandir(self.directory))
        except FileNotFoundError:
            return []


def _tidy(directory: Path) -> None:
    """Keep the files with rows, or one without, and make them durable."""
    for entry in list(os.scandir(directory)):
        if not entry.name.endswith(".parquet") or entry.name.startswith((".", "_")):
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
    files = _parquet(directory)
    empty = [f for f in files if pq.read_metadata(f).num_rows == 0]
    if files and len(empty) == len(files):
        os.rename(empty.pop(0), directory / _EMPTY)
    for file in empty:
        file.unlink()
    for file in _parquet(directory):
        _sync(file)
    _sync(directory)


def _parquet(directory: Path) -> list[Path]:
    return sorted(f for f in directory.iterdir() if f.suffix == ".parquet")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
