"""The two ends of a channel, as a life counts them."""

from __future__ import annotations

from strobe.hosts.live.link import Dialer, Link
from strobe.model.ids import ChannelId, NodeId

__all__ = ["Input", "Output"]


class Input:
    __slots__ = ("link", "paused", "received", "sender")

    def __init__(self, sender: NodeId, link: Link, received: int) -> None:
        self.sender = sender
        self.link = link
        self.received = received
        self.paused = 0  # how many reasons there are


class Output:
    __slots__ = ("dialer", "link", "pauses", "sent", "target")

    def __init__(self, target: NodeId, link: Link, dialer: Dialer, sent: int) -> None:
        self.target = target
        self.link = link
        self.dialer = dialer
        self.sent = sent
        self.pauses: tuple[ChannelId, ...] = ()
