"""The coordinator's view of one node: a control session that outlives connections, and whether the node is there.

A node is *lost* when its process is gone or another one answers in its place, or when it has not been reached for a
while; it is *back* when a process answers. A connection that breaks does not matter: the session resumes.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Iterator
from typing import Protocol

from strobe.hosts.live.wire.auth import Welcome
from strobe.hosts.live.wire.control import Control, Piece, pack, pieces, unpack
from strobe.hosts.live.wire.link import Address, Dialer, Link
from strobe.hosts.live.wire.session import Session
from strobe.model.errors import StrobeError
from strobe.model.ids import NodeId

__all__ = ["Peer", "PeerOwner", "Reach"]


class PeerOwner(Protocol):
    def peer_said(self, node: NodeId, message: Control) -> None: ...

    def peer_piece(self, node: NodeId, piece: Piece) -> None: ...

    def peer_lost(self, node: NodeId, reason: str) -> None: ...

    def peer_back(self, node: NodeId) -> None: ...


class Reach:
    """How nodes are reached: the key, the TLS context, how long one may be out of reach."""

    def __init__(
        self, key: bytes, *, max_frame: int, lost_after: float = 5.0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.key = key
        self.max_frame = max_frame
        self.lost_after = lost_after
        self.tls = tls


class Peer:
    def __init__(self, node: NodeId, owner: PeerOwner, reach: Reach) -> None:
        self.node = node
        self.present = False
        self.address: Address | None = None
        self._owner = owner
        self._reach = reach
        self._life = ""
        self._dialer: Dialer | None = None
        self._missing: asyncio.TimerHandle | None = None
        self._streaming: asyncio.Task[None] | None = None
        self._uncongested = asyncio.Event()

    def dial(self, address: Address) -> None:
        """Reaches the node there, with a new session."""
        self.close()
        self.address = address
        self._life = ""
        link = Link(
            f"control of {self.node}",
            self._received,
            session=Session(max_frame=self._reach.max_frame),
            congestion=self._congestion,
        )
        self._dialer = Dialer(
            link,
            address,
            self._reach.key,
            node="",
            session=secrets.token_hex(8),
            max_frame=self._reach.max_frame,
            tls=self._reach.tls,
            on_welcome=self._welcomed,
            on_lost=self._unreachable,
        )

    @property
    def trouble(self) -> str:
        """Why the node cannot be reached, if it cannot."""
        return "" if self._dialer is None else self._dialer.last_error

    def say(self, message: Control) -> None:
        self._send(pack(message))

    def say_after(
        self, number: int, bulk: Iterator[tuple[str, bytes]], message: Control, on_failed: Callable[[str], None]
    ) -> None:
        """Sends the pieces (of a state, or of a channel's content), no faster than they are taken, and then the
        message. Pieces of an earlier call that are still waiting are dropped. `on_failed` hears why the pieces cannot
        be read."""
        self._stop_streaming()
        leaving = self._leaving(number, bulk, message, on_failed)
        if not self._take_turn(leaving):
            self._streaming = asyncio.get_running_loop().create_task(self._stream(leaving))

    def _leaving(
        self, number: int, bulk: Iterator[tuple[str, bytes]], message: Control, on_failed: Callable[[str], None]
    ) -> Iterator[bytes]:
        if self._dialer is None:
            return
        max_item = self._dialer.link.session.max_item
        try:
            for channel, data in bulk:
                yield from pieces(number, data, channel=channel, max_item=max_item)
        except (StrobeError, OSError) as error:
            on_failed(str(error))
        else:
            yield pack(message)

    def _take_turn(self, leaving: Iterator[bytes]) -> bool:
        """Sends until the peer has enough for now, or nothing is left: then it is True."""
        for item in leaving:
            self._send(item)
            if self._dialer is not None and self._dialer.link.is_congested():
                self._uncongested.clear()
                return False
        return True

    async def _stream(self, leaving: Iterator[bytes]) -> None:
        done = False
        while not done:
            await self._uncongested.wait()
            done = self._take_turn(leaving)

    def _stop_streaming(self) -> None:
        if self._streaming is not None:
            self._streaming.cancel()
            self._streaming = None
        self._uncongested.set()

    def _congestion(self, begins: bool) -> None:
        if not begins:
            self._uncongested.set()

    async def last_words(self, seconds: float = 1.0) -> None:
        """The process has ended. Wait for the end of its connection: then everything that it said has come."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self._dialer is not None and self._dialer.link.connected:
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.002)

    def gone(self, reason: str) -> None:
        """The process has ended, and where the next one will be is not known yet."""
        self.close()
        self._lost(reason)

    def replaced(self, reason: str) -> None:
        """The process has ended or is about to. Another one is expected at the same address."""
        assert self.address is not None
        self._lost(reason)
        self.dial(self.address)

    def close(self) -> None:
        self._stop_waiting()
        self._stop_streaming()
        if self._dialer is not None:
            self._dialer.close()
            self._dialer = None

    async def flushed(self, seconds: float) -> None:
        """Waits until the node has everything that was said, but no longer than that."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self._dialer is not None and asyncio.get_running_loop().time() < deadline:
            if self._dialer.link.session.idle or not self._dialer.link.connected:
                return
            await asyncio.sleep(0.005)

    def _send(self, item: bytes) -> None:
        if self._dialer is not None:
            self._dialer.link.send(item)

    def _received(self, items: list[bytes]) -> None:
        for item in items:
            message = unpack(item)
            if isinstance(message, Piece):
                self._owner.peer_piece(self.node, message)
            else:
                self._owner.peer_said(self.node, message)

    def _welcomed(self, welcome: Welcome) -> bool:
        self._stop_waiting()
        if self._life and welcome.life != self._life:
            asyncio.get_running_loop().call_soon(self.replaced, "another process answers at its address")
            return False
        self._life = welcome.life
        if not self.present:
            self.present = True
            asyncio.get_running_loop().call_soon(self._owner.peer_back, self.node)
        return True

    def _unreachable(self) -> None:
        self._stop_waiting()
        loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        why: Callable[[str], None] = self._lost
        after = self._reach.lost_after
        self._missing = loop.call_later(after, why, f"it could not be reached for {after:g} s")

    def _lost(self, reason: str) -> None:
        if self.present:
            self.present = False
            self._owner.peer_lost(self.node, reason)

    def _stop_waiting(self) -> None:
        if self._missing is not None:
            self._missing.cancel()
            self._missing = None
