"""Whole pipelines on real Spark, against what DuckDB computes from the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.store.consistency import check_manifest
from tests.support.spark.ledger_data import delta_rows, expected_balances, read_transfers, write_transfers

pytestmark = pytest.mark.spark


def ledger(data: Path, **options: object) -> strobe.Pipeline:
    """transfers → postings → balances, over a bounded source."""
    config = strobe.CheckpointConfig(**{"interval": 0.5, "retained": 3, **options})  # type: ignore[arg-type]
    pipeline = strobe.Pipeline("ledger", checkpoint=config)

    @pipeline.stage(uid="transfers", trigger={"availableNow": True})
    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(uid="postings", reads="transfers", to=strobe.DeltaSink("out/postings"))
    def postings(transfers: DataFrame) -> DataFrame:
        debit = transfers.select("id", F.col("src").alias("account"), (-F.col("amount")).alias("delta"))
        return debit.union(transfers.select("id", F.col("dst").alias("account"), F.col("amount").alias("delta")))

    @pipeline.stage(
        uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink("out/balances", key="account")
    )
    def balances(postings: DataFrame) -> DataFrame:
        return postings.groupBy("account").agg(F.sum("delta").alias("balance"))

    return pipeline


@pytest.mark.parametrize("mode", ["aligned", "unaligned", "aligned-with-timeout"])
def test_a_bounded_ledger_ends_by_itself_with_the_right_answer(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    data = write_transfers(tmp_path / "in")
    job = start_job(ledger(data, mode=mode), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    assert job.wait(120), job.status()
    assert job.state is strobe.JobState.FINISHED, job.error
    balances = delta_rows(tmp_path / "out/balances", "select account, balance::BIGINT from t order by 1")
    assert balances == expected_balances(data)
    assert (
        delta_rows(tmp_path / "out/postings", "select count(*), count(distinct (id, account, delta)) from t")[0][0]
        == 2400
    )
    status = job.status()
    assert status.completed >= 1
    assert status.failed == 0, status.checkpoints
    manifests = [job.store.load(s) for s in job.store.list()]
    assert all(check_manifest(m) == () for m in manifests)
    assert all(job.store.verify(m.snapshot) == () for m in manifests)
