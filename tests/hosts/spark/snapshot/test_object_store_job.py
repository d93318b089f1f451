"""A whole job and a bucket: its checkpoints there, through failures of the store, a restart, retention and a rollback;
and savepoints that go there, and are restored from there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.hosts.spark.snapshot.targets import mark_of
from strobe.model.errors import Failed, Misuse
from strobe.store.layout import BUCKET_SAVEPOINT_MARKER
from strobe.store.locate import locate
from strobe.store.s3 import S3Store
from tests.support.s3_server import FaultyProxy, refuse, reset
from tests.support.spark.jobs import check_checkpoints
from tests.support.spark.ledger_data import expected_balances, write_transfers
from tests.support.spark.orders import Place
from tests.support.spark.restoring import await_postings, balances_of, ledger, postings_of, start

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


def test_a_savepoint_in_a_bucket_brings_the_job_back_in_place_and_elsewhere(
    spark: SparkSession, tmp_path: Path, s3_url: str
) -> None:
    ask = Place(tmp_path).strobe
    data, place = write_transfers(tmp_path / "in", files=2, rows=50), f"{s3_url}/before"
    job = start(ledger(data), tmp_path, spark)
    await_postings(job, tmp_path, 100)
    before = postings_of(tmp_path), balances_of(tmp_path)
    done = json.loads(ask("savepoint", "ledger", place, "--json").stdout)
    assert done["path"] == place
    assert list(S3Store(place).list("")) == sorted({*S3Store(place).list("blobs/"), "manifest.json"})
    assert ask("verify", place, "--root", done["root"]).returncode == 0
    write_transfers(data, files=3, rows=50)
    await_postings(job, tmp_path, 150)
    stopped = ask("stop", "ledger", "--savepoint", f"{s3_url}/after")
    assert (stopped.returncode, f"strobe run -s {s3_url}/after FILE" in stopped.stdout) == (0, True)

    (data / "00002.parquet").rename(tmp_path / "away")
    job = start(ledger(data), tmp_path, spark, snapshot=place)
    assert (postings_of(tmp_path), balances_of(tmp_path)) == before
    (tmp_path / "away").rename(data / "00002.parquet")
    await_postings(job, tmp_path, 150)
    job.stop()
    assert balances_of(tmp_path) == expected_balances(data)

    write_transfers(data, files=4, rows=50)
    here = (str(tmp_path),)
    fork = start(
        ledger(data), tmp_path, spark, home="elsewhere", base="fork", snapshot=f"{s3_url}/after", sinks_from=here
    )
    await_postings(fork, tmp_path / "fork", 200)
    fork.stop()
    assert balances_of(tmp_path / "fork") == expected_balances(data)
    assert ask("dispose", place).returncode == 0
    assert list(S3Store(place).list("")) == []


def test_a_prefix_that_is_taken_is_refused_and_what_a_dead_savepoint_of_the_job_left_is_replaced(
    spark: SparkSession, tmp_path: Path, s3_url: str, proxy: FaultyProxy
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=20)
    job = start(ledger(data), tmp_path, spark)
    await_postings(job, tmp_path, 20)
    S3Store(f"{s3_url}/full").put("mine", b"")
    with pytest.raises(Misuse, match="full: it is not empty"):
        job.savepoint(f"{s3_url}/full")
    with pytest.raises(Misuse, match="no bucket 'no-such-bucket'"):
        job.savepoint("s3://no-such-bucket/x")
    S3Store(f"{s3_url}/busy").put(BUCKET_SAVEPOINT_MARKER, b'{"job": "another"}')
    with pytest.raises(Misuse, match="another job, or an earlier run of this one, is writing a savepoint there"):
        job.savepoint(f"{s3_url}/busy")

    there = S3Store(f"{s3_url}/there")
    proxy.fault = refuse(403, "AccessDenied", is_manifest)
    with pytest.raises(Failed, match="403 AccessDenied"):
        job.savepoint(there.url)
    assert list(there.list("")) == [], "one that fails leaves nothing"
    proxy.fault = None
    there.put(BUCKET_SAVEPOINT_MARKER, mark_of(job.home))  # as one leaves them that is killed
    there.put("strobe-check/ab", b"")
    there.put("blobs/ab/half", b"half")
    assert job.savepoint(there.url) == there.url
    assert not {BUCKET_SAVEPOINT_MARKER, "blobs/ab/half", "strobe-check/ab"} & set(there.list(""))
    with pytest.raises(Misuse, match="holds a snapshot already"):
        job.savepoint(there.url)
    with pytest.raises(Misuse, match="holds a snapshot already"):
        job.stop_with_savepoint(there.url, drain=True)
    assert not job.state.over
    job.stop()
    found = locate(there.url, tmp_path)
    assert found.store.verify(found.snapshot) == ()


def test_a_bucket_that_is_not_there_stops_the_start_and_says_so(
    spark: SparkSession, tmp_path: Path, s3_url: str
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=5)
    with pytest.raises(Misuse, match="no bucket 'no-such-bucket'"):
        start(in_bucket(data, "s3://no-such-bucket/x"), tmp_path, spark)


def test_who_asks_for_checkpoints_that_cannot_be_reached_is_told_why(tmp_path: Path, s3_url: str) -> None:
    ask = Place(tmp_path).strobe
    job = tmp_path / "home/jobs/ledger"
    job.mkdir(parents=True)
    (job / "store.json").write_text(json.dumps({"store": "s3://no-such-bucket/x", "owner": "ab"}))
    asked = ask("checkpoints", "ledger")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "no bucket 'no-such-bucket'" in asked.stderr
    assert "unknown: their store cannot be asked" in ask("status", "ledger").stdout
    assert "unknown: their store cannot be asked" in ask("list").stdout
    assert json.loads(ask("list", "--json").stdout)[0]["checkpoints"] is None
