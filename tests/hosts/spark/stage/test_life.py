"""One life of a stage: who waits for what, and what is answered when. The threads are real, the queries are played."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from dataclasses import replace
from pathlib import Path

import pytest

from strobe.hosts.spark.snapshot.messages import Acknowledge, StageLost, StagePart, StageReady, StageRegistered
from strobe.hosts.spark.snapshot.recording import Recorded, Recording
from strobe.hosts.spark.stage.agent import StageAgent
from strobe.model.errors import Failed, StrobeError
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from tests.support.spark.agent_world import Immediate, World

PATIENCE = 60.0
A = NodeId("a")


class Blocked(Immediate):
    """Uploads in a thread of their own that end when a test says so."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def submit(self, stage: Recorded, recording: Recording, done: Callable[[StagePart | StrobeError], None]) -> None:
        def work() -> None:
            self.begun.set()
            assert self.go.wait(PATIENCE)
            Immediate.submit(self, stage, recording, done)

        threading.Thread(target=work, daemon=True).start()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A source and its reader. Both have run a batch."""
    made = World(tmp_path, {"a": (), "b": ("a",)}, threads=True)
    made.source_batch("a", 3)
    made.batch("b")
    yield made
    made.close()


def agent(world: World, uid: str = "a") -> StageAgent:
    return world.stages[uid].agent


def await_(happened: Callable[[], bool], what: str) -> None:
    for _ in range(int(PATIENCE / 0.005)):
        if happened():
            return
        threading.Event().wait(0.005)
    raise AssertionError(f"it never happened: {what}")


def is_waiting(asked: Future[None] | Future[int], world: World, uid: str) -> bool:
    """The question is in, and was not answered: others that came later were."""
    agent(world, uid).at_rest()
    agent(world, uid).at_rest()
    return not asked.done()


def await_standing(world: World) -> None:
    world.trigger(1, last=True)
    await_(lambda: "a" in world.parts(1), "its part of the last snapshot")


def test_a_batch_behind_the_last_snapshot_waits_and_begins_if_that_is_given_up(
    world: World, pool: ThreadPoolExecutor
) -> None:
    await_standing(world)
    world._log(world.stages["a"], {})
    began = pool.submit(agent(world).begin_batch, 1)
    with pytest.raises(TooLate):
        began.result(0.3)
    world.abort(1)
    began.result(PATIENCE)
    agent(world).end_batch(1)


def test_a_batch_that_waits_is_left_for_the_next_start_when_the_stage_is_halted(
    world: World, pool: ThreadPoolExecutor
) -> None:
    await_standing(world)
    world._log(world.stages["a"], {})
    began = pool.submit(agent(world).begin_batch, 1)
    assert is_waiting(began, world, "a")
    assert agent(world).halt(PATIENCE)
    with pytest.raises(Failed, match="left for its next start"):
        began.result(PATIENCE)


def test_a_stage_that_comes_back_stands_still_if_the_last_snapshot_has_its_part(
    world: World, pool: ThreadPoolExecutor
) -> None:
    """Nothing of it is in memory: the coordinator says so."""

    def register(message: object) -> None:
        if isinstance(message, StageReady):
            agent(world).tell(StageRegistered(message.incarnation, SnapshotId(1), last=SnapshotId(1)))

    agent(world).stage = replace(agent(world).stage, post=register)
    agent(world).start(Incarnation(2))
    world._log(world.stages["a"], {})
    began = pool.submit(agent(world).begin_batch, 1)
    assert is_waiting(began, world, "a")
    world.abort(1)
    began.result(PATIENCE)
    agent(world).end_batch(1)


def test_spark_waits_for_its_first_answer_until_the_coordinator_knows_the_stage(
    world: World, pool: ThreadPoolExecutor
) -> None:
    b = agent(world, "b")
    b.stage = replace(b.stage, post=lambda message: None)
    b.start(Incarnation(2))
    world.source_batch("a", 4)
    asked = pool.submit(b.latest, "b<a", A, world.stages["b"].offsets["a"])
    assert is_waiting(asked, world, "b")
    b.tell(StageRegistered(Incarnation(1), SnapshotId(0)))  # to an earlier life
    assert is_waiting(asked, world, "b")
    b.tell(StageRegistered(Incarnation(2), SnapshotId(0)))
    assert asked.result(PATIENCE) == world.channels["a"].log.end


def test_no_batch_begins_before_the_coordinator_knows_the_stage(world: World, pool: ThreadPoolExecutor) -> None:
    """It may have its part in the snapshot that ends the job."""
    agent(world).stage = replace(agent(world).stage, post=lambda message: None)
    agent(world).start(Incarnation(2))
    number = world._log(world.stages["a"], {})
    began = pool.submit(agent(world).begin_batch, number)
    assert is_waiting(began, world, "a")
    agent(world).tell(StageRegistered(Incarnation(2), SnapshotId(0)))
    began.result(PATIENCE)
    agent(world).end_batch(number, failed=True)


@pytest.mark.parametrize("end", ["stop", "halt"])
def test_spark_is_told_that_there_is_nothing_when_the_stage_ends_meanwhile(
    world: World, pool: ThreadPoolExecutor, end: str
) -> None:
    b, start = agent(world, "b"), world.stages["b"].offsets["a"]
    b.stage = replace(b.stage, post=lambda message: None)
    b.start(Incarnation(2))
    world.source_batch("a", 4)
    asked = pool.submit(b.latest, "b<a", A, start)
    assert is_waiting(asked, world, "b")
    b.stop() if end == "stop" else b.halt(PATIENCE)
    assert asked.result(PATIENCE) == start
    assert b.latest("b<a", A, start) == start


def test_a_question_does_not_wait_for_an_upload(tmp_path: Path) -> None:
    uploads = Blocked()
    world = World(tmp_path, {"a": (), "b": ("a",)}, threads=True, uploads=uploads)
    try:
        world.source_batch("a", 3)
        world.trigger(1)
        assert uploads.begun.wait(PATIENCE)
        assert world.batch("b") == 3
        world.source_batch("a", 4)
        assert world.parts(1) == {}
        uploads.go.set()
        await_(lambda: "a" in world.parts(1), "its acknowledgement")
    finally:
        uploads.go.set()
        world.close()


def test_a_halt_waits_for_the_running_batch_and_for_its_commit(world: World, pool: ThreadPoolExecutor) -> None:
    number = world._log(world.stages["a"], {})
    agent(world).begin_batch(number)
    assert not agent(world).halt(0.05), "the batch runs"
    agent(world).end_batch(number)
    assert not agent(world).halt(0.05), "it is not committed"
    halted = pool.submit(agent(world).halt, PATIENCE)
    (world.stages["a"].path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    assert halted.result(PATIENCE)
    with pytest.raises(Failed, match="left for its next start"):
        agent(world).begin_batch(number + 1)


def test_the_next_life_begins_when_the_batch_of_the_one_before_has_ended(
    world: World, pool: ThreadPoolExecutor
) -> None:
    number = world._log(world.stages["a"], {})
    agent(world).begin_batch(number)
    agent(world).stop(0)
    with pytest.raises(Failed, match="left for its next start"):
        agent(world).check_live(number)
    started = pool.submit(agent(world).start, Incarnation(2))
    with pytest.raises(TooLate):
        started.result(0.1)
    agent(world).end_batch(number, failed=True)
    started.result(PATIENCE)
    agent(world).begin_batch(number)
    agent(world).end_batch(number, failed=True)


def test_a_stage_in_a_batch_is_not_idle_and_says_so_at_once(world: World) -> None:
    world.plan("b")
    world.plan("b")
    assert agent(world, "b").idle
    number = world._log(world.stages["b"], dict(world.stages["b"].offsets))
    agent(world, "b").begin_batch(number)
    assert not agent(world, "b").idle
    assert not agent(world, "b").at_rest()
    agent(world, "b").end_batch(number, failed=True)


def test_a_stage_that_waits_for_the_clock_is_idle_when_its_batches_have_nothing_to_read(world: World) -> None:
    waiting, offsets = agent(world, "b"), world.stages["b"].offsets
    waiting.stage = replace(waiting.stage, never_rests=True)
    world.restart("b")
    for idle in (False, True, True):  # the first may close windows
        world._run(world.stages["b"], dict(offsets), 0)
        assert waiting.idle is idle
    world.source_batch("a", 2)
    assert waiting.at_rest()
    assert not waiting.idle, "rows wait"
    world.batch("b")
    assert not waiting.idle, "what came of them may not be out"


def test_a_life_apart_runs_its_batch_and_no_other_and_takes_part_in_nothing(
    world: World, pool: ThreadPoolExecutor
) -> None:
    posted = len(world.posted)
    number = world._log(world.stages["a"], {})
    agent(world).start(Incarnation(2), apart=number)
    world.trigger(1)
    agent(world).begin_batch(number)
    agent(world).end_batch(number)
    (world.stages["a"].path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    began = pool.submit(agent(world).begin_batch, number + 1)
    assert is_waiting(began, world, "a")
    assert agent(world).halt(PATIENCE)
    with pytest.raises(Failed, match="left for its next start"):
        began.result(PATIENCE)
    assert [m for m in world.posted[posted:] if isinstance(m, StageReady | StageLost | Acknowledge)] == []
