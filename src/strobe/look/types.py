"""The types of Spark's schemas, as their JSON spells them, and what each is in Arrow.

A schema comes from a snapshot, so it is data from outside: what is not known is `Unsupported`, and nesting is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from strobe.model.strict_json import parse

__all__ = ["Field", "SparkType", "Unsupported", "schema_from", "struct_of"]

_DEEPEST: Final = 64
_MOST_COLUMNS: Final = 20_000  # no table has as many, and showing more takes longer than anybody waits
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),\s*(-?\d{1,2})\)")
_TEXT: Final = re.compile(r"(?:string|(?:var)?char\(\d+\))(?: collate \S+)?")
_INTERVAL: Final = re.compile(r"interval (\w+)(?: to (\w+))?")


class Unsupported(ValueError):
    """Something that Spark writes and that is not decoded here."""


@dataclass(frozen=True, slots=True)
class SparkType:
    """`name` is the kind; `width` is how many bytes a value takes in an array's slot. What is longer, or of no fixed
    length, stands elsewhere and has its place and length in a slot of eight."""

    name: str
    arrow: pa.DataType
    width: int = 8
    inline: bool = True
    fields: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """A column. `number` identifies a column of a channel through all its changes; `first` is the name that it had when
    it got the number."""

    name: str
    type: SparkType
    number: int | None = None
    first: str = ""


_SIMPLE: Final[Mapping[str, SparkType]] = {
    "boolean": SparkType("boolean", pa.bool_(), 1),
    "byte": SparkType("integer", pa.int8(), 1),
    "short": SparkType("integer", pa.int16(), 2),
    "integer": SparkType("integer", pa.int32(), 4),
    "long": SparkType("integer", pa.int64()),
    "float": SparkType("integer", pa.float32(), 4),
    "double": SparkType("integer", pa.float64()),
    "date": SparkType("integer", pa.date32(), 4),
    "timestamp": SparkType("integer", pa.timestamp("us", "UTC")),
    "timestamp_ntz": SparkType("integer", pa.timestamp("us")),
    "binary": SparkType("bytes", pa.binary(), inline=False),
    "void": SparkType("void", pa.null(), 8),
    "null": SparkType("void", pa.null(), 8),
}


def schema_from(text: str | bytes) -> tuple[Field, ...]:
    """The columns of a schema as Spark writes it. ValueError if it is none, Unsupported if a type is not known."""
    value = parse(text.encode() if isinstance(text, str) else text)
    fields = struct_of(value).fields
    if len(fields) > _MOST_COLUMNS:
        raise Unsupported(f"a schema with {len(fields):,} columns")
    return fields


def struct_of(value: object, depth: int = 0) -> SparkType:
    if depth > _DEEPEST:
        raise ValueError("its schema is nested too deeply")
    if not isinstance(value, dict) or value.get("type") != "struct" or not isinstance(value.get("fields"), list):
        raise ValueError("its schema is not a struct")
    fields = tuple(_field(each, depth) for each in value["fields"])
    arrow = pa.struct([pa.field(f.name, f.type.arrow) for f in fields])
    return SparkType("struct", arrow, inline=False, fields=fields)


def _field(value: object, depth: int) -> Field:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise ValueError("its schema has a column without a name")
    about = value.get("metadata")
    number = about.get("strobe.id") if isinstance(about, dict) else None
    first = str(about.get("strobe.first", value["name"])) if isinstance(about, dict) else value["name"]
    kind = _type(value.get("type"), depth + 1)
    return Field(value["name"], kind, number if isinstance(number, int) else None, first)


def _type(value: Any, depth: int) -> SparkType:
    if isinstance(value, str):
        return _scalar(value)
    kind = value.get("type") if isinstance(value, dict) else None
    if depth > _DEEPEST:
        raise ValueError("its schema is nested too deeply")
    if kind == "struct":
        return struct_of(value, depth)
    if kind == "array":
        element = _type(value.get("elementType"), depth + 1)
        return SparkType("array", pa.list_(element.arrow), inline=False, fields=(Field("element", element),))
    if kind == "map":
        key, item = _type(value.get("keyType"), depth + 1), _type(value.get("valueType"), depth + 1)
        return SparkType(
            "map", pa.map_(key.arrow, item.arrow), inline=False, fields=(Field("key", key), Field("value", item))
        )
    if kind == "udt":  # by what it is stored as; its class is never loaded
        return _type(value.get("sqlType"), depth + 1)
    raise Unsupported(f"the type {value!r:.80}")


def _scalar(name: str) -> SparkType:
    if name in _SIMPLE:
        return _SIMPLE[name]
    if _TEXT.fullmatch(name):
        return SparkType("text", pa.string(), inline=False)
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if not 1 <= precision <= 38 or not -38 <= scale <= 38:
            raise ValueError(f"{name!r} is not a decimal")
        return SparkType("decimal", pa.decimal128(precision, scale), inline=precision <= 18)
    if match := _INTERVAL.fullmatch(name):
        if match[1] in ("year", "month"):
            return SparkType("integer", pa.int32(), 4)
        return SparkType("integer", pa.duration("us"))
    raise Unsupported(f"the type {name!r:.80}")
