"""Rows out of Postgres: COPY to CSV, which Arrow reads into Spark's types.

What Arrow does not read (bytes, arrays) comes as text and is turned here. Types that Spark does not have come as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.csv
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.connectors.postgres.connect import Column, Dsn, is_passing, quoted, split_name
from strobe.model.backoff import backoff
from strobe.model.errors import Failed

__all__ = ["read_range", "spark_type"]

_TRIES: Final = 6
_FIRST_PAUSE: Final = 0.5  # seconds
_CHUNK: Final = 4 << 20  # bytes of CSV that become record batches at once
_PLAIN: Final = {
    "bool": "boolean", "int2": "smallint", "int4": "int", "int8": "bigint", "oid": "bigint", "float4": "float",
    "float8": "double", "date": "date", "timestamptz": "timestamp", "timestamp": "timestamp_ntz", "bytea": "binary",
}  # fmt: skip
_NUMERIC: Final = re.compile(r"numeric\((\d+),(\d+)\)")


def spark_type(column: Column) -> str:
    """Spark's type for a column, as Spark writes it."""
    if column.type == "numeric":
        match = _NUMERIC.fullmatch(column.shown)
        if match is None:
            return "decimal(38,18)" if column.shown == "numeric" else "string"
        return f"decimal({match[1]},{match[2]})" if int(match[1]) <= 38 else "string"
    if column.type.startswith("_"):
        inner = _PLAIN.get(column.type[1:], "string")
        return f"array<{inner}>" if inner not in ("binary", "timestamp", "timestamp_ntz", "date") else "array<string>"
    return _PLAIN.get(column.type, "string")


def read_range(
    dsn: Dsn, table: str, column: str, low: str | None, high: str, schema: StructType, application: str
) -> Iterator[pa.RecordBatch]:
    """The rows with low < column <= high. A connection that is refused is tried again; one that breaks in the middle
    fails the task, since rows have gone out already."""
    target = to_arrow_schema(schema, timezone="UTC")
    for attempt in range(1, _TRIES + 1):
        began = False
        try:
            with dsn.connect(application) as connection:
                for batch in _copy(connection, table, column, low, high, target):
                    began = True
                    yield batch
            return
        except psycopg.Error as error:
            if began or attempt == _TRIES or not is_passing(error):
                raise dsn.trouble(f"Reading {table}", error) from None
            SYSTEM.sleep(backoff(attempt, _FIRST_PAUSE))
        except pa.ArrowInvalid as error:
            raise Failed(
                f"Reading {table}, {column} up to {high}: a value has no place in Spark's type: {error}",
                next="Read it as text, from a view that casts it.",
            ) from error


def _copy(
    connection: psycopg.Connection[Any], table: str, column: str, low: str | None, high: str, target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    schema, name = split_name(table)
    at = quoted(column)
    chosen = ", ".join(_expression(field) for field in target)
    after = "" if low is None else f"{at} > {_literal(low)} AND "
    query = f"SELECT {chosen} FROM {quoted(schema or 'public', name)} WHERE {after}{at} <= {_literal(high)}"
    connection.execute("SET datestyle = 'ISO, YMD'; SET timezone = 'UTC'; SET extra_float_digits = 3")
    with connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv)".encode()) as copy:
        held = bytearray()
        for row in copy:  # each is whole rows
            held += row
            if len(held) >= _CHUNK:
                yield from _batches(bytes(held), target)
                held.clear()
        if held:
            yield from _batches(bytes(held), target)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _expression(field: pa.Field) -> str:
    name = quoted(field.name)
    if pa.types.is_list(field.type):
        return f"to_json({name})::text"
    if pa.types.is_string(field.type):
        return f"{name}::text"
    if pa.types.is_decimal(field.type):
        return f"{name}::numeric({field.type.precision},{field.type.scale})"
    if pa.types.is_timestamp(field.type) and field.type.tz is not None:
        return f"{name} AT TIME ZONE 'UTC'"
    return name


def _batches(text: bytes, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    read = {field.name: _read_as(field.type) for field in target}
    table = pyarrow.csv.read_csv(
        pa.BufferReader(text),
        read_options=pyarrow.csv.ReadOptions(column_names=target.names, block_size=len(text) + 1, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(target) != 1),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=read, null_values=[""], true_values=["t"], false_values=["f"], strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )  # fmt: skip
    columns = [_turned(column, field) for column, field in zip(table.columns, target, strict=True)]
    yield from pa.Table.from_arrays(columns, schema=target).to_batches(max_chunksize=64 * 1024)


def _read_as(type: pa.DataType) -> pa.DataType:
    if pa.types.is_list(type) or pa.types.is_binary(type):
        return pa.string()
    return pa.timestamp("us") if pa.types.is_timestamp(type) else type


def _turned(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if pa.types.is_list(field.type):
        values = [None if v is None else _listed(json.loads(v), field.type.value_type) for v in column.to_pylist()]
        return pa.chunked_array([pa.array(values, field.type)])
    if pa.types.is_binary(field.type):
        return pa.chunked_array([pa.array([_bytes(v) for v in column.to_pylist()], field.type)])
    if pa.types.is_timestamp(field.type) and field.type.tz is not None:
        return column.cast(pa.timestamp("us", "UTC")).cast(field.type)
    return column.cast(field.type)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text[2:])


def _listed(values: list[Any], type: pa.DataType) -> list[Any]:
    if pa.types.is_string(type):
        return [v if v is None or isinstance(v, str) else json.dumps(v) for v in values]
    return [float(v) if isinstance(v, str) and pa.types.is_floating(type) else v for v in values]
