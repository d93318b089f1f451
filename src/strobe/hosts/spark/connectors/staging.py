"""Staged batches as Parquet files: durable, invisible, replaceable. For sinks that deliver on snapshot.

Each batch is a directory. Spark writes it under a temporary name; its files are synced, then the directory gets its
name: a crash halfway leaves a temporary one, which the next start sweeps, and never half a batch. Writing a batch again
replaces it.

*Fencing.* Each incarnation has a directory of its own, into which a batch is moved when it is whole. A driver that
takes over renames those of older ones before anything else: from then on a driver that was given up and wakes up finds
no place for its batch, and fails it. If several drivers have staged a batch, the newest one counts.

A batch that a part names and that is not there is damage, not an empty batch: one without rows has a directory too.
So a sink first looks at its own mark of what is visible, before it reads a part whose files it may have deleted
already.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from strobe.hosts.shared.durable import fsync
from strobe.hosts.spark.channel.parquet import write_parquet
from strobe.hosts.spark.connectors.base import Part, SinkContext
from strobe.model.errors import Damaged, Fenced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Staging"]

_BATCH: Final = re.compile(r"batch-([0-9]{8,})")
_INCARNATION: Final = re.compile(r"([0-9]+)(\.closed)?")
_EMPTY: Final = "empty.parquet"  # keeps the schema of a batch without rows
_CLOSED: Final = ".closed"
_TEMPORARY: Final = "tmp-"
_SCHEMA: Final = b"org.apache.spark.sql.parquet.row.metadata"


class Staging:
    """The staged batches of one sink. Make it in `open`."""

    def __init__(self, context: SinkContext, *, options: Mapping[str, str] | None = None, sweep: bool = True) -> None:
        """`options` are given to Spark's Parquet writer. `sweep` is False for callers that only look."""
        self.directory = context.staging
        self._incarnation = int(context.incarnation)
        self._own = self.directory / str(self._incarnation)
        self._options = dict(options or {})
        if sweep:
            self._fence()

    def _fence(self) -> None:
        self._own.mkdir(parents=True, exist_ok=True)
        for entry in _entries(self.directory):
            match = _INCARNATION.fullmatch(entry.name)
            if match is not None and not match[2] and int(match[1]) < self._incarnation:
                os.rename(entry.path, entry.path + _CLOSED)
        # Only now: while an older driver has a place to move it to, half of a batch must not be taken away.
        for entry in _entries(self.directory):
            if entry.name.startswith(_TEMPORARY):
                shutil.rmtree(entry.path, ignore_errors=True)
        fsync(self.directory)

    def write(self, batch: DataFrame, batch_id: int, *, max_files: int | None = None, durable: bool = True) -> int:
        """Stage the batch, durably unless it need not be; returns how many rows it has. It replaces the same batch if
        that was staged before."""
        name = f"batch-{batch_id:08d}"
        target = self._own / name
        fresh, old = (self.directory / f"{_TEMPORARY}{kind}-{self._incarnation}-{name}" for kind in ("new", "old"))
        for left in (fresh, old):
            shutil.rmtree(left, ignore_errors=True)
        try:
            write_parquet(batch, fresh, max_files=max_files, options=self._options)
            _tidy(fresh)
            if durable:
                _sync(fresh)
            rows = sum(int(pq.read_metadata(file).num_rows) for file in _parquet(fresh))
            # A crash between the two leaves no such batch: Spark has not committed it, and runs it again.
            with contextlib.suppress(FileNotFoundError):
                os.rename(target, old)
            self._move_in(fresh, target)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        if durable:
            fsync(self._own)
        shutil.rmtree(old, ignore_errors=True)
        return rows

    def _move_in(self, fresh: Path, target: Path) -> None:
        try:
            os.rename(fresh, target)
        except FileNotFoundError:
            if self._own.is_dir():
                raise
            raise Fenced(
                f"Incarnation {self._incarnation} is fenced off: {self._own} is no longer there.",
                untouched="The batch was not staged.",
                next="A newer run of this job has taken over; this one must stop.",
            ) from None

    def files(self, part: Part) -> list[Path]:
        """The files with the part's rows, in the order of batches, and within a batch of Spark's partitions."""
        return [f for directory in self._directories(part) for f in _parquet(directory) if f.name != _EMPTY]

    def rows(self, part: Part) -> int:
        return sum(pq.read_metadata(f).num_rows for f in self.files(part))

    def frame(self, spark: SparkSession, part: Part, wanted: StructType | None = None) -> DataFrame:
        """The part's rows: with the columns that they were staged with, or with those that are `wanted`, which are null
        where a batch of an earlier run does not have them."""
        files = [f for directory in self._directories(part) for f in _parquet(directory)]
        told = [f for f in files if f.name != _EMPTY] or files[:1]
        # The schema is given: having Spark read it from the files would cost a job of its own.
        schema = wanted or StructType.fromJson(json.loads(pq.read_schema(told[0]).metadata[_SCHEMA]))
        return spark.read.schema(schema).parquet(*(str(f) for f in told))

    def forget(self, part: Part) -> None:
        """Delete the part's batches. It is not an error if some are gone already."""
        for batch, _, path in self._staged():
            if part.after < batch <= part.through:
                shutil.rmtree(path, ignore_errors=True)

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
                f"Batch {missing[0]} of {part.handle} is no longer staged: nothing is at "
                f"{self.directory}/*/batch-{missing[0]:08d}.",
                untouched="None of the part's rows was made visible by this.",
                next="Put the files back, or restore the job from a snapshot.",
            )
        return [held[batch] for batch in range(part.after + 1, part.through + 1)]

    def _held(self) -> dict[int, Path]:
        return {batch: path for batch, _, path in sorted(self._staged(), key=lambda s: s[1])}  # the newest comes last

    def _staged(self) -> list[tuple[int, int, Path]]:
        """(batch, incarnation, directory) of all that is staged."""
        found = []
        for line in _entries(self.directory):
            incarnation = _INCARNATION.fullmatch(line.name)
            for entry in _entries(Path(line.path)) if incarnation is not None else ():
                batch = _BATCH.fullmatch(entry.name)
                if batch is not None and incarnation is not None:
                    found.append((int(batch[1]), int(incarnation[1]), Path(entry.path)))
        return found


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    """The entries of a directory; none if it is not one: a sink may keep files of its own here, by any name."""
    try:
        return list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _tidy(directory: Path) -> None:
    """Keep the files with rows, or one without."""
    for entry in list(os.scandir(directory)):
        if not entry.name.endswith(".parquet") or entry.name.startswith((".", "_")):
            shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
    files = _parquet(directory)
    empty = [f for f in files if pq.read_metadata(f).num_rows == 0]
    if files and len(empty) == len(files):
        os.rename(empty.pop(0), directory / _EMPTY)
    for file in empty:
        file.unlink()


def _sync(directory: Path) -> None:
    for file in _parquet(directory):
        fsync(file)
    fsync(directory)


def _parquet(directory: Path) -> list[Path]:
    return sorted(f for f in directory.iterdir() if f.suffix == ".parquet")
