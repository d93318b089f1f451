"""Nodes under load of those who never say who they are: they go on, and so do their snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from strobe.hosts.live.node.node import Node, NodeConfig
from strobe.hosts.live.system.system import System
from strobe.hosts.live.wire.link import Dialer, Link, listen
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from tests.hosts.live.node.test_node import GRAPH
from tests.hosts.live.wire.test_link import KEY, End
from tests.support.live.apps import Account
from tests.support.live.certificates import certificates
from tests.support.live.systems import bank, money, run, system, verified
from tests.support.waiting import until


def silent(port: int, count: int, stack: contextlib.ExitStack, say: bytes = b"") -> list[socket.socket]:
    connections = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(count)]
    for connection in connections:
        connection.sendall(say)
    return connections


def port_of(live: System, node: str) -> int:
    assert live._coordinator is not None
    address = live._coordinator._peers[NodeId(node)].address
    assert address is not None
    return address[1]


async def dropped(connection: socket.socket) -> None:
    """Until the other side has ended the connection."""

    def wait() -> None:
        with contextlib.suppress(ConnectionError):
            while connection.recv(4096):
                pass

    await asyncio.to_thread(wait)


async def dial_through(address: tuple[str, int], end: End, tls: ssl.SSLContext | None = None) -> None:
    link = Link("dialler", lambda items: None)
    dialer = Dialer(link, address, KEY, node="a", tls=tls)
    link.send(b"through")
    await until(lambda: end.got == [b"through"])
    dialer.close()


@pytest.mark.parametrize("say", [b"", b"\0\0\1"], ids=["nothing", "a part of a frame"])
def test_a_crowd_that_says_nothing_shuts_nobody_out(say: bytes) -> None:
    async def work() -> None:
        end = End()
        server = await listen(("127.0.0.1", 0), KEY, "life", end.accept)
        address = server.sockets[0].getsockname()[:2]
        with contextlib.ExitStack() as stack:
            crowd = await asyncio.to_thread(silent, address[1], 300, stack, say)
            await dial_through(address, end)
            await dropped(crowd[0])
        server.close()
        end.link.close()

    run(work)


def test_a_crowd_that_never_begins_tls_shuts_nobody_out(tmp_path: Path) -> None:
    async def work() -> None:
        tls = certificates(tmp_path)
        end = End()
        server = await listen(("127.0.0.1", 0), KEY, "life", end.accept, tls=tls.accepting())
        address = server.sockets[0].getsockname()[:2]
        with contextlib.ExitStack() as stack:
            crowd = await asyncio.to_thread(silent, address[1], 200, stack)
            await dial_through(address, end, tls.dialling())
            await dropped(crowd[0])
        server.close()
        end.link.close()

    run(work)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limits of another process are Linux's")
def test_a_node_without_descriptors_lives_and_takes_part_in_snapshots(tmp_path: Path) -> None:
    async def work() -> None:
        async with system(bank(), tmp_path) as live:
            pid = (await live.status()).processes[NodeId("a")]
            used = len(os.listdir(f"/proc/{pid}/fd"))
            hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 20, hard))
            with contextlib.ExitStack() as stack:
                crowd = await asyncio.to_thread(silent, port_of(live, "a"), 300, stack)
                await dropped(crowd[0])
                assert money(verified(live, await live.snapshot())) == 3000
            assert live.incarnation == 1
            assert (await live.status()).processes[NodeId("a")] == pid

    run(work)


def test_an_error_of_accepting_does_not_end_a_node_and_another_one_does() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        node = Node(NodeConfig(NodeId("b"), Account, {}, GRAPH, KEY))
        named: dict[str, Any] = {"message": "socket.accept() out of system resource", "socket": object()}
        node.trouble(loop, {**named, "exception": OSError(24, "Too many open files")})
        said = "Exception in callback BaseSelectorEventLoop._accept_connection(<function>)"
        node.trouble(loop, {"message": said, "exception": OSError(71, "Protocol error")})
        assert not node.ended.done()
        node.trouble(loop, {"message": "Exception in callback handler()", "exception": ValueError("x")})
        assert isinstance(node.ended.exception(), Failed)

    run(work)
