"""Files of a channel read with the columns that it has today.

A file says by numbers which of its columns is which (`columns` has the theory). One that has none was written before
columns were numbered: its names are those under which the numbers were given.

The workers import this module, so it stays light. What they need to know lies beside the table, in a small file that
is written before any query starts: a worker need not read the table's log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from strobe.hosts.shared.durable import write_durably

__all__ = ["NUMBERS", "Known", "arranged", "known_columns", "note_columns", "places_of"]

NUMBERS: Final = "_strobe/columns.json"
_FIELD_ID: Final = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class Known:
    """How a column is recognised in a file: by its number, or by the name that it had when it got the number."""

    number: int
    first: str


def note_columns(table: Path, columns: Sequence[Known] | None) -> None:
    """Write down how the columns of the table are recognised; None if it is by their place."""
    path = table / NUMBERS
    if columns is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(exist_ok=True)
    write_durably(path, json.dumps([[c.number, c.first] for c in columns]))


def known_columns(table: str, names: Sequence[str]) -> tuple[Known, ...]:
    """How the columns `names` of the table are known in its files."""
    try:
        noted = json.loads(Path(table, NUMBERS).read_bytes())
    except FileNotFoundError:
        return tuple(Known(n, name) for n, name in enumerate(names, 1))
    return tuple(Known(int(number), str(first)) for number, first in noted)


def places_of(file: pa.Schema, columns: Sequence[Known]) -> list[int | None]:
    """For each column its place in a file; None if the file does not have it."""
    numbers = {int(f.metadata[_FIELD_ID]): i for i, f in enumerate(file) if _FIELD_ID in (f.metadata or {})}
    if numbers:
        return [numbers.get(c.number) for c in columns]
    names = {name: i for i, name in enumerate(file.names)}
    return [names.get(c.first) for c in columns]


def arranged(batch: pa.RecordBatch, places: Sequence[int | None], schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a file in the columns of `schema`."""
    if places == list(range(len(batch.schema))):
        return batch.rename_columns(schema.names).cast(schema)
    arrays = [
        pa.nulls(batch.num_rows, field.type) if at is None else _cast(batch.column(at), field.type)
        for field, at in zip(schema, places, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)
