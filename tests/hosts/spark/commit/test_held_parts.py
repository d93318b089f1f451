"""Parts that wait for a verdict, as the Spark host keeps them, without Spark: verdicts, releases, crashes between."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from strobe.hosts.spark.commit.commits import Commits
from strobe.hosts.spark.commit.holding import held_on_disk, release, release_offline
from strobe.hosts.spark.commit.ledger import PartState
from strobe.hosts.spark.commit.start import explain_doubt
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.protocol.two_phase_commit.messages import Finding
from strobe.store.releases import read_releases
from tests.support.spark.commit_world import NOW, Killed, World

HOLDS, VIOLATED, POSTPONED = Finding.HOLDS, Finding.VIOLATED, Finding.POSTPONED


class JudgedWorld(World):
    judges = True

    def snapshot_of(self, batches: int = 1) -> SnapshotId:
        """Write, and take a snapshot, which then waits for its verdict."""
        self.write(batches)
        return self.take_snapshot(settle=False)

    def say(self, snapshot: int, finding: Finding) -> None:
        self.commits.judged(SnapshotId(snapshot), finding, NOW, f"it is {finding.value}")

    def release(self, snapshot: int) -> None:
        release(self.commits, self.home, lambda release: None, SnapshotId(snapshot), "ada@here")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgedWorld]:
    made = JudgedWorld(tmp_path, monkeypatch)
    yield made
    made.home.stop_heartbeat()  # no thread outlives its test


def test_rows_become_visible_after_the_verdict_and_not_before(world: JudgedWorld) -> None:
    first = world.snapshot_of(2)
    assert world.asked == [first]
    assert not world.commits.settle(0)
    assert world.table.visible == []
    world.say(first, HOLDS)
    assert world.commits.settle(60)
    assert world.judge() == []
    assert world.commits.held() is None


def test_a_violated_one_holds_back_its_part_and_all_later_ones_until_it_is_released(world: JudgedWorld) -> None:
    good = world.snapshot_of()
    world.say(good, HOLDS)
    assert world.commits.settle(60)
    bad, later = world.snapshot_of(), world.snapshot_of()
    world.say(bad, VIOLATED)
    world.say(later, HOLDS)
    assert not world.commits.settle(60), "it does not wait for what only a person can change"
    assert world.table.visible == [0]
    held = world.commits.held()
    assert held is not None
    assert (held.snapshot, held.newest, held.parts, held.reason) == (bad, later, 2, "it is violated")
    world.await_(lambda: world.work.status().held == 2)
    assert {e.decided_by for e in world.ledger.entries} == {bad, later}
    world.release(bad)
    assert world.commits.settle(60)
    assert world.judge() == []
    assert [(r.snapshot, r.by, r.parts) for r in read_releases(world.place, "job")] == [(bad, "ada@here", 1)]


def test_who_waits_does_not_wait_for_snapshots_that_come_later(world: JudgedWorld) -> None:
    first = world.snapshot_of()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(world.commits.settle, 60)
        for _ in range(3):  # faster than they are judged
            world.snapshot_of()
        assert not waiting.done()
        world.say(first, HOLDS)
        assert waiting.result(60)
    assert world.table.visible == [0]
    assert not world.commits.settle(0), "of the later ones nothing is known"


def test_a_job_that_ends_before_its_verdicts_says_what_it_waits_for(world: JudgedWorld) -> None:
    world.say(world.snapshot_of(), HOLDS)
    assert world.commits.settle(60)
    world.take_snapshot(settle=False)  # without rows of its own
    assert not world.commits.settle(0)
    assert explain_doubt("job", world.commits).startswith("1 checkpoint(s) wait for what the invariants say of them.")


def test_what_is_not_held_cannot_be_released(world: JudgedWorld) -> None:
    with pytest.raises(Misuse, match="Nothing is held"):
        world.release(1)
    good = world.snapshot_of()
    world.say(good, HOLDS)
    assert world.commits.settle(60)
    bad = world.snapshot_of()
    world.say(bad, VIOLATED)
    with pytest.raises(Misuse, match="Nothing is held up to snapshot 1"):
        world.release(good)
    with pytest.raises(Misuse, match="no complete snapshot 77"):
        world.release(77)
    assert read_releases(world.place, "job") == ()


def test_a_long_hold_needs_the_snapshots_that_bring_parts_and_no_others(world: JudgedWorld) -> None:
    bad = world.snapshot_of()
    world.say(bad, VIOLATED)
    for _ in range(5):
        newest = world.take_snapshot(settle=False)
    assert world.asked == [bad], "those without rows of their own share its fate"
    assert world.commits.needed == {bad, newest}
    world.release(bad)
    assert world.commits.settle(60)
    assert world.commits.needed == frozenset()


# ── crashes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_crash_between_manifest_and_verdict_shows_nothing_and_asks_again(world: JudgedWorld) -> None:
    world.write()
    world.kill_at("commit.decided")
    with pytest.raises(Killed):
        world.take_snapshot()
    world.crash()
    world.start()
    assert world.asked == [1]
    assert not world.commits.settle(0)
    assert world.table.visible == []
    world.say(1, HOLDS)
    assert world.commits.settle(60)
    assert world.judge() == []


@pytest.mark.parametrize("finding", [HOLDS, VIOLATED])
def test_a_crash_between_verdict_and_commit_asks_again(world: JudgedWorld, finding: Finding) -> None:
    bad = world.snapshot_of()
    if finding is VIOLATED:
        world.say(bad, finding)
        world.await_(lambda: world.work.status().held == 1)
    world.crash()
    world.start()
    assert world.asked == [bad]
    assert world.table.visible == []
    world.say(bad, finding)
    assert world.commits.settle(60) is (finding is HOLDS)
    assert world.table.visible == ([0] if finding is HOLDS else [])


def test_a_crash_between_release_and_commit_is_made_good(world: JudgedWorld) -> None:
    bad, later = world.snapshot_of(), world.snapshot_of()
    world.say(bad, VIOLATED)
    world.kill_at("release.noted")
    with pytest.raises(Killed):
        world.release(bad)
    world.crash()
    assert world.table.visible == []
    world.start()
    assert world.asked == [later], "what was released is not asked again"
    world.await_(lambda: world.table.visible == [0])
    world.say(later, VIOLATED)
    assert not world.commits.settle(60)
    assert world.table.visible == [0]
    world.release(later)
    assert world.commits.settle(60)
    assert world.judge() == []


@pytest.mark.parametrize("point", ["commit.begun", "commit.visible", "commit.forgotten", "commit.settled"])
def test_a_commit_that_has_begun_comes_to_its_end_whatever_is_asked_then(world: JudgedWorld, point: str) -> None:
    world.write()
    world.kill_at(point)
    first = world.take_snapshot(settle=False)
    world.say(first, HOLDS)
    world.await_(world._dead.is_set)
    world.crash()
    world.start()
    assert world.asked == []
    assert world.commits.settle(60)
    assert world.judge() == []


def test_a_file_without_the_invariant_does_not_let_go_what_is_held(
    world: JudgedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = world.snapshot_of()
    world.say(bad, VIOLATED)
    world.crash()
    monkeypatch.setattr(JudgedWorld, "judges", False)
    with pytest.raises(Misuse, match=r"Parts of snapshot 1 are held.*no longer has an invariant with on_violation"):
        world.start()
    world.home.release()
    assert world.table.visible == []


def test_what_a_snapshot_that_is_elsewhere_names_stays_held(world: JudgedWorld) -> None:
    bad = world.snapshot_of()
    world.say(bad, VIOLATED)
    world.await_(lambda: [e.state for e in world.ledger.entries] == [PartState.HELD])
    world.crash()
    world.start(read_manifests=False)
    assert world.asked == [bad]
    world.say(bad, VIOLATED)
    world.release(bad)
    assert world.commits.settle(60)
    assert world.judge() == []


def test_what_is_held_can_be_seen_and_released_without_a_driver(world: JudgedWorld) -> None:
    bad = world.snapshot_of()
    world.say(bad, VIOLATED)
    world.await_(lambda: [e.state for e in world.ledger.entries] == [PartState.HELD])
    with pytest.raises(Misuse, match="is already running"):
        release_offline(world.place, "job", bad, "ada@here")
    world.crash()
    world.start_points("")
    held = held_on_disk(world.place, "job")
    assert held is not None
    assert (held.snapshot, held.newest, held.parts) == (bad, bad, 1)
    with pytest.raises(Misuse, match="no complete snapshot 7 whose parts are held"):
        release_offline(world.place, "job", SnapshotId(7), "ada@here")
    assert release_offline(world.place, "job", bad, "ada@here").parts == 1
    assert held_on_disk(world.place, "job") is None
    with pytest.raises(Misuse, match="Nothing is held"):
        release_offline(world.place, "job", bad, "ada@here")
    world.start()
    assert world.commits.settle(60)
    assert world.judge() == []


# ── mutants: each breaks one rule of the host, and is caught ────────────────────────────────────────────────────────


class ForgetsReleases(Commits):
    def open(self, works, manifests, released=0):  # type: ignore[no-untyped-def]
        super().open(works, manifests, 0)


class ReleasesBeforeTheNote(Commits):
    def release(self, snapshot, note):  # type: ignore[no-untyped-def]
        super().release(snapshot, lambda parts: None)
        note(0)


def test_a_driver_that_forgets_releases_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "commits_class", ForgetsReleases)
    with pytest.raises(AssertionError, match="asked again"):
        test_a_crash_between_release_and_commit_is_made_good(JudgedWorld(tmp_path, monkeypatch))


def test_a_release_that_is_noted_too_late_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "commits_class", ReleasesBeforeTheNote)
    with pytest.raises(AssertionError):
        test_a_crash_between_release_and_commit_is_made_good(JudgedWorld(tmp_path, monkeypatch))
