"""Rows into a Delta table that needs more than an append: it has a key, partitions or constraints. Who writes them
depends on how many there are.

A few rows are merged in the driver, by `deltalake`: that takes tens of milliseconds, a job of Spark more. Many rows
never come to the driver: Spark writes them to files, and `upsert` takes these into the table. Both accept the same
rows, and leave the same table. How many there are is known before a batch is computed only if Spark says so
(`plan_size`: of a batch that is read from files, such as those of the stage's channel); if not, it is staged, and its
files tell.

Tables with features that only `deltalake` can write, such as a change data feed, are left to it, whatever the size.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from strobe.hosts.spark.channel.parquet import write_parquet
from strobe.hosts.spark.channel.writer import ASIDE
from strobe.hosts.spark.connectors.base import Part, SinkContext
from strobe.hosts.spark.connectors.dead_letters import Letters, Rejected
from strobe.hosts.spark.connectors.delta.actions import active_files, may_hold, ranges_of, table_bytes
from strobe.hosts.spark.connectors.delta.attempts import sweep
from strobe.hosts.spark.connectors.delta.rows import RowRules, newest_by_key
from strobe.hosts.spark.connectors.delta.table import FencedTable
from strobe.hosts.spark.connectors.delta.upsert import Staged, Upsert, worker_session
from strobe.hosts.spark.connectors.staging import Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["TableWriting"]

# Up to here rows go through the driver (bench/upsert.py --small).
FEW_ROWS: Final = 50_000
FEW_BYTES: Final = 16 << 20  # of the files that hold them
REWRITTEN: Final = 128 << 20  # of files of the table that a merge may have to write again
PLANNED: Final = 1 << 20  # bytes that Spark expects; for rows that are generated (`sequence`) it expects too few


def plan_size(batch: DataFrame) -> int:
    """How many bytes Spark expects, at most; a very large number if it does not know."""
    return int(str(batch._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


class TableWriting:
    """Writes the batches and parts of one sink to the table at `where`. It stands behind the table's fence."""

    def __init__(
        self, where: Path, table: FencedTable, rules: RowRules, letters: Letters, context: SinkContext
    ) -> None:
        self._where, self._table, self._rules, self._letters = where, table, rules, letters
        self._context = context
        sweep(where)

    # ── on batch ────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, batch: DataFrame, batch_id: int) -> int:
        """Write the batch, once; returns how many rows were written."""
        if self._table.has(batch_id):
            return 0
        about = f"Batch {batch_id} of stage {self._context.stage!r}"
        if plan_size(batch) <= PLANNED and self._rewrites_little([]):
            return self._write_few(batch.toArrow(), batch_id, about)
        place = self._where / ASIDE / f"staged-{uuid.uuid4().hex[:8]}"
        try:
            write_parquet(batch, place)
            files = [f for f in sorted(place.glob("*.parquet")) if pq.read_metadata(f).num_rows]
            staged = [Staged(batch_id, file) for file in files]
            if not staged:
                return 0
            if not self._are_few(staged):
                with self._upsert(staged) as upsert:
                    if upsert.possible:
                        rejected = upsert.rejected(batch_id, all_of_them=self._letters.wanted)
                        self._letters.put(rejected, batch_id)
                        return upsert.publish(batch_id, about, clean=not rejected)
            rows = pa.concat_tables([pq.read_table(s.file, partitioning=None) for s in staged])
        finally:
            shutil.rmtree(place, ignore_errors=True)
        return self._write_few(rows, batch_id, about)

    def _write_few(self, came: pa.Table, batch_id: int, about: str) -> int:
        rows, rejected = self._rules.split(came, batch_id)
        self._letters.put(rejected, batch_id)
        if rows.num_rows:
            self._publish(rows, batch_id, about)
        return int(rows.num_rows)

    def _publish(self, rows: pa.Table, through: int, about: str) -> None:
        if self._rules.key:
            self._table.merge(rows, self._rules.key, through, about)
        else:
            self._table.append(rows, through, about)

    # ── on snapshot ─────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, part: Part, staging: Staging) -> int:
        """Keep the dead letters of the part; returns how many they are."""
        staged = _staged(part, staging)
        rejected: list[Rejected] | None = None
        if staged and not self._are_few(staged):
            with self._upsert(staged) as upsert:
                if upsert.possible:
                    rejected = upsert.rejected(None, all_of_them=self._letters.wanted)
        if rejected is None:
            rejected = [letter for _, bad in self._batches(part, staging) for letter in bad]
        self._letters.hold(part, rejected)
        return len(rejected)

    def commit(self, part: Part, staging: Staging, *, clean: bool) -> None:
        """Commit the part. `clean`: none of its rows was rejected when it was prepared."""
        about = f"Snapshot {part.snapshot}'s part of stage {self._context.stage!r}"
        staged = _staged(part, staging)
        if staged and not self._are_few(staged):
            with self._upsert(staged) as upsert:
                if upsert.possible:
                    upsert.publish(part.through, about, clean=clean)
                    return
        batches = [rows for rows, _ in self._batches(part, staging) if rows.num_rows]
        if not batches:
            self._table.mark(part.through, about)
        elif self._rules.key:
            self._publish(newest_by_key(batches, self._rules.key), part.through, about)
        else:
            self._publish(pa.concat_tables(batches, promote_options="default"), part.through, about)

    def _batches(self, part: Part, staging: Staging) -> Iterable[tuple[pa.Table, list[Rejected]]]:
        for batch in range(part.after + 1, part.through + 1):
            files = staging.files(replace(part, after=batch - 1, through=batch))
            if files:
                yield self._rules.split(pa.concat_tables([pq.read_table(f, partitioning=None) for f in files]), batch)

    # ── who does it ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _are_few(self, staged: Sequence[Staged]) -> bool:
        rows = sum(pq.read_metadata(s.file).num_rows for s in staged)
        size = sum(s.file.stat().st_size for s in staged)
        return rows <= FEW_ROWS and size <= FEW_BYTES and self._rewrites_little([s.file for s in staged])

    def _rewrites_little(self, files: Sequence[Path]) -> bool:
        """Whether the files of the table that these rows may change are small together; without files: any rows."""
        table, key = self._table.table, self._rules.key
        if not key or table_bytes(table) <= REWRITTEN:
            return True
        if not files:
            return False
        of_rows = [ranges_of(file, key) for file in files]
        return sum(f.size for f in active_files(table, key) if may_hold(f, of_rows, key)) <= REWRITTEN

    def _upsert(self, staged: Sequence[Staged]) -> Upsert:
        return Upsert(self._spark, self._where, self._table, self._rules, staged)

    @cached_property
    def _spark(self) -> SparkSession:
        return worker_session(SparkSession.builder.getOrCreate())


def _staged(part: Part, staging: Staging) -> list[Staged]:
    return [
        Staged(batch, file)
        for batch in range(part.after + 1, part.through + 1)
        for file in staging.files(replace(part, after=batch - 1, through=batch))
    ]
