"""Channels of the simulated system: queues of what is in flight, and how long things take.

A `Wire` is one channel from the sender's hand to the receiver's: nothing in it has reached the application. It keeps
the order in which things were put; whether they leave in that order depends on the driver (`order`).

Barriers may overtake: they go ahead of queued messages, never ahead of another barrier or an end, and carry along what
they jumped over, which is channel content of their snapshot.

Delays are drawn from a table of 1024 integers per distribution, so that a draw is one lookup with ten random bits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

from strobe.model.cut import Message
from strobe.model.errors import Misuse
from strobe.model.graph import Channel
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId

__all__ = ["Barrier", "Delays", "End", "Item", "Marker", "Order", "Stamped", "Window", "Wire", "delays"]

Order: TypeAlias = Literal["fifo", "reorder"]


class Stamped(NamedTuple):
    """A message with its sender's snapshot number."""

    message: Message
    stamp: int


class Marker(NamedTuple):
    snapshot: SnapshotId


class Barrier(NamedTuple):
    snapshot: SnapshotId
    overtook: bool = False
    overtaken: tuple[Message, ...] = ()


class End(NamedTuple):
    """Nothing follows."""


Item: TypeAlias = Message | Stamped | Marker | Barrier | End


class Window(NamedTuple):
    """What would arrive in [start, end) arrives at `end`."""

    start: int
    end: int


class Wire:
    """One channel. `owed` counts deliveries that fell due while the channel was held."""

    __slots__ = (
        "ended",
        "faulty",
        "feedback",
        "fenced",
        "held",
        "id",
        "incarnation",
        "key_cache",
        "owed",
        "period",
        "queue",
        "seq",
        "source",
        "table",
        "target",
        "windows",
    )  # fmt: skip

    def __init__(self, channel: Channel, seq: int = 0, incarnation: int = 1) -> None:
        self.id: ChannelId = channel.id
        self.source: NodeId = channel.source
        self.target: NodeId = channel.target
        self.feedback = channel.feedback
        self.queue: deque[Item] = deque()
        self.seq = seq  # of the newest message
        self.held = False
        self.ended = False  # the sender has put an end
        self.incarnation = Incarnation(incarnation)
        self.fenced = False  # the receiver belongs to a newer incarnation, or has ended
        self.faulty = False  # may lose or duplicate
        self.owed = 0
        self.table: tuple[int, ...] = ()
        self.period = 0
        self.windows: tuple[Window, ...] = ()
        self.key_cache: object = None

    def copy(self) -> Wire:
        """A copy for a fork, of what the world itself changes only. Timing belongs to the scheduler, which never
        forks."""
        new = Wire.__new__(Wire)
        new.id, new.source, new.target, new.feedback = self.id, self.source, self.target, self.feedback
        new.queue = self.queue.copy()
        new.seq, new.held, new.ended = self.seq, self.held, self.ended
        new.fenced, new.faulty, new.owed = self.fenced, self.faulty, self.owed
        new.table, new.period, new.windows = self.table, self.period, self.windows
        new.incarnation, new.key_cache = self.incarnation, None
        return new

    def key(self) -> object:
        if self.key_cache is None:
            self.key_cache = (tuple(self.queue), self.seq, self.held, self.ended)
        return self.key_cache

    def put_overtaking(self, snapshot: SnapshotId) -> None:
        """A new barrier goes ahead of the queued messages."""
        self.queue.append(Barrier(snapshot, True))
        self._move_ahead(len(self.queue) - 1)

    def let_overtake(self, snapshot: SnapshotId) -> bool:
        """If this barrier waits in the queue, move it ahead. Says whether it was there."""
        for index, item in enumerate(self.queue):
            if type(item) is Barrier and item.snapshot == snapshot:
                self._move_ahead(index)
                return True
        return False

    def _move_ahead(self, index: int) -> None:
        queue = self.queue
        barrier = queue[index]
        assert isinstance(barrier, Barrier)
        del queue[index]
        overtaken: list[Message] = []
        while index > 0:
            ahead = queue[index - 1]
            if type(ahead) is not Message:
                break
            overtaken.append(ahead)
            index -= 1
        overtaken.reverse()
        queue.insert(index, Barrier(barrier.snapshot, True, (*overtaken, *barrier.overtaken)))

    def unreceived(self) -> tuple[int, ...]:
        """Sequence numbers of the messages that are in flight, in queue order."""
        return tuple(
            item.message.seq if type(item) is Stamped else item.seq  # type: ignore[union-attr]
            for item in self.queue
            if type(item) is Message or type(item) is Stamped
        )


# ── delays ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_BITS = 10


@dataclass(frozen=True, slots=True)
class Delays:
    """`table` is drawn from with ten bits; with a `period`, arrivals gather at its multiples: bursts."""

    name: str
    table: tuple[int, ...]
    period: int = 0

    def slowed(self, factor: int) -> Delays:
        return Delays(self.name, tuple(d * factor for d in self.table), self.period)


def _uniform(low: int, high: int) -> tuple[int, ...]:
    return tuple(low + (i * (high - low + 1) >> _BITS) for i in range(1 << _BITS))


def _long_tailed(low: int, cap: int) -> tuple[int, ...]:
    """Half of all messages take at most 2·low, one in a hundred 100·low and more: delay falls off as 1/x."""
    return tuple(min(cap, (low << _BITS) // (i + 1)) for i in range(1 << _BITS))


@cache
def delays(text: str) -> Delays:
    """`fixed`, `uniform`, `long-tailed` or `bursty`, with optional numbers: `fixed:10`, `uniform:1:40`."""
    name, *rest = text.split(":")
    defaults = {"fixed": (10,), "uniform": (1, 20), "long-tailed": (2, 400), "bursty": (1, 10, 50)}
    if name not in defaults:
        raise Misuse(f"There are no delays called {name!r}.", next=f"Choose one of: {', '.join(defaults)}.")
    try:
        numbers = (*(int(n) for n in rest), *defaults[name][len(rest) :])
    except ValueError:
        numbers = ()
    if len(numbers) != len(defaults[name]) or any(not 1 <= n <= 1_000_000 for n in numbers):
        raise Misuse(
            f"{text!r} does not name delays: up to {len(defaults[name])} whole numbers from 1 to 1000000 may follow "
            f"{name!r}.",
            next=f"For example {':'.join([name, *map(str, defaults[name])])}.",
        )
    if len(numbers) > 1 and numbers[0] > numbers[1]:
        raise Misuse(f"{text!r} puts the longest delay below the shortest.", next="Give the shorter one first.")
    if name == "fixed":
        return Delays(text, (numbers[0],) * (1 << _BITS))
    if name == "uniform":
        return Delays(text, _uniform(*numbers))
    if name == "long-tailed":
        return Delays(text, _long_tailed(*numbers))
    return Delays(text, _uniform(numbers[0], numbers[1]), period=numbers[2])
