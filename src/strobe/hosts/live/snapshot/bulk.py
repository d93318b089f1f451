"""States and channel contents that may be large: kept on disk while they come in, read in pieces when they go out.

The process that coordinates a system holds at most `SMALL` bytes of each in memory, however large they are. On the way
in a `Spool` collects the pieces, and the store then copies its file; on the way out a `Stored` mapping reads a large
value only when somebody asks for it, and gives it in pieces to whoever can take them.

A channel's content is a MessagePack array of its messages, each as it was sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, TypeVar

import msgspec

from strobe.hosts.live.wire.control import PIECE
from strobe.hosts.live.wire.framing import UNREADABLE
from strobe.model.errors import Damaged, PeerFault
from strobe.store.base import Data
from strobe.store.check import read_blob
from strobe.store.manifest import BlobRef
from strobe.store.snapshots import SnapshotStore

__all__ = [
    "EMPTY",
    "SMALL",
    "Bulk",
    "InStore",
    "Spool",
    "Stored",
    "fetch",
    "packed",
    "packed_size",
    "pieces_of",
    "read",
    "unpacked",
]

SMALL: Final = 1 << 20  # bytes that are kept in memory
EMPTY: Final = b"\x90"  # the content of a channel that carried nothing
K = TypeVar("K")
V = TypeVar("V")

_raws: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


# ── contents of channels ────────────────────────────────────────────────────────────────────────────────────────────


def packed(items: Iterable[bytes], count: int) -> Iterator[bytes]:
    """The bytes of a content of so many messages, a piece at a time."""
    waiting, size = [_head(count)], 0
    for item in items:
        waiting.append(item)
        size += len(item)
        if size >= PIECE:
            yield from _cut(b"".join(waiting))
            waiting, size = [], 0
    yield from _cut(b"".join(waiting))


def packed_size(items: Iterable[bytes], count: int) -> int:
    return len(_head(count)) + sum(map(len, items))


def unpacked(data: bytes) -> list[bytes]:
    """The messages; `PeerFault` if the bytes are not the content of a channel."""
    try:
        return [bytes(raw) for raw in _raws(data)]
    except UNREADABLE as error:
        raise PeerFault(f"{len(data)} bytes are not the content of a channel: {error}.") from None


def _head(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def _cut(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]


# ── coming in ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Spool:
    """Bytes that come in pieces. More than a little goes to a file, which is not durable: the store copies it."""

    def __init__(self, new_path: Callable[[], Path]) -> None:
        self.size = 0
        self._new_path = new_path
        self._memory = bytearray()
        self._path: Path | None = None
        self._file: BinaryIO | None = None

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self._path is None and self.size <= SMALL:
            self._memory += data
            return
        if self._path is None:
            self._path = self._new_path()
            self._file = self._path.open("wb", 0)
            self._write(self._memory)
            self._memory = bytearray()
        self._write(data)

    def close(self) -> Data:
        """Call this when everything has come."""
        if self._file is not None:
            self._file.close()
            self._file = None
        return bytes(self._memory) if self._path is None else self._path

    def drop(self) -> None:
        self.close()
        self._memory = bytearray()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _write(self, data: bytes | bytearray) -> None:
        assert self._file is not None
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]


# ── going out ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class InStore:
    """A blob that was found to be whole, and is read when it is needed."""

    store: SnapshotStore
    ref: BlobRef
    what: str

    def pieces(self) -> Iterator[bytes]:
        """`Damaged`, after the last one, if they are not what they should be."""
        hasher = hashlib.sha256()
        with self.store.objects.open_read(self.store.layout.blob(self.ref.sha256)) as file:
            while data := file.read(PIECE):
                hasher.update(data)
                yield data
        if hasher.hexdigest() != self.ref.sha256:
            raise Damaged(f"{self.what} has changed since it was checked.", next="Restore another snapshot.")


Bulk: TypeAlias = bytes | Path | InStore


def fetch(store: SnapshotStore, ref: BlobRef, what: str) -> bytes | InStore:
    """A blob of a snapshot, checked: its bytes, or where they are if they are many."""
    if ref.size <= SMALL:
        return store.read(ref, what)
    read_blob(store.objects, store.layout.blob(ref.sha256), ref, what, lambda chunk: None)
    return InStore(store, ref, what)


def size_of(bulk: Bulk) -> int:
    if isinstance(bulk, InStore):
        return bulk.ref.size
    return bulk.stat().st_size if isinstance(bulk, Path) else len(bulk)


def pieces_of(bulk: Bulk) -> Iterator[bytes]:
    if isinstance(bulk, InStore):
        yield from bulk.pieces()
    elif isinstance(bulk, Path):
        with bulk.open("rb") as file:
            while data := file.read(PIECE):
                yield data
    else:
        yield from _cut(bulk)


def read(bulk: Bulk) -> bytes:
    return bulk if isinstance(bulk, bytes) else b"".join(pieces_of(bulk))


class Stored(Mapping[K, V]):
    """Values of a snapshot by name, each decoded from its bytes when it is asked for."""

    def __init__(self, values: Mapping[K, Bulk], decode: Callable[[bytes], V]) -> None:
        self._values = values
        self._decode = decode

    def __getitem__(self, key: K) -> V:
        return self._decode(read(self._values[key]))

    def __contains__(self, key: object) -> bool:
        return key in self._values  # without reading it

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def size(self, key: K) -> int:
        """How many bytes it has."""
        return size_of(self._values[key])

    def pieces(self, key: K) -> Iterator[bytes]:
        return pieces_of(self._values[key])
