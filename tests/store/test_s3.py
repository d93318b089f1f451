"""What only a store behind a network can do wrong, through the real client and a real server with a faulty proxy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.ids import SnapshotId
from strobe.store.base import AlreadyThere
from strobe.store.layout import JobLayout
from strobe.store.s3 import S3Store
from strobe.store.snapshots import SnapshotStore
from tests.store.snapshot_samples import JOB, manifest, take
from tests.support.s3_server import CREDENTIALS, Fault, FaultyProxy, hang, refuse, reset

BLOB = "/blobs/"
MANIFEST = "/manifest.json"


@pytest.fixture
def proxy(s3_url: str, s3_server_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(s3_server_endpoint)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    yield proxy
    proxy.close()


def impatient(url: str) -> S3Store:
    return S3Store(url, timeout=1.0, patience=2.0)


def snapshots(objects: S3Store) -> SnapshotStore:
    return SnapshotStore(objects, JobLayout(JOB), JOB)


def puts(part: str, after: int = 0) -> Callable[[str, str], bool]:
    """Puts whose path contains `part`, but for the first `after`."""
    seen = []

    def when(method: str, path: str) -> bool:
        if method == "PUT" and part in path:
            seen.append(path)
        return method == "PUT" and part in path and len(seen) > after

    return when


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (refuse(403, "AccessDenied", puts(BLOB)), "refuses .*403 AccessDenied"),
        (refuse(403, "AccessDenied", puts(BLOB, after=2)), "refuses .*403 AccessDenied"),
        (refuse(403, "SignatureDoesNotMatch", puts(BLOB)), "does not accept the credentials"),
        (refuse(403, "AccessDenied", puts(MANIFEST)), "refuses .*manifest.json"),
        (refuse(507, "InsufficientStorage", puts(BLOB, after=1)), "failed at .*507 InsufficientStorage"),
        (reset(puts(BLOB, after=2)), "did not answer for .*blobs"),
        (reset(puts(MANIFEST)), "did not answer for .*manifest.json"),
        (hang(puts(BLOB, after=1)), "did not answer for .*it took too long"),
        (hang(puts(MANIFEST)), "did not answer for .*manifest.json: it took too long"),
    ],
    ids=[
        "refused", "refused-midway", "credentials", "manifest-refused", "full", "reset-midway", "manifest-reset",
        "slow", "manifest-slow",
    ],
)  # fmt: skip
def test_a_store_that_fails_fails_that_snapshot_only(s3_url: str, proxy: FaultyProxy, fault: Fault, words: str) -> None:
    store = snapshots(impatient(s3_url))
    made = take(store, 1, {"a": b"kept", "b": b"old"})
    proxy.fault = fault
    files = {"a": b"kept", **{f"new{i}": b"content %d" % i for i in range(4)}}
    with pytest.raises(Failed, match=words) as failure, store.begin(SnapshotId(2)) as session:
        session.complete(manifest(2, session.put_files(files).files))
    assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in str(failure.value)
    assert CREDENTIALS["AWS_ACCESS_KEY_ID"] not in str(failure.value)
    proxy.fault = None
    assert store.list() == (1,)
    assert store.load(SnapshotId(1)) == made
    assert store.verify(SnapshotId(1)) == ()
    take(store, 3, files)
    assert store.verify(SnapshotId(3)) == ()


@pytest.mark.parametrize("when", ["at once", "when the blobs are gone"])
def test_a_manifest_that_arrives_after_its_time_limit_completes_nothing(
    s3_url: str, proxy: FaultyProxy, when: str
) -> None:
    """The client gives up, the snapshot is given up and its blobs are deleted; the store has the put on its way."""
    store, late = snapshots(impatient(s3_url)), list[Callable[[], int]]()

    def delay(proxy: FaultyProxy, request: Any, method: str, path: str) -> bool:
        if method != "PUT" or MANIFEST not in path or late:
            return False
        body, headers = request.body, dict(request.headers)
        late.append(lambda: proxy.forward(method, path, body, headers)[0])
        if when == "at once":
            late[0]()
        request.answer(400, [], b"<Code>RequestTimeout</Code>")  # as good as no answer: what became of it is not known
        return True

    take(store, 1, {"a": b"kept"})
    proxy.fault = delay
    with pytest.raises(Failed), store.begin(SnapshotId(2)) as session:
        session.complete(manifest(2, session.put_files({"a": b"kept", "b": b"new"}).files))
    assert late
    late[0]()
    assert store.list() == (1,)
    assert snapshots(impatient(s3_url)).list() == (1,)
    with pytest.raises(Misuse, match="no snapshot 2"):
        store.load(SnapshotId(2))
    store.sweep()
    take(store, 3, {"a": b"kept", "b": b"new"})
    assert store.verify(SnapshotId(3)) == ()


def lose_answer(proxy: FaultyProxy, request: object, method: str, path: str) -> bool:
    """The first manifest is stored, and its answer lost."""
    if method != "PUT" or MANIFEST not in path or getattr(proxy, "lost", False):
        return False
    proxy.lost = True  # type: ignore[attr-defined]
    body, headers = request.body, dict(request.headers)  # type: ignore[attr-defined]
    assert proxy.forward(method, path, body, headers)[0] == 200
    request.answer(500, [], b"")  # type: ignore[attr-defined]
    return True


def test_a_conditional_put_that_the_client_repeats_is_not_refused_by_its_own_first_attempt(
    s3_url: str, proxy: FaultyProxy
) -> None:
    store = snapshots(S3Store(s3_url))
    proxy.fault = lose_answer
    take(store, 1, {"a": b"x"})
    assert [method for method, path in proxy.seen if MANIFEST in path and method == "PUT"] == ["PUT", "PUT"]
    assert store.verify(SnapshotId(1)) == ()
    with pytest.raises(AlreadyThere):
        store.objects.put(store.layout.manifest(SnapshotId(1)), b"another", if_absent=True)


def test_an_endpoint_that_nobody_listens_at_is_named(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(Failed, match=r"http://127.0.0.1:1 did not answer for s3://.*: Connection refused"):
        impatient(s3_url).check()


def test_a_bucket_that_does_not_exist_is_named(s3_url: str) -> None:
    store = S3Store("s3://no-such-bucket/place")
    uses: list[Callable[[], object]] = [
        store.check, lambda: store.get("k"), lambda: store.put("k", b""), lambda: list(store.list("")),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(Misuse, match="no bucket 'no-such-bucket'"):
            use()


def test_a_store_that_ignores_conditions_is_refused(s3_url: str, proxy: FaultyProxy) -> None:
    S3Store(s3_url).check(writable=True)
    assert list(S3Store(s3_url).list("")) == []

    def ignore(proxy: FaultyProxy, request: object, method: str, path: str) -> bool:
        headers = {k: v for k, v in request.headers.items() if k.lower() != "if-none-match"}  # type: ignore[attr-defined]
        request.answer(*proxy.forward(method, path, request.body, headers))  # type: ignore[attr-defined]
        return True

    proxy.fault = ignore
    with pytest.raises(Misuse, match="ignores conditions"):
        S3Store(s3_url).check(writable=True)


@pytest.mark.parametrize("url", ["s3://", "s3://UPPER/x", "s3:bucket", "s3://bucket/../x", "s3://bucket/.hidden"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Misuse, match=r"not the address of a bucket|not a key"):
        S3Store(url)


def test_a_large_file_that_changes_between_naming_and_sending_is_not_stored(s3_url: str, tmp_path: Path) -> None:
    store, source = S3Store(s3_url), tmp_path / "source"
    source.write_bytes(os.urandom(1000) * 9_000)

    def change(sha256: str) -> str:
        with source.open("r+b") as file:
            file.write(b"changed")
        return f"blobs/{sha256}"

    with pytest.raises(StrobeError, match="changed while it was being stored"), store.batch() as batch:
        batch.put_content(source, change)
    assert list(store.list("")) == []
