"""The pause between two looks at a source: it grows while nothing comes, and is short again with the first row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.jvm.session import DEFAULT_POLLING_DELAY, POLLING_DELAY
from strobe.hosts.spark.stage.asking import growing_from
from strobe.hosts.spark.stage.pausing import LONGEST, SHARE, SourcePause, pause_after
from strobe.model.ids import NodeId
from tests.support.held_clock import HeldClock
from tests.support.spark.jobs import eventually, stage


def test_the_first_row_waits_a_share_of_the_quiet_time_and_a_second_at_most() -> None:
    for quiet in range(1000):
        pause = pause_after(quiet, 100)
        assert 100 <= pause <= max(100, min(LONGEST, quiet * 1000 / SHARE))
        assert pause <= pause_after(quiet + 1, 100)
    assert pause_after(0, 100) == pause_after(3, 100) == 100
    assert pause_after(3600, 100) == LONGEST == 1000


class Execution:
    """Spark's, as far as it is asked: a class below the one that has the field."""

    def __init__(self, depth: int = 1, field: str = "pollingDelayMs") -> None:
        self.depth = depth
        self.field = field
        self.set: list[int] = []

    def streamingQuery(self) -> Execution:
        return self

    def getClass(self) -> Execution:
        return self

    def getSuperclass(self) -> Execution:
        self.depth -= 1
        return self

    def getSimpleName(self) -> str:
        return "MicroBatchExecution" if self.depth > 0 else "StreamExecution"

    def getDeclaredField(self, name: str) -> Execution:
        if name != self.field:
            raise RuntimeError("NoSuchFieldException")
        return self

    def setAccessible(self, accessible: bool) -> None:
        pass

    def setLong(self, execution: Execution, milliseconds: int) -> None:
        self.set.append(milliseconds)


def test_it_grows_while_nothing_comes_and_a_batch_ends_that() -> None:
    clock, spark = HeldClock(), Execution()
    pause = SourcePause("a", clock)
    pause.begin_life(spark, 100)
    for _ in range(60):
        clock.advance(1)
        pause.look()
    assert spark.set == [200, 400, 800, 1000]
    pause.begin_batch()
    pause.begin_batch()
    assert spark.set == [200, 400, 800, 1000, 100]
    clock.advance(3)
    pause.look()
    assert spark.set[-1] == 100


def test_a_pause_that_is_not_ours_stays() -> None:
    clock, spark = HeldClock(), Execution()
    pause = SourcePause("a", clock)
    pause.begin_life(spark, None)
    clock.advance(100)
    pause.look()
    pause.begin_batch()
    assert spark.set == []


def test_a_spark_without_the_field_is_asked_once() -> None:
    clock, spark = HeldClock(), Execution(field="another")
    pause = SourcePause("a", clock)
    pause.begin_life(spark, 100)
    clock.advance(100)
    pause.look()
    spark.field = "pollingDelayMs"
    pause.look()
    pause.begin_batch()
    assert spark.set == []


def test_the_next_life_begins_with_the_short_pause() -> None:
    clock, first, second = HeldClock(), Execution(), Execution()
    pause = SourcePause("a", clock)
    pause.begin_life(first, 100)
    clock.advance(100)
    pause.look()
    pause.begin_life(second, 100)
    pause.look()
    assert (first.set, second.set) == ([1000], [])


def test_it_grows_for_sources_whose_pause_the_user_has_left_alone() -> None:
    given = {POLLING_DELAY: "100ms"}
    assert growing_from(given, {}, has_source=True) == 100
    assert growing_from(given, {}, has_source=False) is None, "the question is held"
    assert growing_from({}, {}, has_source=True) is None, "a trigger, a channel beside it, a setting of the session's"
    assert growing_from(given, {POLLING_DELAY: "10ms"}, has_source=True) is None


@pytest.mark.slow
def test_a_query_that_runs_takes_the_new_pause(tmp_path: Path, spark: SparkSession) -> None:
    data = tmp_path / "in"
    data.mkdir()
    pipeline = strobe.Pipeline("pausing", checkpoint=strobe.CheckpointConfig(interval=None))

    @pipeline.stage(uid="rows", to=strobe.DeltaSink(str(tmp_path / "out")))
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("n LONG").json(str(data))

    usual = spark.newSession()
    usual.conf.set(POLLING_DELAY, DEFAULT_POLLING_DELAY)  # tests have a shorter one
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=usual)
    eventually(lambda: job._runners[NodeId("rows")].waiting, "the stage has looked", job)
    try:
        runner = job._runners[NodeId("rows")]
        query = runner.query
        assert query is not None
        execution: Any = query._jsq.streamingQuery()
        clock = runner.pause._clock = HeldClock()
        runner.pause.begin_batch()
        assert execution.pollingDelayMs() == 100
        clock.advance(100)
        eventually(lambda: execution.pollingDelayMs() == 1000, "the pause has grown", job)
        (data / "1.json").write_text('{"n": 1}\n')
        eventually(lambda: stage(job, "rows").rows_in_total == 1, "the row has come", job)
        assert execution.pollingDelayMs() == 100
    finally:
        job.stop()
