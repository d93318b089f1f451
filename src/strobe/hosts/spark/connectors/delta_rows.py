"""Which rows a Delta table takes: those of the right type, not null where it must not be, within its constraints, and
one for each key.

Rows are looked at before they are written, so that one bad row can be named, or set aside, and the rest written. A
table that asks for nothing costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from strobe.hosts.spark.connectors.base import SinkContext
from strobe.hosts.spark.connectors.dead_letters import Rejected
from strobe.model.errors import Misuse

__all__ = ["RowRules", "newest_by_key"]

_CONSTRAINT: Final = "delta.constraints."
_NUMBER: Final = "__strobe_row"


class RowRules:
    """What the table asks of the rows that the stage returns. Misuse if they can never fit."""

    def __init__(self, table: DeltaTable, context: SinkContext, key: Sequence[str], what: str) -> None:
        self.key = tuple(key)
        columns = {field.name: field for field in pa.schema(table.schema().to_arrow())}
        self._check_columns(columns, context, what)
        self._target = pa.schema([columns[name] for name in context.schema.names])
        self._missing = [field for name, field in columns.items() if name not in context.schema.names]
        self._constraints = {
            name.removeprefix(_CONSTRAINT): expression
            for name, expression in table.metadata().configuration.items()
            if name.startswith(_CONSTRAINT) and expression
        }

    def split(self, rows: pa.Table, batch: int) -> tuple[pa.Table, list[Rejected]]:
        """The rows of one batch that can be written, in the table's types, and those that cannot."""
        bad: dict[int, str] = {}
        columns = [self._fitted(rows, field, bad) for field in self._target]
        for field, column in zip(self._target, columns, strict=True):
            if not field.nullable and column.null_count:
                for number in pc.indices_nonzero(pc.is_null(column)).to_pylist():
                    bad.setdefault(number, f"column {field.name} must not be null")
        fitted = pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in self._target]))
        for name, expression in self._constraints.items():
            for number in _violations(fitted, expression):
                bad.setdefault(number, f"it violates the constraint {name}: {expression}")
        if self.key:
            for number in self._ambiguous(fitted, bad):
                bad.setdefault(number, f"another row of the batch has the same key ({', '.join(self.key)})")
        rejected = [Rejected(rows.slice(n, 1).to_pylist()[0], reason, batch) for n, reason in sorted(bad.items())]
        if bad:
            fitted = fitted.filter(pa.array([n not in bad for n in range(rows.num_rows)], pa.bool_()))
        return (_distinct(fitted, self.key) if self.key else self._completed(fitted)), rejected

    def _fitted(self, rows: pa.Table, field: pa.Field, bad: dict[int, str]) -> pa.ChunkedArray:
        column = rows[field.name]
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)
        except pa.ArrowInvalid:
            values = []
            for number, value in enumerate(column):
                try:
                    values.append(value.cast(field.type))
                except pa.ArrowInvalid as error:
                    why = str(error).partition("\n")[0]
                    bad.setdefault(number, f"column {field.name} does not fit into {field.type}: {why}")
                    values.append(pa.scalar(None, field.type))
            return pa.chunked_array([pa.array([v.as_py() for v in values], field.type)])

    def _ambiguous(self, rows: pa.Table, bad: dict[int, str]) -> Iterable[int]:
        """The rows of one key that are not all the same: which of them counts would be chance."""
        numbered = rows.append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
        good = numbered.filter(pa.array([n not in bad for n in range(rows.num_rows)], pa.bool_())) if bad else numbered
        if good.group_by(list(self.key)).aggregate([]).num_rows == good.num_rows:
            return
        groups: dict[str, tuple[str, list[int]]] = {}
        different: set[str] = set()
        for row in good.to_pylist():
            number = row.pop(_NUMBER)
            key, whole = repr([row[k] for k in self.key]), repr(row)
            first, numbers = groups.setdefault(key, (whole, []))
            numbers.append(number)
            if whole != first:
                different.add(key)
        for key in different:
            yield from groups[key][1]

    def _completed(self, rows: pa.Table) -> pa.Table:
        for field in self._missing:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows

    def _check_columns(self, columns: dict[str, pa.Field], context: SinkContext, what: str) -> None:
        names = context.schema.names
        problems = [f"the table has no column {name}" for name in names if name not in columns]
        problems += [
            f"the stage has no column {name}, which must not be null"
            for name, field in columns.items()
            if name not in names and not field.nullable
        ]
        from pyspark.sql.pandas.types import to_arrow_type

        for one in context.schema.fields:
            field = columns.get(one.name)
            if field is not None and not _may_fit(to_arrow_type(one.dataType), field.type):
                problems.append(
                    f"column {one.name} is {one.dataType.simpleString()} here and {field.type} in the table"
                )
        if problems:
            raise Misuse(
                f"Stage {context.stage!r} cannot write to {what}: {'; '.join(problems)}.",
                untouched="The table is unchanged.",
                next="Return the table's columns from the stage, or write to another table.",
            )


def _may_fit(here: pa.DataType, there: pa.DataType) -> bool:
    if here == there or pa.types.is_nested(there):
        return bool(here == there or pa.types.is_nested(here))
    if _is_number(here) and _is_number(there):
        return True
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    kinds = (text, binary, (pa.types.is_timestamp,), (pa.types.is_date,), (pa.types.is_boolean,))
    return any(any(t(here) for t in kind) and any(t(there) for t in kind) for kind in kinds)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _violations(rows: pa.Table, expression: str) -> list[int]:
    """The numbers of the rows for which the expression, in Spark's SQL, is not true."""
    if rows.num_rows == 0:
        return []
    spark = SparkSession.builder.getOrCreate()
    numbered = rows.append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    frame = spark.createDataFrame(numbered).filter(f"NOT coalesce(({expression}), false)").select(_NUMBER)
    return [row[0] for row in frame.collect()]


def _distinct(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """One row for each key; those that there were more of are the same."""
    numbered = rows.append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    first = numbered.group_by(list(key), use_threads=False).aggregate([(_NUMBER, "min")])[f"{_NUMBER}_min"]
    return rows if len(first) == rows.num_rows else rows.take(first)


def newest_by_key(batches: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    """Of several batches, in order, the newest row of each key."""
    rows = pa.concat_tables(batches)
    numbered = rows.append_column(_NUMBER, pa.array(range(rows.num_rows), pa.int64()))
    newest = numbered.group_by(list(key), use_threads=False).aggregate([(_NUMBER, "max")])[f"{_NUMBER}_max"]
    return rows if len(newest) == rows.num_rows else rows.take(newest.sort())
