"""Batches that a stage runs apart from its ordinary life: those that an earlier life has left, and the last one.

Each is run in a life of its own, which takes part in no snapshot and ends behind that batch. What is to be done is
found out from the query's log alone, so a stage that dies in the middle of it goes on at its next start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint import final_batch as last_batch
from strobe.hosts.spark.checkpoint import leftovers
from strobe.hosts.spark.pipeline.pipeline import StageSpec
from strobe.hosts.spark.stage import due_batch
from strobe.hosts.spark.stage.agent import StageAgent
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from strobe.store.manifest import NOTHING

__all__ = ["Settling"]

_POLL = 0.05
# Spark says the first when it has looked and found nothing, and the second behind every look.
_LOOKED: Final = ("Waiting for data to arrive", "Waiting for next trigger")


class Settling:
    def __init__(
        self,
        spec: StageSpec,
        result: DataFrame,
        agent: StageAgent,
        life: Callable[[int, Mapping[NodeId, int]], AbstractContextManager[StreamingQuery]],
        *,
        written: Callable[[], int],
        setting: Callable[[str, str], str],
        stopping: threading.Event,
    ) -> None:
        """`life(N, reads)`: the stage's query in a life of its own, in which no batch after N is admitted, and channels
        are read as far as `reads` says. `written`: the last
        batch of which channel or sinks know. `setting(key, default)`: a setting of the query."""
        self._spec = spec
        self._result = result
        self._agent = agent
        self._life = life
        self._written = written
        self._setting = setting
        self._stopping = stopping

    def before_start(self) -> None:
        """At every start: what an earlier life has left behind, and what it has left to do."""
        leftovers.sweep(self._agent.checkpoint)
        self._finish_last_batch()
        if self._setting(due_batch.NO_DATA_BATCHES, "true").lower() != "true":
            return
        waits = due_batch.waits_of(self._result, self._spec.output_mode)
        if due_batch.settle(self._agent.checkpoint, waits, self._agent.inputs, self.look) is not None:
            crash_points.point("due.added", self._spec.uid)

    def run_last_batch(self) -> None:
        """Run the last batch of a drain."""
        checkpoint = self._agent.checkpoint
        if last_batch.due(checkpoint) is None:
            logged = spark_checkpoint.last_logged(checkpoint)
            written = self._written()
            if logged is not None and logged <= written and not spark_checkpoint.is_committed(checkpoint, logged):
                self.run_alone(logged)  # others see some of it already
            if self._has_event_time():
                last_batch.drop_refused(checkpoint, written)
                if last_batch.add(checkpoint) is not None:
                    crash_points.point("drain.last-batch-added", self._spec.uid)
        self._finish_last_batch()

    def _finish_last_batch(self) -> None:
        """At a drain, and at the next start if that was cut short."""
        due = last_batch.due(self._agent.checkpoint)
        if due is not None:
            self.run_alone(due)
            crash_points.point("drain.last-batch-run", self._spec.uid)
        last_batch.put_back(self._agent.checkpoint)

    def run_alone(self, batch: int, reads: Mapping[NodeId, int] | None = None) -> None:
        """Run this one batch: the last in the query's log, or one that Spark plans now, and reads channels up to
        `reads`."""
        with self._life(batch, reads or {}) as query:
            while not spark_checkpoint.is_committed(self._agent.checkpoint, batch):
                if self._stopping.is_set() or not query.isActive:
                    query.awaitTermination(1)  # says why
                    raise Failed(f"Stage {self._spec.uid!r} ended before its batch {batch} did.")
                self._agent.stage.clock.sleep(_POLL)

    def look(self, last: int) -> None:
        """Let Spark look at its sources. If they have rows, the batch after `last` is in its log then, and not run."""
        with self._life(last, {}) as query:
            while True:
                # In this order: what it has planned is in the log before it says that it has looked.
                ended = not query.isActive
                looked = ended or query.status["message"] in _LOOKED
                logged = spark_checkpoint.last_logged(self._agent.checkpoint)
                if (NOTHING if logged is None else logged) != last:
                    return
                if ended:
                    query.awaitTermination(1)  # says why, if it has failed
                if looked:
                    return
                if self._stopping.is_set():
                    raise Failed(f"Stage {self._spec.uid!r} is stopping.")
                self._agent.stage.clock.sleep(_POLL)

    def _has_event_time(self) -> bool:
        return "EventTimeWatermark" in str(self._result._jdf.queryExecution().analyzed().toString())
