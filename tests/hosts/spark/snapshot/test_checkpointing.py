"""The coordinator's settings on real jobs: when checkpoints are taken, how many fail, which are kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.checkpoint.files import last_committed
from strobe.hosts.spark.checkpoint.stage_files import stage_checkpoint
from strobe.hosts.spark.home.listing import summarise
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.snapshot.coordinator import Progress
from strobe.hosts.spark.snapshot.manifests import ManifestWriter
from strobe.hosts.spark.stage import runner as stage_module
from strobe.model.errors import Failed
from strobe.model.ids import ChannelId, NodeId
from tests.support.spark.jobs import channel_rows, check_checkpoints, eventually, stage
from tests.support.spark.ledger_data import read_transfers, write_transfers

pytestmark = pytest.mark.spark

Start = Callable[..., strobe.Job]


class Door:
    """A sink that lets batches through, or holds them: a stage that hangs. Knows the ids that went through."""

    def __init__(self) -> None:
        self.passes = threading.Semaphore(0)
        self.open = threading.Event()
        self.open.set()
        self.knocked = threading.Event()
        self.through: list[int] = []

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        ids = [row.id for row in batch.collect()]
        while not self.open.is_set() and not self.passes.acquire(timeout=0.02):
            self.knocked.set()
        self.knocked.clear()
        self.through += ids

    def shut(self) -> None:
        self.knocked.clear()
        self.open.clear()


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    yield made
    made.open.set()  # nothing of a test that failed may hang in the session that all share


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path, door: Door) -> Iterator[Start]:
    """An endless source, and behind it a stage with a door. What is in the source has gone through on return. Only
    aligned checkpoints wait for a batch that hangs."""
    jobs: list[strobe.Job] = []

    def run(files: int = 1, **checkpoint: object) -> strobe.Job:
        data = write_transfers(tmp_path / "in", files=files, rows=20)
        settings = {"interval": None, **checkpoint}
        pipeline = strobe.Pipeline("doors", checkpoint=strobe.CheckpointConfig(**settings))  # type: ignore[arg-type]

        @pipeline.stage(uid="transfers")
        def transfers(spark: SparkSession) -> DataFrame:
            return read_transfers(spark, data)

        @pipeline.stage(uid="behind", reads="transfers", max_rows_per_batch=20, to=strobe.ForeachBatchSink(door))
        def behind(transfers: DataFrame) -> DataFrame:
            return transfers.select("id")

        job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
        jobs.append(job)
        eventually(lambda: len(set(door.through)) == files * 20, "what is there has gone through", job)
        return job

    yield run
    door.open.set()
    for job in jobs:
        job.stop()
    eventually(lambda: not spark.streams.active, "Spark has let go of the queries of jobs that have failed")


def feed(job: strobe.Job, files: int) -> None:
    """Let there be so many files in the source."""
    write_transfers(job.base / "in", files=files, rows=20)


def under_way(job: strobe.Job) -> list[Progress]:
    return [p for p in job.status().checkpoints if p.status == "in progress"]


# ── when, and which are kept ────────────────────────────────────────────────────────────────────────────────────────


def test_without_an_interval_checkpoints_come_when_asked_for_and_the_newest_are_kept(start: Start, door: Door) -> None:
    job = start(retained=2)
    assert [job.checkpoint(), job.checkpoint()] == [1, 2]
    feed(job, 3)
    eventually(lambda: len(door.through) == 60, "more has come through", job)
    assert job.checkpoint() == 3
    assert [p.snapshot for p in job.status().checkpoints] == [1, 2, 3], "one was taken that nobody asked for"
    assert job.store.list() == (2, 3)
    newest = check_checkpoints(job)[-1]
    assert newest.rows_in_flight == 0, "all had come through"
    job.cancel()
    assert job.state is strobe.JobState.CANCELED
    assert job.store.list() == (2, 3), "a cancel keeps them unless told otherwise"
    with pytest.raises(Failed, match="canceled"):
        job.checkpoint()


def test_a_cancel_deletes_checkpoints_if_told_so_and_the_job_can_go_on_all_the_same(start: Start, door: Door) -> None:
    job = start(retention_on_cancel="delete")
    job.checkpoint()
    job.cancel()
    assert job.store.list() == ()
    assert list(job.store.objects.list(job.store.layout.blobs)) == []
    feed(job, 2)
    again = start(files=2, retention_on_cancel="delete")
    assert sorted(door.through) == list(range(40))
    assert again.checkpoint() == 2, "an id was used twice"
    again.stop()
    assert again.store.list() == (2,), "only a cancel deletes"


# ── a stage that hangs ──────────────────────────────────────────────────────────────────────────────────────────────


def test_checkpoints_that_take_too_long_are_counted_and_the_job_goes_on_up_to_the_tolerated_number(
    start: Start, door: Door
) -> None:
    job = start(mode="aligned", interval=0.2, timeout=0.5, tolerable_failures=1000)
    door.shut()
    feed(job, 2)
    assert door.knocked.wait(60)
    before = job.status().failed
    eventually(lambda: job.status().failed >= before + 2, "two have taken too long", job)
    status = job.status()
    assert status.failures_in_a_row >= 2
    late = [p for p in status.checkpoints if p.status == "failed"][-1]
    assert "not complete within 500 ms: no word from behind" in late.reason
    assert status.state == "running"

    kept = status.completed
    door.open.set()
    eventually(lambda: job.status().completed > kept, "one is complete again", job)
    eventually(lambda: len(door.through) == 40, "nothing is lost", job)
    job.stop()
    assert sorted(door.through) == list(range(40))
    check_checkpoints(job)


def test_a_job_that_waits_for_a_batch_at_its_end_is_canceling_for_everybody(start: Start, door: Door) -> None:
    job = start()
    door.shut()
    feed(job, 2)
    assert door.knocked.wait(60)
    cancels = [threading.Thread(target=job.cancel)]
    cancels[0].start()
    eventually(lambda: job.status().state == "canceling", "the first has begun")
    eventually(lambda: summarise(job.home.home, "doors").state == "canceling", "it is said to others")
    cancels.append(threading.Thread(target=job.cancel))  # somebody is impatient: the same end is waited for
    cancels[1].start()
    cancels[1].join(0.5)
    assert cancels[1].is_alive()
    with pytest.raises(Failed, match="Job 'doors' is canceled"):
        job.checkpoint()
    door.open.set()
    for cancel in cancels:
        cancel.join()
    assert job.status().state == summarise(job.home.home, "doors").state == "canceled"
    with pytest.raises(Failed, match="Job 'doors' is canceled"):
        job.cancel()


def test_more_failures_than_tolerated_fail_the_job_even_while_a_stage_hangs(
    start: Start, door: Door, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_module, "_PATIENCE", 0.5)
    job = start(mode="aligned", timeout=0.5, tolerable_failures=0)
    door.shut()
    feed(job, 2)
    assert door.knocked.wait(60)
    with pytest.raises(Failed, match="no word from behind"):
        job.checkpoint()
    assert job.wait(60), "it must not wait for a stage that hangs"
    assert job.state is strobe.JobState.FAILED
    assert "1 failed in a row, 0 are tolerated" in job.error

    committed = last_committed(stage_checkpoint(job.home, NodeId("behind")))
    door.open.set()
    eventually(lambda: spark.streams.active == [], "Spark has let go of the query")
    assert last_committed(stage_checkpoint(job.home, NodeId("behind"))) == committed, "a job that is over went on"
    again = start(files=2)
    eventually(lambda: len(door.through) == 60, "the batch that hung is run again", again)
    assert sorted(door.through) == sorted([*range(40), *range(20, 40)])
    again.checkpoint()
    check_checkpoints(again)


def test_as_many_checkpoints_are_under_way_at_once_as_allowed(start: Start, door: Door) -> None:
    job = start(mode="aligned", interval=0.1, max_concurrent=2, tolerable_failures=1000, retained=1000)
    door.shut()
    feed(job, 2)
    assert door.knocked.wait(60)
    # One whose parts are all there is about to be complete: it is not held by the door.
    eventually(lambda: len(held := under_way(job)) == 2 and all(p.acknowledged < 2 for p in held), "two wait", job)
    first = [p.snapshot for p in under_way(job)]
    asked: list[int] = []
    asking = threading.Thread(target=lambda: asked.append(job.checkpoint()))
    asking.start()
    feed(job, 3)
    eventually(lambda: stage(job, "transfers").batch == 2, "the source goes on", job)
    assert [p.snapshot for p in under_way(job)] == first, "a third has begun"
    door.open.set()
    asking.join()
    assert asked[0] > first[-1]
    eventually(lambda: len(door.through) == 60, "all has come through", job)
    job.stop()
    assert sorted(door.through) == list(range(60))
    taken = [m.snapshot for m in check_checkpoints(job)]
    assert first[-1] in taken


@pytest.mark.parametrize("tolerable", [1, 0])
def test_the_last_checkpoint_of_a_bounded_job_may_fail_like_any_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tolerable: int
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=20)
    config = strobe.CheckpointConfig(interval=None, tolerable_failures=tolerable)
    pipeline = strobe.Pipeline("alone", checkpoint=config)
    through: list[int] = []

    @pipeline.stage(
        uid="alone",
        trigger={"availableNow": True},
        to=strobe.ForeachBatchSink(lambda batch, batch_id: through.extend(row.id for row in batch.collect())),
    )
    def alone(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    write = ManifestWriter.write
    failures = ["the disk is full"]

    def write_at_the_second_attempt(self: ManifestWriter, *args: Any) -> None:
        if failures:
            raise Failed(failures.pop())
        write(self, *args)

    monkeypatch.setattr(ManifestWriter, "write", write_at_the_second_attempt)
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    assert job.wait(300)
    assert through == list(range(20))
    if tolerable:
        assert job.state is strobe.JobState.FINISHED, job.error
        assert job.store.list() == (2,)
    else:
        assert job.state is strobe.JobState.FAILED
        assert "the disk is full" in job.error


# ── rows that nobody needs any more ─────────────────────────────────────────────────────────────────────────────────


def is_trimmed_to(spark: SparkSession, channel: Path, job: strobe.Job, ids: Iterable[int], why: str = "") -> None:
    """Channels are trimmed right after a checkpoint's completion has been told."""
    wanted = list(ids)
    eventually(lambda: sorted(polars.read_delta(str(channel))["id"].to_list()) == wanted, why or f"{wanted}", job)
    assert readable(spark, channel) == wanted, why


def readable(spark: SparkSession, channel: Path) -> list[int]:
    """The ids that the channel holds at this moment, which every reader of Delta tables sees alike."""
    table = DeltaTable(str(channel))
    with duckdb.connect() as db:
        db.register("t", table.to_pyarrow_dataset())
        ids = [row[0] for row in db.execute("select id from t order by 1").fetchall()]
    assert sorted(polars.read_delta(str(channel))["id"].to_list()) == ids
    files = table.file_uris()
    assert sorted(row.id for row in spark.read.parquet(*files).collect()) == ids if files else ids == []
    return ids


def test_rows_go_once_every_consumer_and_every_kept_checkpoint_is_past_them(
    start: Start, door: Door, spark: SparkSession
) -> None:
    job = start(mode="unaligned", retained=2)
    channel = job.home.path(job.home.layout.channel(NodeId("transfers")))
    assert readable(spark, channel) == list(range(20))
    door.shut()
    for files in (2, 3, 4):
        feed(job, files)
        eventually(lambda: stage(job, "transfers").batch == files - 1, "the source goes on", job)  # noqa: B023

    def checkpoint_while_a_batch_hangs() -> None:
        """What the batch reads is still in flight. Then it is let through, and the next one hangs."""
        assert door.knocked.wait(60)
        job.checkpoint()
        through = len(door.through)
        door.passes.release()
        eventually(lambda: len(door.through) == through + 20, "one batch comes through", job)

    checkpoint_while_a_batch_hangs()
    assert job.store.load(job.store.list()[-1]).channels[ChannelId("transfers")].in_flight[NodeId("behind")].rows == 60
    is_trimmed_to(spark, channel, job, range(20, 80), "one batch is read, three are needed")
    checkpoint_while_a_batch_hangs()
    is_trimmed_to(spark, channel, job, range(20, 80), "the older checkpoint still needs the second")
    checkpoint_while_a_batch_hangs()
    is_trimmed_to(spark, channel, job, range(40, 80), "the oldest is gone, and with it what only it needed")
    door.open.set()
    for _ in range(3):
        job.checkpoint()
    is_trimmed_to(spark, channel, job, [])
    assert [p.name for p in channel.rglob("*.parquet") if "checkpoint" not in p.name] == []
    assert sum(channel_rows(channel).values()) == 80

    feed(job, 5)
    eventually(lambda: len(door.through) == 100, "the channel goes on", job)
    is_trimmed_to(spark, channel, job, range(80, 100))
    job.stop()
    assert sorted(door.through) == list(range(100))
    check_checkpoints(job)
