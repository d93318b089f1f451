"""What is seen of a real job: each batch once, late rows, the watermark, files that wait; and who is told of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.job.observer import BatchDone, Event, SnapshotEnded
from tests.support.spark.jobs import finish

pytestmark = pytest.mark.slow


def put(directory: Path, number: int, *times: str) -> None:
    """Files are read in the order of their times."""
    directory.mkdir(exist_ok=True)
    file = directory / f"{number}.json"
    file.write_text("".join(json.dumps({"at": at, "n": 1}) + "\n" for at in times))
    os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))


def test_batches_late_rows_watermark_and_backlog_are_those_of_the_job(tmp_path: Path, spark: SparkSession) -> None:
    data = tmp_path / "in"
    put(data, 1, "2024-01-01T00:00:01Z", "2024-01-01T00:00:02Z")
    put(data, 2, "2024-01-02T00:00:00Z")
    put(data, 3, "2024-01-02T00:00:01Z")  # rows are late by the watermark of the batch before
    put(data, 4, "2024-01-01T00:00:05Z", "2024-01-01T00:01:05Z", "2024-01-02T00:00:02Z")  # two are a day late
    (data / "_unfinished").touch()
    pipeline = strobe.Pipeline("late", checkpoint=strobe.CheckpointConfig(interval=None))

    @pipeline.stage(uid="counts", trigger={"availableNow": True}, to=strobe.DeltaSink(str(tmp_path / "out")))
    def counts(spark: SparkSession) -> DataFrame:
        rows = spark.readStream.schema("at TIMESTAMP, n LONG").option("maxFilesPerTrigger", 1).json(str(data))
        return rows.withWatermark("at", "10 seconds").groupBy(F.window("at", "1 minute")).agg(F.sum("n").alias("n"))

    events: list[Event] = []
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    job.observer.subscribe(events.append)
    finish(job)

    (stage,) = job.status().stages
    assert stage.rows_in_total == 7
    assert stage.late_rows == 2
    assert stage.watermark == "2024-01-01T23:59:52.000Z"
    assert stage.backlog is not None
    assert (stage.backlog.files, stage.backlog.rows) == (0, None)
    assert stage.state_store is not None
    assert stage.busy is not None
    batches = [e.report for e in events if isinstance(e, BatchDone)]
    assert len(batches) == stage.batches
    assert sum(b.rows for b in batches) == 7
    assert [b.batch for b in batches] == list(range(len(batches))), "each once, in order"
    (ended,) = (e for e in events if isinstance(e, SnapshotEnded))
    assert ended.progress.status == "complete"
    assert set(ended.parts) == {"counts"}
    (sink,) = job.status().sinks
    assert (sink.sink, sink.rows, sink.delivery) == ("counts/0", stage.rows_out, "on_batch")


def test_who_fails_while_being_told_disturbs_nobody(tmp_path: Path, spark: SparkSession) -> None:
    data = tmp_path / "in"
    put(data, 1, "2024-01-01T00:00:01Z")
    pipeline = strobe.Pipeline("told", checkpoint=strobe.CheckpointConfig(interval=None))

    @pipeline.stage(uid="rows", trigger={"availableNow": True}, to=strobe.DeltaSink(str(tmp_path / "out")))
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("at TIMESTAMP, n LONG").json(str(data))

    told: list[Event] = []

    def fail(event: Event) -> None:
        raise RuntimeError("not today")

    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    job.observer.subscribe(fail)
    job.observer.subscribe(told.append)
    finish(job)
    assert [type(e) for e in told] == [BatchDone, SnapshotEnded]
