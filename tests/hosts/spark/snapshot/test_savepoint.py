"""Savepoints of a running job: self-contained, at the side of it, and never at its expense."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.snapshot import savepoints
from strobe.hosts.spark.snapshot import targets as savepoint_targets
from strobe.hosts.spark.snapshot.targets import DirectoryTarget
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.ids import ChannelId, NodeId
from strobe.model.kind import Kind
from strobe.store.codec import root_of
from strobe.store.consistency import check_manifest
from strobe.store.layout import SAVEPOINT_MARKER
from strobe.store.locate import locate
from strobe.store.manifest import Manifest
from tests.support.spark.jobs import Overtaking, eventually, full_store, stage
from tests.support.spark.ledger_data import read_transfers, write_transfers

pytestmark = pytest.mark.spark


OVERTAKING = Overtaking(interval=None, mode="unaligned", tolerable_failures=0)
UNALIGNED = strobe.CheckpointConfig(interval=None, mode="unaligned", tolerable_failures=0)


class Turnstile:
    """A sink that lets batches through one by one, or all."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.knocked = threading.Event()
        self.passes = threading.Semaphore(0)
        self.through: list[int] = []

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        ids = [row.id for row in batch.collect()]
        while not self.open.is_set() and not self.passes.acquire(timeout=0.02):
            self.knocked.set()
        self.through += ids


class World(NamedTuple):
    job: strobe.Job
    door: Turnstile
    data: Path
    again: Callable[[], strobe.Job]

    def feed(self, files: int) -> None:
        write_transfers(self.data, files=files, rows=20)

    def hold_rows(self) -> None:
        """Two files are written by the source; the stage behind hangs in the first, the second is in flight."""
        self.door.knocked.clear()
        self.door.open.clear()
        self.feed(3)
        eventually(lambda: stage(self.job, "transfers").batch == 2, "the source goes on", self.job)
        assert self.door.knocked.wait(60)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """An endless source and a stage behind a turnstile: rows are in flight whenever the stage hangs."""
    door = Turnstile()
    data = write_transfers(tmp_path / "in", files=1, rows=20)
    jobs: list[strobe.Job] = []

    def start() -> strobe.Job:
        pipeline = strobe.Pipeline("saved", checkpoint=getattr(request, "param", OVERTAKING))

        @pipeline.stage(uid="transfers")
        def transfers(spark: SparkSession) -> DataFrame:
            return read_transfers(spark, data)

        @pipeline.stage(uid="behind", reads="transfers", max_rows_per_batch=20, to=strobe.ForeachBatchSink(door))
        def behind(transfers: DataFrame) -> DataFrame:
            return transfers.dropDuplicates(["id"]).select("id")

        jobs.append(start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark))
        return jobs[-1]

    job = start()
    eventually(lambda: len(door.through) == 20, "what is there has gone through", job)
    yield World(job, door, data, start)
    door.open.set()
    for each in jobs:
        each.stop()


def sound(path: str | Path) -> Manifest:
    found = locate(str(path), Path(path).parent)
    manifest = found.load()
    assert found.store.verify(found.snapshot, root_of(manifest)) == ()
    assert check_manifest(manifest) == ()
    assert manifest.kind is Kind.SAVEPOINT
    return manifest


def in_background(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """The thread, and what came of it: a value, or an error."""
    got: list[Any] = []

    def run() -> None:
        try:
            got.append(act())
        except StrobeError as error:
            got.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, got


def under_way(job: strobe.Job) -> bool:
    return any(p.status == "in progress" for p in job.status().checkpoints)


# ── what it is ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_savepoint_holds_all_state_and_the_rows_in_flight_and_needs_nothing_of_the_job(
    world: World, tmp_path: Path
) -> None:
    job, door = world.job, world.door
    world.hold_rows()
    asking, got = in_background(lambda: job.savepoint(tmp_path / "there"))
    eventually(lambda: under_way(job), "it has begun", job)
    door.passes.release()
    asking.join()
    assert got == [str(tmp_path / "there")]
    door.open.set()
    eventually(lambda: len(door.through) == 60, "the job goes on", job)
    assert job.store.list() == (), "it is none of the job's checkpoints"
    job.stop()
    shutil.rmtree(tmp_path / "home")
    moved = (tmp_path / "there").rename(tmp_path / "elsewhere")
    manifest = sound(moved)
    assert sorted(p.name for p in moved.iterdir()) == ["blobs", "manifest.json"]
    record = manifest.channels[ChannelId("transfers")]
    assert record.location is None
    assert record.in_flight[NodeId("behind")].rows == 20
    commits: Any = record.extra["commits"]
    (commit,) = commits
    assert [f["path"] for f in commit["files"]] == list(record.content)
    found = locate(str(moved), moved)
    found.store.lay_out(manifest, "channels/transfers/content/", tmp_path / "rows")
    ids = pq.read_table([tmp_path / "rows" / f["path"] for f in commit["files"]])["id"].to_pylist()
    assert sorted(ids) == list(range(40, 60))
    state = [path for path in manifest.nodes[NodeId("behind")].files if path.startswith("state/")]
    assert state, "the operator's state is in it"


@pytest.mark.parametrize("world", [UNALIGNED], indirect=True)
def test_a_savepoint_is_aligned_where_checkpoints_are_not(world: World, tmp_path: Path) -> None:
    job = world.job
    world.hold_rows()
    asking, got = in_background(lambda: job.savepoint(tmp_path / "there"))
    eventually(lambda: under_way(job), "it has begun", job)
    world.door.open.set()
    asking.join()
    assert got == [str(tmp_path / "there")]
    manifest = sound(tmp_path / "there")
    assert (manifest.mode, manifest.rows_in_flight) == ("aligned", 0)
    assert job.store.load(job.checkpoint()).mode == "unaligned"


def test_without_a_directory_it_goes_below_the_home_and_ids_go_on(world: World, tmp_path: Path) -> None:
    job = world.job
    assert job.checkpoint() == 1
    path = job.savepoint()
    assert path == str(tmp_path / "home/jobs/saved/savepoints/sav-000002")
    assert sound(path).snapshot == 2
    assert job.checkpoint() == 3
    assert job.store.list() == (3,), "the savepoint retires nothing, and is not retired"
    sound(path)


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_target_that_is_taken_or_cannot_be_written_is_refused_before_anything_starts(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = world.job
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").touch()
    (tmp_path / "file").touch()
    with pytest.raises(Misuse, match="full: it is not empty"):
        job.savepoint(tmp_path / "full")
    with pytest.raises(Misuse, match="it is not a directory"):
        job.savepoint(tmp_path / "file")
    with pytest.raises(Misuse, match="cannot be written"):
        job.savepoint("/proc/no/such/place")
    done = job.savepoint(tmp_path / "done")
    with pytest.raises(Misuse, match="holds a snapshot already"):
        job.savepoint(done)
    busy = DirectoryTarget.take(tmp_path / "busy", "another")
    with pytest.raises(Misuse, match="another savepoint is being written there"):
        job.savepoint(tmp_path / "busy")
    busy.give_up()
    assert not (tmp_path / "busy").exists()
    job.checkpoint()
    monkeypatch.setattr(savepoint_targets.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))  # type: ignore[attr-defined]
    with pytest.raises(Failed, match=r"too little room .* 1 are free"):
        job.savepoint(tmp_path / "no-room")
    assert not (tmp_path / "no-room").exists()
    assert [p.snapshot for p in job.status().checkpoints] == [1, 2], "nothing else was started"


def test_a_savepoint_that_fails_midway_counts_for_nothing_and_leaves_nothing_behind(
    world: World, tmp_path: Path
) -> None:
    job = world.job
    with full_store(), pytest.raises(Failed, match="No space left"):
        job.savepoint(tmp_path / "there")
    assert not (tmp_path / "there").exists()
    assert job.status().failures_in_a_row == 0
    assert job.status().state == "running"
    world.feed(2)
    eventually(lambda: len(world.door.through) == 40, "the job goes on", job)
    sound(job.savepoint(tmp_path / "there"))


def test_what_a_dead_savepoint_left_is_replaced(world: World, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "blobs/ab").mkdir(parents=True)
    (there / "blobs/ab/abc").write_text("half")
    (there / SAVEPOINT_MARKER).touch()
    sound(world.job.savepoint(there))
    assert not (there / "blobs/ab/abc").exists()


# ── two at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_second_savepoint_or_a_stop_is_refused_while_one_is_under_way(world: World, tmp_path: Path) -> None:
    job = world.job
    world.hold_rows()
    asking, got = in_background(lambda: job.savepoint(tmp_path / "first"))
    eventually(lambda: under_way(job), "it has begun", job)
    with pytest.raises(Misuse, match="a savepoint is under way"):
        job.savepoint(tmp_path / "second")
    with pytest.raises(Misuse, match="a savepoint is under way"):
        job.stop_with_savepoint(tmp_path / "third")
    world.door.open.set()
    asking.join()
    assert got == [str(tmp_path / "first")]
    sound(tmp_path / "first")
    assert not (tmp_path / "second").exists()
    assert not (tmp_path / "third").exists()
    sound(job.savepoint(tmp_path / "second"))


def test_rows_that_a_savepoint_needs_are_not_trimmed_under_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, stores = world.job, world.job._stores
    world.hold_rows()
    waiting, go_on = threading.Event(), threading.Event()
    with_content = savepoints.SnapshotStores.with_content

    def later(self: savepoints.SnapshotStores, *args: Any) -> Any:
        waiting.set()
        assert go_on.wait(60)
        return with_content(self, *args)

    monkeypatch.setattr(savepoints.SnapshotStores, "with_content", later)
    asking, got = in_background(lambda: job.savepoint(tmp_path / "there"))
    eventually(lambda: under_way(job), "it has begun", job)
    world.door.open.set()
    assert waiting.wait(60)
    assert stores.holds_rows
    eventually(lambda: len(world.door.through) == 60, "everything is read", job)
    assert job._writer.spare({NodeId("behind"): {NodeId("transfers"): 10**6}}) == {}
    go_on.set()
    asking.join()
    assert got == [str(tmp_path / "there")]
    assert sum(f.rows or 0 for f in sound(tmp_path / "there").channels[ChannelId("transfers")].in_flight.values()) > 0
    data = tmp_path / "home/jobs/saved/channels/transfers/data"

    def trimmed() -> bool:
        job.checkpoint(60)  # the second one deletes the files
        return list(data.rglob("*.parquet")) == []

    eventually(trimmed, "nobody needs them any more", job)
