"""What is done with a batch: into the stage's channel, then to its sinks. It is computed once, or the query's state
would be written again."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.channel.parquet import run_only, write_files
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.checkpoint.files import state_is_written
from strobe.hosts.spark.connectors.base import Sink
from strobe.hosts.spark.pipeline.pipeline import StageSpec
from strobe.hosts.spark.stage.agent import StageAgent

__all__ = ["BatchWriting"]


class BatchWriting:
    def __init__(
        self, spec: StageSpec, agent: StageAgent, output: ChannelWriter | None, has_batch: Callable[[Sink, int], bool]
    ) -> None:
        self._spec = spec
        self._agent = agent
        self._output = output
        self._has_batch = has_batch
        self.rows_out = 0

    def write(self, batch: DataFrame, batch_id: int) -> None:
        sinks = self._spec.sinks
        if self._output is not None:
            files = write_files(batch, batch_id, self._output)
            crash_points.point("batch.computed", self._spec.uid)
            self._agent.show_batch(batch_id)
            commit = self._output.append(files, batch_id)
            crash_points.point("batch.in-channel", self._spec.uid)
            if commit is not None:
                self.rows_out += commit.rows
                # The rows are on disk already: the sinks read them there instead of computing the batch once more.
                paths = [str(self._output.path / f.path) for f in commit.files]
                batch = batch.sparkSession.read.schema(self._output.schema).parquet(*paths) if sinks else batch
        elif batch_id == self._agent.replayed:
            # Sinks that have the batch will skip it, but the query's state must advance all the same.
            run_only(batch)
        self._write_sinks(sinks, batch, batch_id)
        if self._output is None and not state_is_written(self._agent.checkpoint, batch_id):
            # A function did not read all of it, as with `show()` and `limit()`: Spark would fail the query.
            run_only(batch)
        crash_points.point("batch.in-sink", self._spec.uid)

    def _write_sinks(self, sinks: tuple[Sink, ...], batch: DataFrame, batch_id: int) -> None:
        if len(sinks) > 1:
            batch.persist()
        try:
            for sink in sinks:
                self._agent.check_live(batch_id)
                if not self._has_batch(sink, batch_id):
                    sink.write(batch, batch_id)
        finally:
            if len(sinks) > 1:
                batch.unpersist()
