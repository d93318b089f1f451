"""Which rows a Delta table takes: those of the right type, not null where it must not be, within its constraints, and
one for each key.

Rows are looked at before they are written, so that one bad row can be named, or set aside, and the rest written. A
table that asks for nothing costs nothing here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StringType, StructType

from strobe.hosts.spark.connectors.base import SinkContext
from strobe.hosts.spark.connectors.dead_letters import Rejected
from strobe.hosts.spark.connectors.delta.keys import (
    ROW,
    first_of_each_key,
    last_of_each_key,
    longest_partition,
    rows_of_one_key,
    too_long,
)
from strobe.model.errors import Misuse

__all__ = ["RowRules", "check_fit", "fit_column", "newest_by_key", "values_of"]

_CONSTRAINT: Final = "delta.constraints."


class RowRules:
    """What the table asks of the rows that the stage returns. Misuse if they can never fit."""

    def __init__(self, table: DeltaTable, context: SinkContext, key: Sequence[str], what: str) -> None:
        self.key = tuple(key)
        self.columns = {field.name: field for field in pa.schema(table.schema().to_arrow())}
        self.schema = StructType.fromJson(json.loads(table.schema().to_json()))
        check_fit(self.columns, context, what)
        self.partitions = table.metadata().partition_columns
        self.constraints = {
            name.removeprefix(_CONSTRAINT): expression
            for name, expression in table.metadata().configuration.items()
            if name.startswith(_CONSTRAINT) and expression
        }

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    @property
    def required(self) -> list[str]:
        """Columns that must not be null."""
        return [name for name, field in self.columns.items() if not field.nullable]

    def kind(self, name: str) -> DataType:
        return self.schema[name].dataType

    def is_text(self, name: str) -> bool:
        return isinstance(self.kind(name), StringType)

    def split(self, rows: pa.Table, batch: int) -> tuple[pa.Table, list[Rejected]]:
        """The rows of one batch that can be written, in the table's types, and those that cannot."""
        bad: dict[int, str] = {}
        # Rows that were staged before the stage's columns changed have the old columns.
        target = [field for name, field in self.columns.items() if name in rows.column_names]
        columns = [fit_column(rows, field, bad) for field in target]
        same_key = f"another row of the batch has the same key ({', '.join(self.key)})"
        for name in (n for n in self.partitions if n in rows.column_names):
            at = [field.name for field in target].index(name)
            before = columns[at].null_count
            columns[at] = _without_empty(columns[at])
            if name in self.key and columns[at].null_count > before:
                same_key += f"; an empty string in {name}, a partition, is a null"
            for number in too_long(columns[at], name):
                bad.setdefault(
                    number, f"the text of column {name}, a partition, is longer than {longest_partition(name)} bytes"
                )
        for field, column in zip(target, columns, strict=True):
            if not field.nullable and column.null_count:
                for number in pc.indices_nonzero(pc.is_null(column)).to_pylist():
                    bad.setdefault(number, f"column {field.name} must not be null")
        fitted = pa.table(columns, schema=pa.schema([field.with_nullable(True) for field in target]))
        for name, expression in self.constraints.items():
            for number in _violations(fitted, expression):
                bad.setdefault(number, f"it violates the constraint {name}: {expression}")
        if self.key:
            for number in self._ambiguous(fitted, bad):
                bad.setdefault(number, same_key)
        rejected = [Rejected(values_of(rows.slice(n, 1))[0], reason, batch) for n, reason in sorted(bad.items())]
        if bad:
            fitted = fitted.filter(pa.array([n not in bad for n in range(rows.num_rows)], pa.bool_()))
        return (first_of_each_key(fitted, self.key) if self.key else self._completed(fitted)), rejected

    def _ambiguous(self, rows: pa.Table, bad: dict[int, str]) -> Iterable[int]:
        """The rows of one key that are not all the same: which of them counts would be chance."""
        left = [n for n in range(rows.num_rows) if n not in bad] if bad else range(rows.num_rows)
        good = rows.take(pa.array(left, pa.int64())) if bad else rows
        for numbers in rows_of_one_key(good, self.key):
            if len({repr(row) for row in values_of(good.take(numbers))}) > 1:
                yield from (left[n] for n in numbers)

    def _completed(self, rows: pa.Table) -> pa.Table:
        for field in (f for name, f in self.columns.items() if name not in rows.column_names):
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows


def fit_column(rows: pa.Table, field: pa.Field, bad: dict[int, str]) -> pa.ChunkedArray:
    """The column in the table's type; `bad` is called with the rows whose value does not fit, and why."""
    column = rows[field.name]
    if column.type == field.type:
        return column
    if pa.types.is_integer(column.type) and pa.types.is_decimal(field.type):
        column = column.cast(pa.decimal128(19, 0))  # or Arrow would allocate room for every possible integer
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid:
        values = []
        for number in range(len(column)):
            try:
                values += column.slice(number, 1).cast(field.type).chunks
            except pa.ArrowInvalid as error:
                why = str(error).partition("\n")[0]
                bad.setdefault(number, f"column {field.name} does not fit into {field.type}: {why}")
                values.append(pa.nulls(1, field.type))
        return pa.chunked_array([pa.concat_arrays(values)], field.type)


def check_fit(columns: Mapping[str, pa.Field], context: SinkContext, what: str) -> None:
    """Misuse if rows of the stage can never be rows of a table with these columns."""
    names = context.schema.names
    problems = [f"the table has no column {name}" for name in names if name not in columns]
    problems += [
        f"the stage has no column {name}, which must not be null"
        for name, field in columns.items()
        if name not in names and not field.nullable
    ]
    for one in context.schema.fields:
        field = columns.get(one.name)
        if field is not None and not _may_fit(to_arrow_type(one.dataType, timezone="UTC"), field.type):
            problems.append(f"column {one.name} is {one.dataType.simpleString()} here and {field.type} in the table")
    if problems:
        raise Misuse(
            f"Stage {context.stage!r} cannot write to {what}: {'; '.join(problems)}.",
            untouched="The table is unchanged.",
            next="Return the table's columns from the stage; or let the table get new columns and wider types, with "
            'DeltaSink(…, schema="evolve"); or write to another table.',
        )


def _may_fit(here: pa.DataType, there: pa.DataType) -> bool:
    if here == there:
        return True
    if pa.types.is_struct(here) and pa.types.is_struct(there):
        pairs = zip(_fields(here), _fields(there), strict=False)
        return here.num_fields == there.num_fields and all(
            a.name == b.name and _may_fit(a.type, b.type) for a, b in pairs
        )
    if pa.types.is_map(here) and pa.types.is_map(there):
        return _may_fit(here.key_type, there.key_type) and _may_fit(here.item_type, there.item_type)
    if _is_list(here) and _is_list(there):
        return _may_fit(here.value_type, there.value_type)
    if _is_number(here) and _is_number(there):
        return True
    if pa.types.is_timestamp(here) and pa.types.is_timestamp(there):
        return (here.tz is None) == (there.tz is None)  # one is an instant, the other what a clock shows
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    kinds = (text, binary, (pa.types.is_date,), (pa.types.is_boolean,))
    return any(any(t(here) for t in kind) and any(t(there) for t in kind) for kind in kinds)


def _fields(kind: pa.StructType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _violations(rows: pa.Table, expression: str) -> list[int]:
    """The numbers of the rows for which the expression, in Spark's SQL, is not true."""
    if rows.num_rows == 0:
        return []
    spark = SparkSession.builder.getOrCreate()
    numbered = rows.append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
    frame = spark.createDataFrame(numbered).filter(f"NOT coalesce(({expression}), false)").select(ROW)
    return [row[0] for row in frame.collect()]


def _without_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A partition's value as readers of the table see it: an empty string is a null there."""
    if not pa.types.is_string(column.type):
        return column
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)


def values_of(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as Python values. What Python's calendar does not have (the year 10000) is text."""
    try:
        return rows.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError):
        times = [i for i, field in enumerate(rows.schema) if pa.types.is_temporal(field.type)]
        for i in times:
            rows = rows.set_column(i, rows.schema.names[i], rows.column(i).cast(pa.string()))
        return rows.to_pylist()  # type: ignore[no-any-return]


def newest_by_key(batches: Sequence[pa.Table], key: Sequence[str]) -> pa.Table:
    """Of several batches, in order, the newest row of each key."""
    return last_of_each_key(pa.concat_tables(batches, promote_options="default"), key)
