"""Connections that have not yet proved who they are: few at a time, not for long, and with little data.

Whoever can reach a port can open connections and say nothing, or say it one byte at a time. Each costs a descriptor,
and a process without descriptors can do nothing more. So only some strangers are kept: the next one takes the place of
the one that has waited longest. Whoever knows the secret proves it within moments, and has left by then.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import resource
import socket
import threading
from collections.abc import Callable, Hashable
from typing import Any, Final

from strobe.hosts.shared.clock import SYSTEM

__all__ = ["Opening", "Strangers", "end_connection", "is_shortage"]

_MOST: Final = 64
_SHORTAGES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_QUIET: Final = 60.0  # seconds between two lines of the log about strangers: they must not fill it either


def is_shortage(error: BaseException | None) -> bool:
    """Whether the system has no descriptor, or no memory, for one more connection."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


class Strangers:
    """Safe to use from several threads."""

    def __init__(self, log: logging.Logger, most: int | None = None) -> None:
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = most or max(4, min(_MOST, allowed // 8 if allowed > 0 else _MOST))
        self._log = log
        self._lock = threading.Lock()
        self._waiting: dict[Hashable, Callable[[], None]] = {}  # oldest first
        self._said = -_QUIET

    def enter(self, who: Hashable, end: Callable[[], None]) -> None:
        """Somebody has connected. `end` ends the connection, from whichever thread."""
        with self._lock:
            self._waiting[who] = end
            crowd = len(self._waiting) > self._most
            oldest = self._waiting.pop(next(iter(self._waiting))) if crowd else None
        if oldest is not None:
            self._say("more than %d connections have not said who they are; the oldest are dropped", self._most)
            oldest()

    def leave(self, who: Hashable) -> None:
        """Call this when they have proved who they are, or hung up."""
        with self._lock:
            self._waiting.pop(who, None)

    def make_room(self, error: BaseException) -> None:
        """The system has no place for one more: those who have not said who they are, go."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        self._say("no more connections can be taken now (%s); %d that have not said who they are are dropped",
                  error, len(waiting))  # fmt: skip
        for end in waiting.values():
            end()

    def _say(self, words: str, *about: Any) -> None:
        now = SYSTEM.monotonic()
        if now - self._said >= _QUIET:
            self._said = now
            self._log.warning(words, *about)


class Opening(io.RawIOBase):
    """What a stranger says, until a deadline for all of it and up to a size: then it has ended."""

    def __init__(self, connection: socket.socket, *, seconds: float, most: int) -> None:
        self._connection = connection
        self._deadline = SYSTEM.monotonic() + seconds
        self._left = most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        remaining = self._deadline - SYSTEM.monotonic()
        if self._left <= 0:
            return 0
        if remaining <= 0:
            raise TimeoutError("it has taken too long")
        self._connection.settimeout(remaining)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count

    def is_over(self) -> None:
        """Call this when they have proved who they are: the deadline no longer counts."""
        self._connection.settimeout(None)


def end_connection(connection: socket.socket) -> None:
    """Whoever waits for something from it wakes. Its own thread closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
