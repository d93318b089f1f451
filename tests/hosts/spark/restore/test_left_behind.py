"""A stage that reads another channel than before: rows that wait for it in the old one are not lost without a word."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.rehearse import dry_resume, dry_run
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Misuse
from tests.hosts.spark.restore.test_restore_operators import Hold
from tests.support.spark.jobs import PATIENCE, Overtaking, eventually, finish, stage
from tests.support.spark.ledger_data import delta_rows, read_transfers, write_transfers
from tests.support.spark.restoring import BOUNDED, start

pytestmark = pytest.mark.spark

CONFIG = Overtaking(interval=None, retained=100, mode="unaligned", tolerable_failures=100)


def by_rest(rows: DataFrame, divisor: int) -> DataFrame:
    return rows.groupBy((F.col("id") % divisor).alias("k")).agg(F.count("*").alias("n"))


def count(data: Path, sink: strobe.Sink, *, split: bool = False) -> strobe.Pipeline:
    """transfers → counts, or with a stage between them."""
    pipeline = strobe.Pipeline("count", checkpoint=CONFIG, restart=strobe.RestartPolicy(attempts=0), chain=False)
    pipeline.stage("transfers", trigger=BOUNDED)(lambda spark: read_transfers(spark, data))
    if split:
        pipeline.stage("shaped", reads="transfers")(lambda transfers: transfers.where("id is not null"))

    counts = pipeline.stage(
        "counts",
        reads="shaped" if split else "transfers",
        output_mode="update",
        max_rows_per_batch=1,
        to=[strobe.DeltaSink("counts", key="k"), sink],
    )
    counts((lambda shaped: by_rest(shaped, 3)) if split else (lambda transfers: by_rest(transfers, 3)))
    return pipeline


def counted(root: Path) -> int:
    return int(delta_rows(root / "counts", "select sum(n) from t")[0][0])


def failing(batch: DataFrame, batch_id: int) -> None:
    if not batch.isEmpty():
        raise ValueError("it cannot be written")


def passing(batch: DataFrame, batch_id: int) -> None: ...


def test_a_resume_that_would_leave_rows_behind_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=30)
    job = start(count(data, strobe.ForeachBatchSink(failing)), tmp_path, spark)
    assert job.wait(PATIENCE)
    assert job.state is strobe.JobState.FAILED

    works = strobe.ForeachBatchSink(passing)
    home = str(tmp_path / "home")
    look = dry_resume(count(data, works, split=True), restore=RestoreOptions(), home=home, base=tmp_path, spark=spark)
    assert "rows in channel 'transfers', which it no longer reads, wait for it" in look.problems[0].what
    with pytest.raises(Misuse, match="wait for it, and would be lost"):
        start(count(data, works, split=True), tmp_path, spark)
    dropping = RestoreOptions(allow_non_restored_state=True)
    look = dry_resume(count(data, works, split=True), restore=dropping, home=home, base=tmp_path, spark=spark)
    assert not look.problems
    assert any("and are dropped" in warning for warning in look.warnings)

    finish(start(count(data, works), tmp_path, spark))  # the file as it was reads them
    write_transfers(data, files=3, rows=30)
    finish(start(count(data, works, split=True), tmp_path, spark))
    assert counted(tmp_path) == 90


def test_a_restore_that_would_leave_rows_behind_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=3, rows=30)
    hold = Hold(0)
    job = start(count(data, hold.sink("counts")), tmp_path, spark)
    eventually(lambda: hold.held == {"counts": 0} and stage(job, "transfers").batch == 2, "rows wait", job)
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(job.checkpoint, PATIENCE)
        eventually(lambda: bool(job.status().checkpoints), "the checkpoint is under way", job)
        hold.raise_to(1)
        snapshot = taking.result(PATIENCE)
    hold.raise_to(1000)
    finish(job)

    def look(*, dropping: bool) -> tuple[list[str], list[str]]:
        changed = count(data, strobe.ForeachBatchSink(passing), split=True)
        asked = RestoreOptions(snapshot=f"count/{snapshot}", allow_non_restored_state=dropping)
        plan = dry_run(changed, restore=asked, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
        return [p.what for p in plan.problems], list(plan.warnings)

    problems, _ = look(dropping=False)
    assert any("rows in channel 'transfers', which it no longer reads, wait for it" in what for what in problems)
    problems, warnings = look(dropping=True)
    assert not problems
    assert any("and are dropped" in warning for warning in warnings)
