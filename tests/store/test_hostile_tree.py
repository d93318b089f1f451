"""A snapshot's directory in which somebody put what no snapshot has: links, pipes, sockets, files without an end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.model.errors import Damaged, Failed, Misuse, StrobeError
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind
from strobe.store.base import Absent
from strobe.store.check import LARGEST_MANIFEST
from strobe.store.disposal import dispose, find
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import SavepointLayout
from strobe.store.locate import locate
from strobe.store.manifest import Manifest
from strobe.store.snapshots import SnapshotStore
from tests.store.snapshot_samples import JOB, filesystem_store, manifest, take, tree

FILES = {"state/1": b"one", "state/2": b"x" * 300}


def savepoint(place: Path, files: dict[str, bytes] = FILES, snapshot: int = 7) -> Manifest:
    store = SnapshotStore(FilesystemStore(place), SavepointLayout("", SnapshotId(snapshot)), JOB)
    with store.begin(SnapshotId(snapshot)) as session:
        made = manifest(snapshot, session.put_files(dict(files)).files, kind=Kind.SAVEPOINT)
        session.complete(made)
    assert isinstance(store.objects, FilesystemStore)
    store.objects.close()
    (place / ".tmp").rmdir()
    return made


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Somebody else's: another savepoint, a store at work, and a key."""
    victim = tmp_path / "victim"
    savepoint(victim / "savepoint", {"other": b"theirs"}, snapshot=9)
    (victim / "work" / "ab12").mkdir(parents=True)
    (victim / "work" / "ab12" / "1").write_bytes(b"half written")
    (victim / "key").write_text("secret")
    return victim


def everything(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


def test_disposing_does_not_delete_through_a_linked_directory_of_temporary_files(victim: Path, tmp_path: Path) -> None:
    savepoint(tmp_path / "sav")
    (tmp_path / "sav" / ".tmp").symlink_to(victim / "work")
    before = everything(victim)
    with pytest.raises(Failed, match=r"\.tmp is not used: it is a symbolic link"):
        dispose(find(str(tmp_path / "sav"), tmp_path))
    assert everything(victim) == before


def test_disposing_does_not_delete_through_linked_blobs(victim: Path, tmp_path: Path) -> None:
    savepoint(tmp_path / "sav")
    os.rename(tmp_path / "sav" / "blobs", tmp_path / "aside")
    (tmp_path / "sav" / "blobs").symlink_to(victim / "savepoint" / "blobs")
    before = everything(victim)
    with pytest.raises(Failed, match="blobs is not used: it is a symbolic link"):
        dispose(find(str(tmp_path / "sav"), tmp_path))
    assert everything(victim) == before
    (tmp_path / "sav" / "blobs").unlink()
    dispose(find(str(tmp_path / "sav"), tmp_path))
    assert not (tmp_path / "sav").exists()


def test_disposing_does_not_delete_through_a_linked_shelf_of_blobs(victim: Path, tmp_path: Path) -> None:
    made = savepoint(tmp_path / "sav")
    shelf = next(iter(made.blobs()))[1].sha256[:2]
    (tmp_path / "sav" / "blobs" / shelf).rename(victim / "shelf")
    (tmp_path / "sav" / "blobs" / shelf).symlink_to(victim / "shelf")
    before = everything(victim)
    with pytest.raises(Failed, match="symbolic link"):
        dispose(find(str(tmp_path / "sav"), tmp_path))
    assert everything(victim) == before


def test_a_lock_that_is_a_link_is_not_opened(victim: Path, tmp_path: Path) -> None:
    savepoint(tmp_path / "sav")
    stale = tmp_path / "sav" / ".tmp" / "0123"
    stale.mkdir(parents=True)
    (stale / "lock").symlink_to(victim / "new")
    FilesystemStore(tmp_path / "sav").clean()
    assert not (victim / "new").exists()


def test_links_among_temporary_files_go_and_what_they_lead_to_stays(victim: Path, tmp_path: Path) -> None:
    savepoint(tmp_path / "sav")
    stale = tmp_path / "sav" / ".tmp" / "0123"
    stale.mkdir(parents=True)
    (stale / "1").symlink_to(victim / "key")
    (stale / "2").symlink_to(victim / "work")
    before = everything(victim)
    assert FilesystemStore(tmp_path / "sav").clean() == 1
    assert not stale.exists()
    assert everything(victim) == before


def _link(path: Path, victim: Path) -> None:
    path.symlink_to(victim / "key")


def _pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path, victim: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def _directory(path: Path, victim: Path) -> None:
    path.mkdir()


def _endless(path: Path, victim: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 42)


@pytest.mark.parametrize("instead", [_link, _pipe, _socket, _directory, _endless])
@pytest.mark.parametrize("whose", ["blob", "manifest"])
def test_what_is_no_plain_file_of_the_right_size_is_refused_at_once(
    instead: Callable[[Path, Path], None], whose: str, victim: Path, tmp_path: Path
) -> None:
    made = savepoint(tmp_path / "sav")
    sha256 = next(iter(made.blobs()))[1].sha256
    path = tmp_path / "sav" / ("manifest.json" if whose == "manifest" else f"blobs/{sha256[:2]}/{sha256}")
    path.unlink()
    instead(path, victim)
    if whose == "manifest":
        with pytest.raises(StrobeError):
            locate(str(tmp_path / "sav"), tmp_path)
        return
    found = locate(str(tmp_path / "sav"), tmp_path)
    assert [p.harmful for p in found.store.verify(found.snapshot)] == [True]
    with pytest.raises((Damaged, Failed)):
        found.store.lay_out(found.load(), "nodes/balances/files/", tmp_path / "out")


def test_a_manifest_without_an_end_is_not_read(tmp_path: Path) -> None:
    savepoint(tmp_path / "sav")
    os.truncate(tmp_path / "sav" / "manifest.json", LARGEST_MANIFEST + 1)
    with pytest.raises(Damaged, match="no manifest has more"):
        locate(str(tmp_path / "sav"), tmp_path)


def test_a_mark_without_an_end_is_none(tmp_path: Path) -> None:
    (tmp_path / "sav").mkdir()
    (tmp_path / "sav" / "disposing.json").touch()
    os.truncate(tmp_path / "sav" / "disposing.json", 1 << 40)
    with pytest.raises(Misuse):
        find(str(tmp_path / "sav"), tmp_path)


def test_a_link_is_never_a_key_and_never_passed_through(victim: Path, tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path / "s")
    store.put("a/b", b"x")
    (tmp_path / "s" / "link").symlink_to(victim)
    (tmp_path / "s" / "a" / "file").symlink_to(victim / "key")
    assert list(store.list("")) == ["a/b"]
    assert store.size("link/key") is None
    assert store.size("a/file") is None
    for key in ("link/key", "a/file"):
        with pytest.raises(Failed, match="symbolic link"):
            store.get(key)
    for key in ("link/new", "link/work/new"):
        with pytest.raises(Failed, match="symbolic link"):
            store.put(key, b"x")
    store.delete("a/file")
    assert not (tmp_path / "s" / "a" / "file").is_symlink()
    with pytest.raises(Failed, match="symbolic link"):
        store.delete("link/key")
    with pytest.raises(Failed, match="symbolic link"):
        store.discard(["link/key"])
    assert (victim / "key").read_text() == "secret"
    assert sorted(p.name for p in victim.iterdir()) == ["key", "savepoint", "work"]


def test_a_home_that_is_itself_a_link_is_used(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    store = filesystem_store(tmp_path / "home")
    take(store, 1, {"a": b"x"})
    assert store.verify(SnapshotId(1)) == ()
    store.dispose(SnapshotId(1))
    assert tree(tmp_path / "disk") == {}


def test_an_absent_key_below_what_is_no_directory_is_absent(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path / "s")
    store.put("a", b"x")
    assert store.size("a/b") is None
    with pytest.raises(Failed) as caught:
        store.get("a/b")
    assert not isinstance(caught.value, Absent)
