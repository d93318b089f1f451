"""Retention by number and age. Whatever is begun, completed, deleted or killed in between, what is listed is sound."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.store import tree
from strobe.store.codec import encode
from strobe.store.layout import JobLayout
from strobe.store.memory import MemoryStore
from strobe.store.points import POINTS
from strobe.store.snapshots import Session, SnapshotStore
from tests.store.snapshot_samples import JOB, filesystem_store, manifest, take

LAYOUT = JobLayout(JOB)


def at(hour: int) -> str:
    return f"2031-05-17T{hour:02d}:00:00Z"


def completed_at(store: SnapshotStore, snapshot: int, hour: int) -> None:
    with store.begin(SnapshotId(snapshot)) as session:
        files = session.put_files({"shared": b"same", "own": b"%d" % snapshot}).files
        session.complete(manifest(snapshot, files, started=at(0), completed=at(hour)))


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    store = filesystem_store(tmp_path)
    for snapshot, hour in ((1, 1), (2, 5), (3, 9), (4, 10)):
        completed_at(store, snapshot, hour)
    return store


def hour(h: int, micros: int = 0) -> datetime:
    return datetime(2031, 5, 17, h, 0, 0, micros, UTC)


def test_all_that_are_younger_than_the_age_are_kept(store: SnapshotStore) -> None:
    assert store.retire(1, older_than=hour(6)) == (1, 2)
    assert store.list() == (3, 4)


def test_one_to_be_spared_is_counted_and_goes_when_it_need_not_be_any_more(store: SnapshotStore) -> None:
    assert store.retire(2, spare=[SnapshotId(1)]) == (2,)
    assert store.list() == (1, 3, 4)
    assert store.retire(2) == (1,)


def test_at_least_the_number_is_kept_however_old(store: SnapshotStore) -> None:
    assert store.retire(2, older_than=hour(23)) == (1, 2)
    assert store.list() == (3, 4)


def test_one_completed_at_that_very_moment_is_not_older(store: SnapshotStore) -> None:
    assert store.retire(1, older_than=hour(5)) == (1,)
    assert store.retire(1, older_than=hour(5, 1)) == (2,)


def test_a_protected_one_is_kept_whatever_its_age(store: SnapshotStore) -> None:
    assert store.retire(1, [SnapshotId(1)], older_than=hour(23)) == (2, 3)
    assert store.list() == (1, 4)


def test_without_an_age_the_number_alone_decides(store: SnapshotStore) -> None:
    assert store.retire(1) == (1, 2, 3)


def test_a_damaged_one_has_no_age_and_goes_by_number(store: SnapshotStore, tmp_path: Path) -> None:
    (tmp_path / LAYOUT.manifest(SnapshotId(3))).write_bytes(b"{")
    assert store.retire(1, older_than=hour(0)) == (3,)


def test_one_of_a_newer_format_is_kept_while_its_age_is_unknown(store: SnapshotStore, tmp_path: Path) -> None:
    path = tmp_path / LAYOUT.manifest(SnapshotId(1))
    path.write_bytes(path.read_bytes().replace(b'"format":2', b'"format":3'))
    with pytest.raises(Misuse, match="format 3"):
        store.load(SnapshotId(1))
    assert store.retire(1, older_than=hour(23)) == (2, 3)


class Killed(BaseException):
    """The process dies here: nothing after it runs, as far as the store can tell."""


class Retention(RuleBasedStateMachine):
    """One store through any sequence of beginnings, uploads, completions, disposals, retentions and deaths."""

    @initialize()
    def start(self) -> None:
        self.objects = MemoryStore()
        self.expected: dict[int, dict[str, bytes]] = {}
        self.next = 1
        self.kill_in = -1
        self.restart()

    def restart(self) -> None:
        """The next process: it knows what is stored, and nothing else."""
        self.open: dict[int, tuple[Session, dict[str, bytes]]] = {}
        self.store = SnapshotStore(self.objects, LAYOUT, JOB, on_point=self.pass_point)

    def pass_point(self, name: str) -> None:
        assert name in POINTS
        self.kill_in -= 1
        if self.kill_in == 0:
            self.objects = freeze(self.objects)  # what the dying process still does, nobody sees
            raise Killed

    @rule()
    def begin(self) -> None:
        self.open[self.next] = (self.store.begin(SnapshotId(self.next)), {})
        self.next += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data(), contents=st.lists(st.sampled_from([b"", b"a", b"b", b"c", b"d"]), max_size=3))
    def upload(self, data: st.DataObject, contents: list[bytes]) -> None:
        session, files = self.open[data.draw(st.sampled_from(sorted(self.open)))]
        new = {f"f{len(files) + i}": content for i, content in enumerate(contents)}
        session.put_files(new)
        files |= new

    @precondition(lambda self: self.open)
    @rule(data=st.data(), kill_in=st.integers(0, 8))
    def complete(self, data: st.DataObject, kill_in: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        session, files = self.open.pop(number)

        def work() -> None:
            session.complete(manifest(number, session.put_files(files).files))

        self.expected[number] = files
        if not self.survives(work, kill_in) and SnapshotId(number) not in self.store.list():
            del self.expected[number]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.open.pop(data.draw(st.sampled_from(sorted(self.open))))[0].abort()

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), kill_in=st.integers(0, 5))
    def dispose(self, data: st.DataObject, kill_in: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.expected)))
        done = self.survives(lambda: self.store.dispose(SnapshotId(number)), kill_in)
        if done or SnapshotId(number) not in self.store.list():
            del self.expected[number]

    @rule(keep=st.integers(1, 3), kill_in=st.integers(0, 12))
    def retire(self, keep: int, kill_in: int) -> None:
        doomed = sorted(self.expected)[:-keep]
        if not self.survives(lambda: self.store.retire(keep), kill_in):
            left = set(self.store.list())
            assert left >= set(sorted(self.expected)[-keep:])
            self.expected = {n: files for n, files in self.expected.items() if n in left}
            self.store.retire(keep)  # the next run finishes it
        self.expected = {n: files for n, files in self.expected.items() if n not in doomed}

    @rule(kill_in=st.integers(0, 2))
    def sweep(self, kill_in: int) -> None:
        if self.survives(self.store.sweep, kill_in):
            needed = {c for files in self.expected.values() for c in files.values()}
            pinned = {c for _, files in self.open.values() for c in files.values()}
            there = {self.objects.get(key) for key in self.objects.list(LAYOUT.blobs)}
            assert needed <= there <= needed | pinned

    @rule()
    def die(self) -> None:
        self.restart()

    def survives(self, work: object, kill_in: int) -> bool:
        self.kill_in = kill_in
        try:
            work()  # type: ignore[operator]
        except Killed:
            self.restart()
            return False
        finally:
            self.kill_in = -1
        return True

    @invariant()
    def all_that_is_listed_is_sound(self) -> None:
        assert self.store.list() == tuple(sorted(self.expected))
        for number, files in self.expected.items():
            assert self.store.verify(SnapshotId(number)) == ()
            (node,) = (n for n in self.store.load(SnapshotId(number)).nodes.values() if n.partitions)
            assert {path: self.store.read(ref) for path, ref in node.files.items()} == files


def freeze(objects: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    for key in objects.list(""):
        copy.put(key, objects.get(key))
    return copy


TestRetention = Retention.TestCase
TestRetention.settings = settings(max_examples=60, stateful_step_count=25)


def test_the_name_of_a_shared_blob_outlives_the_first_of_its_snapshots(store: SnapshotStore) -> None:
    store.retire(1)
    assert store.verify(SnapshotId(4)) == ()
    store.dispose(SnapshotId(4))
    assert list(store.objects.list(LAYOUT.blobs)) == []


def test_retention_goes_on_after_one_whose_manifest_is_anothers(store: SnapshotStore, tmp_path: Path) -> None:
    other = replace(store.load(SnapshotId(4)), snapshot=SnapshotId(9))
    (tmp_path / LAYOUT.manifest(SnapshotId(2))).write_bytes(encode(other))
    assert store.retire(1, older_than=hour(23)) == (1, 2, 3)
    assert store.verify(SnapshotId(4)) == ()


def test_a_snapshot_taken_after_retention_may_share_with_what_is_left(store: SnapshotStore) -> None:
    store.retire(1)
    take(store, 5, {"shared": b"same"})
    store.retire(1)
    assert store.verify(SnapshotId(5)) == ()


def test_a_snapshot_that_is_deleted_while_others_are_listed_hides_none_of_them(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process lists, and retention deletes between its look at the directory and its look into it."""
    entries = tree._entries

    def then_the_oldest_goes(directory: int) -> list[os.DirEntry[str]]:
        found = sorted(entries(directory), key=lambda entry: entry.name)
        for oldest in tmp_path.rglob("chk-000001"):
            shutil.rmtree(oldest)
        return found

    monkeypatch.setattr(tree, "_entries", then_the_oldest_goes)
    assert store.list() == (2, 3, 4)
