"""A whole job whose checkpoints are in a bucket: through failures of the store, a restart, retention and a rollback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.model.errors import Failed, Misuse
from strobe.store.locate import locate
from tests.s3_server import FaultyProxy, refuse, reset
from tests.spark.jobs import check_checkpoints
from tests.spark.ledger_data import expected_balances, write_transfers
from tests.spark.restoring import await_postings, balances_of, ledger, postings_of, start

pytestmark = pytest.mark.spark


@pytest.fixture
def proxy(s3_url: str, s3_server_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(s3_server_endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    yield proxy
    proxy.close()


def in_bucket(data: Path, url: str, **settings: object) -> strobe.Pipeline:
    pipeline = ledger(data)
    pipeline.checkpoint = replace(pipeline.checkpoint, store=url, **settings)  # type: ignore[arg-type]
    return pipeline


def is_blob(method: str, path: str) -> bool:
    return method == "PUT" and "/blobs/" in path


def is_manifest(method: str, path: str) -> bool:
    return method == "PUT" and "/manifest.json" in path


def test_a_job_with_its_checkpoints_in_a_bucket_outlives_the_bucket_and_comes_back_from_it(
    spark: SparkSession, tmp_path: Path, s3_url: str, proxy: FaultyProxy
) -> None:
    data, home = write_transfers(tmp_path / "in", files=2, rows=50), tmp_path / "home"
    job = start(in_bucket(data, s3_url), tmp_path, spark)
    await_postings(job, tmp_path, 100)
    first = job.checkpoint(120)
    before = postings_of(tmp_path), balances_of(tmp_path)

    write_transfers(data, files=3, rows=50)
    await_postings(job, tmp_path, 150)
    proxy.fault = refuse(403, "AccessDenied", is_blob)
    with pytest.raises(Failed, match="403 AccessDenied"):
        job.checkpoint(120)
    proxy.fault = reset(is_manifest)
    with pytest.raises(Failed, match="did not answer"):
        job.checkpoint(120)
    proxy.fault = None
    assert job.store.list() == (first,)
    second = job.checkpoint(120)
    job.stop()

    job = start(in_bucket(data, s3_url, retained=1, retained_age=3600.0), tmp_path, spark)
    third = job.checkpoint(120)
    assert job.store.list() == (first, second, third), "they are younger than the age"
    check_checkpoints(job)
    assert not (home / "jobs/ledger/blobs").exists()
    job.stop()
    assert locate("ledger", home).where == f"{s3_url}/jobs/ledger/snapshots/chk-{third:06d}"

    (data / "00002.parquet").rename(tmp_path / "away")
    job = start(in_bucket(data, s3_url, retained=1), tmp_path, spark, snapshot=f"ledger/{first}")
    assert (postings_of(tmp_path), balances_of(tmp_path)) == before
    (tmp_path / "away").rename(data / "00002.parquet")
    await_postings(job, tmp_path, 150)
    last = job.checkpoint(120)
    assert job.store.list() == (first, last), "only the one that was restored and the newest are kept"
    job.stop()
    assert balances_of(tmp_path) == expected_balances(data)


def test_a_bucket_that_is_not_there_stops_the_start_and_says_so(
    spark: SparkSession, tmp_path: Path, s3_url: str
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=5)
    with pytest.raises(Misuse, match="no bucket 'no-such-bucket'"):
        start(in_bucket(data, "s3://no-such-bucket/x"), tmp_path, spark)
