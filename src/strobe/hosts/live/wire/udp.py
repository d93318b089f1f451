"""Channels over UDP: one socket for each node, beside the port on which it listens.

A datagram that does not have the seal of the present life is dropped, and so is one that nobody expects.
Acknowledgements go to where the sender of the channel is reached, not to where a datagram seems to come from.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from strobe.hosts.live.wire.datagrams import Ack, Data, Incoming, Outgoing, Sealer
from strobe.model.ids import ChannelId, Incarnation

__all__ = ["DatagramInput", "DatagramOutput", "Endpoint", "open_endpoint"]

_log = logging.getLogger("strobe.live")

Address = tuple[str, int]
_BUFFER = 1 << 21
_ACK_SECONDS = 0.002
_ACK_EACH = 16  # datagrams
_STRANGERS = 1000  # how many are dropped between two lines in the log


class Endpoint(asyncio.DatagramProtocol):
    """A node's socket. Each life brings its own seal and its own channels."""

    def __init__(self) -> None:
        self._transport: asyncio.DatagramTransport | None = None
        self._sealer: Sealer | None = None
        self._incarnation = Incarnation(0)
        self._outputs: dict[str, DatagramOutput] = {}
        self._inputs: dict[str, DatagramInput] = {}
        self.strangers = 0

    def begin(self, key: bytes, incarnation: Incarnation) -> None:
        self.end()
        self._sealer, self._incarnation = Sealer(key), incarnation

    def end(self) -> None:
        self._sealer = None
        self._inputs.clear()
        self._outputs.clear()

    def join(self, end: DatagramInput | DatagramOutput) -> None:
        if isinstance(end, DatagramInput):
            self._inputs[end.name] = end
        else:
            self._outputs[end.name] = end

    def close(self) -> None:
        self.end()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if self._sealer is None:
            return
        message = self._sealer.open(data)
        if message is None or message.incarnation != self._incarnation:
            if self.strangers % _STRANGERS == 0:
                _log.warning("A datagram of %d bytes from %s was dropped: it is not of this life.", len(data), addr)
            self.strangers += 1
        elif isinstance(message, Data):
            if (into := self._inputs.get(message.channel)) is not None:
                into.data(message)
        elif (out := self._outputs.get(message.channel)) is not None:
            out.acknowledged(message)

    def error_received(self, exc: Exception) -> None:
        """Nobody listens there at present: what was sent is sent again."""

    def send(self, message: Data | Ack, to: Address) -> None:
        if self._transport is not None and self._sealer is not None and not self._transport.is_closing():
            self._transport.sendto(self._sealer.seal(message), to)

    def data(self, channel: str, number: int, items: list[bytes], to: Address) -> None:
        self.send(Data(self._incarnation, channel, number, items), to)

    def acknowledge(self, channel: str, floor: int, above: list[int], to: Address) -> None:
        self.send(Ack(self._incarnation, channel, floor, above), to)


async def open_endpoint(address: Address) -> Endpoint:
    """Open a node's socket at this host and port."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    found = socket.socket(family, socket.SOCK_DGRAM)
    try:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            found.setsockopt(socket.SOL_SOCKET, option, _BUFFER)
        found.setblocking(False)
        found.bind(address)
        _, endpoint = await asyncio.get_running_loop().create_datagram_endpoint(Endpoint, sock=found)
    except BaseException:
        found.close()
        raise
    return endpoint


class DatagramOutput:
    """The sending end of a channel; to a life it looks like a link."""

    def __init__(
        self,
        name: ChannelId,
        endpoint: Endpoint,
        to: Address,
        *,
        window: int,
        congestion: Callable[[bool], None],
        before_write: Callable[[], None] | None,
    ) -> None:
        self.name = name
        self.session = Outgoing(window)
        self.connected = False  # whether the other end has ever answered
        self._endpoint = endpoint
        self._to = to
        self._congestion = congestion
        self._before_write = before_write
        self._loop = asyncio.get_running_loop()
        self.scheduled = False
        self._was_congested = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        endpoint.join(self)

    def send(self, item: bytes) -> None:
        self.session.send(item)
        if not self.scheduled:
            self.schedule()

    def schedule(self) -> None:
        """What was added leaves in this turn of the event loop."""
        self.scheduled = True
        self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self.scheduled = False
        if self._closed:
            return
        due = self.session.due(self._loop.time())
        if due and self._before_write is not None:
            self._before_write()
        for number, items in due:
            self._endpoint.data(self.name, number, items, self._to)
        if self._timer is None and (wake := self.session.wake_at()) is not None:
            self._timer = self._loop.call_at(wake, self._again)
        congested = self.session.congested
        if congested != self._was_congested:
            self._was_congested = congested
            self._congestion(congested)

    def acknowledged(self, ack: Ack) -> None:
        self.connected = True
        self.session.acknowledged(ack.floor, ack.above, self._loop.time())
        self.flush()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _again(self) -> None:
        self._timer = None
        self.flush()


class DatagramInput:
    """The receiving end. While it is paused it takes nothing, and acknowledges nothing: the sender slows down."""

    def __init__(
        self, name: ChannelId, endpoint: Endpoint, back: Address, receive: Callable[[list[bytes]], None]
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._back = back
        self._receive = receive
        self._seen = Incoming()
        self._paused = False
        self._owed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        endpoint.join(self)

    def data(self, message: Data) -> None:
        if self._paused:
            return
        is_new = self._seen.take(message.number)
        self._owed += 1
        if self._owed >= _ACK_EACH:
            self._acknowledge()
        elif self._timer is None:
            self._timer = self._loop.call_later(_ACK_SECONDS, self._acknowledge)
        if is_new:
            self._receive(message.items)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False

    def close(self) -> None:
        self._paused = True
        if self._timer is not None:
            self._timer.cancel()

    def _acknowledge(self) -> None:
        self._owed = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._endpoint.acknowledge(self.name, *self._seen.state(), self._back)
