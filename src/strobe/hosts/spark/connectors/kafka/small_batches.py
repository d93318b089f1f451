"""A batch of few, short messages comes to the driver as it is, and is not staged in files.

For Spark to write a Parquet file costs three times as much as to hand the same few rows over: a table's writer is set
up, files are made, moved and read again. That is most of what a small batch costs, and all of it falls on a message's
way.

*How much may come* is bounded before it does. Each task hands over so many rows at most and stops there, and a message
that is too long comes as nothing but a mark that it is. A batch of which there is more is computed again, into files.
So are the next ones, twice as many each time: a backlog costs no memory, and few batches twice.

Spark has no limit for each task in its API, but in its plans. If a Spark has none that is known here, every batch goes
into files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from strobe.hosts.spark.connectors.kafka.rows import InMemory, Messages

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["LONGEST", "ROWS", "SmallBatches"]

ROWS: Final = 2048  # of a batch
LONGEST: Final = 16 * 1024  # bytes of a message
_MOST_IN_FILES: Final = 128  # batches until the next one is tried
_LONG: Final = "long"  # the mark, behind the message's own columns

_log = logging.getLogger("strobe.kafka")


class SmallBatches:
    """Of one sink. What it says to Spark is made in the first batch: column by column it would be fifty calls to the
    JVM in each, and each step of a plan would be analysed by itself."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._projection: Any = None
        self._plan: Callable[[Any], Any] | None = None  # from a batch's plan to that of what may come, in the JVM
        self._frame: Any = None  # from a session and a plan to rows
        self._in_files = self._left = 0  # batches that go there after a large one, and how many of them are to come

    def messages_of(self, batch: DataFrame) -> DataFrame:
        """All of them, for Spark to write."""
        frame: Any = batch
        if self._projection is None:
            self._projection = frame._jcols(*self._messages.projection(batch.schema))
        return DataFrame(frame._jdf.select(self._projection), batch.sparkSession)

    def collect(self, batch: DataFrame) -> InMemory | None:
        """The batch's messages; None if there are too many or too long ones, or may be."""
        if self._left:
            self._left -= 1
            return None
        try:
            limited: Any = self._limited(batch)
        except Exception as error:  # py4j's, of whatever class: another Spark
            _log.debug("small batches go into files, too: %s", error)
            self._left = self._in_files = _MOST_IN_FILES
            return None
        batches = limited._collect_as_arrow()
        # A task that was stopped has handed over more than ROWS by itself.
        if sum(b.num_rows for b in batches) > ROWS or any(pc.any(b.column(_LONG)).as_py() for b in batches):
            self._left = self._in_files = min(max(1, self._in_files * 2), _MOST_IN_FILES)
            return None
        self._in_files = 0
        return InMemory(tuple(b.drop_columns([_LONG]) for b in batches))

    def _limited(self, batch: DataFrame) -> DataFrame:
        session, frame = cast(Any, batch.sparkSession), cast(Any, batch)
        if self._plan is None:
            self._plan = self._planning(batch)
            self._frame = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows
        return DataFrame(self._frame(session._jsparkSession, self._plan(frame._jdf.logicalPlan())), session)

    def _planning(self, batch: DataFrame) -> Callable[[Any], Any]:
        session, frame = cast(Any, batch.sparkSession), cast(Any, batch)
        nodes = session._jvm.org.apache.spark.sql.catalyst.plans.logical
        marked = frame._jcols(*_marked(self._messages.columns, self._messages.projection(batch.schema)))
        columns = frame._jdf.select(marked).queryExecution().logical().projectList()
        most = frame._jdf.limit(ROWS + 1).logicalPlan().limitExpr()
        tasks = session.sparkContext.defaultParallelism

        limit, repartition, project = nodes.LocalLimit, nodes.Repartition, nodes.Project  # each look is a call, too

        def plan(rows: Any) -> Any:
            return limit(most, repartition(tasks, False, project(columns, rows)))

        return plan


def _marked(names: list[str], columns: list[Column]) -> list[Column]:
    """The columns of a message, empty if they are long together, and whether they are."""
    size = f.lit(0)
    for name, column in zip(names, columns, strict=True):
        if name != "partition":
            text = f.to_json(column) if name == "headers" else column
            size = size + f.coalesce(f.octet_length(text), f.lit(0))
    is_long = size > LONGEST
    return [*(f.when(~is_long, c).alias(n) for n, c in zip(names, columns, strict=True)), is_long.alias(_LONG)]
