"""A reliable session over connections that break: nothing is lost, nothing repeated, order is kept.

Theory of operation
-------------------
Each end numbers the items that it sends, from 1, and keeps them until the other end has acknowledged them. When a
connection breaks, both ends keep their session; on the next one each says how much it has received, and the other goes
on from there. A frame is taken whole or not at all, and what a frame repeats is skipped by its number, so an item is
handed out once, in order, however often the connection breaks and wherever.

*Back-pressure.* At most `window` bytes are sent and not acknowledged; what is sent beyond waits here, and the session
says that it is congested. The sender should then pause. Acknowledging is the receiver's decision: one that cannot
keep up stops reading, acknowledgements stay away, and the sender sees it.

No I/O and no clock. The frames of a session are DATA `[first number, items]` and ACK `[last number]`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

import msgspec

from strobe.hosts.live.wire.framing import MAX_FRAME, UNREADABLE, FrameKind, frame
from strobe.model.errors import HostFault, PeerFault

__all__ = ["WINDOW", "Session"]

WINDOW: Final = 1 << 22
_BATCH: Final = 1 << 17  # a frame is closed when it holds this many bytes
_ROOM: Final = 64  # bytes of a frame that are not items
_SMALL: Final = 256  # bytes: many items up to this size are likely to fit into a frame
_FEW: Final = 2000  # so many of them
_WORDS: Final = 16  # acknowledgements in a window
_HEAD: Final = 5  # bytes that an item needs besides its own

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_data: Final = msgspec.msgpack.Decoder(tuple[int, list[bytes]]).decode
_decode_ack: Final = msgspec.msgpack.Decoder(int).decode


class _Sent(NamedTuple):
    """A frame that is kept until it is acknowledged."""

    first: int
    last: int
    data: bytes


class Session:
    def __init__(self, *, window: int = WINDOW, max_frame: int = MAX_FRAME) -> None:
        self.window = window
        self.max_item = max_frame - _ROOM
        self._batch = min(_BATCH, self.max_item)
        self.connected = False
        self.received = 0  # the last number that has come
        self._next = 1  # the number of the next item in a frame
        self._fresh: list[bytes] = []  # taken, and not counted yet: counting each one alone would cost too much
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self.add: Final = self._fresh.append  # `send`, for items that are known to fit
        self.add_all: Final = self._fresh.extend
        self._frames: deque[_Sent] = deque()  # sent and not acknowledged, and behind them those to be sent again
        self._unacknowledged = 0  # bytes of them
        self._again = 0  # how many of `_frames`, from the right, are to be sent again
        self._owed = 0  # the number that the peer knows we have received
        self._owed_bytes = 0  # that have come since it was told

    # ── what the host asks ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def congested(self) -> bool:
        self._count()
        return self._unsent_bytes + self._unacknowledged > self.window

    @property
    def owes(self) -> bool:
        """Whether something has come that the peer does not know of."""
        return self._owed < self.received

    @property
    def owes_much(self) -> bool:
        """Whether it is time to acknowledge: late, the peer waits for its window; after each frame would be slow,
        too."""
        return self._owed_bytes >= self.window // _WORDS

    @property
    def queued(self) -> int:
        """Items that have not been put into a frame."""
        return len(self._unsent) + len(self._fresh)

    @property
    def taken(self) -> int:
        """Items that were given to it, sent or not."""
        return self._next - 1 + len(self._unsent) + len(self._fresh)

    @property
    def idle(self) -> bool:
        """Whether the peer has everything."""
        return not self._unsent and not self._fresh and not self._frames

    @property
    def unacknowledged(self) -> int:
        """Bytes that were sent, or are to be sent again, and that the peer has not acknowledged."""
        return self._unacknowledged

    def send(self, item: bytes) -> None:
        """Takes an item, whatever the state of the connection."""
        if len(item) > self.max_item:
            raise HostFault(f"An item of {len(item):,} bytes does not fit into a frame of {self.max_item:,}.")
        self.add(item)

    def _count(self) -> None:
        fresh = self._fresh
        if fresh:
            self._unsent_bytes += sum(map(len, fresh)) + _HEAD * len(fresh)
            self._unsent += fresh
            fresh.clear()

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────────────

    def connect(self, peer_received: int) -> None:
        """A new connection is up, and the peer has received so many items: everything behind them goes out again."""
        if not self._is_known(peer_received):
            raise PeerFault(
                f"The peer says that it has received {peer_received} items; {self._next - 1} were sent, and it may "
                "have acknowledged more than that: it belongs to another session."
            )
        self._acknowledge(peer_received)
        self.connected = True
        self._again = len(self._frames)
        self._owed, self._owed_bytes = self.received, 0

    def disconnect(self) -> None:
        self.connected = False

    def take(self) -> bytes:
        """What to write now: an acknowledgement if one is due, and as many items as the window lets through."""
        if not self.connected:
            return b""
        out: list[bytes] = []
        if self._owed < self.received:
            self._owed, self._owed_bytes = self.received, 0
            out.append(frame(FrameKind.ACK, _encode(self.received)))
        if self._again:
            out += (sent.data for sent in list(self._frames)[-self._again :])
            self._again = 0
        if self._fresh and not self._unsent and self._unacknowledged <= self.window:
            self._pack_fresh(out)
        self._count()
        while self._unsent and self._unacknowledged <= self.window:
            out.append(self._pack())
        return out[0] if len(out) == 1 else b"".join(out)

    def _pack_fresh(self, out: list[bytes]) -> None:
        """As a rule all that was taken in a turn fits into one frame: then nothing needs to be counted."""
        if len(self._fresh[-1]) <= _SMALL:
            items = self._fresh[:_FEW]
            body = _encode((self._next, items))
            if len(body) <= self._batch:
                del self._fresh[:_FEW]
                out.append(self._close(items, body))

    def _pack(self) -> bytes:
        unsent = self._unsent
        if self._unsent_bytes <= self._batch:  # as a rule all of them
            items = list(unsent)
            unsent.clear()
            self._unsent_bytes = 0
        else:
            items, size = [], 0
            while unsent and (not items or size + len(unsent[0]) + _HEAD <= self._batch):
                items.append(unsent.popleft())
                size += len(items[-1]) + _HEAD
            self._unsent_bytes -= size
        return self._close(items, _encode((self._next, items)))

    def _close(self, items: list[bytes], body: bytes) -> bytes:
        first = self._next
        data = frame(FrameKind.DATA, body)
        self._next += len(items)
        self._frames.append(_Sent(first, self._next - 1, data))
        self._unacknowledged += len(data)
        return data

    # ── what arrives ────────────────────────────────────────────────────────────────────────────────────────────────

    def data(self, body: bytes) -> list[bytes]:
        """A DATA frame: the items in it that are new."""
        try:
            first, items = _decode_data(body)
        except UNREADABLE as error:
            raise PeerFault(f"A data frame cannot be read: {error}.") from None
        known = self.received + 1
        if first > known or first < 1:
            raise PeerFault(f"Item {first} came, but the next one is {known}: the peer left something out.")
        last = first + len(items) - 1
        if last < known:
            return []
        self.received = last
        self._owed_bytes += len(body)
        return items if first == known else items[known - first :]

    def acknowledgement(self, body: bytes) -> None:
        try:
            number = _decode_ack(body)
        except UNREADABLE as error:
            raise PeerFault(f"An acknowledgement cannot be read: {error}.") from None
        if not self._is_known(number):
            raise PeerFault(f"Item {number} was acknowledged, but {self._next - 1} is the last one that was sent.")
        self._acknowledge(number)

    def _is_known(self, number: int) -> bool:
        """Whether the peer can have received just so much: no less than it acknowledged, no more than was sent."""
        first_kept = self._frames[0].first if self._frames else self._next
        return first_kept - 1 <= number < self._next

    def _acknowledge(self, number: int) -> None:
        frames = self._frames
        while frames and frames[0].last <= number:
            self._unacknowledged -= len(frames.popleft().data)
        self._again = min(self._again, len(frames))
