"""The columns of a channel over time: which change is possible, and which column of an old file is which of today.

A channel's rows outlive the code that wrote them, so its files may have columns that the stage no longer returns, and
lack others. **A column is known by a number**, which is never used for another column: a rename keeps it, and a column
that is dropped and comes back later under the same name gets a new one. Every file carries the numbers of its columns
(Parquet's `field_id`), so what a file means does not depend on where in the log it stands, nor on which branch.

The numbers of a schema stand in its fields' metadata. A schema without them is numbered by place: that is how every
channel begins, and how files are read that have no numbers.

Inside structs, arrays and maps fields are known by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import (
    ArrayType,
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
    StructField,
    StructType,
    TimestampNTZType,
)

from strobe.model.cut import Json
from strobe.model.errors import Misuse

__all__ = ["FIELD_ID", "Column", "Columns", "Evolution", "Renamed", "evolve", "widens"]

FIELD_ID: Final = "parquet.field.id"  # where Spark looks for the number that it writes into a file
_ID, _FIRST, _LAST = "strobe.id", "strobe.first", "strobe.last"
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_DIGITS: Final[Mapping[type[DataType], int]] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}

Renamed = Mapping[str, str | None]
"""What the user says has become of columns: by old name the new one, or None for one that is gone."""


@dataclass(frozen=True, slots=True)
class Column:
    """`first` is the name under which it got its number: the one that files without numbers have."""

    name: str
    type: DataType
    number: int
    first: str


@dataclass(frozen=True, slots=True)
class Columns:
    """`last` is the highest number ever given."""

    columns: tuple[Column, ...]
    last: int

    @classmethod
    def of(cls, schema: StructType) -> Columns:
        fields = schema.fields
        if not any(_ID in f.metadata for f in fields):
            columns = (Column(f.name, f.dataType, n, f.name) for n, f in enumerate(fields, 1))
            return cls(tuple(columns), len(fields))
        numbered = tuple(
            Column(f.name, f.dataType, int(f.metadata[_ID]), str(f.metadata.get(_FIRST, f.name))) for f in fields
        )
        return cls(numbered, max(int(f.metadata.get(_LAST, 0)) for f in fields))

    @property
    def schema(self) -> StructType:
        return StructType([StructField(c.name, c.type, True) for c in self.columns])

    @property
    def numbered(self) -> StructType:
        """The schema with the numbers in it, from which `of` makes equal columns."""
        if Columns.of(self.schema) == self:
            return self.schema
        about = [{_ID: c.number, _FIRST: c.first, _LAST: self.last} for c in self.columns]
        return StructType([StructField(c.name, c.type, True, a) for c, a in zip(self.columns, about, strict=True)])

    @classmethod
    def from_json(cls, value: Json) -> Columns | None:
        """Read what `json` returns; None for anything else."""
        try:
            return cls.of(StructType.fromJson(value)) if isinstance(value, dict) else None
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    @property
    def json(self) -> Json:
        value: Json = json.loads(self.numbered.json())
        return value

    def renamed_in(self, later: Columns) -> dict[str, str]:
        """The columns that have another name in `later`, by their names here."""
        names = {c.number: c.name for c in later.columns}
        return {c.name: names[c.number] for c in self.columns if names.get(c.number, c.name) != c.name}


@dataclass(frozen=True, slots=True)
class Evolution:
    """The columns that a channel has from now on, and what is new about them, in words."""

    columns: Columns
    changes: tuple[str, ...] = ()


def evolve(held: Columns, now: StructType, renamed: Renamed, stage: str) -> Evolution:
    """What becomes of a channel that has rows with the columns `held`, and whose stage returns `now`. Misuse if old
    rows cannot be read so, or if it is not clear how."""
    old = {c.name.lower(): c for c in held.columns}
    new = {f.name.lower(): f for f in now.fields}
    gone = {name: c for name, c in old.items() if name not in new}
    come = [name for name in new if name not in old]
    became = _renames(renamed, old, new, stage)
    _check_clear(gone, come, new, became, renamed, stage)
    origin = {target: old[source] for source, target in became.items()}
    columns: list[Column] = []
    changes: list[str] = []
    last = held.last
    for field in now.fields:
        name = field.name
        column = origin.get(name.lower()) or old.get(name.lower())
        if column is None:
            last += 1
            columns.append(Column(name, field.dataType, last, name))
            changes.append(f"column {name!r} ({_shown(field.dataType)}) is new, and null in rows from before")
            continue
        _check_type(column, field, renamed, stage)
        columns.append(Column(name, field.dataType, column.number, column.first))
        if column.name != name:
            changes.append(f"column {column.name!r} is called {name!r} now")
        if column.type != field.dataType:
            changes.append(f"column {name!r} was {_shown(column.type)}, and is {_shown(field.dataType)} now")
    changes += [f"column {c.name!r} is dropped" for name, c in gone.items() if name not in became]
    return Evolution(Columns(tuple(columns), last), tuple(changes))


def _renames(renamed: Renamed, old: Mapping[str, Column], new: Mapping[str, StructField], stage: str) -> dict[str, str]:
    """The renames that are still to be done, in lower case. Those that an earlier run has done have no effect, so they
    may stay in the file; a column that has been renamed twice since is followed."""
    told = {source.lower(): None if target is None else target.lower() for source, target in renamed.items()}
    found: dict[str, str] = {}
    for source in told:
        if source not in old or told[source] is None:
            continue
        target, seen = told[source], {source}
        while target is not None and target not in new and target in told and target not in seen:
            seen.add(target)
            target = told[target]
        said = f"Stage {stage!r}: renamed= says that {old[source].name!r} is called {renamed_to(renamed, source)!r} now"
        if source in new:
            if target in new and target not in old:
                raise _refused(
                    f"{said}, but the stage returns both.", "Return only the new one, or leave renamed= out."
                )
            continue
        if target is None:
            continue
        if target not in new:
            raise _refused(
                f"{said}, but the stage does not return that.", f"It returns {', '.join(f.name for f in new.values())}."
            )
        if target in old:
            raise _refused(
                f"{said}, but its channel has both columns already.",
                "Rename it to a name that is free; or, if the column is gone, say so: "
                f"renamed={{{old[source].name!r}: None}}.",
            )
        if target in found.values():
            raise _refused(f"{said}, and so it says of another column.", "Name one old column for each new one.")
        found[source] = target
    return found


def renamed_to(renamed: Renamed, source: str) -> str | None:
    return next((target for name, target in renamed.items() if name.lower() == source), None)


def _check_clear(
    gone: Mapping[str, Column],
    come: list[str],
    new: Mapping[str, StructField],
    became: Mapping[str, str],
    renamed: Renamed,
    stage: str,
) -> None:
    """Refuse if a column is gone and a new one could be the same column: only the user knows."""
    told = {name.lower() for name, target in renamed.items() if target is None}
    for name, column in gone.items():
        if name in became or name in told:
            continue
        same = [new[n] for n in come if n not in became.values() and widens(column.type, new[n].dataType)]
        if same:
            raise _refused(
                f"Stage {stage!r} no longer returns column {column.name!r}, and returns "
                f"{' and '.join(repr(f.name) for f in same)} instead, which could be the same under another name.",
                f"Say which: @pipeline.stage(…, renamed={{{column.name!r}: {same[0].name!r}}}) if it was renamed, and "
                f"renamed={{{column.name!r}: None}} if it is gone.",
            )


def _check_type(column: Column, field: StructField, renamed: Renamed, stage: str) -> None:
    if column.type == field.dataType:
        return
    where = _narrowed(column.type, field.dataType, field.name)
    if where is not None:
        at, was, is_ = where
        raise _refused(
            f"Stage {stage!r}: column {at!r} was {_shown(was)}, and is {_shown(is_)} now, which cannot hold every "
            "value that rows on their way may have.",
            f"Cast it in the stage to {_shown(was)} as before, or to a wider type; or return it under another name; "
            "or, to take back a change, restore a snapshot from before it: -s SNAPSHOT.",
        )
    told = {name.lower() for name, target in renamed.items() if target is None}
    for path, target in _unclear(column.type, field.dataType, field.name):
        if path.lower() not in told:
            raise _refused(
                f"Stage {stage!r}: field {path!r} is gone, and {target!r} is new and could be the same under another "
                "name. Inside a column fields are known by name, so rows on their way would have null there.",
                f"Keep the name; or, if that is what you want, say so: renamed={{{path!r}: None}}.",
            )


def _refused(what: str, next: str) -> Misuse:
    return Misuse(what, untouched="Nothing was changed.", next=next)


def _shown(kind: DataType) -> str:
    return kind.simpleString()


# ── types ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def widens(was: DataType, is_: DataType) -> bool:
    """Whether every value of `was` is one of `is_`: Delta's rules of type widening, and added fields in structs."""
    return _narrowed(was, is_, "") is None


def _narrowed(was: DataType, is_: DataType, at: str) -> tuple[str, DataType, DataType] | None:
    """The innermost place where `is_` cannot hold a value of `was`."""
    if was == is_:
        return None
    if isinstance(was, StructType) and isinstance(is_, StructType):
        fields = {f.name.lower(): f for f in was.fields}
        inner = ((f, fields.get(f.name.lower())) for f in is_.fields)
        found = (_narrowed(f0.dataType, f1.dataType, f"{at}.{f1.name}") for f1, f0 in inner if f0 is not None)
        return next((n for n in found if n is not None), None)
    if isinstance(was, ArrayType) and isinstance(is_, ArrayType):
        return _narrowed(was.elementType, is_.elementType, f"{at}.element")
    if isinstance(was, MapType) and isinstance(is_, MapType):
        if was.keyType != is_.keyType:
            return f"{at}.key", was.keyType, is_.keyType
        return _narrowed(was.valueType, is_.valueType, f"{at}.value")
    return None if _scalar_widens(was, is_) else (at, was, is_)


def _scalar_widens(was: DataType, is_: DataType) -> bool:
    if type(was) in _INTEGERS:
        if type(is_) in _INTEGERS:
            return _DIGITS[type(is_)] >= _DIGITS[type(was)]
        if isinstance(is_, DecimalType):
            return is_.precision - is_.scale >= _DIGITS[type(was)]
        return isinstance(is_, DoubleType) and not isinstance(was, LongType)
    if isinstance(was, DecimalType) and isinstance(is_, DecimalType):
        return is_.scale >= was.scale and is_.precision - is_.scale >= was.precision - was.scale
    if isinstance(was, FloatType):
        return isinstance(is_, DoubleType)
    return isinstance(was, DateType) and isinstance(is_, TimestampNTZType)


def _unclear(was: DataType, is_: DataType, at: str) -> Iterator[tuple[str, str]]:
    """Fields inside `was` that are gone, each with a new one beside it that could be the same."""
    if isinstance(was, StructType) and isinstance(is_, StructType):
        old, new = ({f.name.lower(): f for f in kind.fields} for kind in (was, is_))
        come = [f for name, f in new.items() if name not in old]
        for name, field in old.items():
            if name in new:
                yield from _unclear(field.dataType, new[name].dataType, f"{at}.{field.name}")
            else:
                same = [f.name for f in come if widens(field.dataType, f.dataType)]
                yield from ((f"{at}.{field.name}", f"{at}.{name}") for name in same[:1])
    elif isinstance(was, ArrayType) and isinstance(is_, ArrayType):
        yield from _unclear(was.elementType, is_.elementType, f"{at}.element")
    elif isinstance(was, MapType) and isinstance(is_, MapType):
        yield from _unclear(was.valueType, is_.valueType, f"{at}.value")
