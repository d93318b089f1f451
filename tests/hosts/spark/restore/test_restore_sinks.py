"""A restore and the parts that are in doubt: the restored snapshot alone decides. Without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from strobe.hosts.spark.commit.ledger import PartState, SinkLedger
from strobe.hosts.spark.connectors.base import SinkContext, SinkFate
from strobe.hosts.spark.restore.sinks import check_dropped, named_parts, outlook_parts, settle_parts
from strobe.model.errors import Failed, StrobeError
from strobe.model.ids import Timeline
from strobe.store.manifest import Manifest
from tests.support.spark.commit_world import NOW, Killed, TableSink, World


class Restored:
    """Three snapshots: the first is visible, the second and the third are complete and in doubt; then a crash."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.write(2)
        world.take_snapshot()
        world.sink.down = OSError("connection refused")
        world.write(2)
        world.take_snapshot(settle=False)
        world.write(1)
        world.take_snapshot(settle=False)
        world.await_(lambda: len(world.ledger.entries) == 2 and world.work.status().failures > 0)
        world.write(1)  # staged, and in no part
        world.crash()
        world.start_points("")
        world.home.claim(pytest.fail)
        self.sink = TableSink(world.table)

    @property
    def home(self) -> Path:
        return self.world.place

    def manifest(self, snapshot: int) -> Manifest:
        return self.world.table.manifests[snapshot - 1]

    def context(self) -> SinkContext:
        incarnation = self.world.home.record.incarnation
        return replace(self.world.work.context, timeline=Timeline(2), incarnation=incarnation)

    def settle(self, snapshot: int) -> None:
        settle_parts(self.sink, self.context(), self.manifest(snapshot), self.world.home)

    def ledger(self) -> SinkLedger:
        return SinkLedger(self.world.home, "gold/0", lambda: NOW)

    def outlook(self, snapshot: int, fate: SinkFate = SinkFate.KEPT, *, fork: bool = False) -> tuple[str, str, object]:
        found = outlook_parts(self.manifest(snapshot), self.sink, self.context(), self.world.home, fate, fork=fork)
        return found.detail, found.warning, found.problem


@pytest.fixture
def restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Restored:
    return Restored(World(tmp_path, monkeypatch))


def test_what_the_snapshot_names_is_made_visible_and_the_rest_is_thrown_away(restored: Restored) -> None:
    restored.settle(2)
    table = restored.world.table
    assert table.visible == [0, 1, 2, 3]
    assert table.aborted == ["job/gold/0/1/3"]
    assert restored.ledger().entries == ()


def test_a_snapshot_from_before_them_throws_all_away(restored: Restored) -> None:
    restored.settle(1)
    assert restored.world.table.visible == [0, 1]
    assert restored.world.table.aborted == ["job/gold/0/1/2", "job/gold/0/1/3"]


def test_the_newest_snapshot_makes_all_visible(restored: Restored) -> None:
    restored.settle(3)
    assert restored.world.table.visible == [0, 1, 2, 3, 4]
    assert restored.world.table.aborted == []


@pytest.mark.parametrize("point", ["settle.part-committed", "settle.part-aborted"])
def test_a_restore_that_is_killed_on_its_way_is_done_again(restored: Restored, point: str) -> None:
    restored.world.start_points(point)
    with pytest.raises(Killed):
        restored.settle(2)
    restored.world.start_points("")
    restored.settle(2)
    assert restored.world.table.visible == [0, 1, 2, 3]
    assert restored.world.table.violations == []
    states = {e.handle.rpartition("/")[2]: e.state for e in restored.ledger().ledger.done}
    assert states == {"1": PartState.COMMITTED, "2": PartState.COMMITTED, "3": PartState.ABORTED}


def test_a_system_that_cannot_be_reached_leaves_the_restore_unfinished(restored: Restored) -> None:
    restored.sink.down = OSError("connection refused")
    with pytest.raises(Failed, match="could not be made visible in a table in memory: OSError: connection refused"):
        restored.settle(2)
    assert len(restored.ledger().entries) == 2


def test_the_plan_says_what_will_become_of_them(restored: Restored) -> None:
    detail, warning, problem = restored.outlook(2)
    assert detail == "; 1 part(s) in doubt will be made visible; 1 part(s) in doubt will be thrown away"
    assert (warning, problem) == ("", None)


def test_the_plan_says_what_cannot_be_undone(restored: Restored) -> None:
    restored.settle(3)
    warning = restored.outlook(1)[1]
    assert "what snapshot(s) 2, 3 made visible cannot be undone" in warning
    assert restored.outlook(1, SinkFate.ROLLED_BACK)[1] == ""


def test_without_the_ledger_the_plan_says_that_nobody_knows(restored: Restored) -> None:
    (restored.home / "jobs/job/sinks/gold/0/ledger.json").unlink()
    assert "its ledger is gone, so whether job/gold/0/1/2 became visible is not known" in restored.outlook(2)[1]


def test_a_fork_leaves_them_to_the_original(restored: Restored) -> None:
    assert restored.outlook(2, fork=True) == ("; 1 part(s) that the snapshot names are left to job 'job'", "", None)


def test_a_snapshot_that_names_what_was_thrown_away_is_refused(restored: Restored) -> None:
    restored.settle(1)
    problem = restored.outlook(3)[2]
    assert isinstance(problem, Failed)
    assert "job/gold/0/1/2 of sink 'gold/0', which was thrown away" in problem.what


def test_a_part_in_doubt_whose_staged_rows_are_gone_is_refused(restored: Restored) -> None:
    ledger = restored.ledger()
    entries = tuple(replace(e, staged=True) for e in ledger.entries)
    ledger._write(replace(ledger.ledger, entries=entries))
    assert restored.outlook(2)[2] is None, "a commit may have let go of them: only the sink could tell"
    restored.sink.tells = False
    problem = restored.outlook(2)[2]
    assert isinstance(problem, StrobeError)
    assert "its staged rows are no longer there: batch 2 is missing" in problem.what
    restored.sink.tells = True
    assert restored.outlook(2)[2] is None


def test_a_part_that_nobody_has_begun_to_commit_and_whose_rows_are_gone_is_refused(restored: Restored) -> None:
    ledger = restored.ledger()
    entries = tuple(replace(e, staged=True, state=PartState.PREPARED, decided_by=None) for e in ledger.entries)
    ledger._write(replace(ledger.ledger, entries=entries))
    assert restored.outlook(2)[2] is not None


def test_a_sink_with_parts_in_doubt_cannot_be_left_out_unnoticed(restored: Restored) -> None:
    problem = check_dropped(restored.world.home, set())
    assert problem is not None
    assert "Sink 'gold/0' is no longer in the file" in problem.what
    assert check_dropped(restored.world.home, {"gold/0"}) is None


def test_the_parts_of_a_manifest_are_those_that_were_prepared(restored: Restored) -> None:
    parts = named_parts(restored.manifest(3), "gold/0")
    assert [(p.snapshot, p.after, p.through) for p in parts] == [(2, 1, 3), (3, 3, 4)]
