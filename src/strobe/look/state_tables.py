"""The state of a stage as tables: which there are, what their columns are called, and their rows.

An operator with one store is one table, named like its stage. What has several (the two sides of a join, the variables
of a transformWithState, several operators in one stage) is a table each: `<stage>__left`, `<stage>__counts`,
`<stage>__timers`; of several operators of a kind, all but the outermost have their number in the name.

Columns are called what the user's code calls them, as far as the snapshot says so: keys by their names, results of
aggregates by theirs. What Spark only keeps for itself (dummies, counters, indexes) is left out.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from strobe.look.gather import Flags, Positions, as_column, numbers
from strobe.look.state_files import Chunk, StoreFiles, read_entries
from strobe.look.state_rows import decode_keys, decode_lists, decode_values
from strobe.look.state_schema import Family, Operator
from strobe.look.types import Field

__all__ = ["Column", "StateTable", "TableEntries", "batch_of", "entries_of", "rows_of", "tables_of"]

_HIDDEN: Final = frozenset({"__dummy__", "__empty__"})
_JOIN: Final = "symmetricHashJoin"
_ROWS: Final = "keyWithIndexToValue"
_TIMED_ROWS: Final = "keyWithTsToValues"
_TRANSFORM: Final = "transformWithState"
_GROUPS: Final = ("applyInPandasWithState", "flatMapGroupsWithState")
# What an aggregate keeps for a function, as Spark calls it.
_BUFFERS: Final = {
    "sum": ("sum", "isEmpty"), "avg": ("sum", "count"), "count": ("count",), "min": ("min",), "max": ("max",),
    "first": ("first", "valueSet"), "last": ("last", "valueSet"), "any_value": ("first", "valueSet"),
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """Where a column comes from: the key or the value at a place, or a field of the struct there. `over`: the place of
    the value that it is divided by, for a mean. `unless`: the place of a flag; where it is set, there is no value."""

    name: str
    side: str
    place: int
    inner: int | None = None
    over: int | None = None
    unless: int | None = None
    is_key: bool = False


@dataclass(frozen=True)
class StateTable:
    """A table of a stage's state. `many`: an entry is a list of rows. `numbered`: its store has several families, so
    its keys begin with the number of one. `problem` says why it cannot be decoded here; then it has no columns; if its
    format is not known here, Spark may still read it."""

    name: str
    stage: str
    operator: int
    operator_name: str
    store: str
    family: Family | None = None
    columns: tuple[Column, ...] = ()
    many: bool = False
    numbered: bool = False
    problem: str = ""
    for_spark: bool = False
    variable: str = ""
    paths: tuple[str, ...] = field(default=(), compare=False)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, _type_of(c, self.family)) for c in self.columns])

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns if c.is_key)

    def only(self, columns: Container[str]) -> StateTable:
        """The same table with some of its columns."""
        return replace(self, columns=tuple(c for c in self.columns if c.name in columns))


def tables_of(stage: str, operators: tuple[Operator, ...], described: object) -> tuple[StateTable, ...]:
    """The tables of a stage's state. `described` is what the snapshot says of the stage's operators."""
    notes = (
        [o for o in described if isinstance(o, dict) and o.get("kind") != "watermark"]
        if isinstance(described, list)
        else []
    )
    found: list[StateTable] = []
    for number, operator in enumerate(operators):
        note = notes[number] if len(notes) == len(operators) else {}
        tables = _tables(stage, operator, note)
        many = len(operators) > 1 and number > 0
        found += [_named(t, stage, f"{operator.number}" if many else "") for t in tables]
    return tuple(found)


def _named(table: StateTable, stage: str, number: str) -> StateTable:
    words = [stage, *((number,) if number else ()), *((table.name,) if table.name else ())]
    values = {f: getattr(table, f) for f in table.__dataclass_fields__}
    return StateTable(**{**values, "name": "__".join(words)})


def _tables(stage: str, operator: Operator, note: Mapping[str, Any]) -> Iterator[StateTable]:
    """The tables of one operator; their names follow that of the stage."""
    number, name = operator.number, operator.name
    if operator.problem:
        yield StateTable("", stage, number, name, "default", problem=operator.problem, for_spark=operator.for_spark)
    elif name.startswith(_JOIN):
        yield from _join(stage, operator)
    elif name.startswith(_TRANSFORM):
        yield from _variables(stage, operator)
    else:
        for store in operator.stores:
            word = "" if store.name == "default" else store.name
            for family in store.families:
                columns = _unique(_columns(name, family, note))
                several = len(store.families) > 1
                yield StateTable(word, stage, number, name, store.name, family, columns, numbered=several)


def _join(stage: str, operator: Operator) -> Iterator[StateTable]:
    stores = {
        family.name if len(s.families) > 1 else s.name: (s, family) for s in operator.stores for family in s.families
    }
    for side in ("left", "right"):
        name = next((n for n in stores if n.startswith(f"{side}-") and n.endswith((_ROWS, _TIMED_ROWS))), None)
        if name is None:
            known = ", ".join(stores)[:100]
            yield StateTable(
                side,
                stage,
                operator.number,
                operator.name,
                "default",
                problem=f"it has a join that keeps {known}",
                for_spark=True,
            )
            continue
        store, family = stores[name]
        columns = [Column(f.name, "value", i, is_key=f.name != "matched") for i, f in enumerate(family.value)]
        many = name.endswith(_TIMED_ROWS)
        several = len(store.families) > 1
        yield StateTable(
            side, stage, operator.number, operator.name, store.name, family, _unique(columns), many, several
        )


def _variables(stage: str, operator: Operator) -> Iterator[StateTable]:
    families = {family.name: (store, family) for store in operator.stores for family in store.families}
    for variable in operator.variables:
        timers = variable.kind == "timers"
        word = "timers" if timers else variable.name
        if variable.name not in families:
            yield StateTable(word, stage, operator.number, operator.name, "default", problem="its schema is not there")
            continue
        store, family = families[variable.name]
        columns = _of_key(family)
        if not timers:
            columns += _of_value(family.value)
        many = variable.kind == "list"
        if many:
            columns.insert(sum(c.side == "key" for c in columns), Column("position", "position", 0, is_key=True))
        yield StateTable(
            word,
            stage,
            operator.number,
            operator.name,
            store.name,
            family,
            _unique(columns),
            many,
            numbered=True,
            variable=variable.name,
        )


# ── columns ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _columns(operator: str, family: Family, note: Mapping[str, Any]) -> list[Column]:
    if operator.startswith("sessionWindow"):
        names = {f.name for f in family.key} | {"session_window"}
        ahead = [Column(f.name, "value", i, is_key=True) for i, f in enumerate(family.value) if f.name in names]
        named = _results(family, note, start=len(ahead))
        return [*ahead, *(named or [c for c in _of_value(family.value, flat=False) if c.name not in names])]
    keys = _keys(family, note)
    taken = {f.name for f in family.key}
    if operator in _GROUPS:
        return [*keys, *_of_value(family.value)]
    if operator == "stateStoreSave" and (named := _results(family, note)):
        return [*keys, *named]
    return [*keys, *(c for c in _of_value(family.value, flat=False) if c.name not in taken)]


def _keys(family: Family, note: Mapping[str, Any]) -> list[Column]:
    noted, names = note.get("keys"), note.get("names")
    listed = noted if isinstance(noted, list) and len(noted) == len(family.key) else [{}] * len(family.key)
    called = names if isinstance(names, dict) else {}
    found = []
    for place, (column, each) in enumerate(zip(family.key, listed, strict=True)):
        text = each.get("name") if isinstance(each, dict) else None
        given = called.get(text) if isinstance(text, str) else None
        name = given if isinstance(given, str) and column.name == "_groupingexpression" else column.name
        found.append(Column(name, "key", place, is_key=True))
    return found


def _results(family: Family, note: Mapping[str, Any], start: int = 0) -> list[Column]:
    """The values of an aggregate by the names of its results; empty if the snapshot does not say which they are."""
    values, names = note.get("values"), note.get("names")
    if not isinstance(values, list) or not isinstance(names, dict):
        return []
    columns: list[Column] = []
    place = start
    for text, kind in dict.fromkeys((str(v.get("name")), str(v.get("type"))) for v in values if isinstance(v, dict)):
        buffers = _BUFFERS.get(kind.partition("(")[0])
        kept = [f.name for f in family.value[place : place + 2]]
        if buffers is None or not kept or kept[0] != buffers[0]:
            return []
        name = str(names.get(text, text))
        two = len(buffers) == 2 and kept[1:] == [buffers[1]] and (kind != "sum" or buffers[1] == "isEmpty")
        if kind.startswith("avg"):
            if not two:
                return []
            if pa.types.is_floating(family.value[place].type.arrow):
                columns.append(Column(name, "value", place, over=place + 1))
            else:
                columns += [Column(f"{name}_sum", "value", place), Column(f"{name}_count", "value", place + 1)]
        elif two and kept[1] == "isEmpty":
            columns.append(Column(name, "value", place, unless=place + 1))
        else:
            columns.append(Column(name, "value", place))
        place += 2 if two else 1
    return columns if place == len(family.value) else []


def _of_key(family: Family) -> list[Column]:
    """The fields of the grouping key, then those of a map's key, or the time of a timer."""
    found = []
    for place, column in enumerate(family.key):
        if column.type.name == "struct" and column.name in ("key", "userKey"):
            found += [Column(f.name, "key", place, i, is_key=True) for i, f in enumerate(column.type.fields)]
        else:
            found.append(Column(column.name, "key", place, is_key=True))
    return found


def _of_value(fields: tuple[Field, ...], *, flat: bool = True) -> list[Column]:
    found = []
    for place, column in enumerate(fields):
        if column.name in _HIDDEN:
            continue
        if flat and column.type.name == "struct" and column.name in ("value", "groupState"):
            found += [Column(f.name, "value", place, i) for i, f in enumerate(column.type.fields)]
        else:
            found.append(Column(column.name, "value", place))
    return found


def _unique(columns: list[Column]) -> tuple[Column, ...]:
    """Names in which no two are equal, ignoring case."""
    seen: dict[str, int] = {}
    found = []
    for column in columns:
        name, count = column.name, 1
        while name.lower() in seen:
            count += 1
            name = f"{column.name}_{count}"
        seen[name.lower()] = 1
        found.append(replace(column, name=name))
    return tuple(found)


def _type_of(column: Column, family: Family | None) -> pa.DataType:
    if column.side == "position" or family is None:
        return pa.int64()
    if column.over is not None:
        return pa.float64()
    kind = (family.key if column.side == "key" else family.value)[column.place].type
    return kind.arrow if column.inner is None else kind.fields[column.inner].type.arrow


# ── rows ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class TableEntries:
    """The entries of a table in one partition. `plain` and `skip` say how they are encoded: see `decode_keys`."""

    chunks: tuple[Chunk, ...]
    plain: bool
    skip: int

    def __len__(self) -> int:
        return sum(map(len, self.chunks))


def entries_of(
    table: StateTable, store: StoreFiles, read: Callable[[str], bytes], lay_out: Callable[[str, Path], None]
) -> TableEntries:
    """The entries of a table. ValueError if a partition's files are not what Spark writes."""
    with tempfile.TemporaryDirectory(prefix="strobe-state-") as scratch:
        entries = read_entries(store, read, lay_out, Path(scratch))
        number = entries.families.get(table.family.name) if table.family else None
        # Closed before its directory goes, also if an entry cannot be read.
        with contextlib.closing(entries.chunks) as chunks:  # type: ignore[type-var]
            kept = tuple(_of_family(chunk, number) if entries.families else chunk for chunk in chunks)
    return TableEntries(tuple(c for c in kept if len(c)), entries.plain, 2 if entries.families else 0)


def _of_family(chunk: Chunk, number: int | None) -> Chunk:
    if number is None:
        kept: Flags = np.zeros(len(chunk), np.bool_)
    else:
        if len(chunk) and int((chunk.keys.ends - chunk.keys.starts).min()) < 2:
            raise ValueError("a key has no family")
        kept = numbers(chunk.keys.data, chunk.keys.starts, "<u2") == number
    return Chunk(chunk.keys.take(kept), chunk.values.take(kept))


def rows_of(table: StateTable, entries: TableEntries) -> Iterator[pa.RecordBatch]:
    """The rows of a table, with the columns that it has. ValueError if they are not what Spark writes."""
    for chunk in entries.chunks:
        yield batch_of(table, chunk, plain=entries.plain, skip=entries.skip)


def batch_of(table: StateTable, chunk: Chunk, *, plain: bool = False, skip: int = 0) -> pa.RecordBatch:
    """Some entries as rows."""
    family = table.family
    assert family is not None
    keys = frozenset(c.place for c in table.columns if c.side == "key")
    read = (p for c in table.columns if c.side == "value" for p in (c.place, c.over, c.unless))
    places = frozenset(p for p in read if p is not None)
    decoded = decode_keys(chunk.keys, family, plain=plain, skip=skip, places=keys) if keys else []
    positions: Positions = np.zeros(0, np.int64)
    if table.many:
        owners, positions, values = decode_lists(chunk.values, family.value)
        decoded = [column.take(as_column(owners)) if p in keys else column for p, column in enumerate(decoded)]
    else:
        values = decode_values(chunk.values, family.value, plain=plain, places=places) if places else []
    arrays = []
    for column in table.columns:
        if column.side == "position":
            arrays.append(as_column(positions))
            continue
        array = (decoded if column.side == "key" else values)[column.place]
        if column.inner is not None:
            array = array.flatten()[column.inner]
        if column.over is not None:
            import pyarrow.compute as pc

            count = values[column.over].cast(pa.float64())
            array = pc.divide(array, pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.float64()), count))
        if column.unless is not None:
            import pyarrow.compute as pc

            array = pc.if_else(values[column.unless], pa.scalar(None, array.type), array)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)
