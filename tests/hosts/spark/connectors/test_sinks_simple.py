"""Memory and functions as sinks keep the contract of sinks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from strobe.hosts.spark.connectors import simple
from strobe.hosts.spark.connectors.base import Sink, SinkContext
from strobe.hosts.spark.connectors.simple import BatchInfo, ForeachBatchSink, MemorySink
from strobe.hosts.spark.stage.local_frame import local_frame
from strobe.model.errors import Misuse
from strobe.model.ids import Incarnation, NodeId, Timeline
from strobe.testing import SinkContract

pytestmark = pytest.mark.spark


class _Ours(SinkContract):
    delivery = "on_batch"
    points = 5

    @pytest.fixture(autouse=True)
    def _session(self, spark: SparkSession) -> None:
        self.session = spark

    def spark(self) -> SparkSession:
        return self.session

    def sources(self, sink: Sink) -> set[str]:
        return {str(simple.__file__)}


class TestMemoryOnBatch(_Ours):
    ordered = True

    def make_sink(self, where: Path) -> Sink:
        return MemorySink(str(where), delivery=self.delivery)

    def visible(self, where: Path) -> Iterable[tuple[Any, ...]]:
        return [(row["k"], row["v"]) for row in MemorySink(str(where)).rows()]


class TestMemoryOnSnapshot(TestMemoryOnBatch):
    delivery = "on_snapshot"


class TestFunctionOnBatch(_Ours):
    """The function writes a file named after the key that it is given, once."""

    def make_sink(self, where: Path) -> Sink:
        def save(batch: DataFrame, batch_id: int, info: BatchInfo) -> None:
            target = where / "out" / info.key.replace("/", "-")
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_name("." + target.name)
            fresh.write_text(json.dumps([list(row) for row in batch.collect()]))
            if not target.exists():
                os.rename(fresh, target)

        return ForeachBatchSink(save, delivery=self.delivery)

    def visible(self, where: Path) -> Iterable[tuple[Any, ...]]:
        for path in where.glob("out/[a-z]*"):
            yield from map(tuple, json.loads(path.read_text()))


class TestFunctionOnSnapshot(TestFunctionOnBatch):
    delivery = "on_snapshot"


def context(root: Path, spark: SparkSession) -> SinkContext:
    schema = local_frame(spark, [], "k BIGINT").schema
    return SinkContext("j", NodeId("s"), "s/0", Timeline(3), Incarnation(1), schema, "append", root, root / "staging")


def test_a_function_of_two_arguments_gets_rows_and_batch_id(tmp_path: Path, spark: SparkSession) -> None:
    calls: list[tuple[int, int]] = []
    sink = ForeachBatchSink(lambda batch, batch_id: calls.append((batch.count(), batch_id)))
    sink.open(context(tmp_path, spark))
    sink.write(local_frame(spark, [(1,), (2,)], "k BIGINT"), 5)
    assert calls == [(2, 5)]


def test_a_function_of_three_arguments_is_told_what_to_be_idempotent_by(tmp_path: Path, spark: SparkSession) -> None:
    told: list[BatchInfo] = []
    sink = ForeachBatchSink(lambda batch, batch_id, info: told.append(info))
    sink.open(context(tmp_path, spark))
    sink.write(local_frame(spark, [(1,)], "k BIGINT"), 5)
    assert told == [BatchInfo("j", "s/0", Timeline(3), 5)]
    assert told[0].key == "j/s/0/3/5"


@pytest.mark.parametrize("function", [lambda: None, lambda batch: None, 7])
def test_a_function_that_cannot_take_a_batch_is_refused(function: Any) -> None:
    with pytest.raises(Misuse):
        ForeachBatchSink(function)
