"""Whether a stage's rows can go into a table at all: found out when the job starts, and said with the column.

`check_table` only looks: plans ask it, too. `grow_table` adds the columns that are missing. A transaction that the sink
has prepared holds the table, so it is rolled back first: its rows are staged until they are visible, and whoever
commits them prepares them again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg

from strobe.hosts.spark.connectors.base import Delivery, SinkContext
from strobe.hosts.spark.connectors.postgres.connect import Table, quoted, table_of
from strobe.hosts.spark.connectors.postgres.load import BATCH, ROW
from strobe.hosts.spark.connectors.postgres.types import column_of, ddl_of, misfit
from strobe.model.errors import Failed, Misuse

if TYPE_CHECKING:
    from pyspark.sql.types import StructField

    from strobe.hosts.spark.connectors.postgres.marks import Marks
    from strobe.hosts.spark.connectors.postgres.sink import PostgresSink

__all__ = ["check_table", "grow_table"]

_log = logging.getLogger("strobe.sinks")
_PATIENCE: Final = "10s"  # how long to wait for a lock that others hold
_UNTOUCHED = "Nothing was started, and the database is as it was."


def check_table(connection: psycopg.Connection[Any], sink: PostgresSink, context: SinkContext) -> Table:
    """The table as it is, checked. A table that may evolve need not have all columns yet."""
    where = f"Stage {context.stage!r} writes to {sink.describe()}"
    names = context.schema.names
    missing = [key for key in sink.key if key not in names]
    if missing:
        raise Misuse(
            f"{where}, but it has no column {', '.join(missing)}.",
            untouched=_UNTOUCHED,
            next=f"Its columns are: {', '.join(names)}.",
        )
    own = [name for name in (BATCH, ROW) if name in names]
    if own:
        raise Misuse(f"{where}: the name {own[0]!r} is Strobe's own.", untouched=_UNTOUCHED, next="Rename the column.")
    table = table_of(connection, sink.table)
    if table is None:
        raise Misuse(
            f"{where}, but there is no such table (or user {sink.dsn.user!r} does not see it).",
            untouched=_UNTOUCHED,
            next=f"Create it: {ddl_of(context.schema, sink.table, sink.key)}",
        )
    problems = _problems(table, sink, context, ignoring=_new(table, sink, context))
    if problems:
        raise Misuse(
            f"{where}, whose shape is another: {'; '.join(problems)}.",
            untouched=_UNTOUCHED,
            next="Change the table or what the stage returns.",
        )
    if sink.key and frozenset(sink.key) not in table.unique:
        columns = ", ".join(map(quoted, sink.key))
        raise Misuse(
            f"{where}, but the table has no primary key or unique constraint on {', '.join(sink.key)}.",
            untouched=_UNTOUCHED,
            next=f"Add one: ALTER TABLE {sink.table} ADD UNIQUE ({columns})",
        )
    if sink.delivery is Delivery.ON_SNAPSHOT:
        _check_prepared(connection, where)
    return table


def _new(table: Table, sink: PostgresSink, context: SinkContext) -> list[StructField]:
    """The columns that the table may get."""
    missing = [field for field in context.schema.fields if table.column(field.name) is None]
    return missing if sink.evolves and not any(field.name in sink.key for field in missing) else []


def grow_table(
    connection: psycopg.Connection[Any], table: Table, sink: PostgresSink, context: SinkContext, marks: Marks
) -> Table:
    """Add a column to the checked table for each of the stage's that it lacks; they are null in the rows that are
    there. Called when no older driver of the sink can write."""
    new = _new(table, sink, context)
    if not new:
        return table
    for part in marks.prepared(connection):
        marks.roll_back(connection, part.gid)
    place = f"{quoted(table.schema)}.{quoted(table.name)}"
    added = ", ".join(f"ADD COLUMN IF NOT EXISTS {column_of(field)}" for field in new)
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_PATIENCE}'".encode())
            connection.execute(f"ALTER TABLE {place} {added}".encode())
    except psycopg.errors.LockNotAvailable:
        raise Failed(
            f"{sink.describe()} of stage {context.stage!r} could not be given the columns "
            f"{', '.join(f.name for f in new)}: somebody has held the table for {_PATIENCE}.",
            untouched=_UNTOUCHED,
            next="Find out who it is (pg_locks, pg_prepared_xacts), and run again when the table is free.",
        ) from None
    except psycopg.errors.InsufficientPrivilege:
        raise Misuse(
            f"{sink.describe()} of stage {context.stage!r} needs new columns, and user {sink.dsn.user!r} may not "
            "change the table.",
            untouched=_UNTOUCHED,
            next=f"Have its owner do it: ALTER TABLE {sink.table} {added}",
        ) from None
    _log.warning("%s: %s gets %s", context.stage, sink.describe(), ", ".join(column_of(field) for field in new))
    return table_of(connection, sink.table) or table


def _problems(
    table: Table, sink: PostgresSink, context: SinkContext, ignoring: Sequence[StructField] = ()
) -> list[str]:
    found = []
    for field in (field for field in context.schema.fields if field not in ignoring):
        column = table.column(field.name)
        if column is None:
            found.append(f"it has no column {field.name!r} (it has {', '.join(c.name for c in table.columns)})")
        elif column.generated:
            found.append(f"column {field.name!r} is always generated and cannot be written")
        else:
            problem = misfit(field.dataType, column)
            if problem is not None:
                found.append(f"column {field.name!r} {problem}")
    for column in table.columns:
        if column.name not in context.schema.names and not (column.filled or column.generated):
            found.append(f"column {column.name!r} must not be null, and the stage does not return it")
    return found


def _check_prepared(connection: psycopg.Connection[Any], where: str) -> None:
    slots = connection.execute("SHOW max_prepared_transactions").fetchone()
    if slots is not None and int(slots[0]) == 0:
        raise Misuse(
            f"{where}, which needs prepared transactions, but max_prepared_transactions is 0 there.",
            untouched=_UNTOUCHED,
            next="Set it to one for each such sink and some to spare, ALTER SYSTEM SET max_prepared_transactions = 32, "
            "and restart Postgres; or use delivery='on_batch'.",
        )
