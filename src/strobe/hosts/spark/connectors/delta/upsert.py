"""Rows into a Delta table from the executors: the driver needs the same memory for a batch, or part, of any size.

The rows stand in Parquet files, staged. Spark looks at them there, and the driver at footers, counts and names:

1. *Rules.* Rows that the table does not take are found, and those of one key that differ (`RowRules` says which).
2. *Census.* Keys of the rows and keys of those files of the table that may hold one of them, by their statistics, are
   counted together, in one shuffle of keys. It tells whether a key comes twice, and which files hold how many of
   them.
3. *Files.* Staged files become files of the table as they are, by a link, where nothing in them has to change. Of a
   file that holds keys of the rows, what is not replaced is written again; one that is replaced as a whole is not
   even read.
4. *Commit.* One entry of the log: the new files, the files that go, the app transaction. If somebody else has changed
   the table meanwhile, 2 to 4 are done again with what it holds now; a new owner's fence is among such changes.

If others have written several rows with one key, one of them is left. Spark reads files through links of plain
names, so that neither a path nor a partition's directory is ever taken for a pattern.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType, TimestampNTZType, TimestampType

from strobe.hosts.spark.channel.parquet import write_parquet
from strobe.hosts.spark.channel.writer import ASIDE
from strobe.hosts.spark.connectors.dead_letters import Rejected
from strobe.hosts.spark.connectors.delta.actions import (
    NewFile,
    TableFile,
    active_files,
    can_commit,
    commit,
    may_hold,
    ranges_of,
)
from strobe.hosts.spark.connectors.delta.attempts import Attempts
from strobe.hosts.spark.connectors.delta.incoming import BATCH, Incoming, Staged, col
from strobe.hosts.spark.connectors.delta.rows import RowRules
from strobe.hosts.spark.connectors.delta.table import FencedTable
from strobe.model.errors import Damaged, Failed
from strobe.model.paths import HIDDEN

__all__ = ["Staged", "Upsert", "worker_session"]

_TRIES: Final = 10
_KEYS_A_TASK: Final = 1_000_000
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_AWKWARD: Final = f"[{HIDDEN}]|^{_NO_VALUE}$".replace("\\ud800-\\udfff", "")
_ESCAPED: Final = re.compile("%([0-9A-Fa-f]{2})")
_CORRECTED: Final = {"datetimeRebaseMode": "CORRECTED", "int96RebaseMode": "CORRECTED", "__globPaths__": "false"}


def worker_session(spark: SparkSession) -> SparkSession:
    """A session of the sink's own in the same application: what a stage sets in its session changes nothing here."""
    session = spark.newSession()
    for name, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.caseSensitive": "false",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64m",
    }.items():
        session.conf.set(name, value)
    return session


@dataclass(frozen=True)
class _Census:
    """Of the table at `version`: how often the most frequent key comes, the files that hold keys of the rows, and those
    of them of which every row is replaced."""

    version: int
    most: int
    touched: tuple[TableFile, ...] = ()
    replaced: frozenset[str] = frozenset()


class Upsert:
    """The staged rows on their way into the table. A context: what it lays out for Spark goes at the end."""

    def __init__(
        self, spark: SparkSession, where: Path, table: FencedTable, rules: RowRules, staged: Sequence[Staged]
    ) -> None:
        self._spark, self._where, self._table, self._rules = spark, where, table, rules
        self._staged = staged
        self._key = rules.key
        self._partitions = rules.partitions
        self._aside = where / ASIDE / f"reading-{uuid.uuid4().hex[:8]}"
        self._rows = sum(pq.read_metadata(s.file).num_rows for s in staged)
        self._census: _Census | None = None

    def __enter__(self) -> Self:
        self._aside.mkdir(parents=True)
        self._in = Incoming(self._spark, self._linked("rows", self._staged), self._rules, _CORRECTED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._aside, ignore_errors=True)

    @property
    def possible(self) -> bool:
        """Whether the table and its partitions' values can be written here."""
        if not can_commit(self._table.table):
            return False
        try:
            active_files(self._table.table, self._key)
        except Damaged:  # a path that Strobe cannot read
            return False
        frame, texts = self._in.frame, [p for p in self._partitions if self._rules.is_text(p)]
        return not any(frame.filter(col(p).rlike(_AWKWARD)).limit(1).count() for p in texts)

    def rejected(self, batch: int | None, *, all_of_them: bool) -> list[Rejected]:
        """Rows that cannot be written; if not `all_of_them`, one example is enough. They go through the
        driver."""
        found = self._in.broken(batch, all_of_them=all_of_them)
        if self._key and self._counted().most > 1:
            found += self._in.ambiguous(batch, all_of_them=all_of_them)
        return found

    def publish(self, through: int, about: str, *, clean: bool) -> int:
        """Commit the rows that can be written, with the mark `through`; how many they are. `clean`: none of them was
        rejected."""
        attempts = Attempts(self._where, self._table.timeline)
        try:
            return self._published(attempts, through, about, clean)
        except Exception as error:
            attempts.give_up()
            self._table.has(through)  # raises Fenced if a newer driver has taken over and swept the files away
            if isinstance(error, OSError):
                raise Failed(
                    f"{about} could not be written to {self._table.what}: {error}.",
                    untouched="Whether it is there is seen by its mark when it is tried again.",
                    next="Make room on the disk, or check it; keep VACUUM without retention away from the table.",
                ) from error
            raise

    def _published(self, attempts: Attempts, through: int, about: str, clean: bool) -> int:
        for _ in range(_TRIES):
            if self._table.has(through):
                return 0
            table = self._table.table
            if not can_commit(table):
                break
            census = self._counted() if self._key else _Census(table.version(), 1)
            self._place = partial(attempts.begin, through, table.version())
            kept = self._new_files(census, clean)
            left = [f for f in census.touched if f.raw not in census.replaced]
            added = [*kept, *(self._survivors(left, self._final(census)) if left else ())]
            attempts.in_doubt = True
            if commit(table, added, census.touched, self._table.marked(through), self._rules.names):
                attempts.end(committed=True)
                table.update_incremental()
                return sum(pq.read_metadata(self._where / f.path).num_rows for f in kept)
            attempts.end(committed=False)
            self._census = None
        raise Failed(
            f"{about} could not be written to {self._table.what}: others changed the table again and again.",
            untouched="The table has nothing of it.",
            next="Let whatever rewrites the table come to its end; the batch, or the commit, is tried again.",
        )

    @property
    def _keeps(self) -> list[str]:
        """Columns that the rows do not have: a row that is there keeps its values."""
        return [name for name in self._rules.names if name not in self._in.present] if self._key else []

    # ── which files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _counted(self) -> _Census:
        table = self._table.table
        if self._census is None or self._census.version != table.version():
            ranges = [ranges_of(s.file, self._key) if self._in.is_fitting else {} for s in self._staged]
            files = active_files(table, self._key)
            if self._in.is_fitting:
                files = [f for f in files if may_hold(f, ranges, self._key)]
            found = self._count(table.version(), files, self._in.good)
            if found.most > 1:  # rows that are rejected for it replace nothing
                found = replace(self._count(table.version(), files, self._in.newest), most=found.most)
            self._census = found
        return self._census

    def _count(self, version: int, files: Sequence[TableFile], rows: DataFrame) -> _Census:
        names = [f"k{i}" for i in range(len(self._key))]
        keys = [col(name).alias(short) for name, short in zip(self._key, names, strict=True)]
        seen = rows.select(*keys, F.lit(1).alias("b"), F.lit(None).cast("int").alias("f"))
        total = self._rows
        if files:
            there = self._frame("there", files)
            seen = seen.unionAll(there.select(*keys, F.lit(0).alias("b"), col(BATCH).cast("int").alias("f")))
            total += sum(f.rows for f in files)
        self._spark.conf.set("spark.sql.shuffle.partitions", str(self._tasks(total)))
        each = seen.groupBy(*names).agg(
            F.sum("b").alias("n"), F.min("f").alias("low"), F.max("f").alias("high"), F.count("f").alias("t")
        )
        told = (
            each.filter("n > 0")
            .groupBy("low", "high")
            .agg(F.count("*").alias("keys"), F.max("n").alias("n"), F.max("t").alias("t"))
            .collect()
        )
        most = max((row.n for row in told), default=0)
        touched = {number for row in told for number in (row.low, row.high) if number is not None}
        if any(row.t > 2 for row in told):  # a key that others have put there often: there may be files in between
            touched = set(range(len(files)))
        whole = {row.low: row.keys for row in told if row.low is not None and row.low == row.high and row.t == 1}
        gone = frozenset(files[n].raw for n, keys in whole.items() if keys == files[n].rows)
        return _Census(version, most, tuple(files[n] for n in sorted(touched)), gone)

    def _tasks(self, rows: int) -> int:
        return max(self._spark.sparkContext.defaultParallelism, -(-rows // _KEYS_A_TASK))

    # ── what is written ─────────────────────────────────────────────────────────────────────────────────────────────

    def _new_files(self, census: _Census, clean: bool) -> list[NewFile]:
        rows = self._final(census)
        if clean and census.most <= 1 and self._in.is_fitting and not self._partitions and not self._keeps:
            return [NewFile(path) for path in self._link()]
        if self._keeps and census.touched:
            there = self._frame("kept", census.touched)
            old = there.select(
                *(col(k).alias(f"__strobe_{i}") for i, k in enumerate(self._key)), *map(col, self._keeps)
            )
            same = [col(k).eqNullSafe(F.col(f"__strobe_{i}")) for i, k in enumerate(self._key)]
            rows = rows.join(old, same, "left")
        return self._write(rows)

    def _final(self, census: _Census) -> DataFrame:
        return self._in.good if census.most <= 1 else self._in.newest

    def _survivors(self, files: Sequence[TableFile], rows: DataFrame) -> list[NewFile]:
        there, names = self._frame("left", files), [f"__strobe_{i}" for i in range(len(self._key))]
        replaced = rows.select(*(col(k).alias(n) for k, n in zip(self._key, names, strict=True)))
        same = [col(k).eqNullSafe(F.col(n)) for k, n in zip(self._key, names, strict=True)]
        self._spark.conf.set("spark.sql.shuffle.partitions", str(self._tasks(self._rows + sum(f.rows for f in files))))
        return self._write(there.join(replaced, same, "left_anti"))

    def _write(self, rows: DataFrame) -> list[NewFile]:
        place = self._place()
        texts = [_free(f"p{i}", self._rules.names) for i in range(len(self._partitions))]
        values = [_text(col(p), self._rules.kind(p)).alias(t) for p, t in zip(self._partitions, texts, strict=True)]
        columns = [
            (col(name) if name in rows.columns else F.lit(None).cast(self._rules.kind(name))).alias(name)
            for name in self._rules.names
            if name not in self._partitions
        ]
        write_parquet(rows.select(*columns, *values), self._where / place, partition_by=texts)
        found = []
        for file in sorted((self._where / place).rglob("*.parquet")):
            path = file.relative_to(self._where).as_posix()
            if pq.read_metadata(file).num_rows:
                told = [_value(part) for part in file.relative_to(self._where / place).parts[:-1]]
                found.append(NewFile(path, dict(zip(self._partitions, told, strict=True))))
            else:
                file.unlink()
        return found

    def _link(self) -> list[str]:
        """The staged files as files of the table: nothing is written again."""
        place = self._place()
        (self._where / place).mkdir(parents=True)
        found = []
        for number, one in enumerate(s for s in self._staged if pq.read_metadata(s.file).num_rows):
            path = f"{place}/{number:05d}.parquet"
            _same_file(one.file, self._where / path, shutil.copyfile)
            found.append(path)
        return found

    # ── what is read ────────────────────────────────────────────────────────────────────────────────────────────────

    def _linked(self, name: str, files: Sequence[Staged]) -> list[Staged]:
        place = self._aside / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        found = []
        for number, one in enumerate(files):
            link = place / f"{one.batch}-{number}.parquet"
            _same_file(one.file, link, os.symlink)
            found.append(Staged(one.batch, link))
        return found

    def _frame(self, name: str, files: Sequence[TableFile]) -> DataFrame:
        """Rows of the table's files, with the table's columns, whatever the files have; BATCH is the file's number."""
        self._linked(name, [Staged(number, self._where / f.path) for number, f in enumerate(files)])
        stored = StructType([f for f in self._rules.schema.fields if f.name not in self._partitions])
        frame = self._spark.read.schema(stored).options(**_CORRECTED).parquet(str(self._aside / name))
        number = F.substring_index(F.col("_metadata.file_name"), "-", 1).cast("long")
        frame = frame.select("*", number.alias(BATCH))
        if not self._partitions:
            return frame
        kinds = StructType([f for f in self._rules.schema.fields if f.name in self._partitions])
        order = [f.name for f in kinds.fields]
        values = [(n, *(f.partition[p] for p in order)) for n, f in enumerate(files)]
        told = self._spark.createDataFrame(values, StructType([*StructType().add("__strobe_n", "long").fields, *kinds]))
        return frame.join(F.broadcast(told), F.col(BATCH) == F.col("__strobe_n")).drop("__strobe_n")


def _same_file(there: Path, here: Path, otherwise: Callable[[Any, Any], object]) -> None:
    try:
        os.link(there, here)
    except OSError:  # another disk, or one without links
        otherwise(there, here)


def _free(name: str, taken: Sequence[str]) -> str:
    lower = {other.lower() for other in taken}
    while name in lower:
        name = "p" + name
    return name


def _text(value: Column, kind: DataType) -> Column:
    """A partition's value as Delta's log has it."""
    match kind:
        case TimestampType() | TimestampNTZType():
            return F.date_format(value, "yyyy-MM-dd HH:mm:ss.SSSSSS")
        case _:
            return value.cast("string")


def _value(directory: str) -> str | None:
    """The text in the name that Spark gives a partition's directory."""
    text = directory.partition("=")[2]
    return None if text == _NO_VALUE else _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
