"""The buffer that a connection reads into."""

from __future__ import annotations

import asyncio

from strobe.hosts.live.wire.buffered import LEAST, MOST, Buffered


class Keeping(Buffered):
    def __init__(self) -> None:
        super().__init__()
        self.got: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.got.append(data)


def read(protocol: Buffered, data: bytes) -> None:
    buffer = protocol.get_buffer(-1)
    buffer[: len(data)] = data
    protocol.buffer_updated(len(data))


def test_what_came_does_not_change_with_the_next_read() -> None:
    protocol = Keeping()
    read(protocol, b"first")
    read(protocol, b"second")
    assert protocol.got == [b"first", b"second"]


def test_the_buffer_grows_when_a_read_fills_it_and_not_for_ever() -> None:
    protocol, sizes = Keeping(), []
    read(protocol, bytes(LEAST - 1))
    for _ in range(5):
        sizes.append(len(protocol.get_buffer(-1)))
        read(protocol, bytes(sizes[-1]))
    assert sizes == [LEAST, 4 * LEAST, MOST, MOST, MOST]
    assert [len(data) for data in protocol.got] == [LEAST - 1, *sizes]


def test_all_bytes_come_over_a_connection_in_order() -> None:
    async def work() -> None:
        loop, protocol = asyncio.get_running_loop(), Keeping()
        server = await loop.create_server(lambda: protocol, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        sent = b"".join(number.to_bytes(4, "big") for number in range(500_000))
        writer.write(sent)
        async with asyncio.timeout(30):
            while sum(map(len, protocol.got)) < len(sent):
                await asyncio.sleep(0.01)
        assert b"".join(protocol.got) == sent
        writer.close()
        server.close()

    asyncio.run(work())
