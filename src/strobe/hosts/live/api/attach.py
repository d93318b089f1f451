"""Attach: an asyncio service whose connections run through Strobe, with its own code as it is.

    class Hub(Service):
        async def main(self):
            await self.start_server(chat.handle)           # instead of asyncio.start_server(chat.handle, …)

        def state(self): return {"history": chat.history}
        def set_state(self, state): chat.history[:] = state["history"]

A connection between two nodes is a pair of channels, one each way. What is written goes out as messages and comes back
out of an ordinary `StreamReader`; markers pass beside it, and the service never sees them. What has arrived and was not
read yet is part of the node's state, next to what `state()` gives.

`state()` is called between two turns of the event loop. So a service that puts what it reads into its state before its
next `await` is recorded before or after that, never in the middle. Local variables of its coroutines are not recorded:
after a restore `main` runs again, and each connection that was open is handed to its callback again, with what was
unread in its reader, once all of them have begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, SupportsIndex

from strobe.hosts.live.api.process import Process
from strobe.model.errors import Misuse

__all__ = ["AttachedReader", "AttachedWriter", "Callback", "Service"]

Callback = Callable[[asyncio.StreamReader, "AttachedWriter"], Awaitable[None]]

_OPEN: Final = True
_CLOSE: Final = False
_PIECE: Final = 1 << 15  # bytes of one message


class AttachedReader(asyncio.StreamReader):
    """A StreamReader that knows what has not been read, and can keep it back until its callback has begun."""

    _buffer: bytearray
    _kept: bytearray | None = None

    def unread(self) -> bytes:
        return bytes(self._buffer) + bytes(self._kept or b"")

    def keep(self, data: bytes) -> None:
        self._kept = bytearray(data)

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        if self._kept is None:
            super().feed_data(data)
        else:
            self._kept.extend(data)

    def give(self) -> None:
        kept, self._kept = self._kept, None
        if kept:
            self.feed_data(kept)


class AttachedWriter:
    """What a StreamWriter can do, over a channel."""

    def __init__(self, service: Service, peer: str) -> None:
        self._service = service
        self._peer = peer
        self._closing = False

    def write(self, data: bytes) -> None:
        if self._closing:
            raise ConnectionResetError(f"the connection with {self._peer} is closed")
        for start in range(0, len(data), _PIECE):
            self._service._say(self._peer, bytes(data[start : start + _PIECE]))

    def writelines(self, lines: Iterable[bytes]) -> None:
        self.write(b"".join(lines))

    async def drain(self) -> None:
        while self._service.congested and not self._closing:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._service._close(self._peer)

    def is_closing(self) -> bool:
        return self._closing

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: the channel has taken everything."""

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._peer, 0) if name == "peername" else default


class _Connection:
    def __init__(self, service: Service, peer: str, accepted: bool) -> None:
        self.reader = AttachedReader()
        self.writer = AttachedWriter(service, peer)
        self.accepted = accepted


class Service(Process):
    """Subclass it with `main`, `state` and `set_state`; run it as any node of a topology."""

    _callback: Callback | None = None

    async def main(self) -> None:
        """The service itself. When it returns, connections go on being served; a service that only answers on
        connections that others open to it starts its server here."""
        raise Misuse(f"{type(self).__name__} has no `main`.", next="Define `async def main(self)` in it.")

    def state(self) -> Any:
        """What is to be kept of the service, as a value that the codec can write."""
        return None

    def set_state(self, state: Any) -> None:
        """Takes over what `state` gave, before `main` runs."""

    # ── what the service uses in place of asyncio's ─────────────────────────────────────────────────────────────────

    async def start_server(self, callback: Callback) -> None:
        """Every connection that a node opens to this one goes to `callback(reader, writer)`, in a task of its own."""
        self._callback = callback
        for connection in list(self._connections().values()):
            if connection.accepted:
                self._serve(connection)
                # After the first turn of all callbacks: every connection exists before any callback reads on.
                asyncio.get_running_loop().call_soon(connection.reader.give)

    async def open_connection(self, node: str) -> tuple[asyncio.StreamReader, AttachedWriter]:
        """A connection to that node; after a restore, the one that was open."""
        connection = self._connections().get(node)
        if connection is None:
            if node not in self.peers:
                raise Misuse(f"{self.name} has no channel to {node!r}.", next=f"It can reach: {', '.join(self.peers)}.")
            connection = self._connections()[node] = _Connection(self, node, accepted=False)
            self._say(node, _OPEN)
        elif connection.accepted:
            raise Misuse(f"{self.name} and {node} have a connection already, which {node} opened.")
        connection.reader.give()
        return connection.reader, connection.writer

    # ── a process to the node ───────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> None:
        self._spawn(self.main())

    def on_restore(self) -> None:
        self._spawn(self.main())

    def on_message(self, sender: str, message: Any) -> None:
        connections = self._connections()
        if message is _OPEN:
            connection = connections[sender] = _Connection(self, sender, accepted=True)
            if self._callback is not None:
                self._serve(connection)
        elif sender in connections:  # else it crossed our own close
            if message is _CLOSE:
                connections.pop(sender).reader.feed_eof()
            else:
                connections[sender].reader.feed_data(message)

    def is_active(self) -> bool:
        """Always: what the service's own coroutines will do is not known."""
        return True

    def on_stop(self) -> None:
        for task in self._tasks():
            task.cancel()

    def snapshot(self) -> Any:
        connections = self._connections()
        return {
            "state": self.state(),
            "connections": {peer: [c.accepted, c.reader.unread()] for peer, c in connections.items()},
        }

    def restore(self, state: Any) -> None:
        for peer, (accepted, unread) in state["connections"].items():
            connection = self._connections()[peer] = _Connection(self, peer, accepted)
            connection.reader.keep(unread)
        self.set_state(state["state"])

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _connections(self) -> dict[str, _Connection]:
        found: dict[str, _Connection] = self.__dict__.setdefault("_open_connections", {})
        return found

    def _tasks(self) -> set[asyncio.Task[None]]:
        found: set[asyncio.Task[None]] = self.__dict__.setdefault("_running_tasks", set())
        return found

    def _serve(self, connection: _Connection) -> None:
        assert self._callback is not None
        self._spawn(_awaited(self._callback(connection.reader, connection.writer)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks().add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A service that fails ends its node, as a failing handler does."""
        self._tasks().discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            task.get_loop().call_exception_handler({"message": "the service failed", "exception": error})

    def _say(self, peer: str, message: Any) -> None:
        """Send as a step of its own: it does not come from a handler."""
        self._runtime.act({"write": peer}, self.send, peer, message)

    def _close(self, peer: str) -> None:
        connection = self._connections().pop(peer, None)
        if connection is not None:
            connection.reader.feed_eof()
            self._say(peer, _CLOSE)


async def _awaited(result: Awaitable[None]) -> None:
    await result
