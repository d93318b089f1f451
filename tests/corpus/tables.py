"""What is compared: the rows of a stage's table, in an order of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
from deltalake import DeltaTable

import strobe
from strobe.hosts.spark.pipeline.pipeline import StageSpec
from tests.corpus.entry import Entry, Row, table_of

__all__ = ["PATIENCE", "compared", "newest", "read_table", "rest_of"]

PATIENCE: Final = 120.0  # seconds; only a run that fails waits for so long


def newest(spec: StageSpec, batches: Sequence[Sequence[Row]]) -> list[Row]:
    """What a table holds after these batches, of which there is one list of rows each."""
    sink = table_of(spec)
    key = sink.key if isinstance(sink, strobe.DeltaSink) else ()
    if not key:
        return [row for batch in batches for row in batch]
    return list({tuple(row[k] for k in key): row for batch in batches for row in batch}.values())


def read_table(spec: StageSpec, base: Path) -> list[Row]:
    sink = table_of(spec)
    assert sink is not None
    path = base / str(sink.path)
    if isinstance(sink, strobe.DeltaSink):
        files: list[str] = DeltaTable(str(path)).file_uris() if (path / "_delta_log").is_dir() else []
    else:
        files = [str(p) for p in sorted(path.glob("batch=*/*.parquet"))]
    return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]


def compared(entry: Entry, uid: str, rows: Sequence[Row]) -> list[str]:
    counts = entry.counts.get(uid)
    return sorted(repr(_plain(row)) for row in rows if counts is None or counts(row))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in sorted(value.items())}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def rest_of(entry: Entry, uid: str, step: int, rest: Callable[[], None], rows: Callable[[], int]) -> None:
    """Until the query has nothing more to do. One that waits for the clock always has, so its rows are counted."""
    if uid not in entry.endless:
        rest()
        rest()  # Spark may have looked at the source before the step came, and only then have found nothing
        return
    wanted, deadline = entry.endless[uid][step], time.monotonic() + PATIENCE
    while rows() < wanted:
        assert time.monotonic() < deadline, f"{uid} has {rows()} rows after step {step}, not {wanted}"
        time.sleep(0.2)
