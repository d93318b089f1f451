"""One commit of a Delta table that adds files and removes others, made only if nobody else has made one since.

`deltalake` commits adds and removes, too, but it spells paths in its own way: a file that another tool has named in the
log with other escapes would not be removed, and its rows would be there twice. So a remove repeats the text of the log.
The entry is written durably, and never replaces one that is there: whoever makes version N has read all versions before
it. The one who comes second reads the table again.

*Statistics.* Each new file says how many rows it has, and, of columns whose order everybody agrees on, the smallest
and the largest value, as its Parquet footer has them. So an upsert need not look at files whose keys are elsewhere. A
bound that is not there says nothing: such a file is looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from strobe.hosts.shared.durable import fsync, write_durably
from strobe.hosts.spark.channel.entries import millis
from strobe.hosts.spark.channel.log import LOG, entry_name
from strobe.hosts.spark.channel.writer import ASIDE
from strobe.model.paths import RelativePath, from_delta_log

__all__ = [
    "NewFile",
    "Range",
    "TableFile",
    "active_files",
    "can_commit",
    "commit",
    "may_hold",
    "ranges_of",
    "table_bytes",
]

_INDEXED: Final = 32  # columns with statistics, as everybody writes them
_LONGEST: Final = 64  # characters of a text that is a bound
_CHECKPOINT_EVERY: Final = 100  # commits; Delta's own default
_SLACK: Final = timedelta(milliseconds=1)  # a time in a log may be cut to milliseconds
# For these features writers need do no more than is done here: rows are checked before they are written.
_FEATURES: Final = frozenset({"appendOnly", "invariants", "checkConstraints", "timestampNtz"})
_WRITER: Final = 3  # with checkConstraints
_WITH_FEATURES: Final = 7


@dataclass(frozen=True, slots=True)
class Range:
    """What is known of one column in one file. Without bounds any value may be there."""

    low: Any = None
    high: Any = None
    nulls: bool = True

    def meets(self, other: Range) -> bool:
        """Whether a value, or a null, may be in both."""
        if self.nulls and other.nulls:
            return True
        if self.low is None or other.low is None:
            return True
        return bool(self.low <= other.high and other.low <= self.high)


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that the table has now. `raw` is its path as the log spells it."""

    raw: str
    path: RelativePath
    size: int
    rows: int
    partition: Mapping[str, Any] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that was written for a commit; `partition` is text, as the log has it."""

    path: str
    partition: Mapping[str, str | None] = field(default_factory=dict)


def table_bytes(table: DeltaTable) -> int:
    """How large all files of the table are together."""
    return int(pc.sum(pa.table(table.get_add_actions(flatten=True))["size_bytes"]).as_py() or 0)


def active_files(table: DeltaTable, columns: Sequence[str]) -> list[TableFile]:
    """The files that the table has, with what its log says of these columns."""
    named = pa.table(table.get_add_actions(flatten=True))
    where, partitions = Path(table.table_uri.removeprefix("file://")), table.metadata().partition_columns
    held = {name: named[name].to_pylist() for name in ("path", "size_bytes", "num_records")}
    said = {name: _listed(named[name]) for name in named.column_names if _is_bound(name, columns, partitions)}
    found = []
    for number, raw in enumerate(held["path"]):
        path, rows = from_delta_log(raw), held["num_records"][number]
        if rows is None:
            rows = pq.read_metadata(where / path).num_rows
        ranges = {}
        for name in columns:
            low, high, nulls = (
                said[f"{what}.{name}"][number] if f"{what}.{name}" in said else None
                for what in ("min", "max", "null_count")
            )
            ranges[name] = _bounded(low, high, nulls is None or nulls > 0)
        partition = {name: said[f"partition.{name}"][number] for name in partitions}
        ranges |= {name: _exactly(value) for name, value in partition.items() if name in columns}
        found.append(TableFile(raw, path, held["size_bytes"][number], rows, partition, ranges))
    return found


def _listed(column: pa.ChunkedArray) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):  # a time that Python's calendar does not have
        return [None] * len(column)


def _is_bound(name: str, columns: Sequence[str], partitions: Sequence[str]) -> bool:
    what, _, column = name.partition(".")
    return (what in ("min", "max", "null_count") and column in columns) or (
        what == "partition" and column in partitions
    )


def _bounded(low: Any, high: Any, nulls: bool) -> Range:
    if type(low) is not type(high) or not isinstance(low, int | str | date) or isinstance(low, bool):
        return Range(nulls=nulls)
    if isinstance(low, datetime):
        low, high = _plain_time(low), _plain_time(high)
        high = high + _SLACK if high < datetime.max - _SLACK else datetime.max
    return Range(low, high, nulls)


def _exactly(value: Any) -> Range:
    """A partition's value; an empty text is a null there."""
    if value is None or value == "":
        return Range(nulls=True)
    bounds = _bounded(value, value, False)
    return Range(nulls=True) if bounds.low is None else bounds


def _plain_time(value: datetime) -> datetime:
    return value.replace(tzinfo=None)


def ranges_of(file: Path, columns: Iterable[str]) -> dict[str, Range]:
    """The same ranges, for a file that is not in the log yet."""
    footer = pq.read_metadata(file)
    bounds = _bounds(footer)
    found = {}
    for name in columns:
        low, high, nulls = bounds.get(name, (None, None, None))
        only_nulls = nulls == footer.num_rows and nulls
        found[name] = _bounded(low, high, nulls is None or nulls > 0)
        if only_nulls:
            found[name] = Range(nulls=True)
    return found


def may_hold(file: TableFile, of_rows: Sequence[Mapping[str, Range]], key: Sequence[str]) -> bool:
    """Whether one of the rows described by `of_rows` may have a key that is in `file`."""
    return any(all(file.ranges[name].meets(ranges[name]) for name in key) for ranges in of_rows)


def _bounds(footer: pq.FileMetaData) -> dict[str, tuple[Any, Any, int | None]]:
    """(smallest, largest, nulls) of each column that is not nested; None where it is not known."""
    found: dict[str, tuple[Any, Any, int | None]] = {}
    for index in range(footer.num_columns):
        column = footer.schema.column(index)
        if column.path != column.name or column.max_repetition_level:
            continue
        lows: list[Any] = []
        highs: list[Any] = []
        nulls = 0
        whole = True
        for group in range(footer.num_row_groups):
            chunk = footer.row_group(group).column(index)
            stats = chunk.statistics if chunk.is_stats_set else None
            if stats is None or not stats.has_null_count:
                whole = False
                break
            nulls += stats.null_count
            if stats.null_count == chunk.num_values:
                continue
            try:
                lows.append(stats.min if stats.has_min_max else None)
                highs.append(stats.max if stats.has_min_max else None)
            except (OverflowError, ValueError):  # a time that Python's calendar does not have
                lows.append(None)
        if not whole:
            found[column.name] = (None, None, None)
        elif lows and None not in lows and isinstance(lows[0], int | str | date):
            found[column.name] = (min(lows), max(highs), nulls)
        else:
            found[column.name] = (None, None, nulls)
    return found


# ── the commit ──────────────────────────────────────────────────────────────────────────────────────────────────────


def can_commit(table: DeltaTable) -> bool:
    """Whether everything that the table asks of a writer is done here."""
    protocol = table.protocol()
    if protocol.min_writer_version == _WITH_FEATURES:
        return set(protocol.writer_features or ()) <= _FEATURES
    return protocol.min_writer_version <= _WRITER


def commit(
    table: DeltaTable,
    added: Sequence[NewFile],
    removed: Sequence[TableFile],
    mark: tuple[str, int],
    columns: Sequence[str],
) -> bool:
    """Make the version after the one that `table` has read; False if somebody else has."""
    where = Path(table.table_uri.removeprefix("file://"))
    now, version = millis(), table.version() + 1
    lines: list[dict[str, Any]] = [
        {
            "commitInfo": {
                "timestamp": now,
                "operation": "MERGE" if removed else "WRITE",
                "operationParameters": {},
                "readVersion": version - 1,
                "isolationLevel": "Serializable",
                "isBlindAppend": False,
                "engineInfo": "strobe",
            }
        },
        {"txn": {"appId": mark[0], "version": mark[1], "lastUpdated": now}},
    ]
    lines += [{"add": _add(where, file, columns, now)} for file in added]
    lines += [{"remove": {"path": f.raw, "deletionTimestamp": now, "dataChange": True}} for f in removed]
    for file in added:
        fsync(where / file.path)
    for directory in sorted(
        {above for f in added for above in (where / f.path).parents if above.is_relative_to(where)}
    ):
        fsync(directory)
    aside = where / ASIDE
    aside.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    made = write_durably(
        where / LOG / entry_name(version), text, fresh=aside / f"{os.urandom(8).hex()}.tmp", replace=False
    )
    if made and version % _CHECKPOINT_EVERY == 0:
        with contextlib.suppress(DeltaError):  # the log is complete without it
            DeltaTable(str(where)).create_checkpoint()
    return made


def _add(where: Path, file: NewFile, columns: Sequence[str], now: int) -> dict[str, Any]:
    path = where / file.path
    footer = pq.read_metadata(path)
    bounds = {name: b for name, b in _bounds(footer).items() if name in columns[:_INDEXED]}
    told = {name: (_told(low), _told(high)) for name, (low, high, _) in bounds.items()}
    stats = {
        "numRecords": footer.num_rows,
        "minValues": {name: low for name, (low, high) in told.items() if low is not None and high is not None},
        "maxValues": {name: high for name, (low, high) in told.items() if low is not None and high is not None},
        "nullCount": {name: nulls for name, (_, _, nulls) in bounds.items() if nulls is not None},
    }
    return {
        "path": quote(file.path, safe="/=:@!$&'()*+,;~"),
        "partitionValues": dict(file.partition),
        "size": path.stat().st_size,
        "modificationTime": now,
        "dataChange": True,
        "stats": json.dumps(stats, separators=(",", ":")),
    }


def _told(value: Any) -> int | str | None:
    """A bound as the log has it; None for one that is left out."""
    match value:
        case bool():
            return None
        case int():
            return value
        case str():
            return value if len(value) <= _LONGEST else None
        case datetime():
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return text + "Z" if value.tzinfo is not None else text
        case date():
            return value.isoformat()
        case _:
            return None
