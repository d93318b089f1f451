"""The input of an entry, one step after the other. What a step brings appears at once, and the same in every run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from tests.corpus.entry import Entry

__all__ = ["feed", "lay_out"]


def lay_out(entry: Entry, root: Path) -> None:
    """Its sources, with nothing in them."""
    for source in entry.sources:
        (root / source).mkdir(parents=True, exist_ok=True)


def feed(entry: Entry, step: int, root: Path) -> None:
    source, rows = entry.steps[step]
    kind = entry.sources[source]
    if kind == "delta":
        write_deltalake(root / source, pa.Table.from_pylist(list(rows)), mode="append")
        return
    hidden, shown = root / source / f".{step}", root / source / f"{step:03}.{kind}"
    if kind == "parquet":
        pq.write_table(_table(rows), hidden)
    else:
        hidden.write_text("".join(f"{_line(row, kind)}\n" for row in rows))
    os.replace(hidden, shown)


def _table(rows: Sequence[Any]) -> pa.Table:
    """Times as Spark reads them: microseconds, in UTC."""
    table = pa.Table.from_pylist(list(rows))
    for i, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            times = table.column(i).cast(pa.timestamp("us", "UTC"))
            table = table.set_column(i, field.name, times)
    return table


def _line(row: Any, kind: str) -> str:
    if kind == "json":
        return json.dumps(row, default=lambda value: value.isoformat() if isinstance(value, datetime) else str(value))
    return ",".join(map(str, row)) if kind == "csv" else str(row)
