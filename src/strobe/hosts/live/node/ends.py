"""The two ends of a channel, as a life counts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from strobe.model.ids import ChannelId, NodeId

__all__ = ["Closing", "Input", "InputLink", "Output", "OutputLink", "OutputSession"]


class InputLink(Protocol):
    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class OutputSession(Protocol):
    max_item: int

    @property
    def add(self) -> Callable[[bytes], None]: ...

    @property
    def add_all(self) -> Callable[[list[bytes]], None]: ...

    @property
    def unacknowledged(self) -> int: ...

    @property
    def taken(self) -> int:
        """How many items it has been given."""
        ...


class OutputLink(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def session(self) -> OutputSession: ...

    @property
    def connected(self) -> bool: ...

    scheduled: bool

    def send(self, item: bytes) -> None: ...

    def schedule(self) -> None: ...


class Closing(Protocol):
    def close(self) -> None: ...


class Input:
    __slots__ = ("link", "paused", "received", "sender")

    def __init__(self, sender: NodeId, link: InputLink, received: int) -> None:
        self.sender = sender
        self.link = link
        self.received = received
        self.paused = 0  # how many reasons there are


class Output:
    __slots__ = ("_before", "_others", "add", "add_all", "dialer", "link", "max_item", "pauses", "target")

    def __init__(self, target: NodeId, link: OutputLink, dialer: Closing, sent: int) -> None:
        self.target = target
        self.link = link
        self.dialer = dialer
        self._before = sent  # messages, in earlier lives
        self._others = 0  # items that are not messages
        # Items of at most `max_item`; the link is to schedule them.
        self.add: Callable[[bytes], None] = link.session.add
        self.add_all: Callable[[list[bytes]], None] = link.session.add_all
        self.max_item = link.session.max_item
        self.pauses: tuple[ChannelId, ...] = ()

    @property
    def sent(self) -> int:
        """Messages on this channel. The session knows how many items it has: so nobody counts each message."""
        return self._before + self.link.session.taken - self._others

    def mark(self, item: bytes) -> None:
        """Sends an item that is no message, behind all that were sent before."""
        self._others += 1
        self.link.send(item)
