"""A Postgres table as a source, read in the order of a column that grows.

An offset is the last value that was read. A batch is what lies between two offsets, so it can be read again: the rows
must stay as they are once they are there.

*Nothing is skipped.* Values are drawn before their rows are committed: with 5 drawn first and 6 committed first, a
reader that saw 6 would never come back for 5. So the end of a batch is found in two steps, as CREATE INDEX CONCURRENTLY
does it: look up the largest value; then list the transactions that hold a writer's lock on the table. A value up to
that one was drawn by somebody who held such a lock then, and who, if still open, is on the list. When all on the list
are over, everything up to the value is there or will never be. Writers are not blocked and do not notice. What this
cannot know: values that are not drawn within the INSERT itself (a `now()`, which is the start of the transaction, or
ids made by clients). For these there is `lag`: a batch ends that much before the largest value (or, for times, before
now).

Only the process that plans batches keeps a connection. Executors each read their share of the range by COPY.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.connectors.postgres.connect import Column, Dsn, Table, is_passing, quoted, table_of
from strobe.hosts.spark.connectors.postgres.rows import read_range, spark_type
from strobe.hosts.spark.jvm.python_source import open_stream
from strobe.model.backoff import backoff
from strobe.model.errors import Failed, Misuse

__all__ = ["FORMAT", "PostgresStream", "read_postgres"]

FORMAT: Final = "strobe_postgres"
_POLL: Final = 0.2  # seconds between two looks at the table
_LONGEST_PAUSE: Final = 10.0
_PATIENCE: Final = 10.0  # seconds that a server which has answered before may be away
_APPLICATION: Final = "strobe source"
_NUMBERS: Final = ("int2", "int4", "int8", "numeric", "oid")
_TIMES: Final = ("timestamp", "timestamptz", "date")
_TEXTS: Final = ("text", "varchar")
_WRITING: Final = "'RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock'"


def read_postgres(
    spark: SparkSession,
    dsn: str,
    table: str,
    *,
    column: str,
    columns: Sequence[str] | None = None,
    starting: str | int = "earliest",
    lag: str | int | None = None,
    max_rows_per_batch: int | None = None,
    partitions: int | None = None,
) -> DataFrame:
    """A stream of the table's rows in the order of `column`, which must grow: an identity, a sequence, a time.

    `columns` are those to read, by default all. `starting` ("earliest", "latest", or a value after which to begin)
    counts when the stage has never run. `lag` holds a batch's end back: a number, or an interval such as "10 seconds"
    for a column of times. `partitions` is how many executors read a batch together.
    """
    where = f"read_postgres(table={table!r}, column={column!r})"
    source = Dsn(dsn)
    if max_rows_per_batch is not None and max_rows_per_batch < 1:
        raise Misuse(f"{where}: max_rows_per_batch={max_rows_per_batch!r} must be at least 1.")
    with source.session(where, _APPLICATION) as connection:
        found = table_of(connection, table)
        if found is None:
            raise Misuse(
                f"{where}: there is no such table at {source.address} (or user {source.user!r} does not see it).",
                untouched="Nothing was started.",
                next="Create it, or name it as SCHEMA.TABLE.",
            )
        chosen = _chosen(found, columns, where)
        _check_column(connection, found, column, lag, where)
        connection.execute(f"SELECT {', '.join(quoted(c.name) for c in chosen)} FROM {found.quoted} LIMIT 0".encode())
    schema = ", ".join(f"`{c.name.replace('`', '``')}` {spark_type(c)}" for c in chosen)
    options = {
        "secret_url": source.text,
        "table": f"{found.schema}.{found.name}",
        "column": column,
        "starting": str(starting),
        "lag": "" if lag is None else str(lag),
        "max_rows": str(max_rows_per_batch or 0),
        "partitions": str(partitions if partitions is not None else spark.sparkContext.defaultParallelism),
    }
    return open_stream(spark, PostgresStream, schema, options)


def _chosen(table: Table, columns: Sequence[str] | None, where: str) -> list[Column]:
    wanted = [c.name for c in table.columns] if columns is None else list(columns)
    missing = [name for name in wanted if table.column(name) is None]
    if missing or not wanted:
        raise Misuse(
            f"{where}: the table has no column {', '.join(missing)}.",
            untouched="Nothing was started.",
            next=f"Its columns are: {', '.join(c.name for c in table.columns)}.",
        )
    return [column for name in wanted if (column := table.column(name)) is not None]


def _check_column(
    connection: psycopg.Connection[Any], table: Table, name: str, lag: str | int | None, where: str
) -> None:
    column = table.column(name)
    if column is None or column.type not in (*_NUMBERS, *_TIMES, *_TEXTS):
        have = "has no such column" if column is None else f"has it as {column.shown}, which cannot be read in order"
        raise Misuse(
            f"{where}: the table {have}.",
            untouched="Nothing was started.",
            next=f"Its columns are: {', '.join(f'{c.name} {c.shown}' for c in table.columns)}.",
        )
    if lag is not None:
        kind = "interval" if column.type in _TIMES else "numeric"
        try:
            if column.type in _TEXTS:
                raise psycopg.DataError
            connection.execute(f"SELECT {_literal(str(lag))}::{kind}".encode())
        except psycopg.DataError:
            raise Misuse(
                f"{where}: lag={lag!r} cannot be taken from a column of type {column.shown}.",
                untouched="Nothing was started.",
                next="It is an interval such as '10 seconds' for times, and a number for numbers.",
            ) from None
        return
    if frozenset([name]) not in table.unique:
        raise Misuse(
            f"{where}: the column is not unique, so a row that comes later may have a value that was read already.",
            untouched="Nothing was started.",
            next="Use a unique column, or say how late a row may come: lag='1 minute'.",
        )
    if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
        raise Misuse(
            f"{where}: this server is a standby, which does not know the transactions that are open on its primary.",
            untouched="Nothing was started.",
            next="Read from the primary, or say how late a row may come with lag=….",
        )


class PostgresStream(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PostgresReader(dict(self.options), schema)


@dataclass
class RangePartition(InputPartition):
    """What one task reads: after `low` up to and including `high`; None is before the first."""

    low: str | None
    high: str


class PostgresReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._dsn = Dsn(options["secret_url"])
        self._table = options["table"]
        self._column = options["column"]
        self._starting = options["starting"]
        self._lag = options["lag"] or None
        self._max_rows = int(options["max_rows"])
        self._partitions = max(1, int(options["partitions"]))
        self._schema = schema
        self._edge: Edge | None = None
        self._goal: str | None = None
        self._bounded = False
        self._safe: str | None = None
        self._looked = 0.0
        self._seen = -math.inf  # when it last answered
        self._failures, self._pause = 0, _POLL
        self._nothing_between: tuple[str | None, str] | None = None

    # ── planning ────────────────────────────────────────────────────────────────────────────────────────────────────

    def initialOffset(self) -> dict[str, Any]:
        if self._starting == "earliest":
            return self._offset(None)
        return self._offset(self._settled() if self._starting == "latest" else self._starting)

    def prepareForTriggerAvailableNow(self) -> None:
        self._bounded, self._goal = True, self._settled()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # The limit is not Spark's to set: `max_rows_per_batch` is.
        after = self._value(start)
        if self._bounded:
            safe = self._goal
        else:
            if SYSTEM.monotonic() - self._looked >= self._pause:
                self._look()
            safe = self._safe
        if safe is None or self._nothing_between == (after, safe):
            return start
        try:
            end = self._open().end(after, safe, self._max_rows)
            self._nothing_between = (after, safe) if end == after else None
            return self._offset(end)
        except psycopg.Error as error:
            self._lost(error)
            return start

    def _look(self) -> None:
        self._looked = SYSTEM.monotonic()
        try:
            self._safe = self._open().look()
            self._failures, self._pause, self._seen = 0, _POLL, SYSTEM.monotonic()
        except psycopg.Error as error:
            self._lost(error)

    def _lost(self, error: psycopg.Error) -> None:
        """Postgres does not answer: nothing new, for now. If that lasts, the query ends: then the stage's status says
        so, and it starts again, with pauses, for as long as it takes."""
        self._close()
        if not is_passing(error) or SYSTEM.monotonic() - self._seen > _PATIENCE:
            raise self._dsn.trouble(f"Reading {self._table}", error) from None
        self._failures += 1
        self._pause = backoff(self._failures, 2 * _POLL, _LONGEST_PAUSE)
        self._looked = SYSTEM.monotonic()
        said = f"strobe: reading {self._table}: {self._dsn.said(error)}; tried again in {self._pause:.1f} s"
        print(said, file=sys.stderr, flush=True)  # this process has no logger: the line appears in Spark's log

    def _settled(self) -> str | None:
        """The largest value that is there now, once everything below it is there, too."""
        try:
            edge = self._open()
            edge.forget()
            found = edge.look()
            while edge.waiting:
                SYSTEM.sleep(_POLL)
                found = edge.look()
            return found
        except psycopg.Error as error:
            self._close()
            raise self._dsn.trouble(f"Reading {self._table}", error) from None

    def _open(self) -> Edge:
        if self._edge is None:
            connection = self._dsn.connect(_APPLICATION)
            self._edge = Edge(connection, self._table, self._column, self._lag)
        return self._edge

    def _close(self) -> None:
        if self._edge is not None:
            self._edge.connection.close()
            self._edge = None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        low, high = self._value(start), self._value(end)
        if high is None or low == high:
            return []
        try:
            first = self._open().first(low) if low is None else low
            kind = self._open().type
        except psycopg.Error as error:
            self._close()
            raise self._dsn.trouble(f"Reading {self._table}", error) from None
        cuts = split(first, high, kind, self._partitions)
        edges = [low, *cuts, high]
        return [RangePartition(a, b) for a, b in pairwise(edges) if b is not None]

    def _offset(self, value: str | None) -> dict[str, Any]:
        return {"table": self._table, "column": self._column, "value": value}

    def _value(self, offset: dict[str, Any]) -> str | None:
        if (offset["table"], offset["column"]) != (self._table, self._column):
            raise Failed(
                f"The stage's checkpoint has an offset of {offset['table']}, column {offset['column']}, where it now "
                f"reads {self._table}, column {self._column}.",
                untouched="Nothing was read.",
                next="Read the same as before, or give the stage a new uid.",
            )
        value = offset["value"]
        return None if value is None else str(value)

    def commit(self, end: dict[str, Any]) -> None:
        pass

    def stop(self) -> None:
        self._close()

    # ── reading, on an executor ─────────────────────────────────────────────────────────────────────────────────────

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RangePartition)
        yield from read_range(
            self._dsn, self._table, self._column, partition.low, partition.high, self._schema, _APPLICATION
        )


class Edge:
    """Up to where the table can be read, found out in two steps."""

    def __init__(self, connection: psycopg.Connection[Any], table: str, column: str, lag: str | None) -> None:
        self.connection = connection
        connection.execute("SET datestyle = 'ISO, YMD'; SET timezone = 'UTC'; SET extra_float_digits = 3")
        found = table_of(connection, table)
        shape = None if found is None else found.column(column)
        if found is None or shape is None:
            raise Failed(f"Table {table}, column {column}, is gone.", next="Put it back; reading goes on from there.")
        self.type = shape.type
        self._name, self._column, self._lag = found.quoted, quoted(column), lag
        self._safe: str | None = None
        self._candidate: str | None = None
        self._writers: frozenset[str] = frozenset()

    @property
    def waiting(self) -> bool:
        """Whether writers that may still bring something before the candidate are open."""
        return self._candidate is not None

    def forget(self) -> None:
        self._candidate = None

    def look(self) -> str | None:
        """The largest value up to which everything is there; None if there is nothing."""
        if self._candidate is None:
            self._candidate = self._largest()
            self._writers = self._open_writers() if self._candidate is not None else frozenset()
        elif self._writers:
            # A prepared transaction may be listed under another name, without a backend: better wait for all of these.
            now = self._open_writers()
            self._writers = frozenset(one for one in now if one in self._writers or one.startswith("-1/"))
        if self._candidate is not None and not self._writers:
            self._safe, self._candidate = self._candidate, None
        return self._safe

    def _largest(self) -> str | None:
        largest = f"max({self._column})"
        if self._lag is not None and self.type in _TIMES:
            now = {"timestamptz": "now()", "timestamp": "localtimestamp", "date": "current_date"}[self.type]
            held = f"({now} - {_literal(self._lag)}::interval)::{self.type}"
            largest = f"max({self._column}) FILTER (WHERE {self._column} <= {held})"
        elif self._lag is not None:
            largest = f"max({self._column}) - {_literal(self._lag)}::{self.type}"
        found = self.connection.execute(f"SELECT ({largest})::text FROM {self._name}".encode()).fetchone()
        return None if found is None else found[0]

    def _open_writers(self) -> frozenset[str]:
        """Transactions, prepared ones too, with a lock on the table or a partition that lets them write."""
        found = self.connection.execute(
            "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND granted AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database()) AND relation IN "
            f"(SELECT {_literal(self._name)}::regclass::oid UNION SELECT relid FROM "
            f"pg_partition_tree({_literal(self._name)}::regclass)) AND mode IN ({_WRITING}) "
            "AND pid IS DISTINCT FROM pg_backend_pid()".encode()
        ).fetchall()
        return frozenset(one for (one,) in found)

    def first(self, after: str | None) -> str | None:
        found = self.connection.execute(f"SELECT min({self._column})::text FROM {self._name}".encode()).fetchone()
        return after if found is None else found[0]

    def end(self, after: str | None, safe: str, max_rows: int) -> str | None:
        """Where a batch that begins after `after` ends: at most at `safe`, and after at most so many rows."""
        kind = self.type
        low = "true" if after is None else f"{self._column} > {_literal(after)}::{kind}"
        range = f"{low} AND {self._column} <= {_literal(safe)}::{kind}"
        rows = f"FROM {self._name} WHERE {range}"
        asks = [f"SELECT max({self._column})::text {rows}"]
        if max_rows:
            order = f"ORDER BY {self._column} OFFSET {max_rows - 1} LIMIT 1"
            asks.insert(0, f"SELECT {self._column}::text {rows} {order}")
        for ask in asks:
            found = self.connection.execute(ask.encode()).fetchone()
            if found is not None and found[0] is not None:
                return str(found[0])
        return after


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def split(low: str | None, high: str, kind: str, pieces: int) -> list[str]:
    """Values that cut the range into about even pieces, as far as that can be told from its ends."""
    if low is None or pieces < 2:
        return []
    if kind in ("int2", "int4", "int8", "oid"):
        first, last = int(low), int(high)
        pieces = min(pieces, last - first)
        return [str(first + (last - first) * i // pieces) for i in range(1, pieces)]
    if kind == "numeric":
        width = (Decimal(high) - Decimal(low)) / pieces
        return [str(Decimal(low) + width * i) for i in range(1, pieces)] if width else []
    if kind in ("timestamp", "timestamptz"):
        try:
            begin, end = datetime.fromisoformat(low), datetime.fromisoformat(high)
        except ValueError:  # infinity, or before the year 1
            return []
        return [(begin + (end - begin) * i / pieces).isoformat(" ") for i in range(1, pieces)] if begin < end else []
    return []
