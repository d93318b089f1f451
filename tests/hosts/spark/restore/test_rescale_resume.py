"""A job that died before anything of its last batch was seen is resumed with another number of partitions at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.stage_files import stage_checkpoint
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from tests.corpus.jobs import dying_at
from tests.support.spark.jobs import PATIENCE, eventually
from tests.support.spark.ledger_data import delta_rows

COUNTS = NodeId("counts")


def counting(root: Path) -> strobe.Pipeline:
    config = strobe.CheckpointConfig(interval=None)
    pipeline = strobe.Pipeline("counting", checkpoint=config, restart=strobe.RestartPolicy(attempts=0))

    seen = strobe.FileSink("seen", format="json", delivery="on_snapshot")

    @pipeline.stage(uid="counts", output_mode="update", to=seen)
    def counts(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("who STRING").json(str(root / "in")).groupBy("who").count()

    @pipeline.stage(uid="out", reads="counts", to=strobe.DeltaSink("counts", key="who"))
    def out(counts: DataFrame) -> DataFrame:
        return counts

    return pipeline


def put(root: Path, number: int, who: str) -> None:
    hidden = root / "in" / f".{number}"
    hidden.write_text(json.dumps({"who": who}))
    hidden.rename(root / "in" / f"{number}.json")


def start(root: Path, spark: SparkSession, partitions: int) -> strobe.Job:
    options = RestoreOptions(partitions=partitions)
    return start_job(counting(root), home=str(root / "home"), base=root, spark=spark, restore=options)


def counts_in(root: Path) -> dict[str, int]:
    there = (root / "counts/_delta_log").is_dir()
    return dict(delta_rows(root / "counts", "select who, count::BIGINT from t")) if there else {}


def killed_at(point: str, root: Path, spark: SparkSession, *, first: bool = False) -> None:
    """It has counted one row, and dies in the batch with the next. Or it dies in its first batch."""
    (root / "in").mkdir()
    with dying_at(point, 1 if first else 2) as died:
        job = start(root, spark, 2)
        try:
            put(root, 1, "ann")
            if not first:
                eventually(lambda: counts_in(root) == {"ann": 1}, "the first row is counted", job)
                put(root, 2, "bob")
            assert job.wait(PATIENCE)
        finally:
            job.stop()
    assert died == [f"{point} of counts"]


@pytest.mark.spark
@pytest.mark.parametrize("first", [False, True], ids=["a later one", "the first"])
def test_a_batch_that_nobody_has_seen_is_planned_again(spark: SparkSession, tmp_path: Path, first: bool) -> None:
    killed_at("batch.computed", tmp_path, spark, first=first)
    put(tmp_path, 3, "ann")
    job = start(tmp_path, spark, 3)
    try:
        expected = {"ann": 2} if first else {"ann": 2, "bob": 1}
        eventually(lambda: counts_in(tmp_path) == expected, "nothing is lost or counted twice", job)
        checkpoint = stage_checkpoint(job.home, COUNTS)
        committed = spark_checkpoint.last_committed(checkpoint)
        assert committed is not None
        assert spark_checkpoint.read_offsets(checkpoint, committed).partitions == 3
    finally:
        job.stop()


@pytest.mark.spark
def test_a_batch_whose_rows_are_out_must_be_run_first(spark: SparkSession, tmp_path: Path) -> None:
    killed_at("batch.in-channel", tmp_path, spark)
    with pytest.raises(Misuse, match=r"'counts' cannot be rescaled now: it ended in the middle of a batch"):
        start(tmp_path, spark, 3)
    job = start(tmp_path, spark, 2)
    try:
        eventually(lambda: counts_in(tmp_path) == {"ann": 1, "bob": 1}, "the batch is run again", job)
    finally:
        job.stop()


@pytest.mark.spark
def test_a_sink_that_delivers_on_snapshot_goes_on_after_a_rescale(spark: SparkSession, tmp_path: Path) -> None:
    """The rescale is a batch that no query has run, and no sink has been given."""
    (tmp_path / "in").mkdir()
    job = start(tmp_path, spark, 2)
    try:
        put(tmp_path, 1, "ann")
        eventually(lambda: counts_in(tmp_path) == {"ann": 1}, "the first row is counted", job)
    finally:
        job.stop()
    job = start(tmp_path, spark, 3)
    try:
        job.checkpoint()
        put(tmp_path, 2, "bob")
        eventually(lambda: counts_in(tmp_path) == {"ann": 1, "bob": 1}, "it goes on", job)
        job.checkpoint()
        assert job._commits.settle(PATIENCE)
    finally:
        job.stop()
    files = (tmp_path / "seen").rglob("part-*.json")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted(row["who"] for row in rows) == ["ann", "bob"]
