"""Objects in memory, for tests: the same promises, except that nothing outlives the process."""

from __future__ import annotations

import contextlib
import hashlib
import io
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from strobe.model.errors import Failed
from strobe.store.base import Absent, AlreadyThere, Data, Written, check_key

__all__ = ["MemoryStore"]


class MemoryStore:
    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None:
        check_key(key)
        content = _content(data)
        with self._lock:
            if if_absent and key in self._objects:
                raise AlreadyThere(f"{self.describe(key)} is there already.", untouched="It was left as it is.")
            self._objects[key] = content

    @contextlib.contextmanager
    def batch(self) -> Iterator[_MemoryBatch]:
        batch = _MemoryBatch(self)
        yield batch
        with self._lock:
            self._objects.update(batch.waiting)

    def get(self, key: str) -> bytes:
        try:
            return self._objects[check_key(key)]
        except KeyError:
            raise Absent(f"There is no {self.describe(key)}.", untouched="Nothing was changed.") from None

    def open_read(self, key: str) -> BinaryIO:
        return io.BytesIO(self.get(key))

    def size(self, key: str) -> int | None:
        content = self._objects.get(check_key(key))
        return None if content is None else len(content)

    def sizes(self, keys: Iterable[str]) -> dict[str, int]:
        return {key: size for key in keys if (size := self.size(key)) is not None}

    def list(self, prefix: str) -> Iterator[str]:
        with self._lock:
            return iter(sorted(key for key in self._objects if key.startswith(prefix)))

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def withdraw(self, key: str) -> None:
        self.delete(key)

    def discard(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)

    def confirm(self, keys: Iterable[str]) -> None:
        pass

    def clean(self) -> int:
        return 0

    def describe(self, key: str = "") -> str:
        return f"memory:{key}"


class _MemoryBatch:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.waiting: dict[str, bytes] = {}

    def put(self, key: str, data: Data) -> None:
        self.waiting[check_key(key)] = _content(data)

    def put_content(self, data: Data, key_for: Callable[[str], str]) -> Written:
        content = _content(data)
        sha256 = hashlib.sha256(content).hexdigest()
        key = check_key(key_for(sha256))
        new = key not in self.waiting and self._store._objects.get(key) != content
        if new:
            self.waiting[key] = content
        return Written(sha256, len(content), new)


def _content(data: Data) -> bytes:
    if isinstance(data, bytes):
        return data
    try:
        return data.read_bytes()
    except FileNotFoundError:
        raise Absent(f"There is no {data}.", untouched="Nothing was changed.") from None
    except OSError as error:
        raise Failed(f"{data}: {error.strerror}.", untouched="Nothing was changed.") from error
