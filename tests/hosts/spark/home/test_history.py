"""The history of a job's snapshots: what is noted stays, in bounds, and what is not readable is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.hosts.spark.home.history import PastSnapshot, PastStage, SnapshotHistory, read_history, read_past
from strobe.hosts.spark.snapshot.coordinator import Progress
from strobe.hosts.spark.snapshot.progress import past
from strobe.model.errors import Fenced
from strobe.model.ids import ChannelId, Incarnation, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.protocol.barriers import Barriers
from strobe.protocol.events import BarrierArrived


def _past(snapshot: int, **more: object) -> PastSnapshot:
    times = {"started": "2031-05-17T09:30:00.000Z", "ended": "2031-05-17T09:30:01.000Z"}
    facts = {"kind": "checkpoint", "status": "complete", "incarnation": 1, "timeline": 1, **times, **more}
    return PastSnapshot(snapshot, **facts)  # type: ignore[arg-type]


def test_what_is_noted_is_there_for_the_next_driver(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    SnapshotHistory(file).note(_past(1, stages={"a": PastStage(phases={"sync": 2.0})}))
    SnapshotHistory(file).note(_past(2, status="failed", reason="stage b was lost", incarnation=2))
    assert [(p.snapshot, p.status, p.incarnation) for p in read_history(file)] == [
        (1, "complete", 1), (2, "failed", 2)
    ]  # fmt: skip
    first = read_past(file, 1)
    assert first is not None
    assert first.stages["a"].phases == {"sync": 2.0}
    assert read_past(file, 3) is None


def test_a_job_without_a_history_has_an_empty_one(tmp_path: Path) -> None:
    assert read_history(tmp_path / "history.jsonl") == []


def test_half_a_line_of_a_killed_driver_costs_nothing_but_itself(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    SnapshotHistory(file).note(_past(1))
    with file.open("ab") as out:
        out.write(b'{"snapshot": 2, "ki')
    SnapshotHistory(file).note(_past(3))
    assert [p.snapshot for p in read_history(file)] == [1, 3]


def test_a_history_stays_in_bounds_and_keeps_the_newest(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    history = SnapshotHistory(file, largest=20_000)
    for snapshot in range(1, 501):
        history.note(_past(snapshot))
    kept = [p.snapshot for p in read_history(file)]
    assert file.stat().st_size <= 20_000
    assert kept[-1] == 500
    assert kept == list(range(kept[0], 501))
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_driver_that_is_fenced_off_notes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"

    def guard() -> None:
        raise Fenced("another driver has taken over")

    with pytest.raises(Fenced):
        SnapshotHistory(file, guard).note(_past(1))
    assert not file.exists()


def test_a_disk_that_is_full_fails_no_snapshot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SnapshotHistory(tmp_path / "gone" / "history.jsonl").note(_past(7))
    assert "snapshot 7 could not be noted" in caplog.text


def test_a_password_in_a_reason_is_not_kept(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    SnapshotHistory(file).note(_past(1, reason="cannot reach postgres://ann:hunter2@db/x"))
    assert "hunter2" not in file.read_text()


def test_a_snapshot_that_failed_before_any_part_came_has_no_phases() -> None:
    progress = Progress(SnapshotId(4), Kind.CHECKPOINT, "failed", "2031-05-17T09:30:00.000Z", 12.0, reason="too late")
    noted = past(progress, {}, Incarnation(2), Timeline(1))
    assert (noted.phases, noted.stages, noted.reason) == ({}, {}, "too late")


def test_a_node_says_which_barriers_it_waits_for() -> None:
    a, b, loop = ChannelId("a"), ChannelId("b"), ChannelId("loop")
    machine = Barriers([a, b, loop], [ChannelId("out")], feedback=[loop])
    assert machine.missing(SnapshotId(1)) == (a, b)
    machine.step(BarrierArrived(a, SnapshotId(1)))
    assert machine.missing(SnapshotId(1)) == (b,)
    machine.step(BarrierArrived(b, SnapshotId(1)))
    assert machine.missing(SnapshotId(1)) == (loop,)
    machine.step(BarrierArrived(loop, SnapshotId(1)))
    assert machine.missing(SnapshotId(1)) == ()
