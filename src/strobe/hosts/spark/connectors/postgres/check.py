"""Whether a stage's rows can go into a table at all: found out when the job starts, and said with the column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from strobe.hosts.spark.connectors.base import Delivery, SinkContext
from strobe.hosts.spark.connectors.postgres.connect import Table, quoted, table_of
from strobe.hosts.spark.connectors.postgres.load import BATCH, ROW
from strobe.hosts.spark.connectors.postgres.types import ddl_of, misfit
from strobe.model.errors import Misuse

if TYPE_CHECKING:
    import psycopg

    from strobe.hosts.spark.connectors.postgres.sink import PostgresSink

__all__ = ["check_table"]

_UNTOUCHED = "Nothing was started, and the database is as it was."


def check_table(connection: psycopg.Connection[Any], sink: PostgresSink, context: SinkContext) -> Table:
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
    problems = _problems(table, sink, context)
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


def _problems(table: Table, sink: PostgresSink, context: SinkContext) -> list[str]:
    found = []
    for field in context.schema.fields:
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
