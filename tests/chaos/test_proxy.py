"""The proxy that faults of the network come from."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from chaos.proxy import Mode, Proxy


@pytest.fixture
def echo() -> Iterator[Proxy]:
    """A proxy before a server that sends everything back."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(4096):
                    client.sendall(data)
            except OSError:
                pass

    def accept() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    proxy = Proxy()
    proxy.target = server.getsockname()
    yield proxy
    proxy.close()
    server.close()


def connected(proxy: Proxy, timeout: float = 30) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout)


def say(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return client.recv(4096)


def test_open_it_passes_everything_on(echo: Proxy) -> None:
    with connected(echo) as client:
        assert say(client, b"hello") == b"hello"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(10) == b""


def test_refusing_it_resets_what_is_there_and_lets_nobody_in_until_it_is_open_again(echo: Proxy) -> None:
    with connected(echo) as client:
        assert say(client, b"hello") == b"hello"
        echo.set(Mode.REFUSE)
        with pytest.raises(ConnectionResetError):
            client.recv(10)
    with pytest.raises(ConnectionRefusedError):
        connected(echo)
    echo.set(Mode.OPEN)
    with connected(echo) as client:
        assert say(client, b"again") == b"again"


def test_silent_it_holds_everything_back_and_loses_nothing(echo: Proxy) -> None:
    with connected(echo) as client, connected(echo) as other:
        assert say(client, b"hello") == b"hello"
        echo.set(Mode.SILENT)
        client.sendall(b"held")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(10)
        other.sendall(b"waits")
        echo.set(Mode.OPEN)
        client.settimeout(30)
        assert client.recv(10) == b"held"
        assert other.recv(10) == b"waits"


def test_slow_it_passes_everything_on_in_order(echo: Proxy) -> None:
    echo.set(Mode.SLOW, delay=0.05)
    with connected(echo) as client:
        for word in (b"one", b"two", b"three"):
            assert say(client, word) == word
