"""Deleting a snapshot: what goes, what is refused, and that the same call finishes after a kill at any step."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind
from strobe.store.disposal import dispose, find
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import BUCKET_SAVEPOINT_MARKER, SAVEPOINT_MARKER, JobLayout, SavepointLayout
from strobe.store.locate import Located
from strobe.store.places import settle
from strobe.store.points import OnPoint
from strobe.store.s3 import S3Store
from strobe.store.snapshots import SnapshotStore
from tests.store.snapshot_samples import JOB, filesystem_store, manifest, take, tree
from tests.store.test_crash import exit_code, fork, kill_at

FILES = {"a": b"shared", "b": b"x" * 2000, "c": b""}


def savepoint(store: FilesystemStore | S3Store) -> None:
    snapshots = SnapshotStore(store, SavepointLayout("", SnapshotId(7)), JOB)
    with snapshots.begin(SnapshotId(7)) as session:
        session.complete(manifest(7, session.put_files(FILES).files, kind=Kind.SAVEPOINT))


def checkpoints(home: Path) -> None:
    store = filesystem_store(home)
    take(store, 1, {"a": b"shared", "own": b"one"})
    take(store, 2, {"a": b"shared", "own": b"two"})


def watched(found: Located, on_point: OnPoint) -> Located:
    """The same snapshot, through a store that passes its steps on."""
    assert isinstance(found.store.objects, FilesystemStore)
    objects = FilesystemStore(found.store.objects.root, on_point=on_point)
    store = SnapshotStore(objects, found.store.layout, found.store.job)
    return Located(store, found.snapshot, found.where, found.home)


def test_a_savepoint_goes_with_its_directory(tmp_path: Path) -> None:
    savepoint(FilesystemStore(tmp_path / "sav"))
    dispose(find(str(tmp_path / "sav"), tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_what_people_keep_beside_a_savepoint_stays(tmp_path: Path) -> None:
    savepoint(FilesystemStore(tmp_path / "sav"))
    (tmp_path / "sav" / "README").write_text("why")
    (tmp_path / "sav" / "blobs" / "notes").write_text("too")
    dispose(find(str(tmp_path / "sav"), tmp_path))
    assert tree(tmp_path) == {"sav/README": b"why", "sav/blobs/notes": b"too"}


def test_what_its_writer_left_that_died_after_the_manifest_goes_too(tmp_path: Path, s3_url: str) -> None:
    savepoint(FilesystemStore(tmp_path / "sav"))
    (tmp_path / "sav" / SAVEPOINT_MARKER).write_text("{}")
    dispose(find(str(tmp_path / "sav"), tmp_path))
    assert list(tmp_path.iterdir()) == []
    savepoint(S3Store(s3_url))
    S3Store(s3_url).put(BUCKET_SAVEPOINT_MARKER, b"{}")
    dispose(find(s3_url, tmp_path))
    assert list(S3Store(s3_url).list("")) == []


def test_a_checkpoint_goes_and_what_another_needs_stays(tmp_path: Path) -> None:
    checkpoints(tmp_path)
    dispose(find(f"{JOB}/1", tmp_path))
    store = filesystem_store(tmp_path)
    assert store.list() == (2,)
    assert store.verify(SnapshotId(2)) == ()
    assert len(list(store.objects.list(JobLayout(JOB).blobs))) == 2


def test_a_savepoint_in_a_bucket_goes(s3_url: str, tmp_path: Path) -> None:
    savepoint(S3Store(s3_url))
    dispose(find(s3_url, tmp_path))
    assert list(S3Store(s3_url).list("")) == []
    with pytest.raises(Misuse, match="is not a snapshot"):
        find(s3_url, tmp_path)


def test_a_checkpoint_in_a_bucket_goes_by_its_job_or_its_address(s3_url: str, tmp_path: Path) -> None:
    store = SnapshotStore(settle(tmp_path, JOB, s3_url), JobLayout(JOB), JOB)
    for snapshot in (1, 2, 3):
        take(store, snapshot, {"a": b"shared", "own": b"%d" % snapshot})
    dispose(find(f"{JOB}/1", tmp_path))
    dispose(find(f"{s3_url}/jobs/{JOB}/snapshots/chk-000002", tmp_path))
    assert store.list() == (3,)
    assert store.verify(SnapshotId(3)) == ()


def test_what_is_no_snapshot_is_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one.jpg").write_bytes(b"x")
    for name in ("photos", "photos/one.jpg", "nowhere", "ledger/3", "."):
        with pytest.raises(Misuse, match=r"is not a snapshot|There is no snapshot"):
            find(str(tmp_path / name) if "/3" not in name else name, tmp_path / "home")
    assert tree(tmp_path) == {"photos/one.jpg": b"x"}


def test_a_damaged_checkpoint_can_be_disposed_of(tmp_path: Path) -> None:
    checkpoints(tmp_path)
    path = tmp_path / JobLayout(JOB).manifest(SnapshotId(1))
    path.write_bytes(path.read_bytes()[:100])
    dispose(find(str(path.parent), tmp_path))
    assert filesystem_store(tmp_path).list() == (2,)
    assert filesystem_store(tmp_path).verify(SnapshotId(2)) == ()


@pytest.mark.parametrize("kind", ["savepoint", "checkpoint"])
def test_a_kill_at_any_step_leaves_a_snapshot_or_none_and_the_same_call_finishes(kind: str, tmp_path: Path) -> None:
    start = tmp_path / "start"
    if kind == "savepoint":
        savepoint(FilesystemStore(start / "sav"))
    else:
        checkpoints(start)

    def work(home: Path, on_point: OnPoint) -> None:
        name = str(home / "sav") if kind == "savepoint" else f"{JOB}/1"
        dispose(watched(find(name, home), on_point), on_point=on_point)

    passed = Counter[str]()
    shutil.copytree(start, tmp_path / "quiet")
    work(tmp_path / "quiet", lambda name: passed.update([name]))
    assert {"store.dispose.before", "store.dispose.manifest", "store.file.deleted"} <= set(passed)
    finished = 0
    for point, times in passed.items():
        for occurrence in range(1, times + 1):
            home = tmp_path / f"{point}-{occurrence}"
            shutil.copytree(start, home)
            assert exit_code(fork(functools.partial(work, home, kill_at(point, occurrence)))) == -signal.SIGKILL
            if kind == "checkpoint":
                store = filesystem_store(home)
                assert set(store.list()) in ({1, 2}, {2})
                assert [p for s in store.list() for p in store.verify(s) if p.harmful] == []
            with contextlib.suppress(Misuse):  # it was over but for the end of the process
                work(home, lambda name: None)
                finished += 1
            assert tree(home) == tree(tmp_path / "quiet"), (point, occurrence)
    assert finished > 5
