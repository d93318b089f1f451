"""A journal as Parquet: one row for each event of a run. This module alone owns the format.

| column | type | in rows of kind |
|---|---|---|
| `kind` | text | all |
| `node` | text | all but `held` |
| `step` | long | all but `held`: the number of the node's step; in `recorded`, the last one that the state has |
| `channel`, `seq` | text, long | `sent`, `received`, `held`: which message it is |
| `snapshot` | long | `recorded`, `held` |
| `state` | struct | `initial`, `internal`, `received`: the node's state after that step |

A step of a node begins with exactly one row, `internal` or `received`, and its `sent` rows have the same number. Steps
are counted one by one; the row `initial` has the number before the first. A snapshot is a `recorded` row for each node
and a `held` row for each message that it holds in flight. The order of rows and files means nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from strobe.model.errors import Failed, Misuse
from strobe.model.events import Internal, Received, Recorded, Sent
from strobe.model.ids import NodeId
from strobe.predicates.replay import Run
from strobe.verify.history import History

__all__ = ["STEPS", "export", "open_table", "reading"]

STEPS: Final = ("internal", "received")  # what begins a step
_COLUMNS: Final = {
    "kind": T.StringType(), "node": T.StringType(), "step": T.LongType(), "channel": T.StringType(),
    "seq": T.LongType(), "snapshot": T.LongType(),
}  # fmt: skip
_ROWS: Final = 250_000  # of a row group


def open_table(session: SparkSession, name: str) -> DataFrame:
    """The events; Misuse if this is not a journal."""
    try:
        events = session.read.parquet(name)
    except (PySparkException, Py4JError) as error:
        raise Misuse(
            f"Cannot read Parquet from {name!r}: {_cause(error)}",
            next="Name a directory that `strobe journal export` has written, or one with the same columns.",
        ) from error
    types = {field.name: field.dataType for field in events.schema.fields}
    for column, wanted in _COLUMNS.items():
        if types.get(column) != wanted:
            found = f"is {types[column].simpleString()}" if column in types else "is missing"
            raise Misuse(
                f"{name} is not a journal: its column {column!r} {found}, and should be {wanted.simpleString()}.",
                untouched="Nothing was looked at.",
                next="docs/reference/predicates.md has the columns.",
            )
    return events


@contextmanager
def reading(name: str) -> Iterator[None]:
    """What goes wrong in Spark's executors, in words."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise Failed(
            f"Spark could not work through {name!r}: {_cause(error)}",
            untouched="The journal was only read.",
            next="Check the files and the cluster; if it ran out of space, name another disk with --scratch.",
        ) from error


def _cause(error: Exception) -> str:
    """The innermost reason that Java gives."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.partition("Caused by: ")[2] for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or [type(error).__name__])[-1 if causes else 0]


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def export(history: History, run: Run, epoch: int | None, directory: Path) -> int:
    """Write one run of a journal with the states of its nodes; returns the number of rows."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise Misuse(
            f"{str(directory)!r} is there already, and is not an empty directory.",
            untouched="Nothing was written.",
            next="Name a new directory.",
        )
    rows = list(_rows(history, run, (epoch or 1) - 1))
    kinds = [[row[i] for row in rows] for i in range(len(_COLUMNS))]
    arrow = {T.StringType(): pa.string(), T.LongType(): pa.int64()}
    columns = [pa.array(values, arrow[type_]) for values, type_ in zip(kinds, _COLUMNS.values(), strict=True)]
    table = pa.Table.from_arrays([*columns, _states([row[-1] for row in rows])], [*_COLUMNS, "state"])
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, directory / "events.parquet", row_group_size=_ROWS, compression="zstd")
    return len(rows)


def _states(states: list[Any]) -> pa.Array:
    try:
        return pa.array(states)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise Misuse(
            f"The states of this run have no common type: {error}",
            untouched="Nothing was written.",
            next="A field must have values of one type in all states of all nodes.",
        ) from error


_Row = tuple[str, str | None, int | None, str | None, int | None, int | None, Any]


def _rows(history: History, run: Run, index: int) -> Iterator[_Row]:
    epoch = history.epochs[index]
    numbers: dict[NodeId, Iterator[int]] = {}
    for node in run.computation.nodes:
        yield "initial", node, run.step(node, 0), None, None, None, run.states(node)[0]
        numbers[node] = itertools.count(1)
    for channel, messages in epoch.contents.items():  # in flight when the run began: as if its first state had sent it
        source = history.graph.by_id[channel].source
        for message in messages:
            yield "sent", source, run.step(source, 0), channel, message.seq, None, None
    for position in epoch.steps:
        event = history.events[position]
        assert isinstance(event, Internal | Received)
        state = run.states(event.node)[next(numbers[event.node])]
        where = (event.channel, event.seq) if isinstance(event, Received) else (None, None)
        yield "received" if isinstance(event, Received) else "internal", event.node, event.step, *where, None, state
    for positions in epoch.sends.values():
        for position in positions:
            sent = history.events[position]
            assert isinstance(sent, Sent)
            yield "sent", sent.node, sent.step, sent.channel, sent.seq, None, None
    for _, cut, taken_in in history.cuts():
        if taken_in is not epoch:
            continue
        for records in epoch.records[cut.snapshot].values():
            for position in records:
                record = history.events[position]
                assert isinstance(record, Recorded)
                yield "recorded", record.node, record.step, None, None, cut.snapshot, None
        for channel, messages in cut.channels.items():
            for message in messages:
                yield "held", None, None, channel, message.seq, cut.snapshot, None
