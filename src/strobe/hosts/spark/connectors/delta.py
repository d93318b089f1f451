"""A Delta table as a sink: append, or upsert by key. Visible after each micro-batch, each batch once.

*Append* commits like a channel does: Spark writes the Parquet files, one atomic log entry with an app transaction makes
them visible. *Upsert* merges the batch into the table by key in one commit that carries the same app transaction; of
several rows with one key in a batch, which one wins would be chance, so that is an error unless they are the same.

*Fencing.* An appending sink is fenced like a channel. An upserting one notes its incarnation at each start, in a commit
that carries the same app transaction as batches do: a merge that an older driver has begun before then conflicts with
it, and one that it begins later finds the higher incarnation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from strobe.hosts.spark.channel import ChannelWriter
from strobe.hosts.spark.connectors import delta_restore
from strobe.hosts.spark.connectors.base import Sink, SinkContext, SinkFate, SinkOutlook
from strobe.hosts.spark.writer import write_batch
from strobe.model.cut import Json
from strobe.model.errors import Failed, Fenced, Misuse
from strobe.model.ids import SnapshotId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DeltaSink"]

_FENCE_TRIES: Final = 10


class DeltaSink(Sink):
    """`DeltaSink("out/balances")` appends; `DeltaSink("out/balances", key="account")` upserts by key."""

    def __init__(self, path: str, *, key: str | Iterable[str] = ()) -> None:
        self.path = path
        self.key = (key,) if isinstance(key, str) else tuple(key)
        self._writer: ChannelWriter | None = None

    def describe(self) -> str:
        how = f"upsert by {', '.join(self.key)}" if self.key else "append"
        return f"Delta table {self.path} ({how})"

    def place(self) -> str:
        return os.path.normpath(self.path)

    def last_batch(self) -> int | None:
        if self._writer is not None:
            return self._writer.log.last_batch(self._context.timeline)
        last = self._table.transaction_version(self._app)
        return None if last is None or last < 0 else int(last)

    @property
    def _app(self) -> str:
        return f"strobe/{self._context.job}/{self._context.name}/{self._context.timeline}"

    def open(self, context: SinkContext) -> None:
        self._context = context
        where = self._where = self._place(context)
        if context.output_mode == "complete":
            raise Misuse(
                f"Stage {context.stage!r} has output_mode 'complete', which replaces the whole table at each batch; "
                f"{self.describe()} takes rows.",
                next="Use output_mode='update' with a key.",
            )
        if not self.key:
            self._writer = ChannelWriter(
                where,
                context.schema,
                job=context.job,
                producer=context.stage,
                timeline=context.timeline,
                incarnation=context.incarnation,
            )
            return
        missing = [k for k in self.key if k not in context.schema.names]
        if missing:
            raise Misuse(
                f"Stage {context.stage!r} writes to {self.describe()}, but it has no column {', '.join(missing)}.",
                next=f"Its columns are: {', '.join(context.schema.names)}.",
            )
        try:
            where.mkdir(parents=True, exist_ok=True)
            if not DeltaTable.is_deltatable(str(where)):
                DeltaTable.create(str(where), Schema.from_json(context.schema.json()), mode="ignore")
            self._table = DeltaTable(str(where))
            self._check_fence()
            self._put_up_fence()
        except (DeltaError, OSError) as error:
            raise Failed(f"{self.describe()} of stage {context.stage!r} cannot be opened: {error}") from error

    def write(self, batch: DataFrame, batch_id: int) -> None:
        if self._writer is not None:
            write_batch(batch, batch_id, self._writer)
            return
        self._upsert(batch, batch_id)

    def position(self, snapshot: SnapshotId) -> Json:
        if self._writer is not None:
            return {"path": str(self._where), "version": self._writer.log.head}
        return {"path": str(self._where), "version": self._table.version()}

    def outlook(self, position: Json, context: SinkContext, *, fork: bool, again: bool) -> SinkOutlook:
        where, what = self._place(context), f"{self.describe()} of stage {context.stage!r}"
        keyed = bool(self.key)
        return delta_restore.outlook(
            where, what, keyed=keyed, position=position, context=context, fork=fork, again=again
        )

    def restore(self, position: Json, context: SinkContext, fate: SinkFate) -> None:
        was = delta_restore.recorded(position)
        if was is None:
            return
        where, (path, version) = self._place(context), was
        if fate is SinkFate.COPIED and self.key:
            delta_restore.copy_upserted(path, version, where)
        elif fate is SinkFate.COPIED:
            delta_restore.copy_appended(path, version, where, context)
        elif fate is SinkFate.ROLLED_BACK and self.key:
            self.open(context)  # puts up the fence first: what comes after it is not the old driver's
            try:
                if set(self._table.file_uris()) != set(DeltaTable(str(where), version=version).file_uris()):
                    self._table.restore(version)
            except (DeltaError, OSError) as error:
                raise Failed(f"{where} could not go back to version {version}: {error}") from error
        elif fate is SinkFate.ROLLED_BACK:
            ChannelWriter(
                where, context.schema, job=context.job, producer=context.stage, timeline=context.timeline,
                incarnation=context.incarnation, cut_to=version,
            ).close()  # fmt: skip

    def _place(self, context: SinkContext) -> Path:
        return Path(os.path.normpath(Path(context.base, self.path).absolute()))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _upsert(self, batch: DataFrame, batch_id: int) -> None:
        context, app = self._context, self._app
        self._table.update_incremental()
        self._check_fence()
        last = self._table.transaction_version(app)
        if last is not None and batch_id <= last:
            return
        rows = batch.toArrow()
        if rows.num_rows == 0:
            return
        if rows.group_by(list(self.key)).aggregate([]).num_rows < rows.num_rows:
            rows = rows.group_by(rows.column_names).aggregate([])
            if rows.group_by(list(self.key)).aggregate([]).num_rows < rows.num_rows:
                raise Failed(
                    f"Batch {batch_id} of stage {context.stage!r} has several different rows with one key "
                    f"({', '.join(self.key)}): {self.describe()} cannot know which one counts.",
                    untouched="The table is unchanged.",
                    next="Aggregate by the key in the stage, or choose a key that is unique within a batch.",
                )
        match = " AND ".join(f"t.`{k}` IS NOT DISTINCT FROM s.`{k}`" for k in self.key)
        try:
            (
                self._table.merge(
                    rows,
                    predicate=match,
                    source_alias="s",
                    target_alias="t",
                    commit_properties=CommitProperties(app_transactions=[Transaction(app, batch_id)]),
                )
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()
            )
        except DeltaError as error:
            self._table.update_incremental()
            self._check_fence()
            raise Failed(
                f"Batch {batch_id} of stage {context.stage!r} could not be merged into {self.describe()}: {error}",
                untouched="The table is unchanged.",
            ) from error

    @property
    def _fence(self) -> str:
        return f"strobe/{self._context.job}/{self._context.name}/incarnation"

    def _put_up_fence(self) -> None:
        table = self._table
        for left in reversed(range(_FENCE_TRIES)):
            last = table.transaction_version(self._app)
            marks = [
                Transaction(self._fence, self._context.incarnation),
                Transaction(self._app, -1 if last is None else last),
            ]
            noted = CommitProperties(app_transactions=marks)
            try:
                table.create_write_transaction([], "append", table.schema(), [], commit_properties=noted)
                break
            except CommitFailedError:  # the driver that is to be fenced off was faster with a batch
                if not left:
                    raise
            finally:
                table.update_incremental()

    def _check_fence(self) -> None:
        context, newest = self._context, self._table.transaction_version(self._fence)
        if newest is not None and newest > context.incarnation:
            raise Fenced(
                f"{self.describe()} of stage {context.stage!r}: incarnation {context.incarnation} of job "
                f"{context.job} is fenced off by incarnation {newest}.",
                untouched="Nothing was written.",
                next="A newer run of this job has taken over; this one must stop.",
            )
