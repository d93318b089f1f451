"""The fast path for receiving: as little work as possible for each message.

`bench/live_messages.py` measures it. Not for a life with a journal, which writes down each message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strobe.hosts.live.api.codec import decode_message, decoding
from strobe.hosts.live.wire.framing import UNREADABLE

__all__ = ["hand_over"]


def hand_over(handler: Callable[[str, Any], Any], sender: str, items: list[bytes]) -> Any:
    """Calls the handler with each message, one after the other. Gives back what the last call returned.

    Each message is decoded just before its call: those before one that cannot be read are handed over.
    """
    decode, result = decoding(), None
    for item in items:
        try:
            message = decode(item).body
        except UNREADABLE:
            message = decode_message(item)  # of a class that a handler has just registered; else it raises the error
        result = handler(sender, message)
    return result
