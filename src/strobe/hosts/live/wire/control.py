"""The messages between the coordinator and the nodes, over a session of their own.

A control item is a letter, and a message or a piece of a state or of a channel's content. These travel in pieces ahead
of the message that refers to them (an order to a node, a part of a snapshot to the coordinator), so that no frame is
large and a sender never needs more than one piece in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

import msgspec

from strobe.hosts.live.wire.framing import UNREADABLE
from strobe.model.errors import PeerFault

__all__ = [
    "PIECE", "AbortPart", "BreakHit", "BreakRefused", "ClearBreak", "Control", "Decline", "Fault", "Figures",
    "FiguresAsked", "Finish", "Go", "HasTerminated", "IsReady", "IsRefused", "IsRunning", "Order", "PartTaken", "Piece",
    "SetBreak", "SnapshotAsked", "SnapshotDone", "TakePart", "TimerState", "pack", "pieces", "unpack",
]  # fmt: skip

PIECE: Final = 1 << 18
_MESSAGE: Final = b"M"
_PIECE: Final = b"S"
_FIXED: Final = 11  # bytes of a piece before the channel's name: letter, number, length of the name


class Piece(NamedTuple):
    """Some bytes of a state or, with a channel, of its content."""

    number: int  # of the snapshot that they are part of; to a node, the incarnation whose order follows
    channel: str
    data: bytes


class TimerState(msgspec.Struct, frozen=True):
    """A timer that is set: it runs out in `remaining` seconds, and again every `period`."""

    name: str
    remaining: float
    period: float | None


class _Message(msgspec.Struct, frozen=True, tag=True):
    pass


# ── to a node ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Order(_Message, frozen=True):
    """Load this part of the snapshot; the pieces of its state and of its channels' contents came before. Snapshot 0 is
    the beginning."""

    incarnation: int
    timeline: int
    snapshot: int
    addresses: dict[str, tuple[str, int]]
    sent: dict[str, int]
    received: dict[str, int]
    timers: list[TimerState]
    state_bytes: int = 0
    content_bytes: dict[str, int] = {}  # of channels that were not empty
    breaks: dict[int, str] = {}
    base: int = 0  # no snapshot up to here is still to come
    token: bytes = b""  # fresh for each incarnation; datagrams are sealed with it


class Go(_Message, frozen=True):
    incarnation: int


class TakePart(_Message, frozen=True):
    """Start the snapshot here."""

    incarnation: int
    snapshot: int
    breakpoint: int = 0  # the one that this snapshot is for


class AbortPart(_Message, frozen=True):
    incarnation: int
    snapshot: int


class SnapshotDone(_Message, frozen=True):
    incarnation: int
    snapshot: int


class FiguresAsked(_Message, frozen=True):
    pass


class SetBreak(_Message, frozen=True):
    """Judge the condition after each step; when it holds, say so and wait for the snapshot."""

    number: int
    condition: str


class ClearBreak(_Message, frozen=True):
    """A node that waits because of it goes on."""

    number: int


class Finish(_Message, frozen=True):
    """The process is to end."""


# ── to the coordinator ──────────────────────────────────────────────────────────────────────────────────────────────


class IsReady(_Message, frozen=True):
    incarnation: int


class IsRefused(_Message, frozen=True):
    incarnation: int
    reason: str


class IsRunning(_Message, frozen=True):
    incarnation: int


class PartTaken(_Message, frozen=True, tag="Part"):
    """The node's part of a snapshot; the pieces of its state and of its channels' contents came before.

    `sent` and `received` count the messages of each channel at the recording, since the beginning of the system;
    `contents` counts those that its input channels held.
    """

    incarnation: int
    snapshot: int
    state_bytes: int
    sent: dict[str, int]
    received: dict[str, int]
    contents: dict[str, int]
    content_bytes: dict[str, int]  # of channels that were not empty
    timers: list[TimerState]
    step: int
    gap_ms: float  # how long no handler could run
    write_ms: float  # from the recording until the state was written
    align_ms: float  # from the recording until the last channel was closed
    forked: bool
    took_ms: float | None = None  # from the recording until the part was handed over; an older node does not say


class Decline(_Message, frozen=True):
    incarnation: int
    snapshot: int
    reason: str


class SnapshotAsked(_Message, frozen=True):
    """The process wants a snapshot that starts at this node."""

    incarnation: int


class BreakHit(_Message, frozen=True):
    """The condition holds here; no step is taken until the snapshot has been recorded."""

    incarnation: int
    number: int


class BreakRefused(_Message, frozen=True):
    number: int
    reason: str


class HasTerminated(_Message, frozen=True):
    """At the root of a diffusing computation: it has come to its end."""

    incarnation: int


class Figures(_Message, frozen=True):
    """Counts since the life began."""

    incarnation: int
    phase: str
    sent: dict[str, int]
    received: dict[str, int]
    unacknowledged: dict[str, int]
    queued: int
    connected: dict[str, bool]


class Fault(_Message, frozen=True):
    """The node cannot go on, and ends."""

    reason: str


Control: TypeAlias = (
    Order | Go | TakePart | AbortPart | SnapshotDone | FiguresAsked | Finish | IsReady | IsRefused | IsRunning
    | PartTaken | Decline | SnapshotAsked | HasTerminated | Figures | Fault
    | SetBreak | ClearBreak | BreakHit | BreakRefused
)  # fmt: skip

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final[msgspec.msgpack.Decoder[Control]] = msgspec.msgpack.Decoder(Control)


def pack(message: Control) -> bytes:
    return _MESSAGE + _encode(message)


def pieces(number: int, data: bytes, *, channel: str = "", max_item: int) -> Iterator[bytes]:
    """Items of at most `max_item` bytes that carry the data, in order."""
    head = _PIECE + number.to_bytes(8, "big") + len(channel.encode()).to_bytes(2, "big") + channel.encode()
    room = max(1, min(PIECE, max_item - len(head)))
    for start in range(0, len(data), room):
        yield head + data[start : start + room]


def unpack(item: bytes) -> Control | Piece:
    head = item[:1]
    if head == _PIECE and len(item) >= _FIXED:
        number, named = int.from_bytes(item[1:9], "big"), _FIXED + int.from_bytes(item[9:_FIXED], "big")
        return Piece(number, item[_FIXED:named].decode(errors="replace"), item[named:])
    if head != _MESSAGE:
        raise PeerFault(f"A control item of {len(item)} bytes is neither a message nor a piece of a state.")
    try:
        return _decoder.decode(memoryview(item)[1:])
    except UNREADABLE as error:
        raise PeerFault(f"A control message cannot be read: {error}.") from None
