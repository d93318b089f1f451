"""What every object store promises (see `strobe.store.base`), run against each of them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.model.errors import Misuse
from strobe.store.base import Absent, AlreadyThere, ObjectStore, Written
from strobe.store.filesystem import FilesystemStore
from strobe.store.memory import MemoryStore
from strobe.store.s3 import S3Store

STORES = ("memory", "filesystem", "s3")


def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """The store that the fixture's parameter names, empty."""
    if request.param == "memory":
        return MemoryStore()
    if request.param == "filesystem":
        return FilesystemStore(tmp_path / "home")
    return S3Store(request.getfixturevalue("s3_url"))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(request, tmp_path)


def key_for(sha256: str) -> str:
    return f"blobs/{sha256}"


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_what_was_put_is_got(store: ObjectStore) -> None:
    store.put("a/b/c", b"bytes")
    assert store.get("a/b/c") == b"bytes"
    assert store.size("a/b/c") == 5
    with store.open_read("a/b/c") as file:
        assert file.read(3) == b"byt"


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert store.size("empty") == 0


def test_a_put_replaces(store: ObjectStore) -> None:
    store.put("k", b"old and longer")
    store.put("k", b"new")
    assert store.get("k") == b"new"


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_000_000, 9_000_000])
def test_a_file_is_put_whole(store: ObjectStore, tmp_path: Path, size: int) -> None:
    content = bytes(i * 31 % 251 for i in range(1000)) * 9000
    source = tmp_path / "source"
    source.write_bytes(content[:size])
    store.put("k", source)
    with store.batch() as batch:
        written = batch.put_content(source, key_for)
    assert store.get("k") == content[:size]
    assert written == Written(sha(content[:size]), size, new=True)
    assert store.get(key_for(written.sha256)) == content[:size]


@pytest.mark.parametrize("read", [lambda s: s.get("no/such"), lambda s: s.open_read("no/such")])
def test_an_absent_key_is_reported_as_absent(store: ObjectStore, read: Callable[[ObjectStore], object]) -> None:
    with pytest.raises(Absent, match="no/such"):
        read(store)
    assert store.size("no/such") is None


def test_a_prefix_of_a_key_is_no_object(store: ObjectStore) -> None:
    store.put("a/b/c", b"x")
    assert store.size("a/b") is None
    assert store.size("a/b/c/d") is None


def test_sizes_are_those_of_the_keys_that_are_there(store: ObjectStore) -> None:
    for i in range(20):
        store.put(f"d/{i}", b"x" * i)
    assert store.sizes([f"d/{i}" for i in range(25)]) == {f"d/{i}": i for i in range(20)}
    assert store.sizes(["d/3"]) == {"d/3": 3}
    assert store.sizes([]) == {}


def test_putting_a_file_that_does_not_exist_changes_nothing(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(Absent, match="gone"):
        store.put("k", tmp_path / "gone")
    with pytest.raises(Absent, match="gone"), store.batch() as batch:
        batch.put_content(tmp_path / "gone", key_for)
    assert list(store.list("")) == []


def test_only_one_put_if_absent_wins(store: ObjectStore) -> None:
    store.put("k", b"first", if_absent=True)
    with pytest.raises(AlreadyThere, match="k"):
        store.put("k", b"second", if_absent=True)
    assert store.get("k") == b"first"


def test_only_one_of_many_threads_wins_a_put_if_absent(store: ObjectStore) -> None:
    winners: list[int] = []
    start = threading.Barrier(8)

    def race(i: int) -> None:
        start.wait()
        try:
            store.put("k", b"%d" % i, if_absent=True)
            winners.append(i)
        except AlreadyThere:
            pass

    threads = [threading.Thread(target=race, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert store.get("k") == b"%d" % winners[0]


def test_list_gives_the_keys_with_the_prefix_in_order(store: ObjectStore) -> None:
    for key in ("a/b", "a.b", "a/bc/d", "ab", "b"):
        store.put(key, b"")
    assert list(store.list("")) == ["a.b", "a/b", "a/bc/d", "ab", "b"]
    assert list(store.list("a/b")) == ["a/b", "a/bc/d"]
    assert list(store.list("a/")) == ["a/b", "a/bc/d"]
    assert list(store.list("a/bc/d")) == ["a/bc/d"]
    assert list(store.list("none/at/all")) == []


def test_a_deleted_key_is_absent_and_deleting_it_again_is_no_fault(store: ObjectStore) -> None:
    store.put("a/b/c", b"x")
    store.put("a/d", b"y")
    store.delete("a/b/c")
    store.delete("a/b/c")
    store.discard(["a/d", "a/d", "never/there"])
    assert list(store.list("")) == []
    store.put("a/b/c", b"again")
    assert store.get("a/b/c") == b"again"


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a/.tmp", "a\\b", "a\0b"])
def test_a_key_that_could_lead_elsewhere_is_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(Misuse, match="not a key"):
        store.put(key, b"x")
    with pytest.raises(Misuse, match="not a key"), store.batch() as batch:
        batch.put_content(b"x", lambda sha256: key)
    assert list(store.list("")) == []


# ── batches ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_is_all_there_when_its_block_ends(store: ObjectStore) -> None:
    with store.batch() as batch:
        for i in range(100):
            batch.put(f"k/{i:03d}", b"%d" % i)
    assert [store.get(key) for key in store.list("k/")] == [b"%d" % i for i in range(100)]


def test_a_batch_that_raises_leaves_each_object_whole_or_absent(store: ObjectStore) -> None:
    def break_off() -> None:
        with store.batch() as batch:
            batch.put("k", b"whole")
            batch.put_content(b"content", key_for)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert {store.get(key) for key in store.list("")} <= {b"whole", b"content"}


def test_the_last_put_of_a_key_in_a_batch_wins(store: ObjectStore) -> None:
    with store.batch() as batch:
        batch.put("k", b"first")
        batch.put("k", b"second")
    assert store.get("k") == b"second"


def test_content_is_named_by_its_hash_and_stored_once(store: ObjectStore) -> None:
    with store.batch() as batch:
        first = batch.put_content(b"same", key_for)
        second = batch.put_content(b"same", key_for)
    with store.batch() as batch:
        third = batch.put_content(b"same", key_for)
    assert [first, second, third] == [Written(sha(b"same"), 4, new) for new in (True, False, False)]
    assert list(store.list("")) == [key_for(sha(b"same"))]


def test_content_that_was_cut_short_is_written_again(store: ObjectStore) -> None:
    store.put(key_for(sha(b"whole content")), b"whole")
    with store.batch() as batch:
        assert batch.put_content(b"whole content", key_for).new
    assert store.get(key_for(sha(b"whole content"))) == b"whole content"


def test_writers_of_the_same_content_do_not_disturb_each_other(store: ObjectStore, tmp_path: Path) -> None:
    sources = []
    for i in range(4):
        sources.append(tmp_path / f"source{i}")
        sources[-1].write_bytes(bytes([i]) * (1_200_000 if i % 2 else 5000))
    start = threading.Barrier(6)
    faults: list[BaseException] = []

    def write() -> None:
        try:
            start.wait()
            for _ in range(5):
                with store.batch() as batch:
                    for source in sources:
                        batch.put_content(source, key_for)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert {sha(store.get(key)) for key in store.list("")} == {sha(source.read_bytes()) for source in sources}
    assert all(key == key_for(sha(store.get(key))) for key in store.list(""))


def test_deleting_and_putting_side_by_side_loses_no_put(store: ObjectStore) -> None:
    """The last delete in a directory may remove the directory just when a put needs it."""
    faults: list[BaseException] = []
    start = threading.Barrier(4)

    def churn(i: int) -> None:
        try:
            start.wait()
            for n in range(50):
                store.put(f"d/{n % 3}/{i}", b"x")
                assert store.get(f"d/{n % 3}/{i}") == b"x"
                store.delete(f"d/{n % 3}/{i}")
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=churn, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert list(store.list("")) == []
