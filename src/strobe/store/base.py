"""What Strobe asks of a place that keeps bytes.

Theory
------
An object store maps keys to bytes. It need not know directories or renaming, so that an S3-like store can be one. It
promises three things, on which law 4 ("durable, then complete, then visible") rests:

1. *Whole or not at all.* A reader sees an object with all its bytes or does not see it, whatever crashes when.
2. *Durable on return.* Once `put` returns, or a batch's block ends, power may fail.
3. *One winner.* Of any number of `put(…, if_absent=True)` on one key exactly one succeeds.

A key is a plain relative path with forward slashes, none of whose parts begins with a dot. Puts, gets and deletes may
come from several threads. What a store refuses or cannot do is a `Failed` that names the key or path; `Absent` and
`AlreadyThere` are the two that callers act upon.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol, TypeAlias

from strobe.model.errors import Failed, Misuse

__all__ = [
    "CHUNK", "Absent", "AlreadyThere", "Batch", "Data", "ObjectStore", "Written", "check_key", "has_content",
]  # fmt: skip

Data: TypeAlias = bytes | Path  # the bytes themselves, or a file that holds them
CHUNK: Final = 1 << 17  # stays in the processor's cache between reading, hashing and writing

_KEY = re.compile(r"[^./\\\0][^/\\\0]*(?:/[^./\\\0][^/\\\0]*)*")


class Absent(Failed):
    """There is no object with this key."""


class AlreadyThere(Failed):
    """`if_absent` was asked for, and the key is taken."""


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes that are, or at the end of the batch will be, in the store. `new` is false if they were there before."""

    sha256: str
    size: int
    new: bool


class Batch(Protocol):
    """Puts that become durable together: far cheaper than one by one. Nothing is promised before the block ends.

    If the block raises, what was put may or may not be there; each object is whole or absent all the same.
    """

    def put(self, key: str, data: Data) -> None: ...

    def put_content(self, data: Data, key_for: Callable[[str], str]) -> Written:
        """Stores bytes under `key_for(sha256)`. The hash is that of the very bytes that are stored, even if the file
        changes meanwhile. `key_for` is called before the store looks whether the bytes are there already. What is there
        is compared before its first use by this process: a damaged object of the right size is replaced."""
        ...


class ObjectStore(Protocol):
    def put(self, key: str, data: Data, *, if_absent: bool = False) -> None: ...

    def batch(self) -> AbstractContextManager[Batch]: ...

    def get(self, key: str) -> bytes:
        """The bytes, or `Absent`."""
        ...

    def open_read(self, key: str) -> BinaryIO:
        """The bytes as a stream that the caller closes, or `Absent`."""
        ...

    def size(self, key: str) -> int | None:
        """How many bytes, or None if there is no such object."""
        ...

    def sizes(self, keys: Iterable[str]) -> dict[str, int]:
        """How many bytes those of the keys have that are there: one by one, but as fast as the store can."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """The keys that begin with `prefix`, in order. Those that come or go meanwhile may or may not be among them."""
        ...

    def delete(self, key: str) -> None:
        """After this the key is absent, as it may have been before, and stays absent if power fails."""
        ...

    def withdraw(self, key: str) -> None:
        """After a put of this key has failed: nobody finds the object now, and nobody will, even if the store has yet
        to carry out what was asked of it."""
        ...

    def discard(self, keys: Iterable[str]) -> None:
        """Deletes many objects that nobody needs. Cheaper than `delete`: after a loss of power some may be back."""
        ...

    def confirm(self, keys: Iterable[str]) -> None:
        """Makes durable what is found under these keys: whoever put it may have died just before it was."""
        ...

    def clean(self) -> int:
        """Removes what writers left behind that are gone: nothing that was ever visible. Returns how many they were."""
        ...

    def describe(self, key: str = "") -> str:
        """Where a key is, in words that a person can follow: a path, a URL."""
        ...


def has_content(stream: BinaryIO, sha256: str) -> bool:
    """Whether the bytes of the stream, which is closed, have this hash."""
    hasher = hashlib.sha256()
    with stream:
        while chunk := stream.read(CHUNK):
            hasher.update(chunk)
    return hasher.hexdigest() == sha256


def check_key(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise Misuse(f"{key!r} is not a key: a key is a plain relative path, and none of its parts begins with a dot.")
    return key
