"""Rows that a sink cannot write: they fail the batch, or go to a table of their own with the reason.

A sink splits what it is given into rows that it writes and `Rejected` ones, and hands the latter to its `Letters`.
Without a dead-letter table that is an error which names the first row: nothing is dropped in silence. With one, the
rows are in it once, as the others are in the sink once:

* On batch: `put` the rejected rows *before* the batch becomes visible. After a crash between the two the batch comes
  again, and its letters are replaced by what is rejected then.
* On snapshot: `hold` them in `prepare`, durably beside what is staged; `release` them in `commit`, before the part
  becomes visible; `drop` them in `abort`. Doing any of it again changes nothing.

The table is a Delta table that several sinks and jobs may share. A letter says whose it is, of which batch, why, and
holds the row as JSON; `from_json(row, schema)` in Spark gives its columns back.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.shared.durable import write_durably
from strobe.hosts.spark.connectors.base import Part, SinkContext
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse

__all__ = ["DeadLetters", "Letters", "Rejected", "checked_letters"]

_TRIES: Final = 20
_SHOWN: Final = 300  # characters of a row in an error

_COLUMNS: Final = pa.schema([
    ("job", pa.string()),
    ("stage", pa.string()),
    ("sink", pa.string()),
    ("timeline", pa.int64()),
    ("batch", pa.int64()),
    ("snapshot", pa.int64()),  # null when delivered on batch
    ("reason", pa.string()),
    ("row", pa.string()),
    ("schema", pa.string()),
    ("time", pa.timestamp("us", "UTC")),
])  # fmt: skip


@dataclass(frozen=True)
class Rejected:
    """A row that cannot be written, as Python values by column, and why. `batch` if the sink knows it."""

    row: Mapping[str, Any]
    reason: str
    batch: int | None = None


@dataclass(frozen=True)
class DeadLetters:
    """`DeadLetters("out/dead")`: what a sink is given as `dead_letters=`. The path is relative to the job's base."""

    path: str

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path or "://" in self.path:
            raise Misuse(f"DeadLetters({self.path!r}): it needs the path of a directory for a Delta table.")

    def where(self, context: SinkContext) -> Path:
        return Path(os.path.normpath(Path(context.base, self.path).absolute()))


def checked_letters(where: str, dead_letters: object) -> DeadLetters | None:
    """What a sink was given as `dead_letters=`; Misuse if that cannot be meant."""
    if dead_letters is not None and not isinstance(dead_letters, DeadLetters):
        raise Misuse(
            f"{where}: dead_letters={dead_letters!r} is not legal.", next='Use dead_letters=strobe.DeadLetters("…").'
        )
    return dead_letters


class Letters:
    """The dead letters of one sink. Make it in `open`, whether or not the sink has been given a table."""

    def __init__(self, dead_letters: DeadLetters | None, context: SinkContext, sink: str) -> None:
        """`sink` is the sink in words, for errors."""
        self._context = context
        self._sink = sink
        self._where = None if dead_letters is None else dead_letters.where(context)
        self._mine = f"job = {_quoted(context.job)} AND sink = {_quoted(context.name)}"
        self.count = 0  # letters of this sink that are in the table
        if self._where is not None:
            self._table = self._open(self._where)
            self.count = self._counted()

    @property
    def wanted(self) -> bool:
        """Whether rejected rows have a place to go."""
        return self._where is not None

    # ── on batch ────────────────────────────────────────────────────────────────────────────────────────────────────

    def put(self, rejected: Sequence[Rejected], batches: int | Part) -> None:
        """The letters of this batch, or part, are these: visible when this returns. Failed if there are some and the
        sink has no table for them."""
        if self._where is None:
            self._refuse(rejected, batches)
            return
        if isinstance(batches, Part):
            timeline, after, through = int(batches.timeline), batches.after, batches.through
        else:
            timeline, after, through = int(self._context.timeline), batches - 1, batches
        app = f"strobe/{self._context.job}/{self._context.name}/{timeline}/letters"
        rows = self._rows(rejected, batches, timeline, through)
        marked = CommitProperties(app_transactions=[Transaction(app, through)])
        for left in reversed(range(_TRIES)):
            try:
                self._table.update_incremental()
                last = self._table.transaction_version(app)
                if last is None or last < through:
                    if rows.num_rows:
                        write_deltalake(self._table, rows, mode="append", commit_properties=marked)
                        self.count += rows.num_rows
                    return
                # They came before, perhaps not the same ones: what counts is what is rejected now.
                span = f"timeline = {timeline} AND batch > {after} AND batch <= {through}"
                write_deltalake(self._table, rows, mode="overwrite", predicate=f"{self._mine} AND {span}")
                self.count = self._counted()
                return
            except CommitFailedError:  # another sink was faster
                if not left:
                    raise
            except (DeltaError, OSError) as error:
                raise self._unwritable(error) from error

    # ── on snapshot ─────────────────────────────────────────────────────────────────────────────────────────────────

    def hold(self, part: Part, rejected: Sequence[Rejected]) -> None:
        """Keep the part's letters until it is committed. Failed if there are some and the sink has no table."""
        if self._where is None:
            self._refuse(rejected, part)
        self.drop(part)  # also those of an earlier, shorter part that was never prepared
        if rejected:
            path = self._held(part.timeline, part.through)
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps([_json(dict(r.row)), r.reason, r.batch], ensure_ascii=False) for r in rejected]
            write_durably(path, "\n".join(lines))

    def release(self, part: Part) -> None:
        """Put what `hold` has kept into the table."""
        path = self._held(part.timeline, part.through)
        if path.exists():
            lines = path.read_text(encoding="utf-8").split("\n")
            self.put([Rejected(*json.loads(line)) for line in lines], part)
            path.unlink(missing_ok=True)

    def drop(self, part: Part) -> None:
        """Forget what `hold` has kept."""
        for batch in range(part.after + 1, part.through + 1):
            self._held(part.timeline, batch).unlink(missing_ok=True)

    def _held(self, timeline: int, through: int) -> Path:
        return self._context.of_timeline(timeline).staging / f"rejected-{through:08d}.json"

    # ── restore ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def position(self, batch: int) -> Json:
        """For the sink's own `position`: letters of batches after `batch`, the last one written or staged, are not
        part of the snapshot."""
        return {"timeline": int(self._context.timeline), "batch": batch}

    def roll_back(self, position: Json) -> None:
        """At a restore in place: delete letters that came after the snapshot; their rows will be made again."""
        if self._where is None or not isinstance(position, dict):
            return
        timeline, batch = position.get("timeline"), position.get("batch")
        if not isinstance(timeline, int) or not isinstance(batch, int):
            return
        now = int(self._context.timeline)
        later = f"(timeline = {timeline} AND batch > {batch}) OR (timeline > {timeline} AND timeline < {now})"
        for left in reversed(range(_TRIES)):
            try:
                self._table.update_incremental()
                self._table.delete(f"{self._mine} AND ({later})")
                self.count = self._counted()
                return
            except CommitFailedError:
                if not left:
                    raise
            except (DeltaError, OSError) as error:
                raise self._unwritable(error) from error

    # ── how ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, where: Path) -> DeltaTable:
        try:
            where.mkdir(parents=True, exist_ok=True)
            if not DeltaTable.is_deltatable(str(where)):
                DeltaTable.create(str(where), Schema.from_arrow(_COLUMNS), mode="ignore", name="dead letters")
            table = DeltaTable(str(where))
        except (DeltaError, OSError) as error:
            raise self._unwritable(error) from error
        if not set(_COLUMNS.names) <= {field.name for field in table.schema().fields}:
            raise Misuse(
                f"{where} is a table of something else: dead letters have the columns {', '.join(_COLUMNS.names)}.",
                untouched="The table is unchanged.",
                next="Choose another path for dead_letters.",
            )
        return table

    def _rows(self, rejected: Sequence[Rejected], batches: int | Part, timeline: int, through: int) -> pa.Table:
        context, now = self._context, datetime.fromtimestamp(SYSTEM.time(), UTC)
        snapshot = int(batches.snapshot) if isinstance(batches, Part) else None
        schema = context.schema.simpleString()
        return pa.Table.from_pylist(
            [
                {
                    "job": context.job,
                    "stage": str(context.stage),
                    "sink": context.name,
                    "timeline": timeline,
                    "batch": through if letter.batch is None else letter.batch,
                    "snapshot": snapshot,
                    "reason": letter.reason,
                    "row": json.dumps(_json(dict(letter.row)), ensure_ascii=False),
                    "schema": schema,
                    "time": now,
                }
                for letter in rejected
            ],
            schema=_COLUMNS,
        )

    def _counted(self) -> int:
        mine = [("job", "=", self._context.job), ("sink", "=", self._context.name)]
        self._table.update_incremental()
        return int(self._table.to_pyarrow_table(columns=["batch"], filters=mine).num_rows)

    def _refuse(self, rejected: Sequence[Rejected], batches: int | Part) -> None:
        if not rejected:
            return
        first, others = rejected[0], len(rejected) - 1
        row = json.dumps(_json(dict(first.row)), ensure_ascii=False)
        row = row if len(row) <= _SHOWN else row[:_SHOWN] + "…"
        span = f"Batch {batches}"
        if isinstance(batches, Part):
            span = f"Batches {batches.after + 1} to {batches.through}"
        more = f", and {others} more" if others else ""
        raise Failed(
            f"{span} of stage {self._context.stage!r} cannot be written to {self._sink}: {first.reason}: {row}{more}.",
            untouched="None of it is visible.",
            next='Fix the row in the stage, or have such rows set aside: dead_letters=strobe.DeadLetters("…").',
        )

    def _unwritable(self, error: Exception) -> Failed:
        first_line = str(error).partition("\n")[0]
        return Failed(
            f"The dead letters of {self._sink} cannot be written to {self._where}: {first_line}",
            untouched="The rows are not lost: the batch, or the commit, is tried again.",
            next="Check that the directory can be written to and has room.",
        )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _json(value: Any) -> Any:
    """A column's value as JSON, so that Spark's from_json reads it back."""
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):  # a map, as Arrow gives it
            return {str(_json(key)): _json(item) for key, item in value}
        return [_json(item) for item in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode()
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
