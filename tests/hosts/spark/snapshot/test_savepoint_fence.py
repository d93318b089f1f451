"""The place of a savepoint, shut by the driver that takes over: the old one makes nothing visible there, and deletes
nothing. Without Spark."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.snapshot.checkpoints import _shut_savepoint
from strobe.hosts.spark.snapshot.savepoints import SnapshotStores
from strobe.hosts.spark.snapshot.targets import SavepointTarget, fence_target, take_target
from strobe.model.errors import Failed, Fenced, Misuse
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind
from strobe.store.layout import MANIFEST, SAVEPOINT_MARKER
from strobe.store.locate import locate
from tests.store.snapshot_samples import filesystem_store, manifest

BLOB = "blobs/ab/abcd"


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "there") if request.param == "directory" else str(request.getfixturevalue("s3_url"))


@pytest.fixture
def home(tmp_path: Path) -> JobHome:
    return claimed(tmp_path / "home")


def claimed(where: Path, job: str = "job") -> JobHome:
    home = JobHome(where, job)
    home.claim(lambda why: None)  # some are given up
    home.stop_heartbeat()
    return home


def give_up(home: JobHome) -> None:
    """Another driver takes over."""
    home.release()
    claimed(home.home)


def begun(place: str, home: JobHome) -> SavepointTarget:
    target = take_target(place, home)
    home.write(home.layout.savepoint_under_way, {"place": target.where})
    target.objects.put(BLOB, b"state")
    return target


def test_a_savepoint_under_way_is_never_completed_once_its_place_is_shut(place: str, home: JobHome) -> None:
    target = begun(place, home)
    _shut_savepoint(home)
    with pytest.raises(Failed):
        target.objects.put(MANIFEST, b"{}" * 100, if_absent=True)
    assert target.objects.size(MANIFEST) is None
    assert not home.path(home.layout.savepoint_under_way).exists()
    _shut_savepoint(home)  # there is none


def test_a_savepoint_that_is_complete_stays_when_its_place_is_shut(place: str, home: JobHome) -> None:
    target = begun(place, home)
    target.objects.put(MANIFEST, b"{}" * 100, if_absent=True)
    fence_target(place)
    fence_target(place)
    assert target.objects.get(MANIFEST) == b"{}" * 100
    assert target.objects.get(BLOB) == b"state"


def test_a_driver_that_was_given_up_removes_nothing_from_a_place_that_was_shut(tmp_path: Path, home: JobHome) -> None:
    place = str(tmp_path / "there")
    target = begun(place, home)
    fence_target(place)
    with pytest.raises(Fenced):
        target.objects.put("blobs/cd/cdef", b"more")
    target.give_up()
    assert (tmp_path / "there" / BLOB).read_bytes() == b"state"
    again = take_target(place, home)  # its lock went with it
    again.objects.put(MANIFEST, b"{}", if_absent=True)
    again.done()
    assert sorted(p.name for p in (tmp_path / "there").iterdir()) == [MANIFEST]


def test_a_driver_that_was_given_up_leaves_the_marker_of_another_savepoint(tmp_path: Path, home: JobHome) -> None:
    """Its own was complete, and somebody has disposed of it and begun another one at the same place."""
    place = str(tmp_path / "there")
    target = begun(place, home)
    target.objects.put(MANIFEST, b"{}" * 100, if_absent=True)
    fence_target(place)
    shutil.rmtree(place)
    other = take_target(place, claimed(tmp_path / "home", "other"))
    target.done()
    assert (tmp_path / "there" / SAVEPOINT_MARKER).exists()
    with pytest.raises(Misuse, match="another savepoint is being written there"):
        take_target(place, home)
    other.give_up()


def test_a_driver_that_was_given_up_leaves_a_place_that_it_had_only_taken(tmp_path: Path, home: JobHome) -> None:
    target = take_target(str(tmp_path / "there"), home)
    fence_target(str(tmp_path / "there"))
    target.give_up()
    assert (tmp_path / "there" / SAVEPOINT_MARKER).exists()


def test_a_driver_that_was_given_up_takes_no_place(place: str, home: JobHome) -> None:
    give_up(home)
    with pytest.raises(Fenced):
        take_target(place, home)
    target = take_target(place, claimed(home.home, "other"))  # nothing is there
    target.give_up()


def test_a_savepoint_of_a_driver_that_was_given_up_keeps_its_marker_in_a_bucket(s3_url: str, home: JobHome) -> None:
    target = begun(s3_url, home)
    target.objects.put(MANIFEST, b"{}" * 100, if_absent=True)
    fence_target(s3_url)
    give_up(home)
    before = set(target.objects.list(""))
    target.done()
    assert set(target.objects.list("")) == before


def test_a_savepoint_that_fails_leaves_its_place_as_it_was(tmp_path: Path, home: JobHome) -> None:
    begun(str(tmp_path / "there"), home).give_up()
    assert not (tmp_path / "there").exists()


def test_a_bucket_that_was_shut_is_refused_with_the_reason(s3_url: str, home: JobHome) -> None:
    begun(s3_url, home)
    fence_target(s3_url)
    with pytest.raises(Misuse, match="Name another prefix"):
        take_target(s3_url, home)


def test_an_order_that_is_given_up_while_its_manifest_appears_leaves_the_savepoint_whole(
    tmp_path: Path, home: JobHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = SnapshotStores(filesystem_store(tmp_path / "home"), home)
    given_up = threading.Thread(target=stores.settle)

    def at(name: str, stage: str = "") -> None:
        if name == "store.manifest.after":
            given_up.start()
            given_up.join(1)  # it ends here, or waits for who is at work

    monkeypatch.setattr(crash_points, "point", at)
    stores.order(tmp_path / "there", 0)
    stores.begin(SnapshotId(1), Kind.SAVEPOINT)
    files = stores.session(SnapshotId(1)).put_files({"state": b"of a stage"}).files
    stores.complete(manifest(1, files, kind=Kind.SAVEPOINT))
    given_up.join()
    found = locate(str(tmp_path / "there"), tmp_path / "home")
    assert found.store.verify(found.snapshot) == ()
    assert stores.completed is not None
