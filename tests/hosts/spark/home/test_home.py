"""Who runs a job: one driver at a time, and what a driver that was given up can still do, which is nothing."""

from __future__ import annotations

import fcntl
import json
import os
import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strobe.hosts.spark.checkpoint.stage_files import adopt_checkpoints, stage_checkpoint
from strobe.hosts.spark.home import job_home as home_module
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.restore.restore import sweep_leftovers
from strobe.model.errors import Fenced, Misuse
from strobe.model.ids import NodeId, SnapshotId
from strobe.store import holding
from strobe.store.holding import is_held
from strobe.store.runtime import Runtime, read_runtime

Claim = Callable[[], JobHome]
UID = NodeId("s")


@pytest.fixture
def claim(tmp_path: Path) -> Iterator[Claim]:
    """Become the job's driver. A driver that is fenced off stays alive here, to be seen trying."""
    claimed: list[JobHome] = []

    def become() -> JobHome:
        home = JobHome(tmp_path, "j")
        home.claim(lambda reason: None)
        claimed.append(home)
        return home

    yield become
    for home in claimed:
        home.release()


def fall_silent(home: JobHome) -> None:
    """No sign of life for longer than the lease, as when the process is stopped."""
    home.stop_heartbeat()
    os.utime(home.path(home.layout.lock), (0, 0))


def remembered(home: JobHome) -> dict[str, int]:
    value: dict[str, int] = json.loads(home.path(home.layout.incarnation).read_bytes())
    return value


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was synced, in order."""
    paths: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_no_loss_of_power_takes_an_incarnation_back(claim: Claim, tmp_path: Path, synced: list[str]) -> None:
    home = claim()
    place = home.path(home.layout.incarnation)
    for above in (place.parent, place.parent.parent, tmp_path, tmp_path.parent):
        assert str(above) in synced


def test_a_file_below_directories_that_somebody_else_has_made_is_durable_all_the_same(
    claim: Claim, tmp_path: Path, synced: list[str]
) -> None:
    home = claim()
    key = home.layout.ledger("s/0")
    (home.path(key).parent / "t1").mkdir(parents=True)
    synced.clear()
    home.write(key, {})
    for above in list(home.path(key).parents)[:5]:
        assert str(above) in synced
    synced.clear()
    home.write(key, {"again": 1})
    assert [Path(p).name for p in synced] == ["ledger.json", "0"]


def test_a_second_driver_is_refused_while_the_first_gives_signs_of_life(claim: Claim, tmp_path: Path) -> None:
    first = claim()
    with pytest.raises(Misuse, match="already running"):
        JobHome(tmp_path, "j").claim(lambda reason: None)
    first.check_owner()
    assert remembered(first)["incarnation"] == 1


def test_each_driver_has_a_higher_incarnation_and_a_clean_end_leaves_nothing_to_take_over(claim: Claim) -> None:
    first = claim()
    first.reserve(SnapshotId(7))
    first.release()
    assert not is_held(first.home, "j")
    second = claim()
    assert (second.record.incarnation, second.record.snapshot, second.record.generation) == (2, 7, 0)
    assert [p.name for p in second.path(second.layout.root).glob("driver-*")] == ["driver-2"]


def test_a_silent_driver_is_replaced_in_a_new_generation(claim: Claim) -> None:
    first = claim()
    fall_silent(first)
    second = claim()
    assert (second.record.incarnation, second.record.generation) == (2, 1)
    assert is_held(second.home, "j")


def killed(home: JobHome) -> None:
    """As when the process is killed: the lock is free, everything else stays as it was."""
    home.stop_heartbeat()
    assert home._lock_file is not None
    os.close(home._lock_file)
    home._lock_file = None


def test_after_every_end_that_was_not_in_order_comes_a_new_generation(claim: Claim) -> None:
    """The driver is dead, but its JVM may not have noticed yet."""
    killed(claim())
    assert claim().record.generation == 1


def test_a_lock_that_another_machine_does_not_share_takes_no_job_from_a_driver_that_beats(
    claim: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = claim()
    monkeypatch.setattr(fcntl, "flock", lambda handle, how: None)  # as on NFS, between two machines
    monkeypatch.setattr(home_module, "this_machine", lambda: "another machine")
    monkeypatch.setattr(holding, "this_machine", lambda: "another machine")
    assert is_held(tmp_path, "j")
    with pytest.raises(Misuse, match="already running"):
        JobHome(tmp_path, "j").claim(lambda reason: None)
    first.check_owner()
    fall_silent(first)
    second = claim()
    assert (second.record.incarnation, second.record.generation) == (2, 1)
    with pytest.raises(Fenced):
        first.check_owner()


def test_on_its_own_machine_a_job_whose_driver_was_killed_is_free_at_once(claim: Claim, tmp_path: Path) -> None:
    killed(claim())
    assert not is_held(tmp_path, "j")
    assert claim().record.incarnation == 2


def test_a_driver_that_ended_in_order_on_another_machine_holds_nobody_up(
    claim: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim().release()
    monkeypatch.setattr(home_module, "this_machine", lambda: "another machine")
    monkeypatch.setattr(holding, "this_machine", lambda: "another machine")
    assert not is_held(tmp_path, "j")
    assert claim().record.generation == 0


@pytest.mark.parametrize("ahead", [-7200, 7200])
def test_a_clock_that_was_set_gives_no_driver_up_that_is_alive(claim: Claim, tmp_path: Path, ahead: int) -> None:
    first = claim()
    beat = first.path(first.layout.lock).stat().st_mtime
    os.utime(first.path(first.layout.lock), (beat + ahead, beat + ahead))
    with pytest.raises(Misuse, match="already running"):
        JobHome(tmp_path, "j").claim(lambda reason: None)
    first.check_owner()


def test_a_silent_driver_is_replaced_although_the_clock_was_set_back(
    claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_module, "LEASE", 0.5)
    first = claim()
    first.stop_heartbeat()
    os.utime(first.path(first.layout.lock), (2**33, 2**33))
    assert claim().record.incarnation == 2


def test_a_driver_that_was_given_up_changes_nothing_any_more(claim: Claim) -> None:
    first = claim()
    first.publish(pid=1)
    fall_silent(first)
    second = claim()
    second.publish(pid=2)
    second.reserve(SnapshotId(3))
    known = remembered(second)
    with pytest.raises(Fenced, match="fenced off by incarnation 2"):
        first.reserve(SnapshotId(4))
    with pytest.raises(Fenced):
        first.publish(pid=1)
    with pytest.raises(Fenced):
        first.check_owner()
    assert remembered(second) == known
    assert read_runtime(second.home, "j") == Runtime(pid=2)
    second.check_owner()
    first.release()
    second.check_owner()
    assert is_held(second.home, "j")


def test_ids_that_a_silent_driver_had_reserved_are_not_used_again(claim: Claim) -> None:
    first = claim()
    first.reserve(SnapshotId(5))
    fall_silent(first)
    assert claim().record.snapshot == 5


def test_a_driver_that_dies_while_it_takes_over_leaves_the_job_to_the_next(claim: Claim) -> None:
    first = claim()
    fall_silent(first)
    first.path(first.layout.driver(2)).mkdir()  # as far as another one came
    third = claim()
    assert third.record.incarnation == 3
    with pytest.raises(Fenced):
        first.check_owner()


def test_a_driver_learns_from_its_heartbeat_that_it_was_given_up(
    claim: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: queue.Queue[str] = queue.Queue()
    first = JobHome(tmp_path, "j")
    first.claim(said.put)
    monkeypatch.setattr(home_module, "_is_beating", lambda lock: False)
    claim()
    assert "fenced off by incarnation 2" in said.get(timeout=60)
    first.release()


# ── a generation's directories ──────────────────────────────────────────────────────────────────────────────────────


def write(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)


def files(directory: Path) -> set[str]:
    return {p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()}


def test_a_takeover_goes_on_with_links_to_what_the_silent_driver_had(claim: Claim) -> None:
    first = claim()
    old = stage_checkpoint(first, UID)
    write(old, "metadata", "offsets/0", "commits/0", "state/0/1/1.changelog", "offsets/.1.tmp")
    fall_silent(first)
    second = claim()
    adopt_checkpoints(second, (UID,))
    new = stage_checkpoint(second, UID)
    assert files(new) == {"metadata", "offsets/0", "commits/0", "state/0/1/1.changelog"}
    write(old, "commits/1")
    assert "commits/1" not in files(new)


def test_what_was_taken_over_is_durable_before_the_old_copy_goes(claim: Claim, synced: list[str]) -> None:
    """A restore's copy may be all that a stage has."""
    first = claim()
    old = stage_checkpoint(first, UID)
    (old / "offsets").mkdir(parents=True)
    (old / "offsets" / "0").write_text("x")
    fall_silent(first)
    second = claim()
    synced.clear()
    adopt_checkpoints(second, (UID,))
    new = stage_checkpoint(second, UID)
    assert not old.exists()
    assert {str(new.parent), str(new.parent.parent), str(new.parent.parent.parent)} <= set(synced)
    assert str(new.with_name(f".{new.name}") / "offsets") in synced


def test_a_driver_that_was_given_up_sweeps_away_nothing_of_its_successor(claim: Claim) -> None:
    """It stood still in its start, before it swept what a restore that died had laid out."""
    first = claim()
    stage_checkpoint(first, UID).mkdir(parents=True)
    fall_silent(first)
    second = claim()
    adopt_checkpoints(second, (UID,))
    with pytest.raises(Fenced):
        sweep_leftovers(first)
    assert stage_checkpoint(second, UID).is_dir()


def test_what_was_taken_over_does_not_stay_on_the_disk_twice(claim: Claim) -> None:
    first = claim()
    write(stage_checkpoint(first, UID), "metadata", "offsets/0")
    killed(first)
    second = claim()
    adopt_checkpoints(second, (UID,))
    assert not stage_checkpoint(second, UID, 0).exists()
    assert os.stat(stage_checkpoint(second, UID) / "metadata").st_nlink == 1
    fall_silent(second)
    third = claim()
    with pytest.raises(Fenced):  # one that was given up in the midst of this
        second.discard(stage_checkpoint(third, UID, 1))
    adopt_checkpoints(third, (UID,))
    assert files(stage_checkpoint(third, UID)) == {"metadata", "offsets/0"}


def test_a_takeover_that_died_half_way_is_done_again(claim: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    first = claim()
    write(stage_checkpoint(first, UID), "metadata", "offsets/0", "commits/0")
    fall_silent(first)
    second = claim()
    linked: list[Path] = []

    def fail_at_the_second(source: Path, target: Path) -> None:
        if linked:
            raise KeyboardInterrupt
        linked.append(source)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", fail_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            adopt_checkpoints(second, (UID,))
    second.release()
    third = claim()
    adopt_checkpoints(third, (UID,))
    assert files(stage_checkpoint(third, UID)) == {"metadata", "offsets/0", "commits/0"}


def test_a_stage_that_was_away_for_a_generation_goes_on_from_the_one_that_it_had(claim: Claim) -> None:
    first = claim()
    write(stage_checkpoint(first, UID), "metadata")
    fall_silent(first)
    second = claim()
    adopt_checkpoints(second, ())
    fall_silent(second)
    third = claim()
    adopt_checkpoints(third, (UID,))
    assert files(stage_checkpoint(third, UID)) == {"metadata"}


def test_what_a_takeover_links_is_whole_although_the_old_driver_still_writes(
    claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch's commit is the last file that Spark writes for it: whoever has linked it finds the others."""
    first = claim()
    old = stage_checkpoint(first, UID)
    write(old, "metadata", "offsets/0", "commits/0", "state/0/0/1.changelog")
    fall_silent(first)
    second = claim()
    link = os.link
    batches = iter(range(1, 100))

    def link_while_a_batch_ends(source: Path, target: Path) -> None:
        link(source, target)
        batch = next(batches)
        write(old, f"offsets/{batch}", f"state/0/0/{batch + 1}.changelog", f"commits/{batch}")

    monkeypatch.setattr(os, "link", link_while_a_batch_ends)
    adopt_checkpoints(second, (UID,))
    found = files(stage_checkpoint(second, UID))
    for commit in (name for name in found if name.startswith("commits/")):
        batch = int(commit.removeprefix("commits/"))
        assert {f"offsets/{batch}", f"state/0/0/{batch + 1}.changelog"} <= found


def test_only_its_owner_may_enter_a_jobs_directory_and_an_open_one_is_closed_with_a_note(
    claim: Claim, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = claim()
    root = first.path(first.layout.root)
    assert root.stat().st_mode & 0o777 == 0o700
    assert not caplog.records
    first.release()
    root.chmod(0o755)
    claim()
    assert root.stat().st_mode & 0o777 == 0o700
    assert f"Everybody could read {root}" in caplog.text
