"""Frames: how bytes on a connection fall into pieces.

A frame is a length (four bytes, of what follows), a kind (one byte) and a body. The length is bounded, so a peer that
sends nonsense costs no memory: a frame that is too long, empty, or of no known kind is a PeerFault, and the connection
ends. Before a peer has proved who it is, the bound is a few hundred bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import msgspec

from strobe.model.errors import Misuse, PeerFault

__all__ = ["HANDSHAKE_LIMIT", "MAX_FRAME", "UNREADABLE", "Frame", "FrameKind", "FrameReader", "check_limit", "frame"]

MAX_FRAME: Final = 1 << 24
HANDSHAKE_LIMIT: Final = 1024

# What msgspec raises of bytes that it cannot read.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_HEAD = struct.Struct("!IB")
HEAD: Final = _HEAD.size


class FrameKind(IntEnum):
    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5
    DATA = 6
    ACK = 7
    PING = 8
    PONG = 9


Frame = tuple[int, bytes]
_KINDS: Final = frozenset(int(kind) for kind in FrameKind)


def frame(kind: FrameKind, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body) + 1, kind) + body


def check_limit(limit: int) -> int:
    if not 4096 <= limit <= 1 << 30:
        raise Misuse(f"max_frame={limit} is not legal: it must be between 4 KiB and 1 GiB.")
    return limit


class FrameReader:
    """Takes bytes as they come, whole or in pieces, and gives back whole frames."""

    def __init__(self, limit: int = HANDSHAKE_LIMIT) -> None:
        self.limit = limit
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole by now. `limit` may be raised between two of them."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        start, end = 0, len(data)
        unpack = _HEAD.unpack_from
        try:
            while end - start >= HEAD:
                length, kind = unpack(data, start)
                if not 1 <= length <= self.limit or kind not in _KINDS:
                    raise PeerFault(self._fault(length, kind))
                after = start + 4 + length
                if after > end:
                    break
                body = data[start + HEAD : after]
                start = after
                yield kind, body
        finally:
            self._rest = data[start:] if start else data

    @property
    def waiting(self) -> int:
        """How many bytes of an unfinished frame are held."""
        return len(self._rest)

    def _fault(self, length: int, kind: int) -> str:
        if length > self.limit:
            return f"A frame of {length:,} bytes was announced; at most {self.limit:,} are taken."
        return "An empty frame came." if length < 1 else f"A frame of no known kind ({kind}) came."
