"""A network of the test's own: everything between nodes passes through it, and it misbehaves on request.

One port stands in front of each node. Connections and datagrams are passed on as they come, or late, in another order,
twice, in part, or not at all. What is done to whom is seeded, so a run can be told again as far as a network can.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from strobe.hosts.live.api.codec import decode_plain
from strobe.hosts.live.api.topology import Topology
from strobe.model.ids import NodeId

__all__ = ["Network", "Udp", "network"]


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses, for TCP and for UDP."""
    ports: list[int] = []
    held: list[socket.socket] = []
    while len(ports) < count:
        tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
        held += [tcp, udp]
        tcp.bind(("127.0.0.1", 0))
        with contextlib.suppress(OSError):
            udp.bind(("127.0.0.1", tcp.getsockname()[1]))
            ports.append(tcp.getsockname()[1])
    for each in held:
        each.close()
    return ports


@dataclass
class Udp:
    """What becomes of datagrams, as chances and seconds."""

    loss: float = 0.0
    repeat: float = 0.0
    delay: float = 0.0  # each waits for a random part of it: that is what reorders
    garbage: float = 0.0  # a changed copy comes as well


class _Way:
    """One connection between two nodes, through the network."""

    def __init__(self, source: str, target: str, writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        self.source, self.target, self.writers = source, target, writers
        self.silent: frozenset[asyncio.StreamWriter] = frozenset()  # towards these nothing passes any more


class Network:
    def __init__(self, topology: Topology, seed: int) -> None:
        self.dice = random.Random(seed)
        self.udp = Udp()
        self.delay = 0.0  # seconds that every piece on a connection takes
        self.passed = self.dropped = self.cut = 0
        self._parts: list[frozenset[str]] = []
        self._ways: list[_Way] = []
        self._servers: list[Any] = []
        self._tasks: set[asyncio.Task[None]] = set()
        names = [node.name for node in topology.nodes]
        ports = free_ports(2 * len(names))
        self._inside = dict(zip(names, ports[::2], strict=True))
        self._front = dict(zip(names, ports[1::2], strict=True))
        self.topology = replace(
            topology,
            nodes=tuple(
                replace(n, address=f"127.0.0.1:{self._inside[n.name]}", reach=f"127.0.0.1:{self._front[n.name]}")
                for n in topology.nodes
            ),
        )

    # ── misbehaving ─────────────────────────────────────────────────────────────────────────────────────────────────

    def partition(self, *parts: Iterable[str]) -> None:
        """Nothing passes from one part to another: no byte, and no word that it does not."""
        self._parts = [frozenset(part) for part in parts]

    def heal(self) -> None:
        self._parts = []
        for way in list(self._ways):  # what was swallowed is gone: those connections are worth nothing
            self._end(way)

    def break_connections(self) -> None:
        """In the middle of whatever is being said."""
        for way in list(self._ways):
            self._end(way)

    def silence(self, source: str, target: str, *, both_ways: bool = True) -> int:
        """The connections that they have now are half open: nothing passes, not even that an end hangs up.

        As when a router forgets them. New ones are as good as any. Returns how many there are."""
        found = [way for way in self._ways if (way.source, way.target) == (source, target)]
        for way in found:
            way.silent = frozenset(way.writers if both_ways else way.writers[1:])
        return len(found)

    def _end(self, way: _Way) -> None:
        self.cut += 1
        for writer in way.writers:
            writer.transport.abort()

    def _apart(self, source: str, target: str) -> bool:
        return any((source in part) != (target in part) for part in self._parts)

    # ── connections ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for name, port in self._front.items():
            self._servers.append(await asyncio.start_server(partial(self._connected, name), "127.0.0.1", port))
            transport, _ = await loop.create_datagram_endpoint(
                partial(_Front, self, name), local_addr=("127.0.0.1", port)
            )
            self._servers.append(transport)

    def stop(self) -> None:
        for server in self._servers:
            server.close()
        self.break_connections()
        for task in self._tasks:
            task.cancel()

    async def _connected(self, target: NodeId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
            hello = await reader.readexactly(4)
            hello += await reader.readexactly(int.from_bytes(hello, "big"))
            source = decode_plain(hello[5:])["claim"]["node"]  # who speaks is said in the first frame
            there, to = await asyncio.open_connection("127.0.0.1", self._inside[target])
            way = _Way(source, target, (writer, to))
            self._ways.append(way)
            to.write(hello)
            try:
                await asyncio.gather(self._carry(way, reader, to), self._carry(way, there, writer))
            finally:
                self._ways.remove(way)
                for each in way.writers:
                    each.transport.abort()

    async def _carry(self, way: _Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self.delay:
                    await asyncio.sleep(self.delay * self.dice.random())
                if writer in way.silent or self._apart(way.source, way.target):
                    self.dropped += 1
                    continue
                self.passed += 1
                writer.write(data)
                await writer.drain()
        if writer not in way.silent:
            writer.transport.abort()  # one end has hung up, and the other hears of it

    # ── datagrams ───────────────────────────────────────────────────────────────────────────────────────────────────

    def datagram(self, target: NodeId, data: bytes, out: asyncio.DatagramTransport, source: int) -> None:
        sender = next((name for name, port in self._inside.items() if port == source), "")
        dice, udp = self.dice, self.udp
        if dice.random() < udp.loss or self._apart(sender, target):
            self.dropped += 1
            return
        to = ("127.0.0.1", self._inside[target])
        copies = [data]
        if dice.random() < udp.repeat:
            copies.append(data)
        if dice.random() < udp.garbage:
            where = dice.randrange(len(data))
            copies.append(data[:where] + bytes((data[where] ^ 0x55,)) + data[where + 1 :])
        for copy in copies:
            self.passed += 1
            if udp.delay:
                asyncio.get_running_loop().call_later(udp.delay * dice.random(), out.sendto, copy, to)
            else:
                out.sendto(copy, to)


class _Front(asyncio.DatagramProtocol):
    def __init__(self, owner: Network, target: NodeId) -> None:
        self._owner, self._target = owner, target

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self._owner.datagram(self._target, data, self._transport, addr[1])


@contextlib.asynccontextmanager
async def network(topology: Topology, seed: int) -> AsyncIterator[Network]:
    print(f"seed {seed}")
    between = Network(topology, seed)
    await between.start()
    try:
        yield between
    finally:
        between.stop()
