"""A Delta table as a sink: append, or upsert by key; visible after each micro-batch, or when a snapshot is complete.

*Append* to a plain table commits like a channel does: Spark writes the Parquet files, one atomic log entry with an
app transaction makes them visible. *Upsert*, partitions, and tables with constraints (`writing`) are one commit that
carries an app transaction too. A batch, or part, is there once, and a driver that was given up is refused.

*On snapshot*, batches are staged as Parquet files in the job's home. A part is checked when it is prepared, and is one
commit of the table when its snapshot is complete: appended as it is, by linking the staged files into the table, or
merged, the newest row of each key. The app transaction's version is the last batch that the table has, in both modes.

Of several different rows with one key in a batch, which one wins would be chance: they are rejected. `keys` says when
two rows have the same key; `ownership` makes sure that nobody else writes to the table.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql.pandas.types import to_arrow_schema

from strobe.hosts.spark.channel.log import ChannelLog, DataFile
from strobe.hosts.spark.channel.parquet import write_batch
from strobe.hosts.spark.channel.schema import channel_schema
from strobe.hosts.spark.channel.writer import ASIDE, DATA, PROPERTIES, ChannelWriter, table_schema
from strobe.hosts.spark.connectors.base import (
    Delivery,
    Part,
    SinkContext,
    SinkFate,
    SinkOutlook,
    TransactionalSink,
    checked_schema,
    column_names,
    steady,
    whole_results,
)
from strobe.hosts.spark.connectors.dead_letters import DeadLetters, Letters, checked_letters
from strobe.hosts.spark.connectors.delta import restore as delta_restore
from strobe.hosts.spark.connectors.delta.evolving import Growth, check_growth, evolve_table, growth, has_evolved
from strobe.hosts.spark.connectors.delta.files import table_files, why_unreadable
from strobe.hosts.spark.connectors.delta.keys import check_columns, check_partitions
from strobe.hosts.spark.connectors.delta.rows import RowRules, check_fit
from strobe.hosts.spark.connectors.delta.table import (
    APPEND_ONLY,
    FencedTable,
    app_of,
    create_table,
    is_append_only,
    is_plain,
    set_properties,
)
from strobe.hosts.spark.connectors.delta.writing import TableWriting
from strobe.hosts.spark.connectors.ownership import claim, why_not_mine
from strobe.hosts.spark.connectors.paths import directory_of, local_path, real_path
from strobe.hosts.spark.connectors.staging import Staging
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.ids import NodeId, SnapshotId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["DeltaSink"]


class DeltaSink(TransactionalSink):
    """`DeltaSink("out/balances")` appends; `DeltaSink("out/balances", key="account")` upserts by key."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        key: str | Iterable[str] = (),
        delivery: str = "on_batch",
        partition_by: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        dead_letters: DeadLetters | None = None,
        schema: str = "fixed",
    ) -> None:
        """`delivery` is "on_batch" or "on_snapshot". `partition_by` and `properties` are for the table when it is made;
        properties are also set on one that exists. `dead_letters` takes rows that the table does not. `schema`:
        "fixed", or "evolve" for a table that gets the columns, and wider types, that the stage returns."""
        where = f"DeltaSink({str(path)!r})"
        self.path = local_path(path, where)
        self.key = column_names(where, "key", key)
        self.partition_by = column_names(where, "partition_by", partition_by)
        if properties is not None and not (
            isinstance(properties, Mapping) and all(isinstance(x, str) for pair in properties.items() for x in pair)
        ):
            raise Misuse(f"{where}: properties are strings by name, not {properties!r}.")
        self.properties = dict(properties or {})
        self.dead_letters = checked_letters(where, dead_letters)
        self._evolves = checked_schema(where, schema)
        self._delivery = Delivery.of(delivery, "DeltaSink")
        self.rows_taken: int = 0
        self._writer: ChannelWriter | None = None
        self._table: FencedTable | None = None
        if self.key and self.properties.get(APPEND_ONLY, "").lower() == "true":
            raise Misuse(
                f"{where}: a table with {APPEND_ONLY} never changes a row, and with a key rows replace each other.",
                next="Leave out the key or the property.",
            )

    def describe(self) -> str:
        how = f"upsert by {', '.join(self.key)}" if self.key else "append"
        when = ", on snapshot" if self._delivery is Delivery.ON_SNAPSHOT else ""
        return f"Delta table {self.path} ({how}{when})"

    def check_stage(self, stage: NodeId, output_mode: str) -> None:
        if output_mode == "complete":
            raise whole_results(self, stage, "Use output_mode='update' with a key")

    def check_columns(self, context: SinkContext) -> str | None:
        where = self._place(context)
        if not DeltaTable.is_deltatable(str(where)) or self._is_plain(where, context):
            return None
        table = DeltaTable(str(where))
        found = self._growth(where, context)
        check_growth(table, found, self.describe(), context.stage)
        grown = found.applied(table_schema(where))
        check_fit({f.name: f for f in to_arrow_schema(grown, timezone="UTC")}, context, self.describe())
        return f"{self.describe()} {found.sentence()}" if found else None

    def _growth(self, where: Path, context: SinkContext) -> Growth:
        now = channel_schema(context.schema, context.stage)
        return growth(table_schema(where), now) if self._evolves else Growth()

    def place(self) -> str:
        return os.path.normpath(self.path)

    def place_in(self, base: Path) -> str:
        return str(real_path(self.path, base))

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self, context: SinkContext) -> None:
        self._where = self._place(context)
        if context.settling and DeltaTable.is_deltatable(str(self._where)):
            context = replace(context, schema=table_schema(self._where))
        self._context = context
        self.check_stage(context.stage, context.output_mode)
        check_columns(context, self.key, self.partition_by, self.describe())
        what = f"{self.describe()} of stage {context.stage!r}"
        self._writer, self._table = None, None
        schema = channel_schema(context.schema, context.stage)
        if unquote(str(self._where)) != str(self._where):
            raise Misuse(
                f"{what}: {self._where} has a '%' and two digits in it, which stand for another character in the "
                "address of a Delta table.",
                untouched="Nothing was written.",
                next="Choose another name for the directory.",
            )
        problem = self._not_mine(context)
        if problem is not None:
            raise problem
        try:
            self._letters = Letters(self.dead_letters, context, self.describe())
            if self.key or self.partition_by or self.properties:
                kept = {} if self.key else PROPERTIES
                create_table(self._where, schema, self.partition_by, {**kept, **self.properties})
                set_properties(self._where, self.properties)
            there = DeltaTable.is_deltatable(str(self._where))
            problem = why_unreadable(self._where, what) if there else None
            if problem is not None:
                raise problem
            if there:
                found = self._growth(self._where, context)
                check_growth(DeltaTable(str(self._where)), found, self.describe(), context.stage)
                evolve_table(self._where, found)
            if self.key or (there and not self._is_plain(self._where, context)):
                table = DeltaTable(str(self._where))
                self._rules = RowRules(table, context, self.key, self.describe())
                self._check_table(table)
                self._claim(context)
                self._table = FencedTable(self._where, context, self.describe())
                self._writing = TableWriting(self._where, self._table, self._rules, self._letters, context)
            elif there and self._is_left(context):
                self._writer = None
            else:
                self._claim(context)
                self._writer = self._plain(context)
        except (DeltaError, OSError) as error:
            raise Failed(f"{what} cannot be opened: {error}") from error
        self._staging = Staging(context)
        self._version = self._head()
        self._through = self._newest()

    def _claim(self, context: SinkContext) -> None:
        """Claim the table: from here on nobody else writes to it. Called before the fence, which would shut out its
        owner."""
        claim(self._where / ASIDE, context, self.describe(), written=self._has_numbers(context))

    def _not_mine(self, context: SinkContext) -> StrobeError | None:
        where = self._place(context)
        return why_not_mine(where / ASIDE, context, self.describe(), written=self._has_numbers(context))

    def _has_numbers(self, context: SinkContext) -> bool:
        """Whether the table's batch numbers count for any stage that writes it: so it is in a plain table; others have
        a mark for each sink."""
        where = self._place(context)
        if self.key or not DeltaTable.is_deltatable(str(where)) or not self._is_plain(where, context):
            return False
        return ChannelLog(where).last_batch(context.timeline) is not None

    def _check_table(self, table: DeltaTable) -> None:
        self._check_partitions(table)
        check_partitions(self._context, table.metadata().partition_columns, self.describe())
        if self.key and is_append_only(table):
            raise Misuse(
                f"{self.describe()} has the property {APPEND_ONLY}: it never changes a row, and with a key rows "
                "replace each other.",
                untouched="The table is unchanged.",
                next="Leave out the key, take the property away, or write to another table.",
            )

    def _check_partitions(self, table: DeltaTable) -> None:
        there = tuple(table.metadata().partition_columns)
        if self.partition_by and there != self.partition_by:
            raise Misuse(
                f"{self.describe()} is to be partitioned by {', '.join(self.partition_by)}, but the table is "
                f"{'partitioned by ' + ', '.join(there) if there else 'not partitioned'}.",
                untouched="The table is unchanged.",
                next="Leave partition_by out, or write to another table.",
            )

    def _is_plain(self, where: Path, context: SinkContext) -> bool:
        same = table_schema(where) == channel_schema(context.schema, context.stage)
        return not self.key and same and not has_evolved(where) and is_plain(where)

    def _is_left(self, context: SinkContext) -> bool:
        """Whether the table is on a later timeline already, because an earlier attempt at a restore came that far. Then
        this timeline has nothing left to commit."""
        log = ChannelLog(self._where)
        return log.timeline > context.timeline and log.incarnation <= context.incarnation

    def _plain(self, context: SinkContext, cut_to: int | None = None) -> ChannelWriter:
        where = self._place(context)
        return ChannelWriter(
            where, context.schema, job=context.job, producer=context.stage, timeline=context.timeline,
            incarnation=context.incarnation, cut_to=cut_to, files_at=lambda version: table_files(where, version),
        )  # fmt: skip

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    # ── on batch ────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, batch: DataFrame, batch_id: int) -> None:
        if self._delivery is Delivery.ON_SNAPSHOT:
            self.rows_taken += self._staging.write(batch, batch_id)
        elif self._writer is not None:
            commit = write_batch(batch, batch_id, self._writer)
            self.rows_taken += 0 if commit is None else commit.rows
        else:
            self.rows_taken += self._writing.write(batch, batch_id)
        self._through = max(self._through, batch_id)

    # ── on snapshot ─────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, part: Part) -> Json:
        rejected = 0
        if self._table is not None:
            rejected = self._writing.prepare(part, self._staging)
        else:
            if self._staging.missing(part):
                self._staging.files(part)  # says which
            self._letters.hold(part, [])
        return {"rejected": rejected}

    def commit(self, part: Part, prepared: Json) -> None:
        if not self._has(part.through):
            self._letters.release(part)
            if self._writer is not None:
                self._link(part, self._writer)
            else:
                clean = isinstance(prepared, dict) and prepared.get("rejected") == 0
                self._writing.commit(part, self._staging, clean=clean)
        self._version = self._head()
        self._letters.drop(part)
        self._staging.forget(part)

    def abort(self, part: Part, prepared: Json) -> None:
        self._letters.drop(part)
        Staging(self._context.of_timeline(part.timeline), sweep=False).forget(part)

    def by_hand(self, part: Part) -> str:
        return (
            f"It is visible if {self._where} has the transaction {app_of(self._context)!r} at {part.through} or more."
        )

    def _link(self, part: Part, writer: ChannelWriter) -> None:
        """The staged files become files of the table: nothing is written again."""
        place = f"{DATA}/{part.timeline}/{part.through}-{uuid.uuid4().hex[:8]}"
        files = []
        for number, file in enumerate(self._staging.files(part)):
            path = f"{place}/{number:05d}.parquet"
            (writer.path / place).mkdir(parents=True, exist_ok=True)
            try:
                os.link(file, writer.path / path)
            except OSError:  # another disk
                shutil.copyfile(file, writer.path / path)
            files.append(DataFile(path, pq.read_metadata(file).num_rows, file.stat().st_size))
        writer.append(files, part.through, even_if_empty=True)
        writer.sync(writer.log.head)

    def _has(self, through: int) -> bool:
        if self._table is not None:
            return self._table.has(through)
        return self._writer is None or self._writer.has_batch(through)

    # ── where it stands ─────────────────────────────────────────────────────────────────────────────────────────────

    def last_batch(self) -> int | None:
        newest = self._newest()
        return None if newest < 0 else newest

    def _newest(self) -> int:
        staged = self._staging.last_batch() if self._delivery is Delivery.ON_SNAPSHOT else None
        if self._table is not None:
            written: int | None = self._table.last()
        else:
            log = ChannelLog(self._where) if self._writer is None else self._writer.log
            written = log.last_batch(self._context.timeline)
        return max(-1 if written is None else written, -1 if staged is None else staged)

    def _head(self) -> int:
        if self._table is not None:
            return self._table.version
        return ChannelLog(self._where).head if self._writer is None else self._writer.log.head

    @steady
    def position(self, snapshot: SnapshotId) -> Json:
        """The table's version; on snapshot also what tells the commit that will make the rest visible."""
        letters = self._letters.position(self._through)
        if self._delivery is Delivery.ON_BATCH:
            return {"path": str(self._where), "version": self._head(), "letters": letters}
        context = self._context
        app = app_of(context)
        if self._table is None:  # a plain table's marks are the stage's
            app = f"strobe/{context.job}/{context.stage}/{context.timeline}"
        return {"path": str(self._where), "version": self._version, "app": app, "through": self._through,
                "letters": letters}  # fmt: skip

    # ── restore ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def outlook(self, position: Json, context: SinkContext, *, fork: bool, again: bool) -> SinkOutlook:
        where, what = self._place(context), f"{self.describe()} of stage {context.stage!r}"
        found = delta_restore.outlook(
            where,
            what,
            keyed=bool(self.key),
            position=position,
            context=context,
            fork=fork,
            again=again,
            evolves=self._evolves,
        )
        if found.problem is not None:
            return found
        waiting = delta_restore.why_not_visible(position, what) if found.fate is SinkFate.COPIED else None
        return replace(found, problem=self._not_mine(context) or waiting)

    def restore(self, position: Json, context: SinkContext, fate: SinkFate) -> None:
        if fate not in (SinkFate.COPIED, SinkFate.ROLLED_BACK):
            return  # and where the table was may be unreadable, which is why it begins empty
        was = delta_restore.recorded(position)
        if was is None:
            return
        where, (path, version) = self._place(context), was
        try:
            plain = self._is_plain(where if fate is SinkFate.ROLLED_BACK else path, context)
            if fate is SinkFate.COPIED and plain:
                delta_restore.copy_appended(path, version, where, context)
            elif fate is SinkFate.COPIED:
                delta_restore.copy_table(path, version, where)
            elif fate is SinkFate.ROLLED_BACK:
                if plain:
                    self._plain(context, cut_to=version).close()
                else:
                    FencedTable(where, context, self.describe())  # the fence first: it shuts older drivers out
                    delta_restore.take_back(where, version)
                letters = position.get("letters") if isinstance(position, dict) else None
                Letters(self.dead_letters, context, self.describe()).roll_back(letters)
        except (DeltaError, OSError) as error:
            raise Failed(f"{where} could not be restored to version {version} of {path}: {error}") from error

    def _place(self, context: SinkContext) -> Path:
        return directory_of(self.path, context.base, self.describe())
