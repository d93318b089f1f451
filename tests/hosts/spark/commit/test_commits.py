"""Two-phase commit as the Spark host runs it, without Spark: crashes at every point, and rules that are broken on
purpose and caught."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.commit import work as sink_work
from strobe.hosts.spark.commit.commits import Commits
from strobe.hosts.spark.commit.ledger import PartState, named_handles
from strobe.hosts.spark.commit.work import SinkWork
from strobe.hosts.spark.connectors.base import Unreachable
from strobe.hosts.spark.crash_points import POINTS
from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.model.errors import Failed
from strobe.model.ids import SnapshotId
from tests.support.spark.commit_world import Killed, World

STEPS = [p for p in POINTS if p.startswith(("sink.", "commit."))]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.home.stop_heartbeat()  # no thread outlives its test


def test_what_is_staged_becomes_visible_when_its_snapshot_is_complete(world: World) -> None:
    world.write(3)
    assert world.table.visible == []
    first = world.take_snapshot()
    assert world.table.visible == [0, 1, 2]
    assert world.settled == [first]
    world.write(2)
    world.take_snapshot()
    assert world.judge() == []


def test_a_snapshot_without_new_rows_prepares_nothing_and_settles(world: World) -> None:
    world.write()
    world.take_snapshot()
    attempts = world.sink.attempts
    second = world.take_snapshot()
    assert world.sink.attempts == attempts
    assert world.settled[-1] == second


def test_a_snapshot_that_is_given_up_throws_nothing_away_and_the_next_one_names_its_part(world: World) -> None:
    world.write()
    given_up = world.begin()
    assert isinstance(world.vote(given_up), StagePart)
    world.commits.abandon(given_up, "too slow")
    world.write()
    world.take_snapshot()
    assert world.table.aborted == []
    assert [h.rpartition("/")[2] for h in world.table.committed] == ["1", "2"]
    assert world.judge() == []


def test_a_refusal_leaves_the_rows_to_the_next_snapshot(world: World) -> None:
    world.write()
    world.sink.refusal = Failed("row 17 has no name")
    with pytest.raises(Failed, match="sink 'gold/0': row 17 has no name"):
        world.take_snapshot()
    assert world.ledger.entries == ()
    world.sink.refusal = None
    world.take_snapshot()
    assert world.judge() == []


def test_what_is_prepared_is_withdrawn_if_the_ledger_cannot_note_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*args: object, **named: object) -> None:
        raise Failed("ledger.json cannot be written: No space left on device.")

    world.write()
    with monkeypatch.context() as full:
        full.setattr(world.ledger, "prepared", no_room)
        with pytest.raises(Failed, match="No space left"):
            world.take_snapshot()
    assert world.table.prepared == {}, "nobody would end it"
    assert world.table.staged == {0}
    world.take_snapshot()
    assert world.judge() == []


def test_a_system_that_cannot_be_reached_is_asked_again_while_the_snapshot_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_work, "FIRST_PAUSE", 0.001)
    world.write()
    world.sink.refusal = Unreachable("nobody answers")
    snapshot = world.begin()
    world.work.prepare(snapshot, world.batch, lambda vote: None)
    world.await_(lambda: world.sink.attempts > 2)
    assert world.work.status().error == "nobody answers"
    world.commits.abandon(snapshot, "too slow")
    world.await_(lambda: world.work.status().failures == 0)
    world.sink.refusal = None
    world.take_snapshot()
    assert world.judge() == []


def test_a_commit_that_fails_is_tried_again_and_snapshots_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_work, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(sink_work, "LONGEST_PAUSE", 0.01)
    world.sink.down = OSError("connection refused")
    world.write()
    first = world.take_snapshot(settle=False)
    world.await_(lambda: world.work.status().failures > 2)
    assert world.work.status().error == "connection refused"
    assert world.work.status().in_doubt == 1
    world.write()
    second = world.take_snapshot(settle=False)
    assert [h.rpartition("/")[2] for h in named_handles(world.table.manifests[-1])["gold/0"]] == ["1", "2"]
    assert world.commits.unsettled == {first, second}
    assert not world.commits.settle(0.01)
    world.sink.down = None
    assert world.commits.settle(60)
    assert world.judge() == []


def test_a_vote_names_the_handles_that_the_manifest_has(world: World) -> None:
    world.write()
    snapshot = world.begin()
    part = world.vote(snapshot)
    assert isinstance(part, StagePart)
    (named,) = part.sinks["gold/0"].prepared
    assert named.handle == f"job/gold/0/1/{snapshot}"
    assert named.data == {
        "snapshot": 1, "timeline": 1, "after": -1, "through": 0, "where": "a table in memory",
        "prepared": {"handle": "job/gold/0/1/1"},
    }  # fmt: skip


def test_the_manifest_is_not_written_without_every_vote(world: World) -> None:
    world.write()
    snapshot = world.begin()
    with pytest.raises(Failed, match="some sink has not voted"):
        world.commits.decide(snapshot, [])


def test_batches_of_a_part_are_not_written_again(world: World) -> None:
    world.write(3)
    world.take_snapshot()
    assert world.work.boundary == 2


def test_what_the_ledger_knows_to_be_decided_is_committed_without_its_manifest(world: World) -> None:
    """A savepoint may be anywhere by now."""
    world.write()
    world.kill_at("commit.begun")
    with pytest.raises(Killed):
        world.take_snapshot()
    world.crash()
    assert [e.state for e in world.ledger.entries] == [PartState.DECIDED]
    world.start(read_manifests=False)
    assert world.commits.settle(60)
    assert world.judge() == []


# ── crashes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def live_through(world: World, point: str) -> list[str]:
    """A snapshot, a crash at `point` in the next, a resumed driver, one more snapshot. What the judge says."""
    world.write(2)
    world.take_snapshot()
    world.write(2)
    world.kill_at(point)
    try:
        world.take_snapshot()
    except Killed:
        world.crash()
    else:
        raise AssertionError(f"{point} was never reached")
    world.start()
    world.write()
    world.take_snapshot()
    return world.judge()


@pytest.mark.parametrize("point", STEPS)
def test_a_crash_at_any_step_loses_and_repeats_nothing(world: World, point: str) -> None:
    assert live_through(world, point) == []


@pytest.mark.parametrize("point", STEPS)
def test_a_crash_before_the_decision_makes_nothing_visible_and_one_after_it_everything(
    world: World, point: str
) -> None:
    world.write(2)
    world.kill_at(point)
    with pytest.raises(Killed):
        world.take_snapshot()
    world.crash()
    decided = bool(world.table.manifests)
    assert decided == point.startswith("commit.")
    world.start()
    assert world.commits.settle(60)
    assert world.table.visible == ([0, 1] if decided else [])


# ── mutants: each breaks one rule of the host, and is caught ────────────────────────────────────────────────────────


class CommitsBeforeTheManifest(Commits):
    def decide(self, snapshot: SnapshotId, parts: Iterable[StagePart]) -> None:
        super().decide(snapshot, parts)
        super().logged(snapshot)
        self.settle(60)

    def logged(self, snapshot: SnapshotId) -> None:
        pass


class AbortsOnAbandon(Commits):
    def abandon(self, snapshot: SnapshotId, reason: str) -> None:
        super().abandon(snapshot, reason)
        for work in self._works.values():
            for entry in work.in_doubt:
                if entry.part.snapshot == snapshot:
                    work.sink.abort(entry.part, entry.data)


class ForgetsBeforeTheCommit(SinkWork):
    def _commit(self, handle: str) -> None:
        entry = next(e for e in self._ledger.entries if e.handle == handle)
        self._ledger.forget(handle, PartState.COMMITTED)
        crash_points.point("commit.begun")
        self.sink.commit(entry.part, entry.data)


def test_a_commit_before_the_manifest_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "commits_class", CommitsBeforeTheManifest)
    world = World(tmp_path, monkeypatch)
    world.write()
    world.take_snapshot()
    assert "no complete snapshot names it" in str(world.judge())


def test_an_abort_when_a_snapshot_is_given_up_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "commits_class", AbortsOnAbandon)
    world = World(tmp_path, monkeypatch)
    world.write()
    given_up = world.begin()
    world.vote(given_up)
    world.commits.abandon(given_up, "too slow")
    world.write()
    world.take_snapshot()
    assert "visible are [1], of the batches up to 1" in str(world.judge())


def test_forgetting_before_the_commit_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "work_class", ForgetsBeforeTheCommit)
    assert "visible are" in str(live_through(World(tmp_path, monkeypatch), "commit.begun"))
