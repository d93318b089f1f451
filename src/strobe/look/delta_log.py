"""Which files make up a Delta table at a version: its log replayed, without Spark and without Delta's own library.

A version is the newest log checkpoint at or below it, and the entries after that. For the channels of a job, which are
ordinary Delta tables, the entry that added a file is the position of its rows. Everything in a log is data from
outside: a file is below the table and is not a link, and a feature that would change what rows mean is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from strobe.look.types import Field, Unsupported, schema_from
from strobe.model.paths import RelativePath, from_delta_log
from strobe.store.tree import Tree

__all__ = ["TableAt", "TableFile", "read_files", "table_at"]

_LOG: Final = "_delta_log"
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_NUMBER: Final = b"PARQUET:field_id"
_LARGEST_ENTRY: Final = 1 << 28
_PLAIN_FEATURES: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "appendOnly", "invariants"})


@dataclass(frozen=True)
class TableFile:
    """`position` is the entry that brought the rows, where that is known."""

    path: RelativePath
    position: int | None
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class TableAt:
    """`whole`: the log goes back to the first version, or to a checkpoint of it."""

    root: Path
    columns: tuple[Field, ...]
    files: tuple[TableFile, ...]
    whole: bool


def table_at(root: Path, version: int) -> TableAt:
    """The table as it was at `version`. FileNotFoundError if the log does not go so far."""
    log = Tree(root)
    names = sorted(log.names(_LOG))
    start, actions = _from_checkpoint(log, names, version)
    columns: tuple[Field, ...] = ()
    files: dict[str, TableFile] = {}
    first: dict[str, int] = {}  # where the rows of a file came in, however often a restore took it out and in again
    entries = [int(m[1]) for name in names if (m := _ENTRY.fullmatch(name)) and start < int(m[1]) <= version]
    if not entries and start < version:
        raise FileNotFoundError(f"its log does not have version {version}")
    if entries and (entries[-1] != version or entries != list(range(entries[0], version + 1))):
        raise FileNotFoundError(f"its log does not have all entries up to version {version}")
    for number, action, info in (*((None, a, {}) for a in actions), *_entries(log, entries)):
        if (metadata := action.get("metaData")) is not None:
            columns = _columns(metadata)
        elif (protocol := action.get("protocol")) is not None:
            _check_protocol(protocol)
        elif (added := action.get("add")) is not None:
            path = from_delta_log(added["path"])
            if added.get("deletionVector") is not None:
                raise Unsupported("a table whose rows are deleted by vectors")
            if number is not None and info.get("strobe.kind", "data") == "data":
                first.setdefault(path, number)
            files[path] = TableFile(path, first.get(path), _partition(added.get("partitionValues")))
        elif (removed := action.get("remove")) is not None:
            files.pop(from_delta_log(removed["path"]), None)
    return TableAt(root, columns, tuple(files.values()), start >= 0 or entries[:1] == [0])


def read_files(table: TableAt, files: tuple[TableFile, ...]) -> Iterator[tuple[TableFile, pa.Table]]:
    """The rows of some files, with the columns of the table."""
    for each in files:
        with Tree(table.root).open_read(each.path) as file:
            yield each, shaped(pq.read_table(pa.PythonFile(file)), table.columns, each.partition)


def shaped(rows: pa.Table, columns: tuple[Field, ...], partition: Mapping[str, str | None]) -> pa.Table:
    """`rows` with these columns: one that a file does not have is null, one that its path has is a constant."""
    if not columns:
        return rows
    numbers = {int(f.metadata[_NUMBER]): i for i, f in enumerate(rows.schema) if _NUMBER in (f.metadata or {})}
    arrays = []
    for column in columns:
        if numbers and column.number is not None:
            place = numbers.get(column.number)
        else:
            name = column.first if column.number is not None else column.name
            place = rows.column_names.index(name) if name in rows.column_names else None
        if place is not None:
            arrays.append(rows.column(place).cast(column.type.arrow))
        elif partition.get(column.name) is not None:
            value = pa.scalar(partition[column.name], pa.string()).cast(column.type.arrow)
            arrays.append(pa.chunked_array([pa.repeat(value, rows.num_rows)]))
        else:
            arrays.append(pa.chunked_array([pa.nulls(rows.num_rows, column.type.arrow)]))
    return pa.table(arrays, names=[column.name for column in columns])


def _entries(log: Tree, numbers: list[int]) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    for number in numbers:
        with log.open_read(f"{_LOG}/{number:020d}.json") as file:
            raw = file.read(_LARGEST_ENTRY + 1)
        if len(raw) > _LARGEST_ENTRY:
            raise ValueError(f"entry {number} of its log is too large")
        actions = [json.loads(line) for line in raw.splitlines() if line.strip()]
        if not all(isinstance(action, dict) for action in actions):
            raise ValueError(f"entry {number} of its log is not what Delta writes")
        info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        for action in actions:
            yield number, action, info


def _from_checkpoint(log: Tree, names: list[str], version: int) -> tuple[int, list[dict[str, Any]]]:
    """The newest complete checkpoint at or below `version`, and its actions; (-1, []) if there is none."""
    parts: dict[tuple[int, int], set[str]] = {}
    for name in names:
        if (match := _CHECKPOINT.fullmatch(name)) and int(match[1]) <= version:
            parts.setdefault((int(match[1]), int(match[3] or 1)), set()).add(name)
    complete = [(number, found) for (number, count), found in parts.items() if len(found) == count]
    if not complete:
        return -1, []
    number, found = max(complete, key=lambda each: each[0])
    actions: list[dict[str, Any]] = []
    for name in sorted(found):
        with log.open_read(f"{_LOG}/{name}") as file:
            source = pq.ParquetFile(pa.PythonFile(file))
            wanted = [c for c in ("metaData", "protocol", "add") if c in source.schema_arrow.names]
            for row in source.read(columns=wanted).to_pylist(maps_as_pydicts="lossy"):
                actions += [{kind: value} for kind, value in row.items() if value is not None]
    return number, actions


def _columns(metadata: Mapping[str, Any]) -> tuple[Field, ...]:
    if str((metadata.get("configuration") or {}).get("delta.columnMapping.mode", "none")) != "none":
        raise Unsupported("a table whose columns are mapped to other names")
    return schema_from(str(metadata["schemaString"]))


def _check_protocol(protocol: Mapping[str, Any]) -> None:
    unknown = set(protocol.get("readerFeatures") or ()) - _PLAIN_FEATURES - {"deletionVectors", "columnMapping"}
    if unknown:
        raise Unsupported(f"a table with {', '.join(sorted(map(str, unknown)))[:100]}")


def _partition(value: object) -> Mapping[str, str | None]:
    return {str(k): None if v is None else str(v) for k, v in dict(value or {}).items()}  # type: ignore[call-overload]
