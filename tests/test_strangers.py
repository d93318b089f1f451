"""Load before anybody has said who they are: silence, one byte at a time, too much at once, nonsense, no descriptors.

The gate, the control API and the page, over real sockets. Those who know the secret are served throughout.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from strobe.hosts.shared import loopback
from strobe.hosts.shared.loopback import LoopbackServer, request
from strobe.hosts.shared.strangers import Opening, Strangers
from strobe.hosts.spark.channel import gate as gate_module
from strobe.hosts.spark.channel.gate import Gate, GateAddress, GateClient, GateHandler
from strobe.model.errors import Failed
from strobe.model.ids import ChannelId, NodeId
from strobe.web import connections as page_connections
from tests.support.held_clock import HeldClock
from tests.web.pages import Served

LOG = logging.getLogger("strobe.test")


class Handler:
    def available(self, stage: NodeId, channel: ChannelId) -> int:
        return 7


@dataclass
class Port:
    number: int
    ask: Callable[[], bool]


@pytest.fixture(params=["gate", "control", "page"])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Port]:
    if request.param == "gate":
        with Gate(cast(GateHandler, Handler())) as gate:
            yield Port(gate.address.port, lambda: ask_gate(gate.address))
    elif request.param == "page":
        with Served(tmp_path) as page:
            yield Port(page.port, lambda: page.get("/jobs") == [])
    else:
        token = tmp_path / "token"
        server = LoopbackServer(token, lambda *_: (200, {"n": 7}), what="job", log=LOG)
        yield Port(server.port, lambda: ask_control(server, token))
        server.stop()


def ask_gate(address: GateAddress) -> bool:
    client = GateClient(address, NodeId("s"), ChannelId("c"))
    try:
        return client.available() == 7
    finally:
        client.close()


def ask_control(server: LoopbackServer, token: Path) -> bool:
    return request(server.port, token, "GET", "/", who="job", gone="") == {"n": 7}


def dial(port: Port) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port.number), timeout=60)


def ended(connection: socket.socket) -> bool:
    """Waits until the other side has ended the connection, or has said no."""
    with contextlib.suppress(ConnectionError):
        while connection.recv(65536):
            pass
    return True


def test_many_who_say_nothing_shut_nobody_out(port: Port) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(dial(port)) for _ in range(300)]
        assert port.ask()
        assert all(ended(connection) for connection in silent[: 300 - 64])  # the oldest had to go


def test_who_has_proved_themselves_is_not_dropped_for_those_who_have_not() -> None:
    with Gate(cast(GateHandler, Handler())) as gate, contextlib.ExitStack() as stack:
        client = GateClient(gate.address, NodeId("s"), ChannelId("c"))
        assert client.available() == 7
        socket_before = client._sock
        crowd = [stack.enter_context(dial(Port(gate.address.port, bool))) for _ in range(100)]
        assert ended(crowd[0])
        assert client.available() == 7
        assert client._sock is socket_before
        client.close()


def test_whoever_has_shown_the_token_of_the_page_stays_among_a_crowd(tmp_path: Path) -> None:
    with Served(tmp_path) as page, contextlib.ExitStack() as stack:
        watching = stack.enter_context(dial(Port(page.port, bool)))
        asked = f"GET /api/v1/events?watch=jobs HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\nAuthorization: Bearer "
        watching.sendall(f"{asked}{page.access.token}\r\n\r\n".encode())
        answer = watching.makefile("rb")
        assert answer.readline().startswith(b"HTTP/1.1 200")
        crowd = [stack.enter_context(dial(Port(page.port, bool))) for _ in range(100)]
        assert ended(crowd[0])
        (tmp_path / "jobs" / "ledger").mkdir()
        assert any(b"ledger" in line for line in answer)  # it goes on


def test_one_byte_at_a_time_does_not_stretch_the_deadline(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_HELLO_SECONDS", 0.5)
    monkeypatch.setattr(loopback, "_REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(page_connections, "_REQUEST_SECONDS", 0.5)
    with dial(port) as slow:
        stop = threading.Event()

        def trickle() -> None:
            with contextlib.suppress(OSError):
                for byte in b"\0\0\3\xff" + b" " * 10_000:
                    slow.sendall(bytes([byte]))
                    if stop.wait(0.05):  # the pace of the attack, not a wait for anything
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert ended(slow)
        finally:
            stop.set()
            thread.join()
    assert port.ask()


@pytest.mark.parametrize(
    "bytes_",
    [
        struct.pack(">I", 64 * 1024 * 1024),
        struct.pack(">I", 1 << 31),
        struct.pack(">I", 1025) + b" " * 1025,
        struct.pack(">I", 1000) + b"[" * 1000,
        struct.pack(">I", 19) + b'{"token": "\\ud800"}',
        struct.pack(">I", 4) + b"\xff\xfe\0\0",
        struct.pack(">I", 2) + b"[]",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 60_000) for n in range(90)) + b"\r\n",
        b"POST / HTTP/1.1\r\nAuthorization: Bearer \xff\xfe\r\nContent-Length: -1\r\n\r\n",
        b"\0" * 100_000,
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnothing\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\xff\xff",
    ],
    ids=range(14),
)
def test_too_much_and_nonsense_end_the_connection_and_nothing_else(
    port: Port, bytes_: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with dial(port) as connection:
        with contextlib.suppress(OSError):  # it may have been ended already
            connection.sendall(bytes_)
            connection.shutdown(socket.SHUT_WR)
        assert ended(connection)
    assert port.ask()
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("length", [1025, 64 * 1024 * 1024, (1 << 32) - 1])
def test_a_long_hello_is_refused_before_it_comes(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_HELLO_SECONDS", 1000.0)
    with Gate(cast(GateHandler, Handler())) as gate, dial(Port(gate.address.port, bool)) as connection:
        connection.sendall(struct.pack(">I", length))
        assert ended(connection)


def test_hanging_up_in_the_middle_leaves_no_trace(port: Port, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(20):
        with dial(port) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
            connection.sendall(b"\0\0")
    assert port.ask()
    assert "Traceback" not in capfd.readouterr().err


SCARCE = """
import os, resource, sys
from tests.test_strangers import *
kind, directory = sys.argv[1:]
token = Path(directory, "token")
if kind == "gate":
    gate = Gate(Handler())
    token.write_text(gate.address.token)
    number = gate.address.port
else:
    server = LoopbackServer(token, lambda *_: (200, {"n": 7}), what="job", log=LOG)
    number = server.port
free = [os.dup(0) for _ in range(8)]
resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for each in free:
    os.close(each)
print(number, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["gate", "control"])
def test_without_descriptors_those_who_say_nothing_go_first(kind: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCARCE, kind, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert process.stdout is not None
    number, token = int(process.stdout.readline()), tmp_path / "token"

    def answered() -> bool:
        try:
            if kind == "gate":
                return ask_gate(GateAddress(number, token.read_text()))
            return request(number, token, "GET", "/", who="job", gone="") == {"n": 7}
        except Failed:  # it was among those that had to go; whoever is refused tries again
            return False

    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(dial(Port(number, bool)))
        deadline = time.monotonic() + 60
        while not answered():
            assert time.monotonic() < deadline
            assert process.poll() is None
    process.communicate("")
    assert process.returncode == 0


# ── the parts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_one_that_has_waited_longest_goes_first_and_those_who_left_do_not_count() -> None:
    gone: list[int] = []
    waiting = Strangers(LOG, most=3)
    for n in range(4):
        waiting.enter(n, lambda n=n: gone.append(n))  # type: ignore[misc]
        if n == 1:
            waiting.leave(0)
    assert gone == []
    waiting.enter(4, lambda: gone.append(4))
    assert gone == [1]


def test_a_flood_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    waiting = Strangers(LOG, most=1)
    with caplog.at_level(logging.WARNING, "strobe.test"):
        for n in range(100):
            waiting.enter(n, lambda: None)
        waiting.make_room(OSError(24, "Too many open files"))
    assert len(caplog.records) == 1


def test_an_opening_ends_at_its_size() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * 100)
        opening = Opening(ours, seconds=60, most=10)
        assert opening.read(100) == b"x" * 10
        assert opening.read(1) == b""


def test_what_comes_after_the_deadline_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HeldClock()
    monkeypatch.setattr("strobe.hosts.shared.strangers.SYSTEM", clock)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        opening = Opening(ours, seconds=5, most=10)
        theirs.sendall(b"xy")
        assert opening.read(1) == b"x"
        clock.advance(5)
        with pytest.raises(TimeoutError):
            opening.read(1)


def test_a_request_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    server = LoopbackServer(tmp_path / "token", lambda *_: (200, {}), what="job", log=LOG)
    body = b"[" * 50_000
    token = (tmp_path / "token").read_text()
    head = f"POST / HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n"
    with dial(Port(server.port, bool)) as connection:
        connection.sendall(head.encode() + b"\r\n" + body)
        answer = connection.makefile("rb").read()
    server.stop()
    assert answer.startswith(b"HTTP/1.0 400")
    assert "cannot be read" in cast(dict[str, Any], json.loads(answer.partition(b"\r\n\r\n")[2]))["error"]
