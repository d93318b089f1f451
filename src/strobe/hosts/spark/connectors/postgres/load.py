"""Rows into a Postgres table, on an executor: one connection, one transaction, COPY.

Everything about a batch (or a part) is in one transaction: its rows and the mark that says how far the table has come.
So it is there as a whole or not at all, and an attempt that comes second, whoever makes it, finds the mark and does
nothing. The mark is taken first: two attempts at the same time wait for each other at it, and never write side by side.

*Fencing.* The transaction looks at the sink's row in `strobe_sinks`: if a newer incarnation stands there, it ends. One
that commits by itself holds that row until then, so that a new driver, which changes the row, comes before it or after
it. One that is only prepared does not (it would block the new driver): its name has a number that only the driver
which ordered it knows, and nobody else will ever commit it.

*Append* copies straight into the table. *Upsert* copies into a table that this transaction makes and drops, so that
nobody ever sees it and no crash leaves it, then merges by key; of several batches with the same key the last one wins.

*Rows that cannot be written* fail all of it, unless they are to be `sorted_out`: then whatever fails is halved until
the rows that do it are found, and the rest is written.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NoReturn

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from strobe.hosts.spark.connectors.postgres.connect import Column, Dsn, in_the_row, is_passing, quoted, row_problem
from strobe.hosts.spark.connectors.postgres.types import has_nul, to_csv

__all__ = ["BATCH", "MARKS", "ROW", "SINKS", "Load", "Outcome", "Verdict", "load"]

SINKS: Final = "strobe_sinks"  # who may write: one row for each sink
MARKS: Final = "strobe_batches"  # how far a table has come: one row for each sink and timeline
BATCH: Final = "strobe_batch"  # the column with a row's batch, in what the load is given
ROW: Final = "strobe_row"


@dataclass(frozen=True)
class Load:
    """What to load, and for whom."""

    dsn: Dsn
    application: str
    schema: str
    table: str
    columns: tuple[Column, ...]  # in the order of the rows' columns
    key: tuple[str, ...]
    sink: str
    owner: str
    incarnation: int
    timeline: int
    through: int  # the last batch of the load
    gid: str | None = None  # prepare it under this name; without one, commit it
    sorted_out: bool = False  # rows that cannot be written are reported, and the rest is written
    told: str = ""  # digest of the rejected rows that are in the dead letters already
    lock_timeout: int = 10_000  # milliseconds

    @property
    def target(self) -> str:
        return quoted(self.schema, self.table)


class Verdict(Enum):
    WRITTEN = "written"  # committed, or prepared
    THERE = "there already"
    FENCED = "fenced"
    REJECTED = "rejected"  # nothing is written: some rows are rejected, and the driver must know of them first
    PASSING = "passing"  # nothing is written: another attempt may succeed
    FAILED = "failed"  # nothing is written


@dataclass(frozen=True)
class Outcome:
    verdict: Verdict
    rows: int = 0
    rejected: tuple[tuple[dict[str, Any], str, int | None], ...] = ()  # row, reason, batch
    message: str = ""
    state: str = ""  # Postgres's code of the error

    @property
    def digest(self) -> str:
        return _digest(self.rejected) if self.rejected else ""


def _digest(rejected: Iterable[tuple[dict[str, Any], str, int | None]]) -> str:
    return hashlib.sha256("\n".join(sorted(map(repr, rejected))).encode()).hexdigest()


class _End(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def load(order: Load, batches: Iterator[pa.RecordBatch]) -> Outcome:
    """Load the rows. Never raises an error of Postgres: the driver reads it in the outcome."""
    try:
        with order.dsn.connect(order.application, autocommit=False) as connection:
            try:
                outcome = _Loading(order, connection).run(batches)
            except _End as end:
                connection.rollback()
                return end.outcome
            # Committed here, so that an error of the commit still is an error of this load.
            if order.gid is None:
                connection.commit()
            else:
                connection.execute(f"PREPARE TRANSACTION {_literal(order.gid)}")
                connection.rollback()  # it no longer belongs to this session: this ends nothing
            return outcome
    except psycopg.Error as error:
        return _failure(order, error)


def _failure(order: Load, error: psycopg.Error) -> Outcome:
    said, state = order.dsn.said(error), error.sqlstate or ""
    if is_passing(error):
        return Outcome(Verdict.PASSING, message=said, state=state)
    if in_the_row(error) or state == "21000":
        return Outcome(Verdict.REJECTED, rejected=(({}, order.dsn.said(row_problem(error)), None),), state=state)
    return Outcome(Verdict.FAILED, message=said, state=state)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@dataclass
class _Loading:
    order: Load
    connection: psycopg.Connection[Any]
    rows: int = 0
    rejected: list[tuple[dict[str, Any], str, int | None]] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # batches with rows

    def run(self, batches: Iterator[pa.RecordBatch]) -> Outcome:
        order = self.order
        self.execute(f"SET LOCAL lock_timeout = {order.lock_timeout}")
        self.execute("SET LOCAL datestyle = 'ISO, YMD'")
        self.take()
        if order.sorted_out:
            self.execute("SET CONSTRAINTS ALL IMMEDIATE")
        if order.key:
            self.merge(batches)
        else:
            self.copy(batches, order.target)
        outcome = Outcome(Verdict.WRITTEN, self.rows, tuple(self.rejected))
        if outcome.rejected and (not order.sorted_out or (order.gid is None and outcome.digest != order.told)):
            raise _End(Outcome(Verdict.REJECTED, 0, outcome.rejected))
        return outcome

    def execute(self, statement: str, *arguments: Any) -> psycopg.Cursor[Any]:
        return self.connection.execute(statement.encode(), arguments or None)

    def take(self) -> None:
        """The fence, then the mark."""
        order = self.order
        sinks, marks = (quoted(order.schema, name).replace("%", "%%") for name in (SINKS, MARKS))
        lock = " FOR SHARE" if order.gid is None else ""
        held = self.execute(f"SELECT owner, incarnation FROM {sinks} WHERE sink = %s{lock}", order.sink).fetchone()
        if held != (order.owner, order.incarnation):
            raise _End(Outcome(Verdict.FENCED))
        taken = self.execute(
            f"INSERT INTO {marks} AS m (sink, timeline, batch, incarnation, at) VALUES (%s, %s, %s, %s, now()) "
            "ON CONFLICT (sink, timeline) DO UPDATE SET batch = excluded.batch, incarnation = excluded.incarnation, "
            "at = now() WHERE m.batch < excluded.batch RETURNING 1",
            order.sink, order.timeline, order.through, order.incarnation,
        ).fetchone()  # fmt: skip
        if taken is None:
            raise _End(Outcome(Verdict.THERE))

    # ── copying ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def copy(self, batches: Iterator[pa.RecordBatch], target: str, extra: tuple[Column, ...] = ()) -> None:
        """`extra` columns follow the rows' own in what is copied: the batch, then the number of the row."""
        columns = (*self.order.columns, *extra)
        names = ", ".join(quoted(column.name) for column in columns)
        statement = f"COPY {target} ({names}) FROM STDIN (FORMAT csv)"
        if self.order.sorted_out:
            for batch in batches:
                self._copy_sorting(self._checked(batch, extra), columns, statement)
            return
        with self.connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for batch in batches:
                ready = self._checked(batch, extra)
                if ready.num_rows:
                    copy.write(to_csv(self._bare(ready, columns), columns))
                    self.rows += ready.num_rows

    def _copy_sorting(self, batch: pa.RecordBatch, columns: tuple[Column, ...], statement: str) -> None:
        if batch.num_rows == 0:
            return
        problem = self._try(lambda: self._copy_all(batch, columns, statement))
        if problem is None:
            self.rows += batch.num_rows
        elif batch.num_rows == 1:
            self._reject(batch, 0, problem)
        else:
            half = batch.num_rows // 2
            self._copy_sorting(batch.slice(0, half), columns, statement)
            self._copy_sorting(batch.slice(half), columns, statement)

    def _copy_all(self, batch: pa.RecordBatch, columns: tuple[Column, ...], statement: str) -> None:
        with self.connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.write(to_csv(self._bare(batch, columns), columns))

    def _bare(self, batch: pa.RecordBatch, columns: tuple[Column, ...]) -> pa.RecordBatch:
        return batch.select([column.name for column in columns])

    def _try(self, attempt: Any) -> str | None:
        """Try the rows in a savepoint of the transaction; returns what is wrong with them, or None."""
        try:
            with self.connection.transaction():
                attempt()
            return None
        except psycopg.Error as error:
            if not in_the_row(error):
                raise
            return self.order.dsn.said(row_problem(error))

    def _checked(self, batch: pa.RecordBatch, extra: tuple[Column, ...]) -> pa.RecordBatch:
        """The batch without the rows that are known not to fit; with numbers for the rest, if they are wanted."""
        if BATCH in batch.schema.names:
            self.seen.update(pc.unique(batch.column(BATCH)).to_pylist())
        for mask, reason in self._unfit(batch):
            for index in pc.indices_nonzero(mask).to_pylist():
                self._reject(batch, index, reason)
                if not self.order.sorted_out:
                    raise _End(Outcome(Verdict.REJECTED, 0, tuple(self.rejected)))
            keep = pc.invert(mask)
            return self._checked(batch.filter(keep), extra)
        if any(column.name == ROW for column in extra):
            first = self.rows + len(self.rejected)
            numbers = pa.array(range(first, first + batch.num_rows), pa.int64())
            batch = batch.append_column(ROW, numbers)
        return batch

    def _unfit(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.Array, str]]:
        for name in self.order.key:
            column = batch.column(name)
            if column.null_count:
                yield pc.is_null(column), f"key column {name!r} is null"
        nul = has_nul(batch)
        if nul is not None:
            yield nul, "a text has a NUL character, which Postgres cannot store"

    def _reject(self, batch: pa.RecordBatch, index: int, reason: str) -> None:
        row = batch.slice(index, 1).to_pylist()[0]
        number = row.pop(BATCH, None)
        row.pop(ROW, None)
        self.rejected.append((row, reason, number))

    # ── merging ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def merge(self, batches: Iterator[pa.RecordBatch]) -> None:
        order = self.order
        own = quoted(order.schema, f"strobe_load_{uuid.uuid4().hex}")
        extra = [Column(BATCH, "int8", "bigint", None, True, False)]
        if order.sorted_out:
            extra.append(Column(ROW, "int8", "bigint", None, True, False))
        columns = ", ".join(f"{quoted(c.name)} {c.shown}" for c in (*order.columns, *extra))
        self.execute(f"CREATE UNLOGGED TABLE {own} ({columns})")
        self.copy(batches, own, tuple(extra))
        self._refuse_twins(own)
        if order.sorted_out:
            self._merge_sorting(own)
        else:
            key = ", ".join(map(quoted, order.key))
            newest = f"SELECT DISTINCT ON ({key}) * FROM {own} ORDER BY {key}, {BATCH} DESC"
            self.execute(self._upsert(f"({newest})" if len(self.seen) > 1 else own))
        self.execute(f"DROP TABLE {own}")

    def _upsert(self, source: str, where: str = "") -> str:
        order = self.order
        names = [quoted(c.name) for c in order.columns]
        others = [quoted(c.name) for c in order.columns if c.name not in order.key]
        then = "NOTHING" if not others else f"UPDATE SET {', '.join(f'{n} = excluded.{n}' for n in others)}"
        key = ", ".join(map(quoted, order.key))
        return (
            f"INSERT INTO {order.target} ({', '.join(names)}) SELECT {', '.join(names)} FROM {source} AS s{where} "
            f"ON CONFLICT ({key}) DO {then}"
        )

    def _refuse_twins(self, own: str) -> None:
        """Refuse rows of one batch that have the same key and differ: which one wins would be chance."""
        order = self.order
        key = ", ".join(map(quoted, order.key))
        twins = f"SELECT {key}, {BATCH} FROM {own} GROUP BY {key}, {BATCH} HAVING count(*) > 1"
        if self.execute(f"{twins} LIMIT 1").fetchone() is None:
            return
        # Compared as text: json, for one, has no equality.
        same = " AND ".join(
            f"a.{quoted(c.name)}::text IS NOT DISTINCT FROM b.{quoted(c.name)}::text" for c in order.columns
        )
        self.execute(f"DELETE FROM {own} a USING {own} b WHERE a.ctid > b.ctid AND a.{BATCH} = b.{BATCH} AND {same}")
        left = self.execute(f"{twins} LIMIT 1").fetchone()
        if left is not None:
            self._differ(left)

    def _differ(self, found: tuple[Any, ...]) -> NoReturn:
        values = dict(zip(self.order.key, found[:-1], strict=True))
        what = ", ".join(f"{name} = {value!r}" for name, value in values.items())
        reason = f"batch {found[-1]} has several rows with the key {what}: which one wins would be chance"
        raise _End(Outcome(Verdict.FAILED, message=reason, state="21000"))

    def _merge_sorting(self, own: str) -> None:
        self.execute(f"CREATE INDEX ON {own} ({BATCH}, {ROW})")
        for batch in sorted(self.seen):
            self._merge_range(own, batch, 0, self.rows + len(self.rejected) + 1)

    def _merge_range(self, own: str, batch: int, first: int, end: int) -> None:
        where = f" WHERE {BATCH} = {batch} AND {ROW} >= {first} AND {ROW} < {end}"
        problem = self._try(lambda: self.execute(self._upsert(own, where)))
        if problem is None:
            return
        names = [c.name for c in self.order.columns]
        chosen = ", ".join(map(quoted, names))
        found = self.execute(f"SELECT count(*), min({ROW}), max({ROW}) FROM {own}{where}").fetchone()
        count, low, high = found or (0, 0, 0)
        if count == 1:
            row = self.execute(f"SELECT {chosen} FROM {own}{where}").fetchone() or ()
            self.rejected.append((dict(zip(names, row, strict=True)), problem, batch))
            self.rows -= 1
            return
        half = (low + high) // 2 + 1
        self._merge_range(own, batch, low, half)
        self._merge_range(own, batch, half, high + 1)
