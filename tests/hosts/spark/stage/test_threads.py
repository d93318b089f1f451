"""No thread of a driver dies silently: it outlives an error that passes, and one that stays fails its stage or job."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.channel import gate as gate_module
from strobe.hosts.spark.channel.gate import Gate, GateClient
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.home import job_home as home_module
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.stage import life as life_module
from strobe.hosts.spark.stage.life import StageLife
from strobe.model.errors import Failed, Fenced, PeerFault
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId
from tests.support.spark.agent_world import World
from tests.support.spark.commit_world import World as CommitWorld
from tests.support.spark.jobs import eventually, stage
from tests.support.spark.ledger_data import read_transfers, write_transfers

PATIENCE = 60.0


def stale() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))


class Failing:
    """Stands in for a function: raises `error` the first `times` times, or for ever."""

    def __init__(self, real: Callable[..., Any], error: Exception, times: int | None) -> None:
        self.real, self.error, self.left = real, error, times
        self.calls = 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        if self.left is None or self.calls <= self.left:
            raise self.error
        return self.real(*args, **named)


# ── agent ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An idle source and its reader. Only the source's own thread can answer for it."""
    made = World(tmp_path, {"a": (), "b": ("a",)}, threads=True)
    made.source_batch("a", 3)
    yield made
    made.close()


def test_an_idle_source_answers_a_snapshot_although_its_checkpoint_could_not_be_read_for_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Failing(spark_checkpoint.is_committed, stale(), 3)
    monkeypatch.setattr(spark_checkpoint, "is_committed", looks)
    world.trigger(1)
    eventually(lambda: "a" in world.parts(1), "its acknowledgement")
    assert looks.calls > 3


def test_a_barrier_that_cannot_be_placed_fails_its_snapshot_and_the_next_one_succeeds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = world.channels["a"]
    monkeypatch.setattr(output, "place_barrier", Failing(output.place_barrier, stale(), 1))
    world.trigger(1)
    eventually(lambda: world.declined(1) == ["a"], "its refusal")
    world.trigger(2)
    eventually(lambda: "a" in world.parts(2), "its acknowledgement")
    assert "a" not in world.parts(1)


@pytest.mark.parametrize(
    ("error", "patience"),
    [(stale(), 0.0), (PeerFault("barriers do not rise"), 3600.0), (Fenced("a newer driver is there"), 3600.0)],
    ids=["stays", "protocol", "fenced"],
)
def test_an_agent_that_cannot_go_on_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, patience: float
) -> None:
    monkeypatch.setattr(life_module, "_PATIENCE", patience)
    agent = world.stages["a"].agent
    said: list[Exception] = []
    agent.broken = said.append
    agent.start(Incarnation(2))
    monkeypatch.setattr(agent._life, "at_rest", Failing(StageLife.at_rest, error, None))
    world.trigger(1)
    eventually(lambda: said == [error], "that it is broken")


@pytest.mark.spark
def test_a_stage_whose_agent_breaks_starts_again_and_one_whose_query_has_ended_fails_the_job(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=20)
    pipeline = strobe.Pipeline("threads", checkpoint=strobe.CheckpointConfig(interval=None, tolerable_failures=5))

    @pipeline.stage(uid="endless", to=strobe.ForeachBatchSink(lambda b, n: None))
    def endless(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(uid="ending", trigger={"availableNow": True}, to=strobe.ForeachBatchSink(lambda b, n: None))
    def ending(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        eventually(lambda: stage(job, "ending").state == "ended", "the end of a source", job)
        eventually(lambda: stage(job, "endless").batch == 0, "the rows", job)
        monkeypatch.setattr(life_module, "_PATIENCE", 0.0)
        broken, real = "endless", StageLife.at_rest

        def at_rest(self: StageLife) -> bool:
            if self._stage.uid == broken:
                raise stale()
            return real(self)

        monkeypatch.setattr(StageLife, "at_rest", at_rest)
        with pytest.raises(Failed, match="was lost"):
            job.checkpoint(120)
        broken = ""
        assert job.checkpoint(120) == 2
        assert stage(job, "endless").restarts == 1

        broken = "ending"
        with pytest.raises(Failed):
            job.checkpoint(120)
        assert job.wait(120)
        assert job.state is strobe.JobState.FAILED
        assert "ending" in job.error
        assert os.strerror(errno.ESTALE) in job.error
    finally:
        monkeypatch.undo()
        job.stop()


# ── heartbeat ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def beating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobHome]:
    monkeypatch.setattr(home_module, "HEARTBEAT", 0.01)
    home = JobHome(tmp_path, "j")
    home.claim(lambda reason: None)
    yield home
    home.release()


def next_beat(home: JobHome) -> None:
    lock = home.path(home.layout.lock)
    os.utime(lock, (0, 0))
    eventually(lambda: lock.stat().st_mtime > 0, "a sign of life")


def test_the_heart_beats_on_after_an_error_that_passes(beating: JobHome, monkeypatch: pytest.MonkeyPatch) -> None:
    check = Failing(beating.check_owner, stale(), 3)
    monkeypatch.setattr(beating, "check_owner", check)
    eventually(lambda: check.calls > 3, "another look")
    next_beat(beating)


def test_the_heart_beats_on_when_the_handle_of_the_lock_is_stale_for_good(
    beating: JobHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    utime, tried = os.utime, threading.Event()

    def by_name_only(path: Any, times: Any = None) -> None:
        if isinstance(path, int):
            tried.set()
            raise stale()
        utime(path, times)

    monkeypatch.setattr(os, "utime", by_name_only)
    assert tried.wait(PATIENCE)
    next_beat(beating)


def test_a_driver_that_was_replaced_while_it_could_not_look_finds_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_module, "HEARTBEAT", 0.01)
    fenced = threading.Event()
    home = JobHome(tmp_path, "j")
    home.claim(lambda reason: fenced.set())
    try:
        check = Failing(home.check_owner, stale(), 3)
        monkeypatch.setattr(home, "check_owner", check)
        (home.path(home.layout.root) / "driver-1").rename(tmp_path / "gone")
        assert fenced.wait(PATIENCE)
    finally:
        home.release()


# ── gate ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Handler:
    def latest(self, stage: NodeId, channel: ChannelId, start: int, reader: str) -> int:
        return start + 1

    def available(self, stage: NodeId, channel: ChannelId) -> int:
        return 0

    def initial(self, stage: NodeId, channel: ChannelId) -> int:
        return 0

    def files(self, stage: NodeId, channel: ChannelId, start: int, end: int) -> tuple[()]:
        return ()

    def committed(self, stage: NodeId, channel: ChannelId, end: int) -> None:
        pass


class FailingListener:
    """A listener whose first calls of `accept` fail."""

    def __init__(self, real: socket.socket, times: int) -> None:
        error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.real, self.accept = real, Failing(real.accept, error, times)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def test_the_gate_lets_sources_in_after_it_could_not_accept_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_HELLO_SECONDS", 5.0)
    create = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda *a, **n: FailingListener(create(*a, **n), 3))
    with Gate(Handler()) as gate:
        client = GateClient(gate.address, NodeId("s"), ChannelId("c"))
        assert client.latest(4) == 5
        client.close()


def test_the_gate_lets_sources_in_after_it_had_no_thread_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with Gate(Handler()) as gate:
        starting = Failing(threading.Thread.start, RuntimeError("can't start new thread"), 1)
        monkeypatch.setattr(threading.Thread, "start", lambda self: starting(self))  # noqa: PLW0108
        first, second = (GateClient(gate.address, NodeId("s"), ChannelId("c")) for _ in range(2))
        with pytest.raises(Failed):
            first.latest(4)
        assert second.latest(4) == 5
        second.close()


# ── sinks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sink_that_is_fenced_off_fails_the_job_although_nobody_can_say_by_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = CommitWorld(tmp_path, monkeypatch)
    try:
        world.write()

        def commit(part: Any, prepared: Any) -> None:
            monkeypatch.setattr(world.work, "_guard", Failing(lambda: None, stale(), None))
            raise Fenced("another producer has this transactional id")

        monkeypatch.setattr(world.sink, "commit", commit)
        world.take_snapshot(settle=False)
        world.await_(lambda: bool(world.broken))
        assert "another producer has this transactional id" in world.broken[0]
    finally:
        world.crash()


def test_a_ledger_that_cannot_be_written_for_a_moment_does_not_end_the_sinks_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = CommitWorld(tmp_path, monkeypatch)
    try:
        world.write()
        world.sink.refusal = Failed("no room")
        monkeypatch.setattr(world.ledger, "refused", Failing(world.ledger.refused, stale(), 1))
        with pytest.raises(Failed, match="no room"):
            world.take_snapshot()
        world.sink.refusal = None
        assert world.take_snapshot() == SnapshotId(2)
        assert world.judge() == []
    finally:
        world.crash()
