"""A cut between a stage's last rows and the batch without rows that they make due loses nothing.

In every job here each stage reads all its rows in one batch. The last of them is a day later than the others, so
another batch, without rows, is due: it closes windows, fires timers, gives up on partners. The cut falls between them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import strobe
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.stage_files import channel_positions, stage_checkpoint
from strobe.hosts.spark.stage import due_batch
from strobe.hosts.spark.stage.due_batch import Waits
from strobe.model.ids import NodeId
from strobe.store.locate import locate
from tests.support.spark.jobs import PATIENCE, eventually, finish, stage
from tests.support.spark.ledger_data import delta_rows
from tests.support.spark.restoring import start

pytestmark = pytest.mark.spark

DDL = "id BIGINT, key STRING, ts TIMESTAMP"
Query = Callable[[DataFrame], DataFrame]


def write_events(directory: Path) -> Path:
    directory.mkdir()
    rows = [(1, "a", "2031-05-17 09:00:01"), (2, "b", "2031-05-17 09:00:02"), (3, "a", "2031-05-17 09:00:03")]
    _write(directory / "0.json", [*rows, (4, "a", "2031-05-18 09:00:00"), (5, "b", "2031-05-18 09:00:00")])
    return directory


def _write(path: Path, rows: list[tuple[int, str, str]]) -> None:
    path.write_text("\n".join(json.dumps({"id": i, "key": key, "ts": f"{ts}Z"}) for i, key, ts in rows))


def read_events(spark: SparkSession, data: Path) -> DataFrame:
    return spark.readStream.schema(DDL).json(str(data))


# ── queries that wait for event time ────────────────────────────────────────────────────────────────────────────────


def windows(events: DataFrame) -> DataFrame:
    counted = events.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "10 seconds").alias("w"), "key").count()
    return counted.select(F.col("w.start").alias("start"), "key", "count")


def sessions(events: DataFrame) -> DataFrame:
    timed = events.withWatermark("ts", "0 seconds").groupBy(F.session_window("ts", "5 seconds").alias("w"), "key")
    return timed.count().select(F.col("w.start").alias("start"), "key", "count")


def windows_of_windows(events: DataFrame) -> DataFrame:
    """Two operators with state in one query."""
    timed = events.withWatermark("ts", "0 seconds")
    seconds = timed.groupBy(F.window("ts", "10 seconds"), "key").agg(F.count("*").alias("rows"))
    minutes = seconds.groupBy(F.window(F.window_time("window"), "1 minute").alias("w")).agg(F.sum("rows").alias("rows"))
    return minutes.select(F.col("w.start").alias("start"), "rows")


def lately(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["key"]).select("id", "key")


def alone(events: DataFrame) -> DataFrame:
    """Rows of `a` without a partner of `b` within ten seconds: known when those are over. Two watermarks."""
    left = events.where("key = 'a'").withWatermark("ts", "0 seconds")
    right = events.where("key = 'b'").selectExpr("id as other", "'a' as of", "ts as at")
    near = F.expr("key = of and at between ts + interval 1 minute and ts + interval 2 minutes")
    return left.join(right.withWatermark("at", "1 second"), near, "leftOuter").select("id", "other")


class Alarm(StatefulProcessor):
    """Rings ten seconds after each row, in event time."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for ts in frame["ts"]:
                self.handle.registerTimer(int(ts.timestamp() * 1000) + 10_000)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"key": [key[0]], "at": [expiredTimerInfo.getExpiryTimeInMs()]})

    def close(self) -> None:
        pass


def alarms(events: DataFrame) -> DataFrame:
    timed = events.withWatermark("ts", "0 seconds").groupBy("key")
    return timed.transformWithStateInPandas(Alarm(), "key STRING, at BIGINT", "Append", "EventTime")


def expire(key: Any, rows: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        yield pd.DataFrame({"key": [key[0]], "n": [state.get[0]]})
        state.remove()
        return
    times = sorted(int(ts.timestamp() * 1000) for frame in rows for ts in frame["ts"])
    state.update((len(times),))
    state.setTimeoutTimestamp(times[0] + 10_000)


def timeouts(events: DataFrame) -> DataFrame:
    timed = events.withWatermark("ts", "0 seconds").groupBy("key")
    return timed.applyInPandasWithState(
        expire, "key STRING, n BIGINT", "n BIGINT", "append", GroupStateTimeout.EventTimeTimeout
    )


# What each gives in its batches, in the end.
QUERIES: dict[str, tuple[Query, int]] = {
    "windows": (windows, 2),
    "sessions": (sessions, 2),
    "windows_of_windows": (windows_of_windows, 1),
    "lately": (lately, 2),
    "alone": (alone, 2),
    "alarms": (alarms, 3),
    "timeouts": (timeouts, 2),
}
OWN: dict[str, tuple[Query, int]] = {"own_windows": (windows, 2), "own_alone": (alone, 2)}
EXPECTED = {uid: rows for uid, (_, rows) in {**QUERIES, **OWN}.items()}
CANNOT_BE_RESCALED = "timeouts"


class Hold:
    """Keeps every stage in the batch that brings its rows until it is let go, so that a snapshot falls right behind it.
    A stage that reads a channel may have had a batch before: its first, when there was nothing yet."""

    def __init__(self) -> None:
        self.job: Future[strobe.Job] = Future()
        self.free = threading.Event()
        self.held: dict[str, int] = {}

    def sink(self, uid: str) -> strobe.ForeachBatchSink:
        def hold(batch: DataFrame, batch_id: int) -> None:
            if self.free.is_set():
                return
            agent = self.job.result(PATIENCE).runners[NodeId(uid)].agent
            positions = channel_positions(agent.checkpoint, batch_id, agent.inputs)
            read = [commit for c, log in agent.inputs.items() for commit in log.commits(0, positions[c])]
            if not agent.inputs or any(commit.files for commit in read):
                self.held.setdefault(uid, batch_id)
                self.free.wait(PATIENCE)

        return strobe.ForeachBatchSink(hold)


def operators(data: Path, hold: Hold | None = None) -> strobe.Pipeline:
    """Each query as a stage that reads a channel, and two that read files themselves."""
    # Aligned checkpoints fall behind the batch in which they find a stage.
    config = strobe.CheckpointConfig(interval=None, retained=100, mode="aligned")
    pipeline = strobe.Pipeline("due", checkpoint=config)
    bounded = {"availableNow": True}

    @pipeline.stage(uid="events", trigger=bounded)
    def events(spark: SparkSession) -> DataFrame:
        return read_events(spark, data)

    def sinks(uid: str) -> list[Any]:
        return [strobe.DeltaSink(uid), *([hold.sink(uid)] if hold else ())]

    def own(query: Query) -> Callable[[SparkSession], DataFrame]:
        return lambda spark: query(read_events(spark, data))

    for uid, (query, _) in QUERIES.items():
        pipeline.stage(uid=uid, reads="events", to=sinks(uid))(query)
    for uid, (query, _) in OWN.items():
        pipeline.stage(uid=uid, trigger=bounded, to=sinks(uid))(own(query))
    return pipeline


def tables(root: Path) -> dict[str, list[tuple[Any, ...]]]:
    return {uid: sorted(delta_rows(root / uid, "select * from t"), key=str) for uid in EXPECTED}


def batches(job: strobe.Job) -> dict[str, int]:
    return {uid: stage(job, uid).batch for uid in EXPECTED}


def held(data: Path, root: Path, spark: SparkSession) -> tuple[strobe.Job, Hold]:
    hold = Hold()
    job = start(operators(data, hold), root, spark)
    hold.job.set_result(job)
    eventually(lambda: hold.held.keys() == EXPECTED.keys(), "every stage has its rows", job)
    return job, hold


@dataclass(frozen=True)
class Undisturbed:
    """A job that took a checkpoint at the cut, and went on to its end."""

    root: Path
    checkpoint: str
    tables: dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    root = tmp_path_factory.mktemp("undisturbed")
    job, hold = held(write_events(root / "in"), root, spark)
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(job.checkpoint)
        eventually(lambda: bool(job.status().checkpoints), "the snapshot is under way", job)
        hold.free.set()
        checkpoint = locate(f"due/{taking.result(PATIENCE)}", root / "home")
    finish(job)
    assert batches(job) == {uid: batch + 1 for uid, batch in hold.held.items()}, "one more, without rows"
    assert {uid: checkpoint.load().nodes[NodeId(uid)].batch for uid in EXPECTED} == hold.held
    rows = tables(root)
    assert {uid: len(found) for uid, found in rows.items()} == EXPECTED
    return Undisturbed(root, str(checkpoint.where), rows)


def test_a_fork_runs_the_batch_that_was_due_with_another_number_of_partitions(
    spark: SparkSession, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    wanted = {uid: 3 for uid in EXPECTED if uid != CANNOT_BE_RESCALED}
    pipeline = operators(undisturbed.root / "in")
    tables_of = (str(undisturbed.root),)
    finish(
        start(pipeline, tmp_path, spark, snapshot=undisturbed.checkpoint, stage_partitions=wanted, sinks_from=tables_of)
    )
    assert tables(tmp_path) == undisturbed.tables


def test_without_it_rows_are_missing_and_a_resume_behind_the_cut_brings_them(
    spark: SparkSession, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = operators(undisturbed.root / "in")
    with monkeypatch.context() as patch:
        patch.setattr(due_batch, "settle", lambda *args: None)
        finish(start(pipeline, undisturbed.root, spark, snapshot=undisturbed.checkpoint))
    found = tables(undisturbed.root)
    assert {uid for uid in EXPECTED if len(found[uid]) < EXPECTED[uid]} == EXPECTED.keys() - {"lately"}
    job = start(pipeline, undisturbed.root, spark)
    finish(job)
    assert tables(undisturbed.root) == undisturbed.tables


# ── operators that wait for the clock ───────────────────────────────────────────────────────────────────────────────


class Reminder(StatefulProcessor):
    """A moment after the first row of a key it is named once, whether rows come or not."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"key": [key[0]]})

    def close(self) -> None:
        pass


def reminders(events: DataFrame) -> DataFrame:
    return events.groupBy("key").transformWithStateInPandas(Reminder(), "key STRING", "Append", "ProcessingTime")


def test_timers_of_the_clock_fire_after_a_resume_without_new_rows(spark: SparkSession, tmp_path: Path) -> None:
    data, hold = write_events(tmp_path / "in"), Hold()

    def pipeline() -> strobe.Pipeline:
        made = strobe.Pipeline("clock", checkpoint=strobe.CheckpointConfig(interval=None))
        sinks = [strobe.DeltaSink("reminders"), hold.sink("reminders")]
        made.stage(uid="reminders", to=sinks)(lambda spark: reminders(read_events(spark, data)))
        return made

    job = start(pipeline(), tmp_path, spark)
    hold.job.set_result(job)
    eventually(lambda: bool(hold.held), "the rows are there", job)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(job.stop)
        eventually(lambda: job.runners[NodeId("reminders")].agent.halting, "the stage is to stop")
        hold.free.set()
        stopping.result(PATIENCE)
    checkpoint = stage_checkpoint(job.home, NodeId("reminders"))
    assert spark_checkpoint.last_committed(checkpoint) == 0
    (checkpoint / "offsets/1").unlink(missing_ok=True)  # as if it had died right behind the rows
    again = start(pipeline(), tmp_path, spark)
    try:
        eventually(lambda: len(delta_rows(tmp_path / "reminders", "select * from t")) == 2, "both are named", again)
    finally:
        again.stop()


# ── the rule ────────────────────────────────────────────────────────────────────────────────────────────────────────


def totals(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "10 seconds")).count()


def counts(events: DataFrame) -> DataFrame:
    return events.groupBy("key").count()


def counts_in_sql(events: DataFrame) -> DataFrame:
    events.withWatermark("ts", "0 seconds").createOrReplaceTempView("due_events")
    return events.sparkSession.sql("select distinct key, ts from due_events")


def passing(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "0 seconds").where("id > 1")


def totals_in_batches(events: DataFrame) -> DataFrame:
    """Joined with a table that does not stream."""
    table = events.sparkSession.range(3).withColumnRenamed("id", "n")
    return events.withWatermark("ts", "0 seconds").join(table, F.expr("id = n"))


def patience(events: DataFrame) -> DataFrame:
    return events.groupBy("key").applyInPandasWithState(
        expire, "key STRING, n BIGINT", "n BIGINT", "append", GroupStateTimeout.ProcessingTimeTimeout
    )


@pytest.mark.parametrize(
    ("query", "mode", "waits"),
    [
        *((query, "append", Waits(watermark=True)) for query, _ in QUERIES.values()),
        (totals, "update", Waits(watermark=True)),
        (totals, "complete", Waits()),
        (counts, "update", Waits()),
        (counts_in_sql, "append", Waits(watermark=True)),
        (passing, "append", Waits()),
        (totals_in_batches, "append", Waits()),
        (reminders, "append", Waits(clock=True)),
        (patience, "append", Waits(clock=True)),
    ],
)
def test_what_a_query_waits_for_besides_rows(
    spark: SparkSession, tmp_path: Path, query: Query, mode: str, waits: Waits
) -> None:
    (tmp_path / "in").mkdir()
    assert due_batch.waits_of(query(read_events(spark, tmp_path / "in")), mode) == waits
