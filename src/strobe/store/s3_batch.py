"""Many puts to a bucket, side by side; what they bring is hashed, and what is there already is compared once."""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from strobe.model.errors import Failed
from strobe.store.base import CHUNK, Absent, Data, Written, check_key, has_content

if TYPE_CHECKING:
    from strobe.store.s3 import S3Store

__all__ = ["PART", "S3Batch", "read_data"]

PART: Final = 8 << 20  # up to here an object is sent and read in one request; above it, in parts of this size


class S3Batch:
    """Puts side by side. One thread at a time fills it."""

    def __init__(self, store: S3Store, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._pool = pool
        self._under_way: dict[str, Future[None]] = {}
        self._content: set[str] = set()  # what this batch brings

    def put(self, key: str, data: Data) -> None:
        self._start(check_key(key), lambda: self._store.put(key, data))

    def put_content(self, data: Data, key_for: Callable[[str], str]) -> Written:
        if isinstance(data, bytes) or _size(data) <= PART:
            content = read_data(data)
            sha256, size = hashlib.sha256(content).hexdigest(), len(content)
        else:
            content, (sha256, size) = b"", _hash(data)
        key = check_key(key_for(sha256))
        if key in self._under_way or self._holds(key, data, content, sha256, size):
            return Written(sha256, size, new=False)
        self._content.add(key)
        if size <= PART:
            self._start(key, lambda: self._store.put(key, content))
        else:
            assert isinstance(data, Path) or content
            self._start(key, lambda: self._send(key, data, sha256, size))
        return Written(sha256, size, new=True)

    def finish(self) -> None:
        for done in self._under_way.values():
            done.result()
        self._store._compared |= self._content

    def _holds(self, key: str, data: Data, content: bytes, sha256: str, size: int) -> bool:
        """Whether the content is there, whole: compared once, by its size from then on."""
        store = self._store
        try:
            with store._explained(key):
                found = store._client.head(store._store, key)
        except Absent:
            return False
        if int(found["size"]) != size:
            return False
        if key not in store._compared:
            # What was put in one request, and not encrypted, the store itself has hashed: nothing needs to come back.
            told = str(found.get("e_tag") or "").strip('"') == _md5(content or data)
            if not told and not has_content(store.open_read(key), sha256):
                return False
            store._compared.add(key)
        return True

    def cancel(self) -> None:
        for future in self._under_way.values():
            future.cancel()

    def _start(self, key: str, work: Callable[[], None]) -> None:
        before = self._under_way.get(key)
        if before is not None:
            before.result()  # the last put of a key wins
        self._under_way[key] = self._pool.submit(work)

    def _send(self, key: str, data: Data, sha256: str, size: int) -> None:
        store = self._store
        with store._explained(key):
            store._client.put(store._store, key, _checked(data, sha256, size), chunk_size=PART, max_concurrency=2)


def _md5(data: Data) -> str:
    hasher = hashlib.md5(usedforsecurity=False)
    if isinstance(data, bytes):
        hasher.update(data)
        return hasher.hexdigest()
    with data.open("rb") as file:
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest()


def _checked(data: Data, sha256: str, size: int) -> Iterator[bytes]:
    """The first `size` bytes in chunks. The last one comes only if all of them hash to `sha256`."""
    hasher, held, left = hashlib.sha256(), b"", size
    source: BinaryIO = io.BytesIO(data) if isinstance(data, bytes) else data.open("rb")
    with source:
        while left and (chunk := source.read(min(PART, left))):
            if held:
                yield held
            hasher.update(chunk)
            held, left = chunk, left - len(chunk)
    if left or hasher.hexdigest() != sha256:
        raise Failed(
            f"{data if isinstance(data, Path) else 'The content'} changed while it was being stored.",
            untouched="Nothing of it is visible.",
        )
    yield held


def _size(path: Path) -> int:
    with _own_file(path):
        return path.stat().st_size


def _hash(data: Path) -> tuple[str, int]:
    hasher, size = hashlib.sha256(), 0
    with _own_file(data), data.open("rb", 0) as source:
        while chunk := source.read(CHUNK):
            hasher.update(chunk)
            size += len(chunk)
    return hasher.hexdigest(), size


@contextlib.contextmanager
def _own_file(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise Absent(f"There is no {path}.", untouched="Nothing was changed.") from None
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}.", untouched="Nothing was changed.") from error


def read_data(data: Data) -> bytes:
    if isinstance(data, bytes):
        return data
    with _own_file(data):
        return data.read_bytes()
