"""The rows of a channel in a snapshot: those in flight, and all up to the barrier.

A checkpoint only refers to the channel, which is a Delta table in the job's home; a savepoint has copies of the rows in
flight. `consumer` is the stage that had yet to read a row, `position` the commit of the channel that brought it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strobe.look.delta_log import read_files, shaped, table_at
from strobe.look.types import Field, schema_from, struct_of
from strobe.model.errors import Failed
from strobe.model.ids import ChannelId
from strobe.store.locate import Located
from strobe.store.manifest import ChannelRecord, Manifest
from strobe.store.tree import Tree

__all__ = ["channel_rows", "in_flight_rows"]


def in_flight_rows(found: Located, manifest: Manifest, name: ChannelId) -> pa.Table:
    """Each row once for each stage that had yet to read it."""
    record = manifest.channels[name]
    parts, columns = _content(found, name, record) if record.location is None else _from_log(found, record)
    tables = []
    for consumer, flight in record.in_flight.items():
        for position, rows in parts:
            if position is not None and flight.after < position <= flight.through:
                tables.append(_marked(rows, {"consumer": str(consumer), "position": position}))
    return _together(tables, columns, {"consumer": pa.string(), "position": pa.int64()})


def channel_rows(found: Located, manifest: Manifest, name: ChannelId) -> pa.Table:
    """All rows up to the barrier that the channel still has."""
    record = manifest.channels[name]
    parts, columns = (
        _content(found, name, record) if record.location is None else _from_log(found, record, everything=True)
    )
    tables = [_marked(rows, {"position": position}) for position, rows in parts]
    return _together(tables, columns, {"position": pa.int64()})


Parts = list[tuple[int | None, pa.Table]]


def _from_log(found: Located, record: ChannelRecord, *, everything: bool = False) -> tuple[Parts, tuple[Field, ...]]:
    """Read the rows from the job's own channel."""
    if found.home is None:
        raise Failed(
            "its rows are in the home of the job, and this checkpoint is not in one",
            next="Name the checkpoint as JOB/ID with --home, or ask a savepoint, which has its own copy.",
        )
    tree = Tree(found.home)
    tree.check_directory(str(record.location))
    if record.barrier is None:
        return [], ()
    table = table_at(found.home / str(record.location), record.barrier)
    after = min((flight.after for flight in record.in_flight.values()), default=record.barrier)
    files = [f for f in table.files if everything or (f.position is not None and f.position > after)]
    parts: Parts = []
    for file in files:
        was_read = file.position is None or file.position <= after
        if everything and was_read and tree.find(f"{record.location}/{file.path}") is None:
            continue  # every stage has read it, and the job has deleted it
        parts += [(each.position, rows) for each, rows in read_files(table, (file,))]
    return parts, table.columns


def _content(found: Located, name: ChannelId, record: ChannelRecord) -> tuple[Parts, tuple[Field, ...]]:
    """Read the rows from a savepoint, which holds them itself."""
    schema = record.extra.get("schema")
    columns = () if schema is None else schema_from(schema) if isinstance(schema, str) else struct_of(schema).fields
    parts: Parts = []
    commits = record.extra.get("commits", [])
    for commit in commits if isinstance(commits, list) else []:
        for path, position in _files_of(commit, record):
            data = found.store.read(record.content[path], f"The content of channel {name} ({path})")
            rows = pq.read_table(pa.BufferReader(data))
            parts.append((position, shaped(rows, columns, {})))
    return parts, columns


def _files_of(commit: Any, record: ChannelRecord) -> Iterable[tuple[str, int]]:
    position = commit["version"]
    if position.__class__ is not int or not 0 <= position < 1 << 63:
        raise ValueError("a commit has no position")
    for file in commit["files"]:
        if file["path"] not in record.content:
            raise ValueError(f"{file['path']!r:.120} is not a file of it")
        yield file["path"], position


def _marked(rows: pa.Table, marks: dict[str, str | int | None]) -> pa.Table:
    for name, value in marks.items():
        column = pa.repeat(pa.scalar(value, pa.string() if name == "consumer" else pa.int64()), rows.num_rows)
        rows = rows.append_column(_free(name, rows.column_names), column)
    return rows


def _free(name: str, taken: list[str]) -> str:
    """A name for our own column: the user's columns keep theirs, ours gets an underscore in front if it must."""
    while name.lower() in {each.lower() for each in taken}:
        name = f"_{name}"
    return name


def _together(tables: list[pa.Table], columns: tuple[Field, ...], marks: dict[str, pa.DataType]) -> pa.Table:
    if tables:
        return pa.concat_tables(tables, promote_options="permissive")
    fields = [pa.field(c.name, c.type.arrow) for c in columns]
    for name, kind in marks.items():
        fields.append(pa.field(_free(name, [f.name for f in fields]), kind))
    return pa.schema(fields).empty_table()
