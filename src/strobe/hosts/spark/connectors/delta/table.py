"""A Delta table that is written through `deltalake`: merged by key, partitioned, or with constraints of its own.

*Once.* Every commit carries an app transaction: the sink and its timeline, with the last batch that the commit
contains. What the table has by that mark is not written again.

*Fencing.* A driver notes its incarnation at each start, in a commit that carries the same app transaction as batches
do: a write that an older driver has begun before then conflicts with it, and one that it begins later finds the higher
incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from strobe.hosts.spark.connectors.base import SinkContext, fenced_off
from strobe.model.errors import Failed
from strobe.model.ids import Timeline

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["APPEND_ONLY", "FencedTable", "app_of", "create_table", "is_append_only", "is_plain", "set_properties"]

APPEND_ONLY: Final = "delta.appendOnly"
_FENCE_TRIES: Final = 10
_PLAIN_WRITER: Final = 2  # up to this version Delta's protocol asks nothing of a writer that only adds files


def app_of(context: SinkContext, timeline: Timeline | None = None) -> str:
    """The mark of what the table has of a sink and a timeline, that of the context unless another is named."""
    return f"strobe/{context.job}/{context.name}/{context.timeline if timeline is None else timeline}"


def create_table(where: Path, schema: StructType, partition_by: Sequence[str], properties: Mapping[str, str]) -> None:
    where.mkdir(parents=True, exist_ok=True)
    if not DeltaTable.is_deltatable(str(where)):
        DeltaTable.create(
            str(where),
            Schema.from_json(schema.json()),
            mode="ignore",
            partition_by=list(partition_by) or None,
            configuration=dict(properties) or None,
        )


def set_properties(where: Path, properties: Mapping[str, str]) -> None:
    table = DeltaTable(str(where))
    now = table.metadata().configuration
    changed = {name: value for name, value in properties.items() if now.get(name) != value}
    if changed:
        table.alter.set_table_properties(changed)


def is_plain(where: Path) -> bool:
    """Whether files can be added to the table without checking their rows or writing statistics about them."""
    table = DeltaTable(str(where))
    protocol, about = table.protocol(), table.metadata()
    return (
        protocol.min_writer_version <= _PLAIN_WRITER
        and not about.partition_columns
        and all(field.nullable and not field.metadata for field in table.schema().fields)
    )


def is_append_only(table: DeltaTable) -> bool:
    return (table.metadata().configuration.get(APPEND_ONLY) or "").lower() == "true"


class FencedTable:
    """The table at `where`, for the sink of `context`; `what` is the sink in words. It exists."""

    def __init__(self, where: Path, context: SinkContext, what: str) -> None:
        self.table = DeltaTable(str(where))
        self._context = context
        self.what = what
        self.timeline = context.timeline
        self._app = app_of(context)
        self._fence = f"strobe/{context.job}/{context.name}/incarnation"
        self._check_fence()
        self._put_up_fence()

    @property
    def version(self) -> int:
        return self.table.version()

    @property
    def columns(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    def last(self) -> int:
        """The newest batch of this timeline that it has; -1 if none."""
        last = self.table.transaction_version(self._app)
        # Earlier the table may have been written as a plain one, which marks a batch with the stage alone.
        plain = f"strobe/{self._context.job}/{self._context.stage}/{self._context.timeline}"
        return max(-1, *(int(m) for m in (last, self.table.transaction_version(plain)) if m is not None), -1)

    def has(self, batch: int) -> bool:
        self.table.update_incremental()
        self._check_fence()
        return batch <= self.last()

    def append(self, rows: pa.Table, through: int, about: str) -> None:
        """Add rows, and the mark that everything up to batch `through` is there. `about` names them in errors."""
        self._write(
            lambda: write_deltalake(self.table, rows, mode="append", commit_properties=self._marks(through)), about
        )

    def merge(self, rows: pa.Table, key: Sequence[str], through: int, about: str) -> None:
        """The same, but a row with a key that is there replaces that row. No two of `rows` have one key."""
        match = " AND ".join(f"(t.{_quoted(k)} IS NOT DISTINCT FROM s.{_quoted(k)})" for k in key)
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in rows.column_names}

        def run() -> None:
            (
                self.table.merge(
                    rows,
                    predicate=match,
                    source_alias="s",
                    target_alias="t",
                    commit_properties=self._marks(through),
                )
                .when_matched_update(columns)
                .when_not_matched_insert(columns)
                .execute()
            )

        self._write(run, about)

    def mark(self, through: int, about: str) -> None:
        """Say that everything up to `through` is there, with no rows to add."""
        table = self.table
        self._write(
            lambda: table.create_write_transaction(
                [], "append", table.schema(), [], commit_properties=self._marks(through)
            ),
            about,
        )

    def marked(self, through: int) -> tuple[str, int]:
        """The app transaction of a commit that somebody else makes."""
        return self._app, through

    def _marks(self, through: int) -> CommitProperties:
        return CommitProperties(app_transactions=[Transaction(self._app, through)])

    def _write(self, run: Callable[[], None], about: str) -> None:
        try:
            run()
        except DeltaError as error:
            self.table.update_incremental()
            self._check_fence()
            raise Failed(
                f"{about} could not be written to {self.what}: {error}",
                untouched="The table is unchanged.",
            ) from error
        self.table.update_incremental()

    def _put_up_fence(self) -> None:
        table = self.table
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
            except CommitFailedError:  # the older driver has just committed a batch
                if not left:
                    raise
            finally:
                table.update_incremental()

    def _check_fence(self) -> None:
        context, newest = self._context, self.table.transaction_version(self._fence)
        if newest is not None and newest > context.incarnation:
            raise fenced_off(self.what, context, newest)


def _quoted(name: str) -> str:
    """A column's name in an expression, whatever it is."""
    return '"' + name.replace('"', '""') + '"'
