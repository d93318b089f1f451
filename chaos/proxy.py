"""A TCP proxy that stands between a server and everybody who uses it, and misbehaves when told to.

`refuse`: nothing listens there and every connection is reset, as when a firewall or a crashed host refuses connections.
`silent`: connections stay, new ones are accepted, and nothing comes through: as when a cable is pulled. What was sent
meanwhile arrives when it is plugged in again. `slow`: every piece of data takes the given number of seconds.

All proxies of a process share one thread. Modes may be changed from any thread; a change is complete on return.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Mode", "Proxy"]

T = TypeVar("T")
_CHUNK = 1 << 16


class Mode(enum.Enum):
    OPEN = "open"
    REFUSE = "refuse"
    SILENT = "silent"
    SLOW = "slow"


class Proxy:
    """Listens at 127.0.0.1:`port` at once; connects to `target` once that is set."""

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self.mode = Mode.OPEN
        self.delay = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._open = asyncio.Event()
        self._open.set()
        self._streams: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self._do(self._listen())

    def set(self, mode: Mode, delay: float = 0.0) -> None:
        self._do(self._set(mode, delay))

    def close(self) -> None:
        self._do(self._hang_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # ── in the loop ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _set(self, mode: Mode, delay: float) -> None:
        if mode is Mode.REFUSE and self.mode is not Mode.REFUSE:
            await self._hang_up()
        self.mode, self.delay = mode, delay
        if mode is Mode.SILENT:
            self._open.clear()
        else:
            self._open.set()
        if mode is not Mode.REFUSE and self._server is None:
            await self._listen()

    async def _hang_up(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for stream in list(self._streams):
            _reset(stream)
        await asyncio.sleep(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._streams.add(writer)
        far: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            assert self.target is not None
            back, far = await asyncio.open_connection(*self.target)
            self._streams.add(far)
            await asyncio.gather(self._pump(reader, far), self._pump(back, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass  # whoever is at the other end sees the same
        finally:
            for stream in (writer, far):
                if stream is not None:
                    self._streams.discard(stream)
                    stream.close()  # after what is still to be written

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            if self.mode is Mode.SLOW:
                await asyncio.sleep(self.delay)
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()


def _reset(stream: asyncio.StreamWriter) -> None:
    """With a reset, not an orderly close: what is under way is lost."""
    link = stream.get_extra_info("socket")
    with contextlib.suppress(OSError):
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.transport.abort()
