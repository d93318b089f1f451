"""What is particular to files: durability in the right order, full and read-only disks, stale temporary files."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strobe.model.errors import Failed
from strobe.store.base import AlreadyThere
from strobe.store.filesystem import FilesystemStore
from strobe.store.scratch import Scratch

# ── durable before visible ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class PowerLoss:
    """A disk that may lose at any moment what was not synced, seen through the calls that the store makes.

    Whenever a name is given, the bytes behind it must be durable. `lost_names` are those that power could still take.
    """

    root: Path
    synced: set[int] = field(default_factory=set)  # inodes of files whose bytes are durable
    lost_names: set[str] = field(default_factory=set)
    named_too_early: list[str] = field(default_factory=list)
    syncs: list[str] = field(default_factory=list)

    def fsync(self, file: int) -> None:
        path = os.readlink(f"/proc/self/fd/{file}")
        self.syncs.append(path)
        if os.path.isdir(path):
            self.lost_names = {name for name in self.lost_names if os.path.dirname(name) != path}
        else:
            self.synced.add(os.fstat(file).st_ino)

    def gives_name(self, source: Any, target: Any) -> None:
        self.lost_names.add(str(target))
        if os.stat(source).st_ino not in self.synced:
            self.named_too_early.append(str(target))


@pytest.fixture
def power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PowerLoss:
    watched = PowerLoss(tmp_path / "home")
    lock = threading.Lock()
    fsync, link, replace, mkdir = os.fsync, os.link, os.replace, os.mkdir

    def watch_fsync(file: int) -> None:
        fsync(file)
        with lock:
            watched.fsync(file)

    def watch_link(source: Any, target: Any) -> None:
        watched.gives_name(source, target)
        link(source, target)

    def watch_replace(source: Any, target: Any) -> None:
        watched.gives_name(source, target)
        replace(source, target)

    def watch_mkdir(path: Any, *rest: Any, **more: Any) -> None:
        mkdir(path, *rest, **more)
        if ".tmp" not in str(path):
            watched.lost_names.add(str(path))

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "link", watch_link)
    monkeypatch.setattr(os, "replace", watch_replace)
    monkeypatch.setattr(os, "mkdir", watch_mkdir)
    return watched


def test_a_put_is_durable_when_it_returns_with_all_directories_above_it(power: PowerLoss) -> None:
    store = FilesystemStore(power.root / "a" / "b")
    for if_absent in (False, True):
        store.put(f"x/y/{if_absent}", b"bytes", if_absent=if_absent)
        assert not power.named_too_early
        assert not power.lost_names


def test_a_batch_is_durable_when_it_ends_with_all_directories_above_it(power: PowerLoss) -> None:
    store = FilesystemStore(power.root)
    with store.batch() as batch:
        for i in range(20):
            batch.put(f"d{i % 7}/{i}", b"%d" % i)
            batch.put_content(b"%d" % i, lambda sha: f"blobs/{sha[:1]}/{sha}")
    assert not power.named_too_early
    assert not power.lost_names


def test_a_batch_syncs_each_directory_once(power: PowerLoss) -> None:
    store = FilesystemStore(power.root)
    with store.batch() as batch:
        for i in range(100):
            batch.put(f"a/{i}", b"x")
    power.syncs.clear()
    with store.batch() as batch:
        for i in range(100):
            batch.put(f"a/{i}", b"x")
    directories = [path for path in power.syncs if not path.startswith(str(power.root / ".tmp"))]
    assert directories == [str(power.root / "a")]


def test_content_that_a_dead_writer_left_undurable_is_made_durable(power: PowerLoss) -> None:
    """Its name is there, but nobody has synced the directory: a manifest must not be built upon it."""
    (power.root / "blobs").mkdir(parents=True)
    sha256 = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    (power.root / "blobs" / sha256).write_bytes(b"x")
    power.lost_names.add(str(power.root / "blobs" / sha256))
    with FilesystemStore(power.root).batch() as batch:
        assert not batch.put_content(b"x", lambda sha: f"blobs/{sha}").new
    assert {name for name in power.lost_names if Path(name) != power.root} == set()


def test_what_a_dead_writer_has_made_visible_can_be_made_durable(power: PowerLoss) -> None:
    """A driver that finds a manifest acts upon it: it must not vanish afterwards."""

    def die(point: str) -> None:
        if point == "store.file.visible":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FilesystemStore(power.root, on_point=die).put("a/b/c", b"x", if_absent=True)
    assert power.lost_names
    FilesystemStore(power.root).confirm(["a/b/c"])
    assert not power.lost_names


def test_a_directory_that_was_removed_and_made_again_is_made_durable_again(power: PowerLoss) -> None:
    store = FilesystemStore(power.root)
    store.put("a/b/c", b"x")
    store.delete("a/b/c")
    assert not (power.root / "a").exists()
    store.put("a/b/c", b"x")
    assert not power.lost_names


def test_a_directory_that_vanished_while_it_was_being_synced_is_not_taken_for_durable(
    power: PowerLoss, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilesystemStore(power.root)
    store.put("b", b"x")
    sync = os.fsync

    def delete_first(file: int) -> None:
        if os.readlink(f"/proc/self/fd/{file}") == str(power.root / "a"):
            monkeypatch.setattr(os, "fsync", sync)
            store.delete("a/b")
        sync(file)

    monkeypatch.setattr(os, "fsync", delete_first)
    store.put("a/b", b"deleted before its put returned")
    assert store.size("a/b") is None
    store.put("a/b", b"x")
    assert store.get("a/b") == b"x"
    assert not power.lost_names


def test_a_delete_is_durable(power: PowerLoss) -> None:
    store = FilesystemStore(power.root)
    store.put("a/b/c", b"x")
    store.put("a/d", b"x")
    power.syncs.clear()
    store.delete("a/b/c")
    assert power.syncs == [str(power.root / "a")]


# ── temporary files ─────────────────────────────────────────────────────────────────────────────────────────────────


def temporary_files(root: Path) -> list[Path]:
    return [path for path in (root / ".tmp").rglob("*") if path.is_file() and path.name != "lock"]


def test_reading_writes_nothing(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path / "home")
    assert store.size("a/b") is None
    assert list(store.list("")) == []
    assert store.clean() == 0
    assert not (tmp_path / "home").exists()


def test_temporary_files_are_no_objects_and_go_with_their_put(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path)
    with store.batch() as batch:
        batch.put("a", b"x")
        assert len(temporary_files(tmp_path)) == 1
        assert list(store.list("")) == []
    assert list(store.list("")) == ["a"]
    with pytest.raises(AlreadyThere):
        store.put("a", b"y", if_absent=True)
    assert temporary_files(tmp_path) == []


def test_what_a_killed_writer_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path: Path) -> None:
    script = (
        "import os, sys, signal; from pathlib import Path; from strobe.store.filesystem import FilesystemStore\n"
        "batch = FilesystemStore(Path(sys.argv[1])).batch().__enter__()\n"
        "batch.put('a', b'half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(temporary_files(tmp_path)) == 1
    live = FilesystemStore(tmp_path)
    with live.batch() as batch:
        batch.put("b", b"whole")
        assert FilesystemStore(tmp_path).clean() == 1
        assert len(temporary_files(tmp_path)) == 1
    assert live.get("b") == b"whole"
    live.close()
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_a_writer_whose_new_directory_was_taken_for_stale_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between making its directory and locking it there is a moment in which somebody who cleans may remove it."""
    lock, taken = fcntl.flock, list[Path]()

    def too_late(file: int, how: int) -> None:
        if not taken:
            taken.append(Path(os.readlink(f"/proc/self/fd/{file}")).parent)
            shutil.rmtree(taken[0])
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", too_late)
    scratch = Scratch(tmp_path)
    assert scratch.path != taken[0]
    assert scratch.path.is_dir()


def test_a_closed_store_reads_and_does_not_write(tmp_path: Path) -> None:
    store = FilesystemStore(tmp_path)
    store.put("a", b"x")
    store.close()
    assert store.get("a") == b"x"
    with pytest.raises(Failed, match="closed"):
        store.put("b", b"x")


# ── what the disk refuses ───────────────────────────────────────────────────────────────────────────────────────────


def put_contents(store: FilesystemStore, contents: list[bytes]) -> None:
    with store.batch() as batch:
        for content in contents:
            batch.put_content(content, lambda sha: f"blobs/{sha}")


def test_a_full_disk_is_named_with_its_free_room_and_shows_nothing_half_written(tiny: Path) -> None:
    store = FilesystemStore(tiny)
    store.put("before", b"b" * 300_000)
    with pytest.raises(Failed, match=rf"No room to write {tiny}.* [\d,]+ bytes free") as caught:
        store.put("big", b"x" * 900_000)
    assert "what was stored before is untouched" in str(caught.value)
    with pytest.raises(Failed, match="No room"):
        put_contents(store, [bytes([i]) * 100_000 for i in range(9)])
    assert list(store.list("")) == ["before"]
    assert store.get("before") == b"b" * 300_000
    assert temporary_files(tiny) == []
    store.put("after", b"a" * 600_000)  # the room of what failed is free again
    assert store.size("after") == 600_000


def test_a_large_file_on_a_full_disk_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 3_000_000)
    store = FilesystemStore(tiny)
    with pytest.raises(Failed, match="No room"), store.batch() as batch:
        batch.put_content(source, lambda sha: f"blobs/{sha}")
    assert temporary_files(tiny) == []
    store.put("after", b"a" * 900_000)


@contextlib.contextmanager
def not_root() -> Iterator[None]:
    """Root may write anywhere; as somebody else this process may not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_home_that_may_not_be_written_to_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    FilesystemStore(home).put("a", b"x")
    for directory in (home, home / ".tmp"):
        directory.chmod(0o555)
    for parent in (tmp_path, *tmp_path.parents):  # so that the other user gets as far as the home directory
        if parent.stat().st_uid == os.geteuid():
            parent.chmod(parent.stat().st_mode | 0o055)
    try:
        with not_root(), pytest.raises(Failed, match=f"Not allowed to use {home}.*denied") as caught:
            FilesystemStore(home).put("b", b"x")
        with not_root():
            assert FilesystemStore(home).get("a") == b"x"
    finally:
        for directory in (home, home / ".tmp"):
            directory.chmod(0o755)
    assert caught.value.exit_code == 1
    assert f"Let this user read and write {home}" in caught.value.next
    assert list(FilesystemStore(home).list("")) == ["a"]


def test_a_read_only_file_system_is_named(tiny: Path) -> None:
    FilesystemStore(tiny).put("a", b"x")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    with pytest.raises(Failed, match=f"Not allowed to use {tiny}.*Read-only file system"):
        FilesystemStore(tiny).put("b", b"x")
    assert FilesystemStore(tiny).get("a") == b"x"


def test_a_file_where_a_directory_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a directory")
    with pytest.raises(Failed, match=r"home.*(Not a directory|File exists)"):
        FilesystemStore(tmp_path / "home").put("a", b"x")
    assert (tmp_path / "home").read_text() == "not a directory"
