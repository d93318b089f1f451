"""What a Delta table holds, by its whole log: the sink's own commits and those of everybody else.

The sink is the only one that streams into its table. People and their tools still compact it, delete and correct rows,
clean up. So which files make up a version is asked of the table, never added up from the sink's own commits.

The files alone are the table only if nothing changes their meaning. With deletion vectors some of its rows do not
count, with column mapping its columns have other names: such a table is refused, before anything is written to it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from strobe.hosts.spark.channel.log import LOG, DataFile, entry_name
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.paths import from_delta_log
from strobe.store.tree import open_regular

__all__ = ["others_since", "table_files", "why_unreadable"]

_UNNAMED: Final = "an unnamed change"
_UNEXPECTED: Final = (OSError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_COLUMNS: Final = ("path", "size_bytes", "num_records")
_BETWEEN: Final = {"deletionVectors": "deletion vectors", "columnMapping": "column mapping"}
_NEWEST_WRITER: Final = 7
_MAPPING: Final = "delta.columnMapping.mode"
_VECTORS: Final = "delta.enableDeletionVectors"


def table_files(path: Path, version: int) -> tuple[DataFile, ...]:
    """The files of the table as it reads at that version."""
    newest = DeltaTable(str(path)).version()
    if version > newest:  # deltalake would look for every version in between
        raise Failed(f"{path} has no version {version}: its newest is {newest}.")
    # Only the log has a file's name as it must be spelled to find it.
    named = pa.table(DeltaTable(str(path), version=max(version, 0)).get_add_actions(flatten=True))
    found = []
    for name, size, rows in zip(*(named[column].to_pylist() for column in _COLUMNS), strict=True):
        file = from_delta_log(name)
        if rows is None:  # its writer kept no statistics
            rows = _rows_in(path / file)
        found.append(DataFile(file, rows, size))
    return tuple(found)


def _rows_in(file: Path) -> int:
    """The log only says that there is such a file. It may be a pipe, which would be waited for, or lead elsewhere."""
    try:
        with open_regular(file) as opened:
            return int(pq.read_metadata(opened).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise Failed(f"{file} cannot be read: {error!s:.200}.") from error


def why_unreadable(path: Path, what: str) -> StrobeError | None:
    """Why the files alone do not say what the table holds; None if they do. Touches nothing."""
    table = DeltaTable(str(path))
    protocol, properties = table.protocol(), table.metadata().configuration
    if protocol.min_writer_version > _NEWEST_WRITER:
        return Misuse(
            f"{what}: who writes to the table must know version {protocol.min_writer_version} of Delta's protocol; "
            f"{_NEWEST_WRITER} is the newest known here.",
            untouched="The table is unchanged.",
            next="Write to another table.",
        )
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    found = {word for feature, word in _BETWEEN.items() if feature in features}
    if (properties.get(_MAPPING) or "none") != "none":
        found.add(_BETWEEN["columnMapping"])
    if (properties.get(_VECTORS) or "").lower() == "true":
        found.add(_BETWEEN["deletionVectors"])
    if not found:
        return None
    return Misuse(
        f"{what}: the table has {' and '.join(sorted(found))}. Its files alone do not say what it holds, so Strobe "
        "could not take it back to a snapshot.",
        untouched="The table is unchanged.",
        next="Turn that off and drop the table feature (ALTER TABLE … DROP FEATURE, in Spark), or write to another "
        "table.",
    )


def _done_by_others(entry: Path) -> str | None:
    """What a commit of somebody else did to the rows; None if it did nothing to them, or is the sink's own."""
    with open_regular(entry) as file:
        lines = [json.loads(line) for line in file.read().splitlines()]
    info: dict[str, Any] = next((line["commitInfo"] for line in lines if "commitInfo" in line), {})
    marks = [line["txn"]["appId"] for line in lines if "txn" in line]
    if "strobe.kind" in info or any(str(mark).startswith("strobe/") for mark in marks):
        return None
    changed = any("add" in line or "remove" in line for line in lines)
    return str(info.get("operation", _UNNAMED)) if changed else None


def others_since(path: Path, version: int) -> str:
    """What others did to the table after that version, in words; empty if nothing that a rollback undoes."""
    seen: Counter[str] = Counter()
    newest = DeltaTable(str(path)).version()
    for number in range(version + 1, newest + 1):
        entry = path / LOG / entry_name(number)
        if not entry.is_file():
            continue
        try:
            done = _done_by_others(entry)
        except _UNEXPECTED:  # it is some other program's: what it did cannot be told, that it did something can
            done = _UNNAMED
        if done is not None:
            seen[done] += 1
    if not seen:
        return ""
    said = ", ".join(f"{operation} ({count})" if count > 1 else operation for operation, count in sorted(seen.items()))
    return (
        f"Others have changed {path} after version {version}: {said}. The table goes back to that version as a whole, "
        "so that is undone, too: rows that they deleted come back, rows that they added go."
    )
