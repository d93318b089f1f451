"""An entry as plain Spark: the functions of its stages as queries, with Spark's own checkpoints and nobody in between.

A stage that another one reads is part of that one's query, as people write it. One with `update` output or a watermark
gets a query of its own, with files behind it: Spark lets nobody read changes as a stream, or set a watermark twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from strobe.hosts.spark.pipeline.pipeline import SESSION, StageSpec, argument_name
from tests.corpus.entry import Entry, Row, load
from tests.corpus.feeding import feed, lay_out
from tests.corpus.tables import compared, newest, rest_of

__all__ = ["run_plain"]


@dataclass
class _Plain:
    entry: Entry
    spark: SparkSession
    root: Path
    frames: dict[str, DataFrame] = field(default_factory=dict)
    queries: dict[str, StreamingQuery] = field(default_factory=dict)

    def frame(self, uid: str) -> DataFrame:
        """What the stage computes, as one plan with what it reads."""
        if uid not in self.frames:
            spec = self.entry.pipeline.stages[uid]  # type: ignore[index]
            named: dict[str, Any] = {argument_name(read): self._read(read) for read in spec.inputs}
            if named and spec.wants_session:
                named[SESSION] = self.spark
            self.frames[uid] = spec.function(**named) if named else spec.function(self.spark)
        return self.frames[uid]

    def _read(self, uid: str) -> DataFrame:
        spec, frame = self.entry.pipeline.stages[uid], self.frame(uid)  # type: ignore[index]
        if (
            spec.output_mode == "append"
            and "EventTimeWatermark" not in frame._jdf.queryExecution().analyzed().toString()
        ):
            return frame
        self.start(uid)
        return self.spark.readStream.schema(frame.schema).parquet(str(self.root / "between" / uid))

    def start(self, uid: str) -> None:
        if uid in self.queries:
            return
        spec, between = self.entry.pipeline.stages[uid], self.root / "between" / uid  # type: ignore[index]
        between.mkdir(parents=True)

        def write(batch: DataFrame, batch_id: int) -> None:
            rows = batch.coalesce(1).persist()
            rows.write.mode("overwrite").parquet(str(self.root / "batches" / uid / f"{batch_id:06}"))
            if rows.count():
                rows.write.mode("append").parquet(str(between))
            rows.unpersist()

        result = self.frame(uid)
        with _settings(self.spark, spec):
            writer = result.writeStream.outputMode(spec.output_mode).foreachBatch(write)
            if spec.trigger and "availableNow" not in spec.trigger:
                writer = writer.trigger(**spec.trigger)
            checkpoint = str(self.root / "checkpoints" / uid)
            self.queries[uid] = writer.option("checkpointLocation", checkpoint).start()

    def count(self, uid: str) -> int:
        """Of a query that runs."""
        if not self.queries[uid].isActive:
            self.queries[uid].awaitTermination(1)  # says why
        return len(self.rows(uid))

    def rows(self, uid: str) -> list[Row]:
        batches = sorted((self.root / "batches" / uid).glob("*"))
        read = [pq.read_table(b).to_pylist() for b in batches if (b / "_SUCCESS").exists()]
        return newest(self.entry.pipeline.stages[uid], read)  # type: ignore[index]


@contextlib.contextmanager
def _settings(spark: SparkSession, spec: StageSpec) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in spec.conf}
    for key, value in spec.conf.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            spark.conf.set(key, old) if old is not None else spark.conf.unset(key)


def run_plain(name: str, spark: SparkSession, root: Path) -> dict[str, list[str]]:
    """The rows of each of its tables."""
    entry = load(name, root / "in")
    lay_out(entry, root / "in")
    plain = _Plain(entry, spark, root)
    try:
        for uid in entry.outputs:
            plain.start(uid)
        for step in range(len(entry.steps)):
            feed(entry, step, root / "in")
            for uid, query in plain.queries.items():
                rest_of(entry, uid, step, query.processAllAvailable, partial(plain.count, uid))
    finally:
        for query in plain.queries.values():
            query.stop()
    return {uid: compared(entry, uid, plain.rows(uid)) for uid in entry.outputs}
