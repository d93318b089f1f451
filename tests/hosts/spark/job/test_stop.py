"""Ending a job: with a savepoint after which nothing more becomes visible, and by a cancel in the middle of one."""

from __future__ import annotations

from pathlib import Path

import pytest

import strobe
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import ChannelId, NodeId
from tests.hosts.spark.snapshot.test_savepoint import World, in_background, sound, under_way, world
from tests.support.spark.jobs import channel_rows, eventually, full_store

pytestmark = pytest.mark.spark
__all__ = ["world"]


def test_after_the_savepoint_of_a_stop_no_stage_writes_more_and_a_run_goes_on_from_there(
    world: World, tmp_path: Path
) -> None:
    job, door = world.job, world.door
    world.hold_rows()
    asking, got = in_background(lambda: job.stop_with_savepoint(tmp_path / "there"))
    eventually(lambda: under_way(job), "it has begun", job)
    world.feed(5)  # the source, which has been recorded, must not bring these any more
    door.passes.release()  # the stage behind ends the batch that it is in; then it is recorded
    asking.join()
    assert got == [str(tmp_path / "there")]
    assert job.wait(60)
    assert job.state is strobe.JobState.STOPPED
    manifest = sound(tmp_path / "there")
    channel = manifest.channels[ChannelId("transfers")]
    rows = channel_rows(job.home.path(job.home.layout.channel(NodeId("transfers"))))
    assert sum(rows.values()) == 60
    assert all(
        count == 0 for version, count in rows.items() if channel.barrier is not None and version > channel.barrier
    )
    assert sorted(door.through) == list(range(40)), "what was in flight at the barrier is left for the next start"
    assert channel.in_flight[NodeId("behind")].rows == 20
    door.open.set()
    again = world.again()
    eventually(lambda: len(door.through) >= 100, "it goes on", again)
    again.checkpoint()
    assert sorted(door.through) == list(range(100))


def test_a_stop_whose_savepoint_fails_leaves_the_job_running(world: World, tmp_path: Path) -> None:
    job = world.job
    with full_store(), pytest.raises(Failed, match="No space left"):
        job.stop_with_savepoint(tmp_path / "there")
    assert job.state is strobe.JobState.RUNNING
    world.feed(3)
    eventually(lambda: len(world.door.through) == 60, "every stage goes on", job)
    job.stop_with_savepoint(tmp_path / "there")
    sound(tmp_path / "there")
    with pytest.raises(Failed, match="is stopped"):
        job.savepoint()


def test_a_cancel_ends_the_savepoint_that_is_under_way_and_nothing_is_left_of_it(world: World, tmp_path: Path) -> None:
    job = world.job
    job.checkpoint()
    world.hold_rows()
    asking, got = in_background(lambda: job.savepoint(tmp_path / "there"))
    eventually(lambda: under_way(job), "it has begun", job)
    canceling, canceled = in_background(lambda: job.cancel("delete"))
    world.door.open.set()
    canceling.join()
    asking.join()
    assert canceled == [None]
    assert isinstance(got[0], Failed)
    assert "was canceled meanwhile" in got[0].what
    assert not (tmp_path / "there").exists()
    assert job.state is strobe.JobState.CANCELED
    assert job.store.list() == (), "told to delete, whatever the pipeline says"
    with pytest.raises(Misuse, match="'keep' at a cancel"):
        job.cancel("keep")
