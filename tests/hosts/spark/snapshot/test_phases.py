"""Where the time of a snapshot went: the phases of each stage's part, and of the whole, add up to what it took."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.cli.main import main
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.hosts.spark.snapshot.progress import Progress, arrived, completed, with_figures
from strobe.hosts.spark.snapshot.recording import Recording
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.two_phase_commit.messages import Prepared as Vote
from strobe.protocol.two_phase_commit.messages import Session
from strobe.store.manifest import NodeRecord
from tests.support.spark.jobs import eventually, stage
from tests.support.spark.ledger_data import read_transfers, write_transfers

A, ONE = NodeId("a"), SnapshotId(1)
HELD = 0.4  # seconds


def part(*, votes: tuple[Vote, ...] = ()) -> StagePart:
    """Of a stage that heard of the snapshot at 10 s, recorded at 11, went on at 11.25, had its last barrier at 13 and
    its files in the store at 16; its sinks were done at 20."""
    recording = Recording(ONE, 4, {}, began=10.0, recorded_at=11.0, synced_at=11.25, closed_at=13.0)
    return recording.settled(StagePart(NodeRecord(**recording.timed(16.0)), 7, votes=votes), 20.0)


def test_every_moment_of_a_part_is_in_one_phase() -> None:
    vote = Vote(NodeId("a/0"), Session(Incarnation(1), Incarnation(1)), ONE, ())
    record = arrived(part(votes=(vote,)).record, posted_ms=17_500, taken_ms=18_000)  # the trigger was at 2.5 s
    assert record.phases == {
        "start_delay": 7500, "alignment": 1000, "sync": 250, "channels": 1750, "async": 3000, "prepare": 4000,
        "acknowledge": 500,
    }  # fmt: skip
    assert record.duration_ms == 18_000


def test_what_passes_without_a_sink_that_prepares_is_part_of_the_upload() -> None:
    record = arrived(part().record, posted_ms=17_500, taken_ms=17_500)
    assert (record.async_ms, record.phases["prepare"]) == (7000, 0)
    assert record.duration_ms == 17_500


def test_a_snapshot_takes_as_long_as_its_slowest_stage_and_the_manifest() -> None:
    fast, slow = (arrived(part().record, posted_ms=ms, taken_ms=ms + 1) for ms in (11_000, 17_500))
    parts = {NodeId("b"): StagePart(fast, None), A: StagePart(slow, None)}
    began = Progress(ONE, Kind.CHECKPOINT, "in progress", "2031-05-17T09:30:00.250Z")
    done = completed(with_figures(began, parts, A, 17_501), 18_000)
    assert (done.slowest, done.status, done.duration_ms, done.manifest_ms) == ("a", "complete", 18_000, 499)
    assert sum(done.phases.values()) == done.duration_ms


@pytest.mark.spark
def test_a_slow_batch_shows_as_the_start_delay_of_its_stage_and_everything_adds_up(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=20)
    pipeline = strobe.Pipeline("slow", checkpoint=strobe.CheckpointConfig(interval=None), chain=False)
    in_batch, go = threading.Event(), threading.Event()

    def hold(batch: DataFrame, batch_id: int) -> None:
        batch.count()
        in_batch.set()
        assert go.wait(120)

    @pipeline.stage(uid="quick")
    def quick(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(
        uid="slow", reads="quick", to=[strobe.ForeachBatchSink(hold), strobe.DeltaSink("out", delivery="on_snapshot")]
    )
    def slow(quick: DataFrame) -> DataFrame:
        return quick.dropDuplicates(["id"])

    home = tmp_path / "home"
    job = start_job(pipeline, home=str(home), base=tmp_path, spark=spark)
    try:
        assert in_batch.wait(120)
        taken: list[int] = []
        asking = threading.Thread(target=lambda: taken.append(job.checkpoint(120)))
        asking.start()
        # The other stage has done its part, and this one is still in its batch.
        eventually(lambda: [p.acknowledged for p in job.status().checkpoints] == [1], "the part of the other", job)
        threading.Event().wait(HELD)
        go.set()
        asking.join(120)
        assert taken == [1]

        (done,) = job.status().checkpoints
        assert done.slowest == "slow"
        assert done.start_delay_ms > HELD * 1000
        assert done.prepare_ms > 0
        assert sum(done.phases.values()) == pytest.approx(done.duration_ms, abs=0.1)
        manifest = job.store.load(ONE)
        assert manifest.nodes[NodeId("slow")].phases == {k: v for k, v in done.phases.items() if k != "manifest"}
        for node in manifest.nodes.values():
            assert node.timing is not None
            assert sum(node.phases.values()) < done.duration_ms

        capsys.readouterr()
        with pytest.raises(SystemExit, match="0"):
            main(["inspect", "slow/1", "--home", str(home), "--json"])
        shown = json.loads(capsys.readouterr().out)
        assert shown["slowest"] == "slow"
        assert shown["stages_ms"] + shown["manifest_ms"] == pytest.approx(shown["duration_ms"], abs=0.1)
        assert shown["stages"]["slow"]["phases"]["start_delay"] == done.start_delay_ms
    finally:
        go.set()
        job.stop()
    assert stage(job, "slow").restarts == 0
