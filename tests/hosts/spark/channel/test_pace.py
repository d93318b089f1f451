"""How much a stage is given at once: batches that last about as long as they should, in whole commits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.channel.admission import Limits
from strobe.hosts.spark.channel.pace import Pace
from strobe.hosts.spark.job.job import Job
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from tests.support.held_clock import HeldClock
from tests.support.spark.agent_world import World
from tests.support.spark.jobs import eventually, finish
from tests.support.spark.ledger_data import read_transfers, write_transfers


def settled(own: float, each: float, *, seconds: float = 5.0, commit: int = 1, batches: int = 60) -> tuple[int, Pace]:
    """A stage with a backlog that never ends, whose batches take `own` seconds and `each` for a row: rows of a batch
    in the end."""
    pace, rows = Pace(seconds), commit
    for _ in range(batches):
        pace.took(rows, own + rows * each)
        rows = max(1, int(pace.rows // commit)) * commit
    return rows, pace


def test_nothing_is_known_at_first() -> None:
    pace = Pace(5.0)
    assert pace.rows == 0, "one commit"
    pace.took(1000, 10.0)
    assert pace.rows == 500
    with pytest.raises(Misuse):
        Pace(0)


@pytest.mark.parametrize(("own", "each"), [(0.3, 1e-6), (0.3, 1e-3), (0.0, 1e-4), (0.6, 1e-5)])
@pytest.mark.parametrize("commit", [1, 10, 500])
def test_it_comes_to_rest_where_a_batch_takes_its_time(own: float, each: float, commit: int) -> None:
    rows, _ = settled(own, each, commit=commit)
    assert own + rows * each == pytest.approx(5.0, rel=0.15)


@pytest.mark.parametrize(
    ("own", "each", "commit"), [(3.0, 1e-5, 1), (3.0, 1e-3, 1000), (6.0, 1e-3, 1000), (10.0, 1e-5, 100)]
)
def test_batches_that_cost_much_by_themselves_are_not_made_ever_smaller(own: float, each: float, commit: int) -> None:
    rows, _ = settled(own, each, commit=commit)
    assert rows * each >= 3.9 * own, "most of the time goes into batches, and not into rows"


def test_a_pace_that_takes_all_of_the_time_for_the_cost_of_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "_fit", lambda pace: pace._batches[-1].rows * pace.seconds / pace._batches[-1].seconds)
    assert settled(6.0, 1e-3, commit=1000)[0] == 1000, "one commit at a time for ever, each almost for nothing"


def test_a_commit_that_takes_longer_is_taken_alone() -> None:
    assert settled(0.3, 1e-3, commit=30_000)[0] == 30_000


def test_a_quiet_time_is_not_taken_for_slowness() -> None:
    rows, pace = settled(0.3, 1e-4)
    for _ in range(100):
        pace.took(10, 0.4)
    assert pace.rows == pytest.approx(rows, abs=1)


def test_a_stage_that_becomes_slow_is_given_less_and_one_that_becomes_fast_more() -> None:
    rows, pace = settled(0.3, 1e-4)
    pace.took(rows, 50.0)
    assert pace.rows < rows / 4
    for _ in range(20):
        pace.took(int(pace.rows), 0.3 + pace.rows * 1e-4)
    assert pace.rows == pytest.approx(rows, rel=0.1)


@pytest.mark.parametrize("stuck", [20.0, 60.0, 600.0])
def test_one_batch_that_had_to_wait_makes_the_stage_slow_for_a_few_batches_only(stuck: float) -> None:
    rows, pace = settled(0.3, 1e-4, commit=1000)
    pace.took(rows, stuck)
    for _ in range(6):
        given = max(1000, pace.rows // 1000 * 1000)
        pace.took(int(given), 0.3 + given * 1e-4)
    assert pace.rows > rows / 2


def test_batches_without_rows_say_nothing_and_those_without_time_are_none_that_are_endless() -> None:
    pace = Pace(5.0)
    pace.took(100, 10.0)
    pace.took(0, 7.0)
    assert pace.rows == 50
    pace.took(100, 0.0)
    assert 100 < pace.rows <= 1000


def test_the_time_of_a_batch_is_a_share_of_the_interval() -> None:
    assert strobe.CheckpointConfig().batch_seconds == 5.0
    assert strobe.CheckpointConfig(interval=60, batch_share=0.1).batch_seconds == 6.0
    assert strobe.CheckpointConfig(interval=1).batch_seconds == 4.0, "shorter ones would cost throughput"
    assert strobe.CheckpointConfig(interval=None).batch_seconds is None
    assert strobe.CheckpointConfig(batch_share=None).batch_seconds is None
    for wrong in (0, -1, True, "half", float("nan"), 1e9):
        with pytest.raises(Misuse, match="batch_share"):
            strobe.CheckpointConfig(batch_share=wrong)  # type: ignore[arg-type]


def test_a_limit_that_is_said_counts_beside_it() -> None:
    assert Limits(100, 7).at_most(50) == Limits(50, 7)
    assert Limits(100, 7).at_most(500) == Limits(100, 7)
    assert Limits().at_most(50) == Limits(50)


# ── a stage's agent ─────────────────────────────────────────────────────────────────────────────────────────────────


def behind(root: Path, reads: dict[str, tuple[str, ...]], *commits: tuple[str, int], **options: Any) -> World:
    """Sources have written so many rows each, and nobody has read anything."""
    world = World(root, reads, clock=HeldClock(), pace=5.0, cost=1.0, **options)
    for source, rows in commits:
        world.source_batch(source, rows)
    return world


def test_a_backlog_is_read_in_whole_commits_of_about_the_time_of_a_batch(tmp_path: Path) -> None:
    world = behind(tmp_path, {"a": (), "b": ("a",)}, *[("a", 2)] * 6, ("a", 20), ("a", 1), ("a", 1))
    assert [world.batch("b") for _ in range(6)] == [2, 4, 4, 2, 20, 2], "at 5 s a batch and 1 s a row"
    assert world.batch("b") == 0, "nothing is left, and nothing was left out"
    world.close()


def test_what_a_stage_has_learnt_outlives_its_restart(tmp_path: Path) -> None:
    world = behind(tmp_path, {"a": (), "b": ("a",)}, *[("a", 2)] * 5)
    assert world.batch("b") == 2
    world.stages["b"].agent.at_rest()
    world.restart("b")
    assert [world.batch("b"), world.batch("b")] == [4, 4]
    world.close()


def test_a_limit_in_the_file_is_kept_also_if_there_is_time_for_more(tmp_path: Path) -> None:
    world = behind(tmp_path, {"a": (), "b": ("a",)}, *[("a", 1)] * 6, limits=Limits(rows=2))
    assert [world.batch("b") for _ in range(4)] == [1, 2, 2, 1]
    world.close()


def test_two_inputs_share_the_time_by_what_waits_in_them_and_none_starves(tmp_path: Path) -> None:
    reads = {"a": (), "b": (), "c": ("a", "b")}
    world = behind(tmp_path, reads, *[("a", 1)] * 21, *[("b", 1)] * 6)
    assert world.batch("c") == 2, "one commit of each"
    assert world.batch("c") == 5, "four of the one, and one of the other"
    sizes = []
    while size := world.batch("c"):
        sizes.append(size)
    assert sum(sizes) == 20
    assert max(sizes) <= 6, "a commit of each at least, else the time of a batch"
    world.close()


def test_without_a_pace_all_that_waits_is_read(tmp_path: Path) -> None:
    world = World(tmp_path, {"a": (), "b": ("a",)}, clock=HeldClock(), cost=1.0)
    for _ in range(6):
        world.source_batch("a", 2)
    assert world.batch("b") == 12
    world.close()


# ── a job ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Slow:
    """Time as it is, and what is added to it."""

    def __init__(self) -> None:
        self.added = 0.0
        self.time, self.sleep, self.timer = SYSTEM.time, SYSTEM.sleep, SYSTEM.timer

    def monotonic(self) -> float:
        return SYSTEM.monotonic() + self.added


@pytest.mark.spark
@pytest.mark.parametrize("share", [0.5, None])
def test_a_slow_stage_reads_its_backlog_commit_by_commit(
    spark: SparkSession, tmp_path: Path, share: float | None
) -> None:
    data = write_transfers(tmp_path / "in", files=5, rows=20)
    clock, all_written = Slow(), threading.Event()
    sizes: list[int] = []
    pipeline = strobe.Pipeline("slow", checkpoint=strobe.CheckpointConfig(batch_share=share), chain=False)

    @pipeline.stage(uid="transfers", trigger={"availableNow": True})
    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    def one_second_a_row(batch: DataFrame, batch_id: int) -> None:
        sizes.append(batch.count())
        clock.added += sizes[-1]
        assert all_written.wait(120)

    @pipeline.stage(uid="behind", reads="transfers", to=strobe.ForeachBatchSink(one_second_a_row))
    def behind(transfers: DataFrame) -> DataFrame:
        return transfers

    job = Job(pipeline, tmp_path / "home", "local[2]", tmp_path, spark, clock=clock)
    job.start()
    eventually(lambda: job.runners[NodeId("transfers")].rows_out == 100, "the backlog", job)
    all_written.set()
    finish(job)
    assert sum(sizes) == 100
    if share is None:
        assert len(sizes) <= 2, "all that waits at once"
    else:
        assert set(sizes[1:]) == {20}, "a commit is more than there is time for, so it is one"
