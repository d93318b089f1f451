"""Stop with --drain: every row runs through, every window closes; and a job that goes on all the same loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint import final_batch as last_batch
from strobe.hosts.spark.checkpoint.stage_files import stage_checkpoint
from strobe.hosts.spark.job.job import start_job
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from tests.hosts.spark.snapshot.test_savepoint import sound
from tests.support.spark.jobs import eventually, full_store, stage
from tests.support.spark.ledger_data import delta_rows, read_transfers, write_transfers
from tests.support.spark.orders import windows, windows_in

pytestmark = pytest.mark.spark
Start = Callable[[], strobe.Job]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    """Windows of ten seconds, of those windows of a minute, and beside them a join: all of them wait for event time."""
    jobs: list[strobe.Job] = []

    def run() -> strobe.Job:
        pipeline = strobe.Pipeline("timed", checkpoint=strobe.CheckpointConfig(interval=0.5, tolerable_failures=1000))

        @pipeline.stage(uid="transfers")
        def transfers(spark: SparkSession) -> DataFrame:
            return read_transfers(spark, tmp_path / "in")

        @pipeline.stage(uid="seconds", reads="transfers", to=strobe.DeltaSink("out/seconds"))
        def seconds(transfers: DataFrame) -> DataFrame:
            timed = transfers.withWatermark("ts", "5 seconds")
            counted = timed.groupBy(F.window("ts", "10 seconds").alias("w")).agg(F.count("*").alias("rows"))
            return counted.select(F.col("w.start").alias("start"), "rows")

        @pipeline.stage(uid="minutes", reads="seconds", to=strobe.DeltaSink("out/minutes"))
        def minutes(seconds: DataFrame) -> DataFrame:
            timed = seconds.withWatermark("start", "0 seconds")
            counted = timed.groupBy(F.window("start", "1 minute").alias("w")).agg(F.sum("rows").alias("rows"))
            return counted.select(F.col("w.start").alias("start"), "rows")

        @pipeline.stage(uid="silent", reads="transfers", to=strobe.DeltaSink("out/silent"))
        def silent(transfers: DataFrame) -> DataFrame:
            """Accounts that sent something and got nothing within ten seconds: known only when those are over."""
            timed = transfers.withWatermark("ts", "0 seconds")
            sent = timed.select(F.col("id").alias("sent"), "src", F.col("ts").alias("at"))
            got = timed.select("dst", F.col("ts").alias("then"))
            near = F.expr("src = dst and then between at and at + interval 10 seconds")
            return sent.join(got, near, "leftOuter").select("sent", "then")

        job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
        jobs.append(job)
        return job

    yield run
    for job in jobs:
        job.stop()


def ran(job: strobe.Job, files: int) -> None:
    eventually(lambda: stage(job, "transfers").batch == files - 1, "the source has read everything", job)


def watermarks(job: strobe.Job) -> list[int]:
    found = []
    for uid in ("seconds", "minutes", "silent"):
        checkpoint = stage_checkpoint(job.home, NodeId(uid))
        batch = spark_checkpoint.last_committed(checkpoint)
        assert batch is not None
        found.append(spark_checkpoint.read_offsets(checkpoint, batch).watermark_ms)
    return found


def test_after_a_drain_every_window_is_in_its_table_and_a_later_run_goes_on(start: Start, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=3, rows=40)
    job = start()
    ran(job, 3)
    path = job.stop_with_savepoint(tmp_path / "one", drain=True)
    assert job.wait(60)
    assert job.state is strobe.JobState.STOPPED
    assert sound(path).rows_in_flight == 0
    truth = windows(data)
    assert windows_in(tmp_path / "out/seconds") == truth
    assert delta_rows(tmp_path / "out/minutes", "select sum(rows)::BIGINT from t") == [(120,)]
    assert delta_rows(tmp_path / "out/silent", "select count(distinct sent) from t") == [(120,)]
    assert all(mark < last_batch.END_OF_TIME for mark in watermarks(job)), "the end of time would make all rows late"

    write_transfers(tmp_path / "in", files=5, rows=40)
    again = start()
    ran(again, 5)
    again.stop_with_savepoint(tmp_path / "two", drain=True)
    truth = windows(data)
    assert windows_in(tmp_path / "out/seconds") == truth, "a row was late, or came twice"
    assert delta_rows(tmp_path / "out/minutes", "select sum(rows)::BIGINT from t") == [(200,)]


def test_a_drain_whose_savepoint_fails_leaves_the_job_running(start: Start, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=40)
    job = start()
    ran(job, 2)
    with full_store(), pytest.raises(Failed, match="No space left"):
        job.stop_with_savepoint(tmp_path / "there", drain=True)
    assert job.state is strobe.JobState.RUNNING
    write_transfers(tmp_path / "in", files=4, rows=40)
    ran(job, 4)
    job.stop_with_savepoint(tmp_path / "there", drain=True)
    truth = windows(data)
    assert windows_in(tmp_path / "out/seconds") == truth
