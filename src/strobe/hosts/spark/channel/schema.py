"""What a channel's columns may be, and how a stage's schema becomes its channel's.

A channel is an ordinary Delta table, so its columns are what Delta, Parquet and Arrow all hold without loss. The
schema is the stage's with two things taken away, both of which belong to the query and not to the data:

- *nullability*: Spark derives it from the plan, so it changes with the optimizer; every column may be null, as it
  is for Spark's own file sources.
- *column metadata*: Spark keeps the watermark there. A consumer that inherited it would drop late rows by a
  watermark that it never declared.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from strobe.model.errors import Misuse

__all__ = ["channel_schema"]

_SCALARS: Final = (
    BinaryType, BooleanType, ByteType, DateType, DecimalType, DoubleType, FloatType, IntegerType, LongType, ShortType,
    TimestampNTZType, TimestampType,
)  # fmt: skip


def channel_schema(schema: StructType, stage: str) -> StructType:
    """`schema` as stage `stage` writes it to its channel, or to a Delta table; Misuse that names the column which no
    such table can hold."""
    if not schema.fields:
        raise Misuse(
            f"Stage {stage!r} returns a DataFrame without columns, so its channel would carry nothing.",
            next="Select at least one column.",
        )
    return _struct(schema, stage, ())


def _struct(schema: StructType, stage: str, above: tuple[str, ...]) -> StructType:
    seen: dict[str, str] = {}
    fields: list[StructField] = []
    for field in schema.fields:
        at = (*above, field.name)
        if not field.name:
            raise Misuse(
                f"Stage {stage!r}: a column of its output {'in ' + '.'.join(above) + ' ' if above else ''}has no name.",
                next="Name it in the stage with .alias(…).",
            )
        twin = seen.setdefault(field.name.lower(), field.name)
        if len(seen) <= len(fields):
            raise Misuse(
                f"Stage {stage!r}: columns {twin!r} and {field.name!r} of its output differ in case at most, and a "
                "table does not tell them apart.",
                next="Rename or drop one of them in the stage.",
            )
        fields.append(StructField(field.name, _type(field.dataType, stage, at), True))
    return StructType(fields)


def _type(kind: DataType, stage: str, at: tuple[str, ...]) -> DataType:
    if isinstance(kind, StructType):
        return _struct(kind, stage, at)
    if isinstance(kind, ArrayType):
        return ArrayType(_type(kind.elementType, stage, (*at, "element")), True)
    if isinstance(kind, MapType):
        return MapType(_type(kind.keyType, stage, (*at, "key")), _type(kind.valueType, stage, (*at, "value")), True)
    if type(kind) is StringType and kind == StringType():
        return kind
    if type(kind) in _SCALARS:
        return kind
    raise Misuse(
        f"Stage {stage!r}: column {'.'.join(at)!r} has type {kind.simpleString()}, which neither a channel nor "
        "a Delta sink can hold.",
        next="Cast it in the stage to a type that Delta tables have (a number, string, binary, boolean, date, "
        "timestamp, timestamp_ntz, array, map or struct).",
    )
