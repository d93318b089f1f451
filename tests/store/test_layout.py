"""Paths: one owner, and every key leads back to what it is the key of."""

from __future__ import annotations

import pytest

from strobe.model.errors import Misuse
from strobe.model.ids import NodeId, SnapshotId, Timeline
from strobe.store.base import check_key
from strobe.store.layout import JobLayout, SavepointLayout, SnapshotLayout, parse_snapshot_name, snapshot_name

SHA = "ab12" + "0" * 60
JOB = JobLayout("ledger")


def test_the_places_of_a_job() -> None:
    assert JOB.manifest(SnapshotId(12)) == "jobs/ledger/snapshots/chk-000012/manifest.json"
    assert JOB.blob(SHA) == f"jobs/ledger/blobs/ab/{SHA}"
    assert JOB.savepoint(SnapshotId(13)) == "jobs/ledger/savepoints/sav-000013"
    assert JOB.stage_checkpoint(NodeId("postings"), Timeline(2)) == "jobs/ledger/stages/postings/t2/spark"
    assert JOB.channel(NodeId("postings")) == "jobs/ledger/channels/postings"
    assert {JOB.lock, JOB.incarnation, JOB.runtime, JOB.token, JOB.driver_log} == {
        "jobs/ledger/lock", "jobs/ledger/incarnation.json", "jobs/ledger/runtime.json", "jobs/ledger/token",
        "jobs/ledger/logs/driver.log",
    }  # fmt: skip
    assert (JOB.spark_log, JOB.journal) == ("jobs/ledger/logs/spark.log", "jobs/ledger/journal")
    assert JOB.driver(3) == "jobs/ledger/driver-3"
    assert [JOB.driver_of(name) for name in ("driver-3", "driver-03", "driver-3.gone", "driver-", "lock")] == [
        3, None, None, None, None,
    ]  # fmt: skip


def test_the_directories_of_a_stage_tell_their_timeline_and_generation() -> None:
    for generation in (0, 2):
        checkpoint = JOB.stage_checkpoint(NodeId("postings"), Timeline(12), generation)
        line = checkpoint.split("/")[-2]
        assert JOB.line_of(line) == (12, generation)
        assert JOB.starts_of(JOB.starts_beside(line)) == 12
    assert [JOB.line_of(name) for name in ("t", "t1.", "t1.0", "t1.gone", "x1", "starts-t1.json")] == [None] * 6
    assert [JOB.starts_of(name) for name in ("t1", "starts-t.json", ".starts-t1.json.fresh")] == [None] * 3


def test_a_savepoint_lies_wherever_it_was_moved_to() -> None:
    assert SavepointLayout("", SnapshotId(13)).manifest(SnapshotId(13)) == "manifest.json"
    assert SavepointLayout("backup/x", SnapshotId(13)).blob(SHA) == f"backup/x/blobs/ab/{SHA}"


@pytest.mark.parametrize("layout", [JOB, SavepointLayout("", SnapshotId(7)), SavepointLayout("a/b", SnapshotId(7))])
def test_every_key_leads_back(layout: SnapshotLayout) -> None:
    manifest, blob = check_key(layout.manifest(SnapshotId(7))), check_key(layout.blob(SHA))
    assert layout.snapshot_of(manifest) == 7
    assert layout.sha256_of(blob) == SHA
    assert manifest.startswith(layout.manifests)
    assert manifest.startswith(layout.directory(SnapshotId(7)))
    assert blob.startswith(layout.blobs)
    assert layout.snapshot_of(blob) is None
    assert layout.sha256_of(manifest) is None


@pytest.mark.parametrize(
    "key",
    [
        "jobs/ledger/snapshots/chk-000012/other.json",
        "jobs/ledger/snapshots/chk-12/manifest.json",
        "jobs/ledger/snapshots/chk-000000/manifest.json",
        "jobs/ledger/snapshots/chk-0000012/manifest.json",
        "jobs/ledger/snapshots/sav-000012/manifest.json",
        "jobs/ledger/snapshots/manifest.json",
        "jobs/other/snapshots/chk-000012/manifest.json",
    ],
)
def test_what_only_looks_like_a_manifest_is_none(key: str) -> None:
    assert JOB.snapshot_of(key) is None


@pytest.mark.parametrize("key", [f"jobs/ledger/blobs/{SHA}", f"jobs/ledger/blobs/cd/{SHA}", "jobs/ledger/blobs/ab/ab"])
def test_what_only_looks_like_a_blob_is_none(key: str) -> None:
    assert JOB.sha256_of(key) is None


@pytest.mark.parametrize("snapshot", [1, 999_999, 1_000_000, 123_456_789])
def test_a_snapshot_is_found_by_its_name(snapshot: int) -> None:
    for savepoint in (False, True):
        assert parse_snapshot_name(snapshot_name(SnapshotId(snapshot), savepoint=savepoint)) == snapshot


@pytest.mark.parametrize("name", ["", "..", "a/b", "/", ".hidden", "a\0"])
def test_no_name_climbs_out_of_the_tree(name: str) -> None:
    with pytest.raises(Misuse):
        JobLayout(name)
    with pytest.raises(Misuse):
        JOB.channel(NodeId(name))
    with pytest.raises(Misuse):
        JOB.stage(NodeId(name))
