"""Restores on real Spark: back in place, as a fork, after a move; then on, as if nothing had been."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.jobs import check_checkpoints
from tests.spark.ledger_data import expected_balances, write_transfers
from tests.spark.restoring import await_postings, balances_of, ledger, postings_of, start

pytestmark = pytest.mark.spark


def test_a_rollback_takes_channels_and_tables_back_to_the_checkpoint_and_goes_on_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=50)
    job = start(ledger(data), tmp_path, spark)
    await_postings(job, tmp_path, 100)
    checkpoint = job.checkpoint(120)
    before = postings_of(tmp_path), balances_of(tmp_path)
    write_transfers(data, files=4, rows=50)
    await_postings(job, tmp_path, 200)
    newer = job.checkpoint(120)
    job.stop()
    late = [data / f"{n:05d}.parquet" for n in (2, 3)]
    for path in late:  # so that the restored job stands still at the cut
        path.rename(path.with_suffix(".away"))

    job = start(ledger(data), tmp_path, spark, snapshot=f"ledger/{checkpoint}")
    assert (postings_of(tmp_path), balances_of(tmp_path)) == before
    assert job.home.memory.timeline == 2
    assert job.home.memory.restoring is None
    for path in late:
        path.with_suffix(".away").rename(path)
    await_postings(job, tmp_path, 200)
    assert job.checkpoint(120) > newer
    job.stop()
    assert balances_of(tmp_path) == expected_balances(data)
    assert len(check_checkpoints(job)) == 3
