"""From Spark's types to Postgres's: which columns fit, and how rows are written for COPY.

Rows go as CSV, which Arrow writes for whole record batches at once; Postgres parses it into whatever the column is.
What Arrow does not write (bytes, arrays, structs, maps) is turned into text here first. A null is an empty field, an
empty text is a quoted one.

A column fits if every value of Spark's type can be in it unchanged. What would silently be rounded or moved (a
decimal with more digits, an instant into a column without a time zone) is refused when the job starts. A string fits
any column: whether its text does is found out row by row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from strobe.hosts.spark.connectors.postgres.connect import Column, quoted

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["column_of", "ddl_of", "has_nul", "misfit", "to_csv"]

_NUMBERS: Final = ("int2", "int4", "int8", "numeric")
_TEXTS: Final = ("text", "varchar", "bpchar", "name", "citext")
_FITS: Final[dict[str, tuple[str, ...]]] = {
    "boolean": ("bool",),
    "tinyint": _NUMBERS,
    "smallint": _NUMBERS,
    "int": (*_NUMBERS, "oid"),
    "bigint": _NUMBERS,
    "float": ("float4", "float8"),
    "double": ("float8",),
    "date": ("date",),
    "timestamp": ("timestamptz",),
    "timestamp_ntz": ("timestamp",),
    "binary": ("bytea",),
}
_SQL: Final = {
    "boolean": "boolean", "tinyint": "smallint", "smallint": "smallint", "int": "integer", "bigint": "bigint",
    "float": "real", "double": "double precision", "date": "date", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp", "binary": "bytea", "string": "text",
}  # fmt: skip
_JSON: Final = ("json", "jsonb")
_HINTS: Final = {
    ("timestamp", "timestamp"): "make it timestamptz, or have the stage return a timestamp_ntz",
    ("timestamp_ntz", "timestamptz"): "make it timestamp without time zone, or have the stage return a timestamp",
    ("double", "float4"): "it would be rounded: make it double precision, or have the stage return a float",
    ("double", "numeric"): "it would be rounded: make it double precision, or have the stage return a decimal",
    ("float", "numeric"): "it would be rounded: make it real, or have the stage return a decimal",
}


def misfit(type: DataType, column: Column) -> str | None:
    """Why values of Spark's `type` cannot go into the column; None if they can."""
    name = type.simpleString()
    plain = f"is {column.shown}, which takes no {name}"
    if name == "string" or name.startswith(("varchar(", "char(")):
        return None
    if name.startswith("decimal("):
        scale = int(name[:-1].partition(",")[2])
        if column.type != "numeric":
            return f"{plain}: make it numeric"
        return None if column.scale is None or column.scale >= scale else f"{plain} without rounding it"
    if name.startswith("interval day") or name.startswith("interval hour"):
        return None if column.type == "interval" else plain
    if name.startswith("array<"):
        if column.type in _JSON:
            return None
        if not column.type.startswith("_"):
            return plain
        item: Any = type
        while item.simpleString().startswith("array<"):
            item = item.elementType
        inner = misfit(item, Column(column.name, column.type[1:], column.shown, None, True, False))
        return None if inner is None else plain
    if name.startswith(("struct<", "map<")):
        return None if column.type in _JSON else f"{plain}: make it jsonb"
    if name in _FITS:
        hint = _HINTS.get((name, column.type))
        return None if column.type in _FITS[name] else f"{plain}: {hint}" if hint else plain
    return f"cannot be written: Postgres has no {name}; cast it in the stage"


def ddl_of(schema: StructType, table: str, key: Sequence[str]) -> str:
    """The statement that would make a table for the stage's rows."""
    columns = [column_of(field) for field in schema.fields]
    columns += [f"PRIMARY KEY ({', '.join(map(quoted, key))})"] if key else []
    return f"CREATE TABLE {table} ({', '.join(columns)})"


def column_of(field: StructField) -> str:
    """A column that takes the field's values, as it is declared."""
    return f"{quoted(field.name)} {_sql(field.dataType)}"


def _sql(type: DataType) -> str:
    name = type.simpleString()
    if name.startswith("decimal("):
        return name.replace("decimal", "numeric")
    if name.startswith("array<"):
        inner: Any = type
        return f"{_sql(inner.elementType)}[]"
    if name.startswith(("struct<", "map<")):
        return "jsonb"
    return "interval" if name.startswith("interval") else _SQL.get(name, "text")


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_OPTIONS: Final = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")


def to_csv(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.Buffer:
    """The batch, whose columns are `columns` in this order, as Postgres's CSV."""
    texts = [_text(array, column.type) for array, column in zip(batch.columns, columns, strict=True)]
    out = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(texts, names=batch.schema.names), out, _OPTIONS)
    return out.getvalue()


def has_nul(batch: pa.RecordBatch) -> pa.Array | None:
    """Which rows have a text with a NUL character, which Postgres cannot store; None if no row has."""
    found = None
    for array in batch.columns:
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            here = pc.fill_null(pc.match_substring(array, "\0"), False)
            if pc.any(here).as_py():
                found = here if found is None else pc.or_(found, here)
    return found


def _text(array: pa.Array, target: str) -> pa.Array:
    """The column as something that Arrow writes as Postgres reads it."""
    type = array.type
    if pa.types.is_decimal(type):
        return array.cast(pa.string())
    if pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return _each(array, lambda value: f"\\x{value.hex()}")
    if pa.types.is_duration(type):
        return _each(array, lambda value: f"{value // timedelta(microseconds=1)} microseconds")
    if pa.types.is_nested(type):
        if target in _JSON:
            return _each(array, lambda value: json.dumps(_plain(value, type), ensure_ascii=False))
        return _each(array, _literal)
    return array


def _each(array: pa.Array, function: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else function(value) for value in array.to_pylist()], pa.string())


def _plain(value: Any, type: pa.DataType) -> Any:
    """A nested value as JSON has it; a map is an object, whatever its keys are."""
    if value is None:
        return None
    if pa.types.is_map(type):
        pairs = value.items() if isinstance(value, dict) else value
        return {_key(key): _plain(item, type.item_type) for key, item in pairs}
    if pa.types.is_struct(type):
        return {field.name: _plain(value[field.name], field.type) for field in type}
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return [_plain(item, type.value_type) for item in value]
    return value if isinstance(value, str | int | float | bool) else _scalar(value)


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, bool) else _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value // timedelta(microseconds=1)} microseconds"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value)


def _literal(value: Any) -> str:
    """An array as Postgres writes one."""
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return "{" + ",".join(_literal(item) for item in value) + "}"
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, int | float | Decimal):
        return _scalar(value)
    text = value if isinstance(value, str) else _scalar(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
