"""Where a job keeps its checkpoints, and who may write there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import SnapshotId
from strobe.store.layout import JobLayout
from strobe.store.locate import locate
from strobe.store.places import checkpoints_of, place_of, settle
from strobe.store.scheme import is_s3
from strobe.store.snapshots import SnapshotStore
from tests.store.snapshot_samples import JOB, take

LAYOUT = JobLayout(JOB)


@pytest.fixture(params=["directory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "elsewhere") if request.param == "directory" else request.getfixturevalue("s3_url")


def writer(home: Path, place: str | None) -> SnapshotStore:
    return SnapshotStore(settle(home, JOB, place), LAYOUT, JOB)


def test_checkpoints_are_in_the_home_unless_told_otherwise(tmp_path: Path) -> None:
    take(writer(tmp_path, None), 1, {"a": b"x"})
    assert place_of(tmp_path, JOB) == str(tmp_path)
    assert (tmp_path / LAYOUT.manifest(SnapshotId(1))).is_file()


def test_whoever_knows_the_home_finds_checkpoints_that_are_elsewhere(tmp_path: Path, place: str) -> None:
    home = tmp_path / "home"
    made = take(writer(home, place), 1, {"a": b"x"})
    assert place_of(home, JOB) == place
    assert checkpoints_of(home, JOB).load(SnapshotId(1)) == made
    assert not (home / LAYOUT.blobs).exists()
    for name in (
        JOB,
        f"{JOB}/1",
        f"{place}/{LAYOUT.directory(SnapshotId(1))}",
        f"{place}/{LAYOUT.manifest(SnapshotId(1))}",
    ):
        found = locate(name, home)
        assert (found.load(), found.home) == (made, home)
        assert found.where == f"{place}/{LAYOUT.directory(SnapshotId(1))}".rstrip("/")


def test_a_place_that_moved_along_with_its_home_is_found(tmp_path: Path) -> None:
    made = take(writer(tmp_path / "project/.strobe", str(tmp_path / "project/chk")), 1, {"a": b"x"})
    (tmp_path / "project").rename(tmp_path / "moved")
    home = tmp_path / "moved/.strobe"
    assert place_of(home, JOB) == str(tmp_path / "moved/chk")
    assert checkpoints_of(home, JOB).load(SnapshotId(1)) == made
    assert writer(home, str(tmp_path / "moved/chk")).list() == (1,)


def test_a_place_that_stayed_when_its_home_moved_is_found(tmp_path: Path) -> None:
    take(writer(tmp_path / "project/.strobe", str(tmp_path / "chk")), 1, {"a": b"x"})
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "project").rename(tmp_path / "deep/er/moved")
    assert place_of(tmp_path / "deep/er/moved/.strobe", JOB) == str(tmp_path / "chk")


def test_a_checkpoint_is_found_by_its_place_without_any_home(tmp_path: Path, place: str) -> None:
    made = take(writer(tmp_path / "home", place), 1, {"a": b"x"})
    found = locate(f"{place}/{LAYOUT.directory(SnapshotId(1))}", tmp_path / "nowhere")
    assert (found.load(), found.home) == (made, None)
    if is_s3(place):
        assert locate(f"{place}/jobs/{JOB}", tmp_path / "nowhere").snapshot == 1


def test_the_same_home_comes_back_to_its_place(tmp_path: Path, place: str) -> None:
    take(writer(tmp_path, place), 1, {"a": b"x"})
    assert writer(tmp_path, place).list() == (1,)
    assert writer(tmp_path, None).list() == ()
    assert writer(tmp_path, place).list() == (1,)


def test_a_second_home_is_refused_and_touches_nothing(tmp_path: Path, place: str) -> None:
    store = writer(tmp_path / "first", place)
    session = store.begin(SnapshotId(1))
    session.put_blob(b"under way")
    before = list(store.objects.list(""))
    for _ in range(2):
        with pytest.raises(Misuse, match="written from another home directory"):
            settle(tmp_path / "second", JOB, place)
    assert list(store.objects.list("")) == before
    assert place_of(tmp_path / "second", JOB) == str(tmp_path / "second")


def test_a_note_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    writer(tmp_path, str(tmp_path / "elsewhere"))
    (tmp_path / LAYOUT.store).write_text('{"store": 7}')
    with pytest.raises(Damaged, match=r"store\.json, which says where the checkpoints of job 'ledger' are"):
        checkpoints_of(tmp_path, JOB)


@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"])
@pytest.mark.parametrize("field", ["store", "home"])
def test_a_place_that_is_no_path_is_damage(tmp_path: Path, field: str, odd: str) -> None:
    path = tmp_path / "jobs/ledger/store.json"
    path.parent.mkdir(parents=True)
    note = {"store": str(tmp_path), "owner": "x", "home": ""}
    path.write_text(json.dumps({**note, field: odd}))
    with pytest.raises(Damaged, match=r"store\.json, which says where the checkpoints of job 'ledger' are"):
        place_of(tmp_path, "ledger")


@pytest.mark.parametrize("name", ["jobs/ledger/snapshots/chk-000007", "jobs/ledger", "jobs/other", "sav", ""])
def test_an_address_that_holds_no_snapshot_is_refused(s3_url: str, tmp_path: Path, name: str) -> None:
    with pytest.raises(Misuse, match=r"has no (complete )?checkpoint|is not a snapshot"):
        locate(f"{s3_url}/{name}", tmp_path)
