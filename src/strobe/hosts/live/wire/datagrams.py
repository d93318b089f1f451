"""A reliable session over datagrams that are lost, repeated and reordered: each item comes once, in no order.

Theory of operation
-------------------
The sending end numbers its datagrams from 1 and keeps each until it is acknowledged; one that is not, in time, is sent
again. The receiving end hands out what comes when it comes, remembers which numbers it has had, and says so: all up to
a floor, and some above it. Nothing waits for what is missing before it: that is what TCP cannot do.

*Bounds.* So many datagrams are on their way at once, fewer after a loss and more after acknowledgements; the receiving
end takes nothing that is too far above its floor, so what it remembers is bounded too. What waits to be sent is bounded
by the sender: the session says when it is congested.

*Seals.* A datagram carries a keyed hash of everything in it: its kind, the life and the channel that it belongs to, its
number. The key is made for one incarnation of one run. What anybody else sends, changes or repeats is dropped.

No I/O and no clock: time comes in.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from strobe.hosts.live.wire.framing import UNREADABLE
from strobe.model.errors import HostFault

__all__ = ["LARGEST", "Ack", "Data", "Incoming", "Outgoing", "Sealer", "new_key"]

USUAL: Final = 1300  # bytes of items in a datagram: it fits into one packet nearly everywhere
LARGEST: Final = 60_000  # bytes of one item: a datagram has at most 65,507
AHEAD: Final = 2048  # numbers above the oldest that is not acknowledged
_ITEM: Final = 5
_SEAL: Final = 16
_FIRST, _LEAST, _MOST = 64, 8, 1024  # datagrams on their way
_LISTED: Final = 200  # numbers above the floor in one acknowledgement


class Data(msgspec.Struct, frozen=True, array_like=True, tag=0):
    incarnation: int
    channel: str
    number: int
    items: list[bytes]


class Ack(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Everything up to `floor` has come, and these above it."""

    incarnation: int
    channel: str
    floor: int
    above: list[int]


def new_key(key: bytes, token: bytes, incarnation: int) -> bytes:
    return hmac.digest(key, b"datagrams\0" + incarnation.to_bytes(8, "big") + token, hashlib.sha256)


class Sealer:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[bytes], Data | Ack] = msgspec.msgpack.Decoder(Data | Ack).decode

    def seal(self, message: Data | Ack) -> bytes:
        body = self._encode(message)
        return hmac.digest(self._key, body, hashlib.sha256)[:_SEAL] + body

    def open(self, datagram: bytes) -> Data | Ack | None:
        """None if it is not one of ours."""
        body = datagram[_SEAL:]
        if not hmac.compare_digest(hmac.digest(self._key, body, hashlib.sha256)[:_SEAL], datagram[:_SEAL]):
            return None
        try:
            return self._decode(body)
        except UNREADABLE:
            return None


class _OnItsWay:
    __slots__ = ("again", "items", "sent_at", "size")

    def __init__(self, items: list[bytes], size: int, sent_at: float) -> None:
        self.items = items
        self.size = size
        self.sent_at = sent_at
        self.again = 0


class Outgoing:
    """The sending end of one channel."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.max_item = LARGEST
        self.resent = 0
        self.taken = 0  # items
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._next = 1
        self._way: dict[int, _OnItsWay] = {}  # in the order of sending: the oldest first
        self._way_bytes = 0
        self._oldest = 1  # every smaller number is acknowledged
        self._places = float(_FIRST)
        self._halved_at = 0  # losses below this number belong to one that was handled already
        self._round_trip = 0.05
        self._spread = 0.025

    @property
    def congested(self) -> bool:
        return self._unsent_bytes + self._way_bytes > self.window

    @property
    def unacknowledged(self) -> int:
        return self._way_bytes

    @property
    def idle(self) -> bool:
        return not self._unsent and not self._way

    def send(self, item: bytes) -> None:
        if len(item) > self.max_item:
            raise HostFault(f"An item of {len(item):,} bytes does not fit into a datagram.")
        self.taken += 1
        self._unsent.append(item)
        self._unsent_bytes += len(item) + _ITEM

    add = send

    def add_all(self, items: list[bytes]) -> None:
        for item in items:
            self.add(item)

    def due(self, now: float) -> list[tuple[int, list[bytes]]]:
        """What to send now: first what is sent again, then what is new."""
        out = [(number, self._way[number].items) for number in self._late(now)]
        while self._unsent and len(self._way) < self._places and self._next - self._oldest < AHEAD:
            items, size = self._pack()
            self._way[self._next] = _OnItsWay(items, size, now)
            self._way_bytes += size
            out.append((self._next, items))
            self._next += 1
        return out

    def wake_at(self) -> float | None:
        """When something may be late."""
        for way in self._way.values():
            return way.sent_at + self._patience(way)
        return None

    def acknowledged(self, floor: int, above: list[int], now: float) -> None:
        if floor >= self._next or any(not floor < number < self._next for number in above):
            return  # nonsense from a peer that knows the key: all of it is ignored
        done = [number for number in self._way if number <= floor] if floor >= self._oldest else []
        done += [number for number in above if number in self._way]
        for number in done:
            way = self._way.pop(number)
            self._way_bytes -= way.size
            self._places = min(_MOST, self._places + 0.5)
            if not way.again:
                off = now - way.sent_at - self._round_trip
                self._round_trip += off / 8
                self._spread += (abs(off) - self._spread) / 4
        self._oldest = max(self._oldest, floor + 1)

    def _late(self, now: float) -> list[int]:
        late = []
        for number, way in self._way.items():
            if way.sent_at + self._patience(way) > now:
                break
            late.append(number)
        for number in late:
            way = self._way.pop(number)
            way.sent_at, way.again = now, way.again + 1
            self._way[number] = way  # behind all others: the order of sending
            self.resent += 1
            if number >= self._halved_at:
                self._places = max(_LEAST, self._places / 2)
                self._halved_at = self._next
        return late

    def _patience(self, way: _OnItsWay) -> float:
        patience: float = max(0.01, self._round_trip + 4 * self._spread) * 2 ** min(way.again, 6)
        return min(patience, 1.0)

    def _pack(self) -> tuple[list[bytes], int]:
        items: list[bytes] = []
        size = 0
        while self._unsent and (not items or size + len(self._unsent[0]) + _ITEM <= USUAL):
            items.append(self._unsent.popleft())
            size += len(items[-1]) + _ITEM
        self._unsent_bytes -= size
        return items, size


class Incoming:
    """The receiving end of one channel."""

    def __init__(self) -> None:
        self._floor = 0
        self._above: set[int] = set()

    def take(self, number: int) -> bool:
        """Whether this datagram is new. One that is too far ahead is not taken, and will come again."""
        if not self._floor < number <= self._floor + 2 * AHEAD or number in self._above:
            return False
        self._above.add(number)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)
        return True

    def state(self) -> tuple[int, list[int]]:
        """For an acknowledgement: the floor, and the newest above it."""
        return self._floor, sorted(self._above)[-_LISTED:]
