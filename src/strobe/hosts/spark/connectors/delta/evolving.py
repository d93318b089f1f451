"""A Delta table that gets more columns, or wider ones, because the stage that writes to it returns them.

A new column is a change of the table's metadata: rows from before are null there. A wider type, or another field inside
a column, means that all rows are written once more, in one commit: readers need not know that a type ever changed.
Nothing is ever taken away: a column that the stage no longer returns stays, and is null in new rows.

Such a table has commits that are not a batch's, so from then on it is written through `deltalake` (`mark`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from strobe.hosts.spark.channel.columns import widens
from strobe.hosts.spark.channel.writer import ASIDE
from strobe.hosts.spark.connectors.delta.table import is_append_only
from strobe.model.errors import Misuse

__all__ = ["Growth", "check_growth", "evolve_table", "growth", "has_evolved"]

_MARK: Final = f"{ASIDE}/evolved"


@dataclass(frozen=True, slots=True)
class Growth:
    """What a table would get: new columns, and those that have another type from then on."""

    added: tuple[StructField, ...] = ()
    widened: tuple[StructField, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)

    def applied(self, schema: StructType) -> StructType:
        wider = {f.name: f for f in self.widened}
        return StructType([*(wider.get(f.name, f) for f in schema.fields), *self.added])

    def sentence(self) -> str:
        parts = [f"gets the column {f.name!r} ({f.dataType.simpleString()})" for f in self.added]
        wider = [f"{f.name!r} as {f.dataType.simpleString()}" for f in self.widened]
        return " and ".join([*parts, *([f"is rewritten with {', '.join(wider)}"] if wider else [])])


def growth(there: StructType, now: StructType) -> Growth:
    """What a table with the columns `there` needs to hold rows of `now`. A type that is not wider is ignored here:
    whether such values fit is checked row by row."""
    held = {f.name: f for f in there.fields}
    added = tuple(StructField(f.name, f.dataType, True) for f in now.fields if f.name not in held)
    widened = tuple(
        StructField(f.name, f.dataType, held[f.name].nullable)
        for f in now.fields
        if f.name in held and f.dataType != held[f.name].dataType and _grows(held[f.name].dataType, f.dataType)
    )
    return Growth(added, widened)


def check_growth(table: DeltaTable, found: Growth, what: str, stage: str) -> None:
    """Misuse if the table cannot be rewritten so."""
    wider = [f.name for f in found.widened]
    partitions = [name for name in table.metadata().partition_columns if name in wider]
    if partitions:
        why = f"it is partitioned by {partitions[0]!r}"
    elif wider and is_append_only(table):
        why = "it never changes a row (delta.appendOnly)"
    else:
        return
    raise Misuse(
        f"{what} of stage {stage!r} cannot be rewritten with wider columns ({', '.join(wider)}): {why}.",
        untouched="The table is unchanged.",
        next="Cast them in the stage to the table's types, or write to another table.",
    )


def has_evolved(where: Path) -> bool:
    return (where / _MARK).exists()


def evolve_table(where: Path, found: Growth) -> None:
    """Give the table its new columns. Doing it again changes nothing."""
    if not found:
        return
    (where / _MARK).parent.mkdir(exist_ok=True)
    (where / _MARK).touch()
    table = DeltaTable(str(where))
    if found.added:
        table.alter.add_columns(list(Schema.from_json(StructType(list(found.added)).json()).fields))
    if found.widened:
        _rewrite(DeltaTable(str(where)), {f.name: to_arrow_type(f.dataType, timezone="UTC") for f in found.widened})


def _rewrite(table: DeltaTable, wider: dict[str, pa.DataType]) -> None:
    dataset = table.to_pyarrow_dataset()
    target = pa.schema([f.with_type(wider[f.name]) if f.name in wider else f for f in dataset.schema])

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in dataset.to_batches():
            yield batch.cast(target)

    write_deltalake(
        table,
        pa.RecordBatchReader.from_batches(target, rows()),
        mode="overwrite",
        schema_mode="overwrite",
        partition_by=list(table.metadata().partition_columns) or None,
    )


def _grows(was: DataType, is_: DataType) -> bool:
    """Whether `is_` has everything that `was` has, and more."""
    return widens(was, is_) and _fields(was) <= _fields(is_)


def _fields(kind: DataType, at: str = "") -> set[str]:
    if isinstance(kind, StructType):
        return {name for f in kind.fields for name in (f"{at}.{f.name}", *_fields(f.dataType, f"{at}.{f.name}"))}
    if isinstance(kind, ArrayType):
        return _fields(kind.elementType, f"{at}.element")
    return _fields(kind.valueType, f"{at}.value") if isinstance(kind, MapType) else set()
