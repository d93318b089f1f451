"""SIGKILL at every step of the store, each time that the step is passed.

Whatever the step: earlier snapshots are sound, nothing is half visible, and running the same again ends where a run
ends that was never killed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from strobe.model.ids import SnapshotId
from strobe.store.base import AlreadyThere
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.points import POINTS, OnPoint
from tests.store.snapshot_samples import BALANCES, JOB, filesystem_store, take, tree

LAYOUT = JobLayout(JOB)


def fork(work: Callable[[], None]) -> int:
    """Runs `work` in a child. Returns its process id."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    """Waits for it. Minus the signal if it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def contents(snapshot: int) -> dict[str, bytes]:
    return {
        "kept": b"the same in all",
        "changing": b"of snapshot %d" % snapshot,
        "large": bytes([snapshot]) * 1_100_000,
        "empty": b"",
    }


def earlier(home: Path) -> None:
    store = filesystem_store(home)
    for snapshot in (1, 2):
        take(store, snapshot, contents(snapshot))
    store.objects.put(LAYOUT.blob("ab" * 32), b"an orphan")
    store.begin(SnapshotId(3)).put_blob(b"of a session that never ended")


def job(home: Path, on_point: OnPoint) -> None:
    """What a job does from its start on. Running it again goes on where it was."""
    store = filesystem_store(home, on_point)
    store.sweep()
    for snapshot in (3, 5):
        if SnapshotId(snapshot) not in store.list():
            take(store, snapshot, contents(snapshot))
        with store.begin(SnapshotId(4)) as session:
            session.put_files(contents(4))
    store.retire(2)


def kill_at(point: str, occurrence: int) -> OnPoint:
    passed = Counter[str]()

    def on_point(name: str) -> None:
        passed[name] += 1
        if name == point and passed[name] == occurrence:
            kill()

    return on_point


def kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def check_sound(home: Path) -> None:
    store = filesystem_store(home)
    there = store.list()
    assert {1, 2} <= set(there) or {3, 5} <= set(there)
    for snapshot in there:
        assert store.verify(snapshot) == ()
        read = store.load(snapshot).nodes[BALANCES].files
        assert {path: store.read(ref) for path, ref in read.items()} == contents(snapshot)
    for key in store.objects.list(""):
        sha256 = LAYOUT.sha256_of(key)
        if sha256 is None:
            assert LAYOUT.snapshot_of(key) in there
        elif sha256 != "ab" * 32:
            assert hashlib.sha256(store.objects.get(key)).hexdigest() == sha256


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_leaves_earlier_snapshots_sound_and_the_next_run_goes_on(point: str, tmp_path: Path) -> None:
    start, quiet, passed = tmp_path / "start", tmp_path / "quiet", Counter[str]()
    earlier(start)
    shutil.copytree(start, quiet)
    job(quiet, lambda name: passed.update([name]))
    assert passed[point] > 0, f"nothing passes {point}: this test would show nothing"
    assert set(passed) <= set(POINTS)
    for occurrence in range(1, passed[point] + 1):
        home = tmp_path / str(occurrence)
        shutil.copytree(start, home)
        child = fork(functools.partial(job, home, kill_at(point, occurrence)))
        assert exit_code(child) == -signal.SIGKILL
        check_sound(home)
        job(home, lambda name: None)
        assert tree(home) == tree(quiet)
        assert not [p for p in (home / ".tmp").rglob("*") if p.is_file() and p.name != "lock"]


def test_processes_that_store_the_same_contents_do_not_disturb_each_other(tmp_path: Path) -> None:
    def write() -> None:
        store = FilesystemStore(tmp_path)
        for _ in range(20):
            with store.batch() as batch:
                for size in (0, 10, 1_100_000):
                    batch.put_content(b"x" * size, lambda sha256: f"blobs/{sha256}")
            store.discard(list(store.list("blobs/")))
            store.clean()

    children = [fork(write) for _ in range(3)]
    assert [exit_code(child) for child in children] == [0, 0, 0]
    with FilesystemStore(tmp_path).batch() as batch:
        written = batch.put_content(b"x" * 1_100_000, lambda sha256: f"blobs/{sha256}")
    assert hashlib.sha256(FilesystemStore(tmp_path).get(f"blobs/{written.sha256}")).hexdigest() == written.sha256


def test_a_content_that_another_discards_while_it_is_compared_is_stored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put() -> str:
        store = FilesystemStore(tmp_path)
        with store.batch() as batch:
            return f"blobs/{batch.put_content(b'x', lambda sha256: f'blobs/{sha256}').sha256}"

    def size(store: FilesystemStore, key: str) -> int | None:
        found = seen(store, key)
        (tmp_path / key).unlink(missing_ok=True)
        return found

    put()
    seen = FilesystemStore.size
    with monkeypatch.context() as patch:
        patch.setattr(FilesystemStore, "size", size)
        key = put()
    assert FilesystemStore(tmp_path).get(key) == b"x"


def test_of_many_processes_one_wins_a_put_if_absent(tmp_path: Path) -> None:
    def race() -> None:
        try:
            FilesystemStore(tmp_path).put("k", b"%d" % os.getpid(), if_absent=True)
        except AlreadyThere:
            os._exit(3)

    for _ in range(10):
        children = [fork(race) for _ in range(4)]
        codes = {child: exit_code(child) for child in children}
        assert sorted(codes.values()) == [0, 3, 3, 3]
        store = FilesystemStore(tmp_path)
        assert codes[int(store.get("k"))] == 0
        store.delete("k")
