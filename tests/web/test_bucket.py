"""Checkpoints in a bucket, on the page: of a job whose home notes the bucket, and of the bucket alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from strobe.model.errors import Misuse
from strobe.store.codec import encode
from strobe.store.layout import JobLayout
from strobe.store.places import note_place
from strobe.store.s3 import S3Store
from strobe.web.serving import Options, bind
from tests.web.homes import a_manifest, put_history, put_runtime
from tests.web.pages import Served


@pytest.fixture
def bucket(s3_url: str) -> S3Store:
    """Two jobs keep their checkpoints there."""
    store = S3Store(s3_url)
    for job, snapshots in (("ledger", (7, 9)), ("orders", (2,))):
        for snapshot in snapshots:
            manifest = a_manifest(job, snapshot)
            store.put(JobLayout(job).manifest(manifest.snapshot), encode(manifest))
    return store


def test_a_job_with_its_checkpoints_in_a_bucket_is_shown_as_any_other(tmp_path: Path, bucket: S3Store) -> None:
    put_runtime(tmp_path, "ledger")
    put_history(tmp_path, "ledger", 9)
    note_place(tmp_path, "ledger", bucket.describe())
    with Served(tmp_path) as page:
        (row,) = page.get("/jobs")
        assert (row["state"], row["retained"], row["stages"]) == ("finished", [7, 9], 5)
        rows = page.get("/jobs/ledger/snapshots")["rows"]
        assert [r["snapshot"] for r in rows if r["kept"]] == [9, 7]
        one = page.get("/jobs/ledger/snapshots/9")
        assert one["where"] == f"{bucket.describe()}/jobs/ledger/snapshots/chk-000009"
        assert one["positions"]
        assert one["nodes"][0]["duration_ms"] > 0


def test_a_bucket_is_shown_without_any_home_and_takes_no_orders(bucket: S3Store) -> None:
    with Served(bucket.describe()) as page:
        session = page.get("/session")
        assert (session["home"], session["read_only"]) == (bucket.describe(), True)
        rows = {row["name"]: row for row in page.get("/jobs")}
        assert {name: row["retained"] for name, row in rows.items()} == {"ledger": [7, 9], "orders": [2]}
        assert {row["state"] for row in rows.values()} == {"elsewhere"}
        job = page.get("/jobs/ledger")
        assert (job["known_by"], len(job["drawing"]["boxes"])) == ("snapshot", 5)
        assert page.get("/jobs/ledger/snapshots/9")["root"]
        asked = page.post("/jobs/ledger/snapshots/9/sql", {"query": "select snapshot from meta.snapshot"})
        assert asked["rows"] == [["9"]]
        _, said = page.refused("/jobs/ledger/snapshots/9/sql", "POST", {"query": "from in_flight.postings"})
        assert "its rows are in the home of the job" in said["error"]
        assert "the home of its job" in page.get("/jobs/ledger/snapshots/9/restorable")["why_not"]
        verified = page.post("/jobs/ledger/snapshots/9/verify")["done"]
        assert verified["where"].startswith(bucket.describe())
        for order in ("checkpoint", "snapshots/9/plan", "snapshots/9/dispose"):
            status, said = page.refused(f"/jobs/ledger/{order}", "POST")
            assert (status, said["error"]) == (403, "This page is read-only.")
        status, said = page.refused("/jobs/ledger/snapshots/8")
        assert (status, "Those that are kept: 7, 9" in said["next"]) == (404, True)


def test_a_job_that_begins_to_keep_checkpoints_there_is_found(bucket: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.web.home_place._FRESH", 0.0)
    with Served(bucket.describe()) as page:
        manifest = a_manifest("third", 1)
        bucket.put(JobLayout("third").manifest(manifest.snapshot), encode(manifest))
        assert [row["name"] for row in page.get("/jobs")] == ["ledger", "orders", "third"]


def test_a_place_in_a_bucket_without_checkpoints_is_refused(s3_url: str) -> None:
    with pytest.raises(Misuse, match="No job keeps its checkpoints at"):
        bind(Options(f"{s3_url}/nothing", port=0))
    with pytest.raises(Misuse, match="There is no bucket 'nobodys'"):
        bind(Options("s3://nobodys/place", port=0))


def test_other_commands_refuse_a_bucket_as_their_home_and_make_nothing(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "strobe.cli.main", "list", "--home", "s3://bucket/prefix"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "s3://bucket/prefix is a bucket, and a home is a directory." in done.stderr
    assert list(tmp_path.iterdir()) == []
