"""A job that signs what it takes, from `sign_with` to `run -s --signed-by`: restored by who trusts the key, refused by
who trusts another one, before anything is claimed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.model.errors import Damaged
from strobe.store.locate import locate
from strobe.store.signing import SIGNED_BY
from tests.support.keys import key_pair
from tests.support.spark.jobs import finish
from tests.support.spark.ledger_data import write_transfers
from tests.support.spark.restoring import ledger, postings_of, start

pytestmark = pytest.mark.spark
ROWS = 30


def test_a_savepoint_of_a_job_that_signs_is_restored_by_who_trusts_its_key_and_by_nobody_else(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (private, public), (_, other) = key_pair(tmp_path, "ours"), key_pair(tmp_path, "theirs")
    data = write_transfers(tmp_path / "in", files=1, rows=ROWS)

    def signing(*, bounded: bool) -> strobe.Pipeline:
        pipeline = ledger(data, bounded=bounded)
        pipeline.checkpoint = replace(pipeline.checkpoint, sign_with=private)
        return pipeline

    job = start(signing(bounded=False), tmp_path, spark)
    try:
        checkpoint = job.checkpoint(300)
        savepoint = job.stop_with_savepoint()
    finally:
        job.stop()
    assert locate(f"ledger/{checkpoint}", tmp_path / "home", signed_by=public).snapshot == checkpoint

    fork = signing(bounded=True).renamed("fork")
    with pytest.raises(Damaged, match="signed"):
        start(fork, tmp_path, spark, base="second", snapshot=savepoint, signed_by=other)
    monkeypatch.setenv(SIGNED_BY, other)
    with pytest.raises(Damaged, match="signed"):
        start(fork, tmp_path, spark, base="second", snapshot=savepoint)
    assert not (tmp_path / "home/jobs/fork").exists(), "nothing was claimed"

    job = start(fork, tmp_path, spark, base="second", snapshot=savepoint, signed_by=public)
    try:
        finish(job)
    finally:
        job.stop()
    assert len(postings_of(tmp_path / "second")) == 2 * ROWS
