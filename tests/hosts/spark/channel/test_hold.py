"""A question of Spark's is held while there is nothing to read: what answers it, and what must not wait for it.

The stages hold for an hour, so whatever is answered here was answered by an event. The threads are real, the queries
are played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import strobe
from strobe.hosts.spark.jvm.session import DEFAULT_POLLING_DELAY
from strobe.hosts.spark.pipeline.pipeline import StageSpec
from strobe.hosts.spark.stage.agent import StageAgent
from strobe.hosts.spark.stage.asking import hold_of, polling
from strobe.model.errors import StrobeError
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from tests.hosts.spark.stage.test_life import PATIENCE, await_, is_waiting
from tests.support.spark.agent_world import World

HOUR = 3600.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def world(reads: dict[str, tuple[str, ...]], hold: float = HOUR) -> World:
        """`b` holds, and has planned once since its last batch."""
        world = World(tmp_path, reads, threads=True)
        made.append(world)
        b = world.stages["b"].agent
        b.stage = replace(b.stage, hold=hold)
        b.start(Incarnation(2))
        for uid in reads["b"]:
            world.source_batch(uid, 3)
        world.batch("b")
        assert world.plan("b") == world.stages["b"].offsets
        return world

    yield world
    for each in made:
        each.close()


@pytest.fixture
def world(build: Callable[..., World]) -> World:
    return build({"a": (), "b": ("a",)})


def reader(world: World) -> StageAgent:
    return world.stages["b"].agent


def ask(world: World, pool: ThreadPoolExecutor, producer: str = "a") -> Future[int]:
    start = world.stages["b"].offsets[producer]
    asked = pool.submit(reader(world).latest, f"b<{producer}", NodeId(producer), start)
    await_(lambda: reader(world).holds, "the question is held")
    return asked


def test_a_commit_of_the_producer_answers_and_the_next_question_gets_the_rows(
    world: World, pool: ThreadPoolExecutor
) -> None:
    """The held one does not: Spark would count the time of waiting as time of the batch."""
    asked, before = ask(world, pool), world.stages["b"].offsets["a"]
    assert is_waiting(asked, world, "b")
    world.source_batch("a", 4)
    assert asked.result(PATIENCE) == before
    assert not reader(world).holds
    assert world.batch("b") == 4


def test_the_first_question_after_a_batch_is_answered_at_once(world: World, pool: ThreadPoolExecutor) -> None:
    """A batch without rows may be due, and Spark decides so only when it has its answer."""
    world.source_batch("a", 4)
    assert world.batch("b") == 4
    assert world.plan("b") == world.stages["b"].offsets
    assert is_waiting(ask(world, pool), world, "b")
    reader(world).stop()


def test_a_barrier_passes_while_the_question_is_held(build: Callable[..., World], pool: ThreadPoolExecutor) -> None:
    world = build({"a": (), "b": ("a",), "c": ("b",)})
    asked = ask(world, pool)
    world.trigger(1)
    await_(lambda: world.channels["b"].log.find_barrier(SnapshotId(1)) is not None, "the barrier is passed on")
    await_(lambda: "b" in world.parts(1), "its part of the snapshot")
    assert is_waiting(asked, world, "b")
    reader(world).stop()


def test_rows_that_a_given_up_snapshot_held_back_answer(build: Callable[..., World], pool: ThreadPoolExecutor) -> None:
    world = build({"a": (), "c": (), "b": ("a", "c")})
    world.channels["a"].place_barrier(SnapshotId(1))
    world.source_batch("a", 4)  # behind a barrier that `c` has not sent
    asked = ask(world, pool)
    assert is_waiting(asked, world, "b")
    world.abort(1)
    assert asked.result(PATIENCE) == world.stages["b"].offsets["a"]
    await_(lambda: world.batch("b") == 4, "the rows are read")


def test_every_reader_of_a_round_is_answered_alike(build: Callable[..., World], pool: ThreadPoolExecutor) -> None:
    """Rows that came since are for the next round: the first has been told that there are none."""
    world = build({"a": (), "c": (), "b": ("a", "c")})
    offsets = dict(world.stages["b"].offsets)
    asked = ask(world, pool)
    world.source_batch("c", 4)
    assert asked.result(PATIENCE) == offsets["a"]
    assert reader(world).latest("b<c", NodeId("c"), offsets["c"]) == offsets["c"]
    assert world.batch("b") == 4


@pytest.mark.parametrize("end", ["stop", "halt"])
def test_the_end_of_the_stage_answers(world: World, pool: ThreadPoolExecutor, end: str) -> None:
    asked, start = ask(world, pool), world.stages["b"].offsets["a"]
    reader(world).stop() if end == "stop" else reader(world).halt(PATIENCE)
    assert asked.result(PATIENCE) == start
    assert reader(world).latest("b<a", NodeId("a"), start) == start


def test_a_stage_that_holds_is_idle(world: World, pool: ThreadPoolExecutor) -> None:
    """A drain and the end of a job wait for that."""
    ask(world, pool)
    assert reader(world).idle
    reader(world).stop()


def test_the_time_answers(build: Callable[..., World], pool: ThreadPoolExecutor) -> None:
    world = build({"a": (), "b": ("a",)}, hold=0.01)
    assert world.plan("b") == world.stages["b"].offsets
    assert world.plan("b") == world.stages["b"].offsets


def test_a_life_apart_holds_nothing(world: World) -> None:
    """It is there for one batch, or for a look."""
    b = reader(world)
    b.start(Incarnation(3), apart=world.stages["b"].batch)
    for _ in range(3):
        assert world.plan("b") == world.stages["b"].offsets


def test_what_cannot_be_read_fails_the_question(world: World, pool: ThreadPoolExecutor) -> None:
    asked = ask(world, pool)
    log = world.channels["a"].log
    (log.path / "_delta_log" / f"{log.head + 1:020d}.json").write_text("{")
    log.announce()
    with pytest.raises(StrobeError, match="cannot be read"):
        asked.result(PATIENCE)


def test_nobody_is_told_of_commits_after_the_life(world: World) -> None:
    log = world.channels["a"].log
    assert len(log._watchers) == 1
    reader(world).start(Incarnation(3))
    assert len(log._watchers) == 1
    reader(world).stop()
    assert log._watchers == []


@pytest.fixture
def spec() -> Callable[..., StageSpec]:
    def made(reads: str | None, **more: object) -> StageSpec:
        pipeline = strobe.Pipeline("p")
        pipeline.stage(uid="a")(lambda spark: spark)
        pipeline.stage(uid="b", reads=reads, **more)(lambda *frames, **named: (frames, named))  # type: ignore[arg-type, type-var]
        return pipeline.stages[NodeId("b")]

    return made


def test_only_a_stage_that_reads_nothing_but_channels_when_it_likes_is_held(spec: Callable[..., StageSpec]) -> None:
    assert hold_of(spec("a"), has_source=False) > 0
    assert hold_of(spec("a"), has_source=True) == 0
    assert hold_of(spec(None), has_source=True) == 0
    assert hold_of(spec("a", trigger={"processingTime": "1 second"}), has_source=False) == 0


def test_spark_pauses_long_where_it_must_ask_and_shortly_where_it_is_held(spec: Callable[..., StageSpec]) -> None:
    default = DEFAULT_POLLING_DELAY
    (held,) = polling(spec("a"), default, has_source=False).values()
    (source,) = polling(spec(None), default, has_source=True).values()
    assert int(held.removesuffix("ms")) < int(default.removesuffix("ms")) < int(source.removesuffix("ms"))
    assert polling(spec("a"), default, has_source=True) == {}
    assert polling(spec("a", trigger={"processingTime": "1 second"}), default, has_source=False) == {}


def test_a_pause_that_the_user_has_set_for_the_session_stays(spec: Callable[..., StageSpec]) -> None:
    assert polling(spec(None), "10ms", has_source=True) == {}
    assert polling(spec("a"), "10ms", has_source=False) == {}
