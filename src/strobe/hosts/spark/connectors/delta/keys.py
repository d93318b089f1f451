"""What a key and a partition of a Delta table may be, and when two rows have the same key.

Two rows have the same key if each key column is the same as SQL's `IS NOT DISTINCT FROM` has it: a null is equal to a
null, NaN to NaN, and -0.0 to 0.0. Strings and bytes are compared as they are. A struct is compared field by field, so
that the `window` of an aggregate is a key; an array element by element. Maps have no order and are not keys.

A partition is a directory whose name has the value as text. What text does not hold without loss cannot be one, and
Delta itself keeps an empty string there as null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import ArrayType, BinaryType, DataType, DecimalType, MapType, StructType

from strobe.hosts.spark.connectors.base import SinkContext
from strobe.model.errors import Misuse

__all__ = [
    "ROW", "check_columns", "check_partitions", "first_of_each_key", "last_of_each_key",
    "longest_partition", "rows_of_one_key", "too_long",
]  # fmt: skip

ROW: Final = "__strobe_row"  # the number of a row, while rows are checked
_RESERVED: Final = ("__strobe_", "__delta_rs_")
_LONGEST: Final = 255  # bytes of a directory's name


def check_columns(context: SinkContext, key: Sequence[str], partition_by: Sequence[str], what: str) -> None:
    """Misuse if the stage does not have these columns, or if they have a type that cannot be a key or a partition."""
    where, fields = f"Stage {context.stage!r} writes to {what}", {f.name: f.dataType for f in context.schema.fields}
    for option, names in (("key", key), ("partition_by", partition_by)):
        missing = [name for name in names if name not in fields]
        if missing:
            raise Misuse(
                f"{where}, but it has no column {', '.join(missing)} ({option}).",
                untouched="Nothing was written.",
                next=f"Its columns are: {', '.join(fields)}.",
            )
    own = [name for name in fields if name.startswith(_RESERVED)]
    if own and (key or partition_by):
        raise Misuse(f"{where}: the name {own[0]!r} is taken.", untouched="Nothing was written.", next="Rename it.")
    for name in key:
        if _has_map(fields[name]):
            raise Misuse(
                f"{where}, but key column {name} is {fields[name].simpleString()}: maps cannot be compared.",
                untouched="Nothing was written.",
                next="Use other columns as the key, such as array_sort(map_entries(…)) or a value of the map.",
            )
    if partition_by and set(partition_by) == set(fields):
        raise Misuse(
            f"{where}, which is to be partitioned by every column: nothing would be left for its files.",
            untouched="Nothing was written.",
            next="Leave at least one column out of partition_by.",
        )
    check_partitions(context, partition_by, what)


def check_partitions(context: SinkContext, partitions: Sequence[str], what: str) -> None:
    """Misuse if the name of a directory cannot hold the values of these columns."""
    where = f"Stage {context.stage!r} writes to {what}"
    for field in context.schema.fields:
        name, kind = field.name, field.dataType
        # A decimal: `deltalake` writes -1.5 as "-1.-5", which nobody reads.
        lost = isinstance(kind, BinaryType | StructType | ArrayType | MapType) or (
            isinstance(kind, DecimalType) and kind.scale > 0
        )
        if name in partitions and lost:
            raise Misuse(
                f"{where}, but a table cannot be partitioned by {name}, which is {kind.simpleString()}.",
                untouched="Nothing was written.",
                next="Partition by a whole number, a string, a boolean, a date or a timestamp.",
            )
        if name in partitions and not name.isprintable():
            raise Misuse(
                f"{where}, but {name!r} cannot be part of a directory's name.",
                untouched="Nothing was written.",
                next="Rename the column, or partition by another.",
            )


def _has_map(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType)


# ── one row for each key ────────────────────────────────────────────────────────────────────────────────────────────


def first_of_each_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The first row of each key, in the order of the rows."""
    return _taken(rows, _by_key(rows, key, "min"))


def last_of_each_key(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, in the order of the rows."""
    return _taken(rows, _by_key(rows, key, "max"))


def rows_of_one_key(rows: pa.Table, key: Sequence[str]) -> Iterator[list[int]]:
    """The numbers of the rows of each key that has several."""
    if len(_by_key(rows, key, "min")) < rows.num_rows:
        for numbers in _by_key(rows, key, "list").to_pylist():
            if len(numbers) > 1:
                yield numbers


def _by_key(rows: pa.Table, key: Sequence[str], how: str) -> pa.ChunkedArray:
    columns = [part for name in key for part in _comparable(rows[name])]
    names = [f"k{i}" for i in range(len(columns))]
    keys = pa.table([*columns, pa.array(range(rows.num_rows), pa.int64())], names=[*names, ROW])
    return keys.group_by(names, use_threads=False).aggregate([(ROW, how)])[f"{ROW}_{how}"]


def _taken(rows: pa.Table, numbers: pa.ChunkedArray) -> pa.Table:
    return rows if len(numbers) == rows.num_rows else rows.take(numbers.take(pc.sort_indices(numbers)))


def _comparable(column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """The column as columns that Arrow groups by, equal where the key is."""
    kind = column.type
    if pa.types.is_struct(kind):
        children = [pc.struct_field(column, [i]) for i in range(kind.num_fields)]
        return [pc.is_null(column), *(part for child in children for part in _comparable(child))]
    if pa.types.is_nested(kind):
        return [pa.chunked_array([pa.array([_text(value) for value in column.to_pylist()], pa.string())])]
    if pa.types.is_floating(kind):
        zero, nan = pa.scalar(0.0, kind), pa.scalar(float("nan"), kind)
        return [pc.if_else(pc.equal(column, zero), zero, pc.if_else(pc.is_nan(column), nan, column))]
    return [column]


def _text(value: Any) -> str | None:
    """An array, the same text where it is equal."""
    return None if value is None else repr(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [_plain(item) for item in value.values()]
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value + 0.0 if isinstance(value, float) else value


# ── partitions ──────────────────────────────────────────────────────────────────────────────────────────────────────


def longest_partition(name: str) -> int:
    """How long a value's text may be."""
    return _LONGEST - len(name.encode()) - 1


def too_long(column: pa.ChunkedArray, name: str) -> Iterable[int]:
    """The numbers of the rows whose value makes a directory's name that is longer than file systems take."""
    kind, most = column.type, longest_partition(name)
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_floating(kind)):
        return []
    long = [value for value in pc.unique(column).to_pylist() if value is not None and len(_written(value)) > most]
    if not long:
        return []
    return list(pc.indices_nonzero(pc.is_in(column, pa.array(long, kind))).to_pylist())


def _written(value: str | float) -> str:
    """The value as it is written in the name of the directory."""
    if isinstance(value, str):
        return quote(value, safe="")
    return format(Decimal(repr(value)), "f")
