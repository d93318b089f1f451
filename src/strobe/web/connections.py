"""Connections to the page: whoever has not shown the token yet is a stranger, and costs little.

See `strobe.hosts.shared.strangers`. The web server itself has no limit for those who connect and say nothing; and with
as many of them as it serves at a time it would answer nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from strobe.hosts.shared.strangers import Strangers, is_shortage

__all__ = ["BACKLOG", "connections", "is_known", "take_trouble"]

BACKLOG: Final = 64  # connections that are accepted before others get their turn
_REQUEST_SECONDS: Final = 10.0
_KNOWN: Final = "strobe.known"

_log: Final = logging.getLogger("strobe.web")


def is_known(scope: MutableMapping[str, Any]) -> None:
    """Call this when whoever asks has shown the token: their connection may stay."""
    known: Callable[[], None] | None = scope.get(_KNOWN)
    if known is not None:
        known()


def connections(strangers: Strangers) -> type[H11Protocol]:
    """How the server treats each connection."""

    class Connection(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            served = self.app

            async def serving(scope: Any, receive: Any, send: Any) -> None:
                await served({**scope, _KNOWN: self._leave}, receive, send)

            self.app = serving
            self._deadline = self.loop.call_later(_REQUEST_SECONDS, transport.abort)
            strangers.enter(self, transport.abort)

        def connection_lost(self, exc: Exception | None) -> None:
            self._leave()
            super().connection_lost(exc)

        def _leave(self) -> None:
            strangers.leave(self)
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Connection


def take_trouble(strangers: Strangers, loop: asyncio.AbstractEventLoop) -> None:
    """What goes wrong with one connection is no matter of the others, nor of the terminal."""

    def troubled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and is_shortage(error):
            strangers.make_room(error)
        _log.debug("%s", context.get("message", ""), exc_info=error)

    loop.set_exception_handler(troubled)
