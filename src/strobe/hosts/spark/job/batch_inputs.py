"""The rows that a batch has read, as its sources gave them.

While a batch runs, the leaves of its physical plan are held; each can be run again afterwards, alone, and gives the
rows that it gave to the batch. That is true of every source that can be read again, and needs to know none of them.
Columns that the stage does not use are not read, so they are not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strobe.hosts.spark.connectors.base import Sink
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId

__all__ = ["BatchInput", "HeldInput", "InputCatcher", "check_readable_again"]

_ONCE: Final = {"socket": "a socket", "text-socket": "a socket", "MemoryStream": "memory", "memory": "memory"}
_ADAPTIVE: Final = "AdaptiveSparkPlanExec"
_SCAN: Final = "MicroBatchScanExec"


@dataclass(frozen=True)
class BatchInput:
    """`rows` are the first of `count` that the batch read from `name`: a channel, or what Spark calls the source."""

    name: str
    rows: pa.Table
    count: int


@dataclass(frozen=True)
class HeldInput:
    """A leaf of a batch's plan."""

    name: str
    leaf: Any

    def read(self, spark: SparkSession, most: int) -> BatchInput:
        leaf = self.leaf
        if leaf.supportsColumnar():
            leaf = spark._jvm.org.apache.spark.sql.execution.ColumnarToRowExec(leaf)  # type: ignore[union-attr]
        frame = DataFrame(
            spark._jsparkSession.internalCreateDataFrame(leaf.execute(), leaf.schema(), False),
            spark,
        )
        return BatchInput(self.name, frame.limit(most).toArrow(), frame.count())


class InputCatcher(Sink):
    """A sink that keeps nothing of a batch but what it has read, until the next one."""

    def __init__(self, stage: NodeId, *, runs: bool) -> None:
        """`runs`: whether nobody else computes the batch."""
        self._stage, self._runs = stage, runs
        self.held: tuple[HeldInput, ...] = ()
        self.session: SparkSession | None = None  # in which the query runs: a batch comes with one of its own

    def describe(self) -> str:
        return "nowhere (replay)"

    def write(self, batch: DataFrame, batch_id: int) -> None:
        if self._runs:
            batch.write.format("noop").mode("overwrite").save()
        assert self.session is not None
        active = self.session._jsparkSession.streams().active()
        (query,) = [q for q in active if q.name() == self._stage]
        plan = query.streamingQuery().lastExecution().executedPlan()
        found: list[HeldInput] = []
        for leaf in _leaves(plan):
            if _is_streaming(leaf) and not any(leaf.sameResult(other.leaf) for other in found):
                found.append(HeldInput(_name(leaf), leaf))
        self.held = tuple(found)


def check_readable_again(stage: NodeId, result: DataFrame) -> None:
    """Refuse a stage whose source does not give the same rows twice."""
    for leaf in _items(result._jdf.queryExecution().analyzed().collectLeaves()):
        if leaf.getClass().getSimpleName() not in (
            "StreamingRelation",
            "StreamingRelationV2",
            "StreamingExecutionRelation",
        ):
            continue
        name = str(leaf.sourceName())
        kind = next((what for word, what in _ONCE.items() if name.lower().startswith(word.lower())), None)
        if kind is not None:
            raise Misuse(
                f"Stage {stage!r} reads from {kind}, which cannot be read again: there is nothing to replay.",
                untouched="The job, its channels and its tables are as they were.",
                next="Bisect without --replay: it compares the checkpoints that are retained.",
            )
        options = leaf.dataSource().options() if leaf.getClass().getSimpleName() == "StreamingRelation" else None
        cleans = options.get("cleanSource") if options is not None else None
        if cleans is not None and cleans.isDefined() and str(cleans.get()).lower() != "off":
            raise Misuse(
                f"Stage {stage!r} reads files with cleanSource={cleans.get()}: a replay would take them away from the "
                "job, and those that it has read are gone.",
                untouched="The job, its channels and its tables are as they were.",
                next="Bisect without --replay: it compares the checkpoints that are retained.",
            )


def _leaves(plan: Any) -> Iterator[Any]:
    for leaf in _items(plan.collectLeaves()):
        if leaf.getClass().getSimpleName() == _ADAPTIVE:
            yield from _leaves(leaf.inputPlan())
        else:
            yield leaf


def _is_streaming(leaf: Any) -> bool:
    if leaf.getClass().getSimpleName() == _SCAN:
        return True
    link = leaf.logicalLink()
    return bool(link.isDefined() and link.get().isStreaming())


def _name(leaf: Any) -> str:
    """A channel's offset says which one it is."""
    if leaf.getClass().getSimpleName() != _SCAN:
        return str(leaf.nodeName()).strip()
    try:
        offset = json.loads(str(leaf.end().json()))
    except ValueError:
        offset = None
    if isinstance(offset, dict) and offset.keys() == {"channel", "version"}:
        return str(offset["channel"])
    return str(leaf.scan().description())


def _items(sequence: Any) -> Iterator[Any]:
    for i in range(sequence.size()):
        yield sequence.apply(i)
