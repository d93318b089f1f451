"""The batch without rows that a query owes when it starts.

When a batch has moved the watermark, Spark runs another one even if there is nothing to read: windows close, timers
fire, rows of an outer join that found no partner come out. Operators that wait for the clock get such batches all the
time. Spark decides on it from the plan of the batch before, which it has in memory only: a query that starts from a
checkpoint between the two never runs it, unless rows come.

So the decision is taken again at each start, by the same rule. If there are rows to read, the next batch reads them:
Spark gives it the watermark that the last one has earned, and judges by the watermark before which of its rows are
late, as if it had never stopped. If there are none, and one is due, it is added to the offset log, as Spark would have
written it. What a stage's channels hold is known here; whether another source has rows only Spark can tell, so the
query is started once to let it look, with no batch admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame

from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.checkpoint import empty_batch
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.stage_files import channel_positions
from strobe.model.ids import NodeId

__all__ = ["NO_DATA_BATCHES", "Waits", "due", "plan_nodes", "settle", "waits_of"]

NO_DATA_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
_DEDUPLICATES = ("Deduplicate", "DeduplicateWithinWatermark")


@dataclass(frozen=True, slots=True)
class Waits:
    """What the operators of a query wait for, besides rows."""

    watermark: bool = False
    clock: bool = False


def waits_of(result: DataFrame, output_mode: str) -> Waits:
    """By the rules of Spark's operators: some ask for another batch when the watermark has moved, some always."""
    operators = [node for node in plan_nodes(result._jdf.queryExecution().analyzed()) if node.isStreaming()]
    return Waits(
        watermark=any(_follows_watermark(node, output_mode) for node in operators),
        clock=any(_follows_clock(node) for node in operators),
    )


def due(checkpoint: Path, waits: Waits) -> int | None:
    """The batch behind which one without rows is due. None if none is, or if the log ends with one that is to run."""
    committed = spark_checkpoint.last_committed(checkpoint)
    if committed is None or spark_checkpoint.last_logged(checkpoint) != committed:
        return None
    return committed if waits.clock or (waits.watermark and _has_moved(checkpoint, committed)) else None


def settle(
    checkpoint: Path, waits: Waits, inputs: Mapping[NodeId, ChannelLog], look: Callable[[int], None]
) -> int | None:
    """Before a query starts: add the batch that is due, if there is nothing to read. Returns it if it was added.

    `look(N)` lets Spark plan the batch after N, and not run it: then it is in the log if there are rows.
    """
    last = due(checkpoint, waits)
    if last is None or _rows_wait(checkpoint, last, inputs):
        return None
    if _has_other_sources(checkpoint, last):
        look(last)
        if due(checkpoint, waits) is None:
            return None
    watermark = spark_checkpoint.read_offsets(checkpoint, last).watermark_ms
    return empty_batch.add(checkpoint, max(watermark, empty_batch.next_watermark(checkpoint, last)))


def _has_moved(checkpoint: Path, batch: int) -> bool:
    return empty_batch.next_watermark(checkpoint, batch) > spark_checkpoint.read_offsets(checkpoint, batch).watermark_ms


def _rows_wait(checkpoint: Path, batch: int, inputs: Mapping[NodeId, ChannelLog]) -> bool:
    positions = channel_positions(checkpoint, batch, inputs)
    for log in inputs.values():
        log.refresh()
    return any(commit.files for uid, log in inputs.items() for commit in log.commits(positions[uid]))


def _has_other_sources(checkpoint: Path, batch: int) -> bool:
    sources = spark_checkpoint.read_offsets(checkpoint, batch).sources
    return any(not isinstance(offset, dict) or "channel" not in offset for offset in sources)


# ── the plan ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _follows_watermark(node: Any, output_mode: str) -> bool:
    """An operator with state that drops or emits some of it when the watermark moves."""
    kind = node.getClass().getSimpleName()
    stateful = (
        kind in _DEDUPLICATES
        or (kind in ("Aggregate", "Distinct") and output_mode != "complete")
        or (kind == "Join" and all(child.isStreaming() for child in _children(node)))
        or (kind == "TransformWithStateInPySpark" and str(node.outputMode()) != "Complete")
        or (kind == "FlatMapGroupsInPandasWithState" and str(node.timeout()) == "EventTimeTimeout")
    )
    return stateful and any(below.getClass().getSimpleName() == "EventTimeWatermark" for below in plan_nodes(node))


def _follows_clock(node: Any) -> bool:
    kind = node.getClass().getSimpleName()
    return (kind == "TransformWithStateInPySpark" and str(node.timeMode()) == "ProcessingTime") or (
        kind == "FlatMapGroupsInPandasWithState" and str(node.timeout()) == "ProcessingTimeTimeout"
    )


def plan_nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from plan_nodes(child)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(i) for i in range(children.size())]
