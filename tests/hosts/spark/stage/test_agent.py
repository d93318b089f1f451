"""The agent: barriers, batches and positions, with played queries and real channels."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strobe.hosts.spark.channel.admission import Limits
from strobe.hosts.spark.channel.log import DataFile
from strobe.hosts.spark.connectors.base import NO_SNAPSHOT
from strobe.hosts.spark.snapshot.messages import Acknowledge, StartSnapshot, TrimChannel
from strobe.hosts.spark.snapshot.recording import Recording
from strobe.hosts.spark.stage.inbox import InputGrew
from strobe.model.cut import Json
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.barriers import BarrierMode
from tests.support.spark.agent_world import Immediate, Reads, World
from tests.support.spark.played_agents import PlayedAgent

MODES = list(BarrierMode)
CHAIN: Reads = {"a": (), "b": ("a",), "c": ("b",)}
DIAMOND: Reads = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
TWO_SOURCES: Reads = {"fast": (), "slow": (), "join": ("fast", "slow")}
TWO_PARTS: Reads = {"a": (), "b": ("a",), "x": (), "y": ("x",)}
LOOP: Reads = {"a": (), "b": ("a", "c"), "c": ("b",), "d": ("b",)}

Make = Callable[..., World]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Make]:
    made: list[World] = []

    def make(reads: Reads, **options: Any) -> World:
        made.append(World(tmp_path / str(len(made)), reads, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reads", [CHAIN, DIAMOND, TWO_SOURCES, TWO_PARTS])
def test_idle_stages_pass_barriers_on_without_a_batch(world: Make, reads: Reads, mode: BarrierMode) -> None:
    w = world(reads, mode=mode)
    w.trigger(1)
    w.settle()
    w.check(1)
    assert all(stage.batch == -1 for stage in w.stages.values())


def test_an_aligned_batch_ends_exactly_on_the_barrier(world: Make) -> None:
    w = world(CHAIN)
    w.source_batch("a", 10)
    w.trigger(1)
    w.stages["a"].agent.at_rest()
    w.source_batch("a", 7)
    assert w.batch("b") == 10, "b must stop at the barrier although more is there"
    assert w.batch("b") == 7
    w.settle()
    w.check(1)
    assert w.parts(1)["b"].record.batch == 0


def test_an_input_that_has_delivered_its_barrier_waits_for_the_other(world: Make) -> None:
    w = world(TWO_SOURCES)
    w.source_batch("fast", 5)
    w.stages["fast"].agent.tell(StartSnapshot(SnapshotId(1), Kind.CHECKPOINT))
    w.stages["fast"].agent.at_rest()
    w.source_batch("fast", 100)
    w.batch("join")
    w.source_batch("slow", 3)
    assert w.batch("join") == 3, "fast is held, slow is not"
    w.stages["slow"].agent.tell(StartSnapshot(SnapshotId(1), Kind.CHECKPOINT))
    w.stages["slow"].agent.at_rest()
    assert w.batch("join") == 100
    w.check(1)


def test_unaligned_records_at_once_and_the_backlog_is_in_flight(world: Make) -> None:
    w = world(TWO_SOURCES, mode=BarrierMode.UNALIGNED, limits=Limits(rows=10))
    for _ in range(20):
        w.source_batch("fast", 10)
    w.batch("join")
    w.trigger(1)
    for uid in ("fast", "slow"):
        w.stages[uid].agent.at_rest()
    w.plan("join")
    w.check(1)
    assert w.parts(1)["join"].in_flight[NodeId("fast")].rows == 190
    w.settle()
    w.check(1)


class Unasked:
    """A sink that delivers on snapshot, and never votes."""

    name = "a/0"

    def prepare(self, snapshot: SnapshotId, batch: int, done: Any) -> None:
        pass


def start(w: World, uid: str, snapshot: int = 1) -> None:
    w.stages[uid].agent.tell(StartSnapshot(SnapshotId(snapshot), Kind.CHECKPOINT))


def test_a_stage_that_is_told_is_recorded_before_a_stage_that_it_reads(world: Make) -> None:
    w = world(CHAIN, mode=BarrierMode.UNALIGNED)
    w.source_batch("a", 10)
    w.batch("b")
    start(w, "c")  # c has read nothing of b
    w.source_batch("a", 7)
    w.batch("b")
    assert w.batch("c") == 17, "it goes on while b has not placed its barrier"
    start(w, "b")
    w.source_batch("a", 3)
    start(w, "a")
    w.settle()
    w.check(1)
    parts = w.parts(1)
    assert (parts["c"].record.batch, parts["c"].in_flight[NodeId("b")].rows) == (-1, 17)
    assert (parts["b"].record.batch, parts["b"].in_flight[NodeId("a")].rows) == (1, 3)


def test_a_stage_that_meets_the_barrier_first_reads_nothing_from_behind_it(world: Make) -> None:
    w = world(CHAIN, mode=BarrierMode.UNALIGNED)
    w.source_batch("a", 10)
    start(w, "a")
    w.source_batch("a", 7)
    assert w.batch("b") == 17
    start(w, "b")  # too late: it was recorded when it met the barrier, before the batch
    start(w, "c")
    w.settle()
    w.check(1)
    assert (w.parts(1)["b"].record.batch, w.parts(1)["b"].in_flight[NodeId("a")].rows) == (-1, 10)


def test_the_content_of_a_channel_ends_at_a_barrier_that_is_placed_while_a_batch_runs(world: Make) -> None:
    w = world(CHAIN, mode=BarrierMode.UNALIGNED)
    for uid in ("b", "c"):
        start(w, uid)
    w.source_batch("a", 10)
    agent = w.stages["b"].agent
    assert isinstance(agent, PlayedAgent)
    assert w.plan("b") == {"a": w.channels["a"].log.head}
    w._log(w.stages["b"], w.plan("b"))
    assert agent.arrive(0).answered
    start(w, "a")
    w.stages["a"].agent.at_rest()
    assert "b" not in w.parts(1)
    agent.life.put(InputGrew())
    assert w.parts(1)["b"].in_flight[NodeId("a")].rows == 10, "before the batch has ended"
    agent.end_batch(0)


def test_a_savepoint_is_aligned_where_checkpoints_are_not(world: Make) -> None:
    w = world(TWO_SOURCES, mode=BarrierMode.UNALIGNED, limits=Limits(rows=10))
    for _ in range(5):
        w.source_batch("fast", 10)
    w.trigger(1, aligned=True)
    for uid in ("fast", "slow"):
        w.stages[uid].agent.at_rest()
    w.source_batch("slow", 3)
    w.plan("join")
    assert "join" not in w.parts(1)
    w.settle()
    w.check(1)
    assert all(flight.rows == 0 for flight in w.parts(1)["join"].in_flight.values())
    w.trigger(2)
    w.settle()
    w.check(2)


def test_no_stage_is_recorded_by_a_barrier_while_its_batch_runs(world: Make) -> None:
    w = world(CHAIN, mode=BarrierMode.UNALIGNED)
    w.source_batch("a", 10)
    agent = w.stages["b"].agent
    assert isinstance(agent, PlayedAgent)
    w._log(w.stages["b"], w.plan("b"))
    agent.arrive(0)
    start(w, "a")
    w.stages["a"].agent.at_rest()
    agent.life.put(InputGrew())
    assert agent.life.machine is not None
    assert not agent.life.machine.passed(SnapshotId(1))


def test_a_snapshot_that_begins_while_a_batch_runs_is_recorded_as_before_the_batch(world: Make) -> None:
    w = world(CHAIN, mode=BarrierMode.UNALIGNED)
    w.source_batch("a", 10)
    w.batch("b")
    w.batch("c")
    w.source_batch("a", 7)

    def begins(uid: str, shown: bool) -> None:
        if uid == "b" and not shown:
            w.trigger(1)
            assert w.parts(1).keys() == {"a", "b", "c"}, "nobody waits for the batch"

    w.meanwhile = begins
    assert w.batch("b") == 7
    w.settle()
    w.check(1)
    part = w.parts(1)["b"]
    assert (part.record.batch, part.in_flight[NodeId("a")].rows) == (0, 7), "the batch is in flight"
    assert w.rows_in("b", part.barrier or 0) == 10, "its rows are behind the barrier"


def test_several_snapshots_can_begin_while_one_batch_runs(world: Make) -> None:
    w = world(CHAIN, mode=BarrierMode.UNALIGNED)
    w.source_batch("a", 10)
    w.batch("b")
    w.source_batch("a", 7)

    def begin(uid: str, shown: bool) -> None:
        if not shown:
            for snapshot in (1, 2, 3):
                w.trigger(snapshot)

    w.meanwhile = begin
    w.batch("b")
    w.meanwhile = lambda uid, shown: None
    w.settle()
    for snapshot in (1, 2, 3):
        w.check(snapshot)
        assert w.parts(snapshot)["b"].record.batch == 0


def test_a_snapshot_that_begins_when_the_rows_of_the_batch_are_out_has_the_batch(world: Make) -> None:
    w = world(CHAIN, mode=BarrierMode.UNALIGNED)
    w.source_batch("a", 10)
    w.batch("b")
    w.source_batch("a", 7)

    def begins(uid: str, shown: bool) -> None:
        if uid == "b" and shown:
            w.trigger(1)
            assert "b" not in w.parts(1)

    w.meanwhile = begins
    w.batch("b")
    w.settle()
    w.check(1)
    assert w.parts(1)["b"].record.batch == 1


@pytest.mark.parametrize("how", ["aligned", "last", "first batch", "begun before", "sinks not steady", "on snapshot"])
def test_what_needs_the_stage_at_rest_waits_for_the_batch(world: Make, how: str) -> None:
    w = world(CHAIN, mode=BarrierMode.UNALIGNED)
    agent = w.stages["a"].agent
    if how == "sinks not steady":
        agent.stage = replace(agent.stage, steady=False)
    elif how == "on snapshot":
        agent.stage = replace(agent.stage, sinks=(Unasked(),))
    agent.start(Incarnation(1))
    if how != "first batch":
        w.source_batch("a", 3)
    if how == "begun before":
        w.cut_short("a", 5)
        w.restart("a")

    def begins(uid: str, shown: bool) -> None:
        if uid == "a" and not shown:
            w.trigger(1, last=how == "last", aligned=how == "aligned")
            assert "a" not in w.parts(1)
            assert w.channels["a"].log.find_barrier(SnapshotId(1)) is None

    w.meanwhile = begins
    w.source_batch("a", 5)
    agent.at_rest()
    barrier = w.channels["a"].log.find_barrier(SnapshotId(1))
    assert barrier is not None
    assert w.rows_in("a", barrier.version) == (5 if how == "first batch" else 8)


def test_a_sink_that_cannot_say_where_it_stands_before_a_batch_does_not_stop_the_stage(world: Make) -> None:
    w = world(CHAIN, mode=BarrierMode.UNALIGNED)
    agent = w.stages["a"].agent

    def position(snapshot: SnapshotId) -> dict[str, Json]:
        if snapshot == NO_SNAPSHOT:
            raise ZeroDivisionError("in somebody's sink")
        return {}

    agent.stage = replace(agent.stage, sink_positions=position)
    agent.start(Incarnation(1))
    w.source_batch("a", 3)
    w.meanwhile = lambda uid, shown: start(w, uid) if uid == "a" and not shown else None
    w.source_batch("a", 5)
    agent.at_rest()
    barrier = w.channels["a"].log.find_barrier(SnapshotId(1))
    assert barrier is not None
    assert w.rows_in("a", barrier.version) == 8, "it waited for the batch"


def test_sinks_are_recorded_where_they_stood_before_the_batch(world: Make) -> None:
    w = world({"a": (), "b": ("a",)}, mode=BarrierMode.UNALIGNED)
    agent = w.stages["b"].agent
    stands = [0]
    recorded: list[Recording] = []

    class Uploads(Immediate):
        def submit(self, stage: Any, recording: Recording, done: Any) -> None:
            recorded.append(recording)
            super().submit(stage, recording, done)

    agent.stage = replace(agent.stage, sink_positions=lambda snapshot: {"b/0": stands[0]}, uploads=Uploads())
    agent.start(Incarnation(1))
    w.source_batch("a", 3)
    w.batch("b")
    stands[0] = 1

    def begins(uid: str, shown: bool) -> None:
        if uid == "b":
            stands[0] = 2  # its sink has the batch already
            w.trigger(1)

    w.source_batch("a", 5)
    w.meanwhile = begins
    w.batch("b")
    assert [(r.batch, r.sinks) for r in recorded] == [(0, {"b/0": 1})]
    w.meanwhile = lambda uid, shown: None
    w.trigger(2)
    w.settle()
    assert [(r.batch, r.sinks) for r in recorded[1:]] == [(1, {"b/0": 2})]


def test_a_timeout_turns_an_aligned_snapshot_unaligned(world: Make) -> None:
    w = world(TWO_SOURCES, mode=BarrierMode.ALIGNED_WITH_TIMEOUT, limits=Limits(rows=10))
    for _ in range(5):
        w.source_batch("fast", 10)
    w.trigger(1)
    for uid in ("fast", "slow"):
        w.stages[uid].agent.at_rest()
    w.batch("join")
    assert "join" not in w.parts(1)
    w.stages["join"].agent.time_out(SnapshotId(1))
    w.stages["join"].agent.at_rest()
    w.check(1)
    assert w.parts(1)["join"].in_flight[NodeId("fast")].rows == 40


@pytest.mark.parametrize("mode", MODES)
def test_every_stage_that_the_last_snapshot_reaches_plans_no_batch_more(world: Make, mode: BarrierMode) -> None:
    """Only the sources are told; the others know it from the barrier itself."""
    w = world(CHAIN, mode=mode)
    w.everywhere = False
    w.source_batch("a", 10)
    w.settle()
    w.trigger(1, last=True)
    w.stages["a"].agent.at_rest()
    w.channels["a"].append([DataFile("data/later.parquet", 5, 40)], 7)  # as if it had not stood still
    w.settle()
    w.check(1)
    assert [w.stages[uid].batch for uid in "bc"] == [0, 0]
    w.abort(1)
    w.settle()
    assert [w.stages[uid].batch for uid in "bc"] == [1, 1], "given up: they go on"


def test_a_channel_is_trimmed_by_its_owner_when_that_is_told_to(world: Make) -> None:
    w = world(CHAIN)
    for _ in range(3):
        w.source_batch("a", 10)
        w.batch("b")
    w.trigger(1)
    w.settle()
    consumed = next(m.consumed for m in w.posted if isinstance(m, Acknowledge) and m.stage == "b")
    upto = consumed[NodeId("a")]
    assert w.rows_in("a", upto) == 30
    w.stages["a"].agent.tell(TrimChannel(upto))
    w.stages["a"].agent.at_rest()
    assert w.channels["a"].log.trimmed == upto


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_s_rows_belong_to_the_snapshot(world: Make, mode: BarrierMode) -> None:
    w = world(LOOP, mode=mode, feedback=frozenset({"b<c"}), limits=Limits(rows=10))
    w.source_batch("a", 10)
    w.batch("b")
    w.batch("c")
    w.trigger(1)
    w.stages["a"].agent.at_rest()
    w.plan("b")
    w.batch("d")
    for _ in range(3):
        w.batch("c")
        w.batch("b")
        w.batch("d")
    w.check(1)
    assert w.parts(1)["b"].in_flight[NodeId("c")].rows == 10


def test_an_aborted_snapshot_releases_what_it_held_and_a_later_one_completes(world: Make) -> None:
    w = world(TWO_SOURCES)
    w.source_batch("fast", 5)
    w.stages["fast"].agent.tell(StartSnapshot(SnapshotId(1), Kind.CHECKPOINT))
    w.stages["fast"].agent.at_rest()
    w.source_batch("fast", 6)
    w.batch("join")
    w.abort(1)
    assert w.batch("join") == 6
    w.trigger(2)
    w.settle()
    w.check(2)
    assert "join" not in w.parts(1)


def test_barriers_of_an_earlier_life_are_walked_over(world: Make) -> None:
    w = world(TWO_SOURCES, mode=BarrierMode.UNALIGNED)
    w.source_batch("fast", 5)
    w.stages["fast"].agent.tell(StartSnapshot(SnapshotId(1), Kind.CHECKPOINT))
    w.stages["fast"].agent.at_rest()
    w.newest = 1
    w.stages["join"].agent.start(Incarnation(2))
    w.trigger(2)
    w.settle()
    assert w.parts(1).keys() == {"fast"}
    w.check(2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reads", [TWO_SOURCES, {"slow": (), "fast": (), "join": ("slow", "fast")}])
def test_a_stage_that_starts_again_records_no_position_behind_an_earlier_snapshot(
    world: Make, reads: Reads, mode: BarrierMode
) -> None:
    w = world(reads, mode=mode)
    w.source_batch("fast", 5)
    w.batch("join")
    for snapshot in (1, 2):  # which leave entries without rows on both inputs: the query's offsets stay behind them
        w.trigger(snapshot)
        w.settle()
    w.restart("join")
    w.trigger(3)
    for uid in ("fast", "slow"):
        w.stages[uid].agent.at_rest()
    w.settle()
    w.check(3)
    before, after = (w.parts(s)["join"].record.inputs for s in (2, 3))
    assert all(after[channel] >= before[channel] for channel in before)


def test_a_barrier_that_was_given_up_on_one_input_alone_leaves_no_gap_in_what_is_in_flight(world: Make) -> None:
    w = world(TWO_SOURCES, mode=BarrierMode.UNALIGNED)
    for uid, snapshot in (("slow", 1), ("fast", 2)):  # fast never hears of 1
        w.stages[uid].agent.tell(StartSnapshot(SnapshotId(snapshot), Kind.CHECKPOINT))
        w.stages[uid].agent.at_rest()
    w.plan("join")  # records 2; the barrier of 1 is swallowed while the channel is open
    w.stages["slow"].agent.tell(StartSnapshot(SnapshotId(2), Kind.CHECKPOINT))
    w.settle()
    w.check(2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("restarted", [False, True], ids=["failed", "killed"])
def test_no_snapshot_falls_between_the_rows_of_a_batch_and_its_commit(
    world: Make, mode: BarrierMode, restarted: bool
) -> None:
    w = world(CHAIN, mode=mode)
    w.source_batch("a", 3)
    w.cut_short("a", 5)
    if restarted:
        w.restart("a")
    w.trigger(1)
    w.settle()
    assert "a" not in w.parts(1), "its state has 3 rows, its channel 8"
    w.source_batch("a", 5)  # the same batch once more
    w.settle()
    w.check(1)
    assert w.parts(1)["a"].record.batch == 1


def test_a_batch_that_was_logged_and_never_begun_holds_no_snapshot_up(world: Make) -> None:
    w = world(CHAIN)
    w.source_batch("a", 3)
    w.cut_short("a", 0)
    w.restart("a")
    w.trigger(1)
    w.settle()
    w.check(1)
    assert w.parts(1)["a"].record.batch == 0


def test_limits_admit_whole_commits_and_at_least_one(world: Make) -> None:
    w = world(CHAIN, limits=Limits(rows=25))
    for rows in (10, 10, 10, 100, 1):
        w.source_batch("a", rows)
    assert [w.batch("b") for _ in range(4)] == [20, 10, 100, 1]


def test_both_readers_of_a_self_join_see_the_same_end(world: Make) -> None:
    w = world({"a": (), "b": ("a",)})
    w.source_batch("a", 5)
    agent = w.stages["b"].agent
    first = agent.latest("reader-1", NodeId("a"), 0)
    w.source_batch("a", 5)
    assert agent.latest("reader-2", NodeId("a"), 0) == first


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("reads", "feedback"),
    [(CHAIN, ()), (DIAMOND, ()), (TWO_SOURCES, ()), (TWO_PARTS, ()), (LOOP, ("b<c",))],
    ids=["chain", "diamond", "two-sources", "two-parts", "loop"],
)
@pytest.mark.parametrize("seed", range(6))
def test_random_schedules_give_consistent_cuts(
    world: Make, reads: Reads, feedback: tuple[str, ...], mode: BarrierMode, seed: int
) -> None:
    rng = random.Random(seed)
    w = world(reads, mode=mode, feedback=frozenset(feedback), limits=Limits(rows=rng.choice([None, 7, 30])), seed=seed)
    sources = [uid for uid, inputs in reads.items() if not inputs]
    snapshot = 0
    waiting: dict[int, set[str]] = {}
    loops = 0

    def meanwhile(uid: str, shown: bool) -> None:
        """The stage may hear of a snapshot while its batch runs."""
        if snapshot and uid in waiting[snapshot] and rng.random() < 0.3:
            waiting[snapshot].discard(uid)
            w.stages[uid].agent.tell(StartSnapshot(SnapshotId(snapshot), Kind.CHECKPOINT))

    w.meanwhile = meanwhile
    for _ in range(120):
        action = rng.random()
        uid = rng.choice(list(reads))
        if action < 0.05 and all(len(w.parts(s)) == len(reads) for s in range(1, snapshot + 1)):
            snapshot += 1
            waiting[snapshot] = set(reads if mode is BarrierMode.UNALIGNED and seed % 2 else sources)
        elif action < 0.15 and snapshot and waiting[snapshot]:
            first = rng.choice(sorted(waiting[snapshot]))
            waiting[snapshot].discard(first)
            w.stages[first].agent.tell(StartSnapshot(SnapshotId(snapshot), Kind.CHECKPOINT))
        elif action < 0.2:
            w.stages[uid].agent.at_rest()
        elif uid in sources:
            w.source_batch(uid, rng.randrange(1, 20))
        elif "c" in reads.get("b", ()) and uid == "c":
            loops += 1
            if loops < 6:  # a loop that doubled its rows for ever would not end
                w.batch(uid)
        else:
            w.batch(uid)
        for done in range(1, snapshot + 1):
            if len(w.parts(done)) == len(reads):
                w.check(done)
    for first in waiting.get(snapshot, ()):
        w.stages[first].agent.tell(StartSnapshot(SnapshotId(snapshot), Kind.CHECKPOINT))
    for uid in sources:
        w.stages[uid].agent.at_rest()
    for _ in range(4 * len(reads)):
        for uid in reads:
            if uid not in sources:
                w.batch(uid) if uid != "c" or "c" not in reads.get("b", ()) else w.plan(uid)
    for done in range(1, snapshot + 1):
        if not ("c" in reads.get("b", ()) and mode is not BarrierMode.UNALIGNED):
            w.check(done)
