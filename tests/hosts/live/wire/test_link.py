"""Links over real connections on loopback: resuming, and peers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from strobe.hosts.live.wire import link as link_module
from strobe.hosts.live.wire.auth import Claim, Refusal
from strobe.hosts.live.wire.framing import FrameKind, FrameReader, frame
from strobe.hosts.live.wire.link import Dialer, Link, listen
from strobe.hosts.live.wire.session import Session
from strobe.model.ids import Incarnation
from tests.support.waiting import until

KEY = b"the key of these tests, 32 bytes"


class End:
    """An accepting end with one link."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.link = Link("end", self.got.extend)
        self.claims: list[Claim] = []
        self.answer: Link | Refusal = self.link

    def accept(self, claim: Claim) -> Link | Refusal:
        self.claims.append(claim)
        return self.answer


@contextlib.asynccontextmanager
async def ends(key: bytes = KEY, max_frame: int = 1 << 20) -> AsyncIterator[tuple[End, tuple[str, int]]]:
    end = End()
    server = await listen(("127.0.0.1", 0), key, "life", end.accept, max_frame=max_frame)
    yield end, server.sockets[0].getsockname()[:2]
    server.close()
    end.link.close()


def run(work: Awaitable[None]) -> None:
    async def main() -> None:
        await work

    asyncio.run(main())


async def closed_by_peer(reader: asyncio.StreamReader) -> bytes:
    """Everything that comes until the peer ends the connection."""
    async with asyncio.timeout(20):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


def test_a_connection_that_breaks_again_and_again_loses_and_repeats_nothing() -> None:
    async def work() -> None:
        async with ends() as (end, address):
            dice = random.Random(7)
            back: list[bytes] = []
            link = Link("dialler", back.extend)
            dialer = Dialer(link, address, KEY, node="a")
            sent = [b"%d" % number for number in range(30_000)]
            for start in range(0, len(sent), 500):
                for item in sent[start : start + 500]:
                    link.send(item)
                    end.link.send(item)
                await asyncio.sleep(0)
                if dice.random() < 0.3:
                    await until(lambda: link.connected and end.link.connected)
                    (link if dice.random() < 0.5 else end.link)._transport.abort()  # type: ignore[union-attr]
            await until(lambda: len(end.got) >= len(sent) and len(back) >= len(sent))
            assert end.got == sent
            assert back == sent
            assert len(end.claims) > 10, "the connection never broke: the test shows nothing"
            dialer.close()

    run(work())


def test_a_slow_reader_is_noticed_by_the_sender_and_relieved_again() -> None:
    async def work() -> None:
        async with ends() as (end, address):
            heard: list[bool] = []
            link = Link("a", lambda items: None, session=Session(window=100_000), congestion=heard.append)
            dialer = Dialer(link, address, KEY, node="a")
            await until(lambda: link.connected and end.link.connected)
            end.link.pause()
            for _ in range(20_000):
                link.send(bytes(1000))
            await until(lambda: heard == [True])
            assert link.session.unacknowledged < 1_000_000  # the rest waits
            end.link.resume()
            await until(lambda: heard == [True, False])
            await until(lambda: len(end.got) == 20_000)
            dialer.close()

    run(work())


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "was announced"),
        (bytes(64), "empty frame"),
        (frame(FrameKind.DATA, b"\x92\x01\x90"), "DATA came where HELLO was expected"),
        (frame(FrameKind.HELLO, b"x") + frame(FrameKind.PROOF, bytes(32)), "does not know the key"),
        ((1 << 30).to_bytes(4, "big") + b"\x01" + bytes(100), "was announced"),
    ],
)
def test_a_peer_that_speaks_nonsense_is_dropped_with_one_line(
    data: bytes, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with ends() as (end, address):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(data)
            await closed_by_peer(reader)
            assert end.claims == []
            # And the port still serves those who know how.
            dialer = Dialer(Link("a", lambda items: None), address, KEY, node="a")
            await until(lambda: end.link.connected)
            dialer.close()

    with caplog.at_level(logging.WARNING, "strobe.live"):
        run(work())
    assert len([r for r in caplog.records if line in r.getMessage()]) == 1


def test_a_wrong_key_is_refused_by_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with ends() as (end, address):
            dialer = Dialer(Link("a", lambda items: None), address, b"another key, also with 32 bytes!", node="a")
            await until(lambda: "does not know the key" in caplog.text)
            dialer.close()
            assert end.claims == []

    with caplog.at_level(logging.WARNING, "strobe.live"):
        run(work())


def test_an_oversized_frame_ends_the_connection_of_a_peer_that_has_proved_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        async with ends(max_frame=4096) as (end, address):
            link = Link("a", lambda items: None, session=Session(max_frame=1 << 20))
            dialer = Dialer(link, address, KEY, node="a")
            await until(lambda: end.link.connected)
            link.send(bytes(10_000))
            await until(lambda: "at most 4,096 are taken" in caplog.text)
            dialer.close()
            assert end.got == []

    with caplog.at_level(logging.WARNING, "strobe.live"):
        run(work())


def test_one_who_connects_and_says_nothing_is_dropped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "ACCEPT_SECONDS", 0.05)

    async def work() -> None:
        async with ends() as (_, address):
            reader, _ = await asyncio.open_connection(*address)
            assert await closed_by_peer(reader) == b""

    with caplog.at_level(logging.WARNING, "strobe.live"):
        run(work())
    assert "no handshake within" in caplog.text


def test_a_way_too_slow_for_the_first_attempts_is_given_more_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a loaded machine: whoever dials gets through in the end, instead of giving up too early for ever."""
    monkeypatch.setattr(link_module, "DIAL_SECONDS", (0.2, 0.3, 20.0))
    caplog.set_level(logging.WARNING, "strobe.live")

    async def work() -> None:
        async with ends() as (end, address):
            attempts = 0

            async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                nonlocal attempts
                attempts += 1
                there, to = await asyncio.open_connection(*address)

                async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
                    while data := await source.read(65536):
                        await asyncio.sleep(0.1)
                        target.write(data)
                    target.close()

                with contextlib.suppress(ConnectionError):
                    await asyncio.gather(carry(reader, to), carry(there, writer))

            server = await asyncio.start_server(slow, "127.0.0.1", 0)
            link = Link("a", lambda items: None)
            dialer = Dialer(link, server.sockets[0].getsockname()[:2], KEY, node="a")
            link.send(b"x")
            await until(lambda: end.got == [b"x"])
            assert attempts > 2
            assert "Connection of a with" in caplog.text
            assert "no handshake within 0." in caplog.text
            dialer.close()
            server.close()
            await until(lambda: not end.link.connected)

    run(work())


def test_a_way_that_answers_nothing_at_all_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that drops packets lets connections wait for minutes; the next attempt finds it mended."""
    monkeypatch.setattr(link_module, "DIAL_SECONDS", (0.1, 20.0))

    async def work() -> None:
        async with ends() as (end, address):
            full = socket.socket()
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            there = full.getsockname()
            waiting = [socket.socket() for _ in range(3)]  # they fill its queue: who comes then hears nothing
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(there)
            link = Link("a", lambda items: None)
            dialer = Dialer(link, there, KEY, node="a")
            await until(lambda: dialer.last_error == "no connection within 0.1 s")
            dialer.address = address
            await until(lambda: end.link.connected)
            assert dialer.last_error == ""
            dialer.close()
            for each in (full, *waiting):
                each.close()

    run(work())


def test_a_link_closed_in_the_middle_of_a_handshake_is_not_connected_after_it() -> None:
    async def work() -> None:
        end = End()
        dialers: list[Dialer] = []

        def accept(claim: Claim) -> Link | Refusal:
            dialers[0].close()
            return end.accept(claim)

        server = await listen(("127.0.0.1", 0), KEY, "life", accept)
        dialers.append(Dialer(Link("a", lambda items: None), server.sockets[0].getsockname()[:2], KEY, node="a"))
        await until(lambda: bool(end.claims))
        await until(lambda: not end.link.connected)
        assert not dialers[0].link.connected
        server.close()

    run(work())


@pytest.mark.parametrize(("host", "why"), [("127.0.0.1", "nobody listens there"), ("a..b", "idna")])
def test_why_there_is_no_connection_is_said(host: str, why: str) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        dialer = Dialer(Link("a", lambda items: None), (host, port), KEY, node="a")
        await until(lambda: why in dialer.last_error)
        dialer.close()

    run(work())


def test_a_half_open_connection_is_noticed_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to the other end swallows everything without ever closing, as a dead router does."""
    monkeypatch.setattr(link_module, "HEARTBEAT_SECONDS", 0.05)

    async def work() -> None:
        async with ends() as (end, address):
            swallow = False
            carried: list[Any] = []

            async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                there, to = await asyncio.open_connection(*address)

                async def carry(source: asyncio.StreamReader, target: asyncio.StreamWriter, one: int) -> None:
                    while data := await source.read(65536):
                        if not (swallow and one == 1):
                            target.write(data)

                number = len(carried) + 1
                carried.append((to, writer))
                with contextlib.suppress(ConnectionError):
                    await asyncio.gather(carry(reader, to, number), carry(there, writer, number))

            server = await asyncio.start_server(proxy, "127.0.0.1", 0)
            link = Link("a", lambda items: None)
            dialer = Dialer(link, server.sockets[0].getsockname()[:2], KEY, node="a")
            link.send(b"first")
            await until(lambda: end.got == [b"first"])
            swallow = True
            link.send(b"second")
            await until(lambda: end.got == [b"first", b"second"])
            assert len(carried) > 1
            dialer.close()
            server.close()
            for to, writer in carried:
                to.close()
                writer.close()

    run(work())


def test_who_is_refused_hears_why_and_tries_again() -> None:
    async def work() -> None:
        async with ends() as (end, address):
            end.answer = Refusal("not yet", Incarnation(9))
            heard: list[Refusal] = []
            link = Link("a", lambda items: None)
            dialer = Dialer(link, address, KEY, node="a", channel="a-b", on_refused=heard.append)
            await until(lambda: len(heard) > 1)
            assert heard[0] == Refusal("not yet", Incarnation(9))
            end.answer = end.link
            link.send(b"x")
            await until(lambda: end.got == [b"x"])
            assert end.claims[-1].channel == "a-b"
            dialer.close()

    run(work())


def test_nonsense_in_the_middle_of_a_session_ends_the_connection_not_the_session() -> None:
    async def work() -> None:
        async with ends() as (end, address):
            link = Link("a", lambda items: None)
            dialer = Dialer(link, address, KEY, node="a")
            link.send(b"1")
            await until(lambda: end.got == [b"1"])
            assert link._transport is not None
            link._transport.write(frame(FrameKind.DATA, b"nonsense"))
            await until(lambda: len(end.claims) == 2)
            link.send(b"2")
            await until(lambda: end.got == [b"1", b"2"])
            dialer.close()

    run(work())


def test_frames_of_a_handshake_are_small() -> None:
    assert FrameReader().limit < 5000
