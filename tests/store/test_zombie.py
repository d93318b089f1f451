"""A writer that is stopped at any point of the store, while another one takes over and finishes, and then goes on.

It is not told: nothing asks whether it may still write. Whatever it has yet to do must fail, or hit nothing that the
new one has: no snapshot of the new writer's list goes, none comes, and none loses a byte.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.model.errors import Fenced, StrobeError
from strobe.model.ids import SnapshotId
from strobe.store import fencing
from strobe.store.base import ObjectStore
from strobe.store.fencing import current_layout, take_over
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.locate import locate
from strobe.store.points import POINTS
from strobe.store.s3 import S3Store
from strobe.store.snapshots import SnapshotStore
from tests.store.snapshot_samples import JOB, take

PLACES = ("directory", "bucket")
SHARED = {"s": b"shared by all"}
OF_FILES = frozenset(name for name in POINTS if name.startswith("store.file."))


CASES = [
    pytest.param(place, point, nth, id=f"{place}-{point}-{nth}")
    for place in PLACES
    for point in sorted(POINTS)
    for nth in ((1, 2) if place == "directory" else (1,))
    if place == "directory" or point not in OF_FILES
]


@pytest.fixture(params=PLACES)
def open_again(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], ObjectStore]:
    """The job's store, as each process opens it."""
    if request.param == "directory":
        return lambda: FilesystemStore(tmp_path)
    url = str(request.getfixturevalue("s3_url"))
    return lambda: S3Store(url)


class Stop:
    """Stops at the `nth` visit of a point, and does what comes meanwhile; at every later point, what comes after."""

    def __init__(self, point: str, nth: int, meanwhile: Callable[[], None], after: Callable[[], None]) -> None:
        self.point, self.left, self.meanwhile, self.after = point, nth, meanwhile, after

    def __call__(self, point: str) -> None:
        if not self.left:
            self.after()
        elif point == self.point:
            self.left -= 1
            if not self.left:
                self.meanwhile()


def writer(objects: ObjectStore, number: int, on_point: Callable[[str], None] = lambda point: None) -> SnapshotStore:
    if isinstance(objects, FilesystemStore):
        objects = FilesystemStore(objects.root, on_point=on_point)
    mine, layout = take_over(objects, JOB, incarnation=number, generation=number - 1, on_point=on_point)
    return SnapshotStore(mine, layout, JOB, on_point=on_point)


def life(store: SnapshotStore, first: int) -> None:
    """Everything that a driver does to its store. All drivers have the same contents, and would share them."""
    store.sweep()
    take(store, first, SHARED | {"a": b"first"})
    with store.begin(SnapshotId(first + 1)) as session:  # given up
        session.put_files({"x": b"given up"} | SHARED)
    take(store, first + 2, SHARED | {"a": b"second"})
    store.retire(1)
    take(store, first + 3, SHARED | {"a": b"third"})
    store.retire(1)


def work_of_the_next(store: SnapshotStore) -> None:
    life(store, 101)
    take(store, 105, SHARED | {"a": b"first", "b": b"second", "c": b"third", "x": b"given up", "o": b"of 1"})


@pytest.mark.parametrize(("open_again", "point", "nth"), CASES, indirect=["open_again"])
def test_a_writer_that_was_given_up_changes_nothing(
    open_again: Callable[[], ObjectStore], point: str, nth: int
) -> None:
    take(writer(open_again(), 1), 1, SHARED | {"a": b"of 1"})
    seen: list[tuple[SnapshotId, ...]] = []

    def meanwhile() -> None:
        new = writer(open_again(), 3)
        seen.append(new.list())
        work_of_the_next(new)
        seen.append(new.list())

    def unharmed() -> None:
        objects = open_again()
        now = SnapshotStore(objects, current_layout(objects, JOB), JOB)
        assert now.list() == seen[1]
        assert [problem for snapshot in now.list() for problem in now.verify(snapshot)] == []

    with contextlib.suppress(StrobeError):
        life(writer(open_again(), 2, Stop(point, nth, meanwhile, unharmed)), 11)
    if not seen:
        pytest.skip("it does not come there so often")
    unharmed()
    assert seen[0]  # whatever the old one was doing, there was something to go on from


@pytest.mark.parametrize("step", ["_copy", "_leave"])
def test_one_that_is_stopped_while_it_takes_over_a_bucket_changes_nothing(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Before the copy, and between the copy and the removal of what was copied."""
    take(writer(S3Store(s3_url), 1), 1, SHARED | {"a": b"of 1"})
    real = getattr(fencing, step)

    def stopped(objects: S3Store, *layouts: JobLayout) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(fencing, step, real)
            work_of_the_next(writer(S3Store(s3_url), 3))
        real(objects, *layouts)

    with monkeypatch.context() as patch:
        patch.setattr(fencing, step, stopped)
        with contextlib.suppress(StrobeError):
            life(writer(S3Store(s3_url), 2), 11)
    objects = S3Store(s3_url)
    now = SnapshotStore(objects, current_layout(objects, JOB), JOB)
    assert now.layout == JobLayout(JOB, 2)
    assert now.list() == (104, 105)
    assert [problem for snapshot in now.list() for problem in now.verify(snapshot)] == []


def test_one_that_comes_late_to_its_place_finds_the_newer_one(open_again: Callable[[], ObjectStore]) -> None:
    take(writer(open_again(), 3), 1, SHARED)
    with pytest.raises(Fenced):
        writer(open_again(), 2)
    objects = open_again()
    assert SnapshotStore(objects, current_layout(objects, JOB), JOB).verify(SnapshotId(1)) == ()


def test_a_writer_that_is_shut_out_says_so(tmp_path: Path) -> None:
    old = writer(FilesystemStore(tmp_path), 1)
    take(old, 1, SHARED)
    writer(FilesystemStore(tmp_path), 2)
    with pytest.raises(Fenced), old.begin(SnapshotId(2)) as session:
        session.put_files({"new": b"new"})
    with pytest.raises(Fenced):
        old.dispose(SnapshotId(1))
    assert old.list() == (1,)


def test_an_orderly_end_leaves_no_directory_behind(tmp_path: Path) -> None:
    store = writer(FilesystemStore(tmp_path), 1)
    take(store, 1, SHARED)
    assert isinstance(store.objects, FilesystemStore)
    store.objects.close()
    assert {p.name for p in (tmp_path / JobLayout(JOB).root).iterdir()} == {"snapshots", "blobs"}


def test_a_checkpoint_in_a_bucket_is_found_by_the_name_it_had_before_a_takeover(s3_url: str, tmp_path: Path) -> None:
    take(writer(S3Store(s3_url), 2), 7, SHARED | {"a": b"x"})
    noted = f"{s3_url}/{JobLayout(JOB, 1).directory(SnapshotId(7))}".rstrip("/")
    first = f"{s3_url}/{JobLayout(JOB).directory(SnapshotId(7))}".rstrip("/")
    writer(S3Store(s3_url), 4)
    for name in (noted, first, f"{s3_url}/jobs/{JOB}"):
        found = locate(name, tmp_path)
        assert found.snapshot == 7
        assert found.store.verify(found.snapshot) == ()


def test_a_damaged_snapshot_comes_along_and_stays_damaged(s3_url: str) -> None:
    old = writer(S3Store(s3_url), 1)
    take(old, 1, SHARED | {"a": b"one"})
    take(old, 2, SHARED | {"a": b"two"})
    old.objects.put(old.layout.manifest(SnapshotId(1)), b"{ not json, and not as short as something given up")
    new = writer(S3Store(s3_url), 2)
    assert new.list() == (1, 2)
    assert new.verify(SnapshotId(2)) == ()
    assert new.sweep() == 0  # it may need any blob
    assert not list(S3Store(s3_url).list(f"jobs/{JOB}/snapshots/"))
