"""Keeps and brings back how far each watermark of a stage's query has come; see `checkpoint.watermarks` for why.

Spark tells it through `WatermarkTracker`, which belongs to one run of a query. It takes in a batch behind the batch's
function. Doing that in the function already changes nothing, because it only ever goes up, and lets the file be there
before Spark commits the batch. So a committed batch has its file, and a batch that is run again begins with the one of
the batch before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from strobe.hosts.spark.checkpoint import watermarks as kept
from strobe.hosts.spark.stage.due_batch import plan_nodes

__all__ = ["WatermarkKeeper"]

_OPERATOR: Final = "EventTimeWatermark"
_INT: Final = 1 << 31  # py4j hands over smaller numbers as Integer, which is no time to Spark


class WatermarkKeeper:
    """Keeps the watermarks of one stage. Costs nothing if it has fewer than two."""

    def __init__(self, uid: str, result: DataFrame, checkpoint: Path) -> None:
        self._uid, self._result, self._checkpoint = uid, result, checkpoint
        plan = result._jdf.queryExecution().analyzed()
        self._several = plan.toString().count(_OPERATOR) > 1 and len(_named(plan)) > 1
        self._execution: Any = None  # of this life
        self._ids: dict[str, Any] = {}

    def begin_life(self) -> None:
        self._execution = None

    def begin_batch(self, batch: int) -> None:
        """In the first batch of a life: bring back what was, as it was behind the batch before."""
        if not self._several or self._execution is not None:
            return
        self._execution = self._running()
        before = kept.read(self._checkpoint, batch - 1)
        self._ids = _named(self._execution.logicalPlan())
        if before is None or before.keys() != self._ids.keys():
            return
        tracker = self._execution.watermarkTracker()
        field = tracker.getClass().getDeclaredField("operatorToWatermarkMap")
        field.setAccessible(True)
        current = field.get(tracker)
        some = self._result.sparkSession._jvm.scala.Some  # type: ignore[union-attr]
        for name, ms in before.items():
            if ms is not None and not -_INT <= ms < _INT:
                current.put(self._ids[name], some(ms))

    def end_batch(self, batch: int) -> None:
        """When everything of the batch has been computed."""
        if not self._several:
            return
        tracker = self._execution.watermarkTracker()
        tracker.updateWatermark(self._execution.lastExecution().executedPlan())
        reached = tracker.watermarkMap()
        found: dict[str, int | None] = {}
        for name, node in self._ids.items():
            ms = reached.apply(node)
            found[name] = None if ms.isEmpty() else int(ms.get())
        kept.write(self._checkpoint, batch, found)

    def _running(self) -> Any:
        """The query's execution. It is known by its name even before its start has returned."""
        active = self._result.sparkSession._jsparkSession.streams().active()
        (query,) = [q for q in active if q.name() == self._uid]
        return query.streamingQuery()


def _named(plan: Any) -> dict[str, Any]:
    """The ids that Spark has given to the watermarks of this run, by our name for each; a watermark that is used twice
    is one."""
    named: dict[str, Any] = {}
    seen: set[str] = set()
    for node in plan_nodes(plan):
        if node.getClass().getSimpleName() == _OPERATOR and node.nodeId().toString() not in seen:
            seen.add(node.nodeId().toString())
            what = f"{node.eventTime().name()} {node.delay().toString()}"
            number = sum(name.startswith(f"{what} #") for name in named)
            named[f"{what} #{number + 1}"] = node.nodeId()
    return named
