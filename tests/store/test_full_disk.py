"""A full disk fails the snapshot that met it, and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from strobe.model.errors import Failed
from strobe.model.ids import SnapshotId
from tests.store.snapshot_samples import filesystem_store, manifest, take


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", 0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 1000)


def test_the_snapshot_fails_its_room_comes_back_and_the_next_one_works(tiny: Path) -> None:
    store = filesystem_store(tiny)
    take(store, 1, {"a": b"1" * 300_000})
    with store.begin(SnapshotId(2)) as session:
        session.put_files({"a": b"2" * 300_000})
        with pytest.raises(Failed, match="No room to write"):
            session.put_files({"b": b"3" * 500_000})
    assert store.list() == (1,)
    assert store.verify(SnapshotId(1)) == ()
    take(store, 3, {"a": b"4" * 600_000})
    assert store.verify(SnapshotId(3)) == ()


def test_a_disk_without_room_for_the_manifest_has_no_snapshot_afterwards(tiny: Path) -> None:
    store = filesystem_store(tiny)
    take(store, 1, {"a": b"1" * 300_000})
    with store.begin(SnapshotId(2)) as session:
        upload = session.put_files({"a": b"2" * 300_000})
        fill(tiny)
        with pytest.raises(Failed, match="No room to write"):
            session.complete(manifest(2, upload.files))
    assert store.list() == (1,)
    assert store.verify(SnapshotId(1)) == ()
    (tiny / "filler").unlink()
    take(store, 3, {"a": b"3" * 300_000})
    assert store.verify(SnapshotId(3)) == ()


def test_disposing_works_on_a_full_disk(tiny: Path) -> None:
    store = filesystem_store(tiny)
    take(store, 1, {"a": b"1" * 300_000})
    take(store, 2, {"a": b"2" * 300_000})
    fill(tiny)
    store.retire(1)
    take(store, 3, {"a": b"3" * 250_000})
    assert store.verify(SnapshotId(3)) == ()
