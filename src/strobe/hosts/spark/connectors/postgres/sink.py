"""A Postgres table as a sink: append, or upsert by key; visible after each batch, or with each complete snapshot.

*On batch.* One executor loads the batch in one transaction, together with the mark of how far the table has come
(`load`). A batch that comes again finds the mark.

*On snapshot.* `write` stages the batch as Parquet files in the job's home, so a stage goes on while Postgres is away.
`prepare` loads everything since the last visible batch in one transaction and ends it with PREPARE TRANSACTION: the
rows are checked and durable, and nobody sees them. `commit` is COMMIT PREPARED.

A prepared transaction holds locks on its rows, so two of one sink may stand in each other's way. Hence there is never
more than one: `prepare` rolls back an earlier one that is not committed, and takes its batches in. If `commit` does not
find the transaction of exactly its part, because it was taken in or is lost, it loads the part again from what is
staged. The mark decides: batches up to it are visible, and nothing is ever visible twice.

One connection loads, because a batch is to be seen as a whole: Postgres, not Spark, is the slower of the two.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from strobe.hosts.spark.connectors.base import (
    Delivery,
    Part,
    SinkContext,
    SinkFate,
    SinkOutlook,
    TransactionalSink,
    Unreachable,
    checked_schema,
    column_names,
    steady,
    whole_results,
)  # fmt: skip
from strobe.hosts.spark.connectors.dead_letters import DeadLetters, Letters, Rejected, checked_letters
from strobe.hosts.spark.connectors.postgres.check import check_table, grow_table
from strobe.hosts.spark.connectors.postgres.connect import Dsn, Table, split_name
from strobe.hosts.spark.connectors.postgres.load import BATCH, Load, Outcome, Verdict, load
from strobe.hosts.spark.connectors.postgres.marks import Marks, known_owner, owner_of
from strobe.hosts.spark.connectors.staging import Staging
from strobe.model.backoff import backoff
from strobe.model.cut import Json
from strobe.model.errors import Failed, Fenced, StrobeError
from strobe.model.ids import NodeId, SnapshotId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["PostgresSink"]

_log = logging.getLogger("strobe.sinks")
_FIRST_PAUSE: Final = 0.2  # seconds
_LONGEST_PAUSE: Final = 30.0


class PostgresSink(TransactionalSink):
    """`PostgresSink("postgresql://host/db", "balances", key="account")`. The table must exist, with a column for each
    of the stage's; with a `key`, it needs a primary key or a unique constraint on it. `schema` is "fixed", or "evolve"
    for a table that gets the columns that the stage returns and that it does not have."""

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        key: str | Iterable[str] = (),
        delivery: str | Delivery = Delivery.ON_BATCH,
        dead_letters: DeadLetters | None = None,
        schema: str = "fixed",
    ) -> None:
        self.dsn = Dsn(dsn)
        self.evolves = checked_schema(f"PostgresSink(…, {table!r})", schema)
        self.table = table
        self.key = column_names(f"PostgresSink(…, {table!r})", "key", key)
        self.dead_letters = checked_letters(f"PostgresSink(…, {table!r})", dead_letters)
        split_name(table)
        self._delivery = Delivery.of(delivery, "PostgresSink")
        self.failures = 0  # attempts in a row at the batch that is being written
        self.trouble = ""  # and why they failed
        self._closed = threading.Event()

    def describe(self) -> str:
        how = f"upsert by {', '.join(self.key)}" if self.key else "append"
        when = ", on snapshot" if self._delivery is Delivery.ON_SNAPSHOT else ""
        return f"Postgres table {self.table} at {self.dsn.address} ({how}{when})"

    def __repr__(self) -> str:
        return f"<{self.describe()}>"

    def check_stage(self, stage: NodeId, output_mode: str) -> None:
        if output_mode == "complete":
            raise whole_results(self, stage, "Use output_mode='update' with a key")

    @property
    def _what(self) -> str:
        return f"Table {self.table} of stage {self._context.stage!r}"

    # ── start ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._closed.clear()
        self.check_stage(context.stage, context.output_mode)
        owner = owner_of(context, self.describe())
        with self._session() as connection:
            table = check_table(connection, self, context)
            self._marks = Marks(self.dsn, table.schema, table.name, context, owner)
            self._marks.set_up(connection)
            self._table: Table = grow_table(connection, table, self, context, self._marks)
            visible = self._marks.visible(connection, int(context.timeline))
        self._staging = Staging(context)
        self._letters = Letters(self.dead_letters, context, self.describe())
        staged = self._staging.last_batch() if self._delivery is Delivery.ON_SNAPSHOT else None
        self._last = max(-1 if b is None else b for b in (visible, staged))

    def close(self) -> None:
        self._closed.set()

    def last_batch(self) -> int | None:
        return self._last if self._last >= 0 else None

    def _session(self) -> Any:
        name = self._marks.application if hasattr(self, "_marks") else "strobe"
        return self.dsn.session(self._what, name)

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, batch: DataFrame, batch_id: int) -> None:
        if self._delivery is Delivery.ON_SNAPSHOT:
            self.rows_taken = (self.rows_taken or 0) + self._staging.write(batch, batch_id)
            self._last = batch_id
            return
        from pyspark.sql import functions as f

        rows = batch.withColumn(BATCH, f.lit(batch_id).cast("bigint")).repartition(1)
        order = self._order(int(self._context.timeline), batch_id)
        outcome = self._patiently(rows, order)
        while outcome.verdict is Verdict.REJECTED:
            # Nothing is written yet. Letters first, so that a crash in between loses neither.
            self._letters.put(_letters(outcome), batch_id)
            outcome = self._patiently(rows, replace(order, told=outcome.digest))
        self._last, self.failures, self.trouble = batch_id, 0, ""

    def _patiently(self, rows: DataFrame, order: Load) -> Outcome:
        """The outcome, however long Postgres does not answer: the stage waits, and nothing is lost."""
        failures = 0
        while True:
            try:
                if self.failures:
                    with self._session() as connection:
                        self._marks.send_away(connection)
                return self._run(rows, order)
            except Unreachable as error:
                self.failures += 1
                if self.trouble != error.what:
                    _log.warning("%s: %s It is tried again until it succeeds.", self._context.stage, error.what)
                self.trouble = error.what
                failures += 1
                if self._closed.wait(backoff(failures, _FIRST_PAUSE, _LONGEST_PAUSE)):
                    raise

    def _run(self, rows: DataFrame | None, order: Load) -> Outcome:
        """Have an executor load the rows. Unreachable if it is worth another attempt."""
        found = [] if rows is None else rows.mapInArrow(_loader(order), "outcome binary").collect()
        # Without any partition there was no task: an empty batch, whose mark is set from here.
        outcome: Outcome = pickle.loads(found[0][0]) if found else load(order, iter(()))  # noqa: S301  (our own task's)
        if outcome.verdict is Verdict.FENCED:
            raise Fenced(f"{self._what}: a newer driver has taken over.", untouched="Nothing was written by this one.")
        if outcome.verdict is Verdict.PASSING:
            raise Unreachable(
                f"{self._what}: Postgres at {self.dsn.address} cannot be written to now: {outcome.message}",
                untouched="Nothing is lost.",
                next="Check that the server runs and can be reached from here.",
            )
        if outcome.verdict is Verdict.FAILED:
            raise self._failed(outcome)
        return outcome

    def _failed(self, outcome: Outcome) -> Failed:
        hint = ""
        if outcome.state in ("53200", "55000") and "prepared" in outcome.message:
            hint = "Raise max_prepared_transactions in postgresql.conf and restart Postgres."
        return Failed(
            f"{self._what} at {self.dsn.address}: {outcome.message}", untouched="Nothing of it is visible.", next=hint
        )

    def _order(self, timeline: int, through: int, gid: str | None = None) -> Load:
        columns = [self._table.column(name) for name in self._context.schema.names]
        return Load(
            dsn=self.dsn,
            application=self._marks.application,
            schema=self._table.schema,
            table=self._table.name,
            columns=tuple(c for c in columns if c is not None),
            key=self.key,
            sink=self._marks.sink,
            owner=self._marks.owner,
            incarnation=int(self._context.incarnation),
            timeline=timeline,
            through=through,
            gid=gid,
            sorted_out=self._letters.wanted,
        )

    # ── two-phase commit ────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, part: Part) -> Json:
        with self._session() as connection:
            self._marks.send_away(connection)  # an earlier attempt that is not over
            after = self._marks.begin(connection, int(part.timeline), part.after)
            for found in self._marks.prepared(connection):
                self._marks.roll_back(connection, found.gid)
        if after >= part.through:
            return {"visible": True}
        return {"gid": self._prepare(replace(part, after=after))}

    def _prepare(self, part: Part) -> str:
        """Everything after `part.after`, which is the last visible batch, in one prepared transaction."""
        gid = self._marks.gid(part, part.after)
        rows = self._staged(part).frame(self._spark(), part, self._context.schema if self.evolves else None)
        order = self._order(int(part.timeline), part.through, gid)
        if self.key or order.sorted_out:
            rows = _with_batch(rows)
        outcome = self._run(rows.coalesce(1), order)
        if outcome.verdict is Verdict.REJECTED:
            self._refuse(part, outcome)
        self._letters.hold(part, _letters(outcome))
        return gid

    def _refuse(self, part: Part, outcome: Outcome) -> None:
        rejected = _letters(outcome)
        if not self._letters.wanted:
            self._letters.hold(part, rejected)  # says which row, and what to do
        raise Failed(f"{self._what}: {rejected[0].reason}", untouched="Nothing of it is visible.")

    def commit(self, part: Part, prepared: Json) -> None:
        timeline = int(part.timeline)
        while True:
            with self._session() as connection:
                self._marks.send_away(connection)
                after = self._marks.begin(connection, timeline, part.after)
                standing = [p for p in self._marks.prepared(connection) if p.timeline == timeline]
                if after >= part.through:
                    for found in standing:
                        if found.through <= after:
                            self._marks.roll_back(connection, found.gid)
                    break
                gid = next((p.gid for p in standing if (p.after, p.through) == (after, part.through)), None)
                for found in standing if gid is None else ():
                    self._marks.roll_back(connection, found.gid)  # a later part's: that is loaded again when it is due
            whole = replace(part, after=after)
            if gid is None:
                gid = self._prepare(whole)
            self._letters.release(whole)
            with self._session() as connection:
                if self._marks.commit(connection, gid):
                    break
        self._staged(part).forget(part)

    def withdraw(self, part: Part, prepared: Json) -> None:
        """Roll it back: a prepared transaction holds its locks until it is ended."""
        self._roll_back(part)
        self._letters.drop(part)

    def abort(self, part: Part, prepared: Json) -> None:
        self._roll_back(part)
        self._letters.drop(part)
        self._staged(part).forget(part)

    def _roll_back(self, part: Part) -> None:
        with self._session() as connection:
            for found in self._marks.prepared(connection):
                if (found.timeline, found.snapshot) == (int(part.timeline), int(part.snapshot)):
                    self._marks.roll_back(connection, found.gid)

    def recover(self, parts: Iterable[Part]) -> None:
        wanted = {(int(p.timeline), p.through) for p in parts}
        with self._session() as connection:
            for found in self._marks.prepared(connection):
                if (found.timeline, found.through) not in wanted:
                    self._marks.roll_back(connection, found.gid)

    def by_hand(self, part: Part) -> str:
        return (
            f"in the database {self.dsn.address}: SELECT gid FROM pg_prepared_xacts WHERE gid LIKE "
            f"'{self._marks.prefix}{part.timeline}/{part.snapshot}/%'; then COMMIT PREPARED '<gid>'. "
            f"It is visible if SELECT batch FROM {self._table.schema}.strobe_batches WHERE sink = '{self._marks.sink}' "
            f"AND timeline = {part.timeline} gives {part.through} or more."
        )

    def _staged(self, part: Part) -> Staging:
        if part.timeline == self._context.timeline:
            return self._staging
        return Staging(self._context.of_timeline(part.timeline), sweep=False)

    def _spark(self) -> SparkSession:
        from pyspark.sql import SparkSession

        return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()

    # ── restore ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @steady
    def position(self, snapshot: SnapshotId) -> Json:
        return {"table": self.table, "address": self.dsn.address, "letters": self._letters.position(self._last)}

    def outlook(self, position: Json, context: SinkContext, *, fork: bool, again: bool) -> SinkOutlook:
        usual = super().outlook(position, context, fork=fork, again=again)
        if not fork:
            later = "what later snapshots have made visible stays there, and comes once more"
            return replace(usual, detail=later) if self._delivery is Delivery.ON_SNAPSHOT else usual
        self._context = context
        try:
            with self.dsn.session(self._what) as connection:
                table = check_table(connection, self, context)
                marks = Marks(self.dsn, table.schema, table.name, context, known_owner(context) or "")
                problem: StrobeError | None = marks.clash() if marks.other_owner(connection) else None
        except StrobeError as error:
            problem = error
        if isinstance(position, dict) and (position.get("table"), position.get("address")) == self._place:
            both = f"{self.describe()} is where the job of the snapshot writes: if that goes on, both do."
            return replace(usual, problem=problem, warning=both)
        return replace(usual, problem=problem)

    @property
    def _place(self) -> tuple[str, str]:
        return self.table, self.dsn.address

    def restore(self, position: Json, context: SinkContext, fate: SinkFate) -> None:
        if self.dead_letters is not None and isinstance(position, dict) and known_owner(context) is not None:
            Letters(self.dead_letters, context, self.describe()).roll_back(position.get("letters"))


def _loader(order: Load) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        yield pyarrow.RecordBatch.from_pydict({"outcome": [pickle.dumps(load(order, batches))]})

    return run


def _letters(outcome: Outcome) -> list[Rejected]:
    return [Rejected(row, reason, batch) for row, reason, batch in outcome.rejected]


def _with_batch(rows: DataFrame) -> DataFrame:
    """Staged rows with their batch, which is in the name of the directory that they are in."""
    from pyspark.sql import functions as f

    batch = f.regexp_extract(f.col("_metadata.file_path"), r"/batch-(\d+)/[^/]+$", 1)
    return rows.withColumn(BATCH, batch.cast("bigint"))
