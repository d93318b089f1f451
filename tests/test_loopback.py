"""What is reached over loopback, whoever is on the other side: answers, refusals, nonsense, and people who hang up."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from strobe.hosts.shared.loopback import Answer, LoopbackServer, request
from strobe.model.errors import Failed, Misuse, StrobeError

LOG = logging.getLogger("strobe.test")


@dataclass
class World:
    token: Path
    asked: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.server = LoopbackServer(self.token, self.perform, what="job", log=LOG)

    def perform(self, method: str, path: str, body: dict[str, Any], connection: socket.socket) -> Answer:
        self.asked.set()
        match path:
            case "/slow":
                assert self.go_on.wait(30)
            case "/refused":
                return 409, {"error": "No.", "untouched": "All of it.", "next": "Ask nicely."}
            case "/broken":
                raise RuntimeError("a fault")
        return 200, {"method": method, "body": body}

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return request(self.server.port, self.token, method, path, body, who="job 'j'", gone="Start it.", timeout=30)

    def raw(self, path: str, **headers: str) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        try:
            token = {"Authorization": f"Bearer {self.token.read_text()}"}
            connection.request("GET", path, headers={**token, **{k.replace("_", "-"): v for k, v in headers.items()}})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "job" / "token")
    yield world
    world.go_on.set()
    world.server.stop()


def test_an_answer_and_a_refusal_reach_whoever_asked(world: World) -> None:
    assert world.token.stat().st_mode & 0o777 == 0o600
    assert world.ask("POST", "/x", {"a": 1}) == {"method": "POST", "body": {"a": 1}}
    with pytest.raises(Misuse) as refused:
        world.ask("GET", "/refused")
    assert (refused.value.what, refused.value.untouched, refused.value.next) == ("No.", "All of it.", "Ask nicely.")


@pytest.mark.parametrize(
    ("length", "status", "says"),
    [("-1", 413, "too large"), ("65537", 413, "too large"), ("many", 400, "cannot be read")],
)
def test_a_length_that_is_none_is_refused_before_anything_is_read(
    world: World, length: str, status: int, says: str
) -> None:
    code, said = world.raw("/x", Content_Length=length)
    assert code == status
    assert says in said["error"]
    assert not world.asked.is_set()


def test_another_token_is_refused(world: World) -> None:
    code, said = world.raw("/x", Authorization="Bearer ünlike".encode().decode("latin-1"))
    assert (code, said["error"]) == (401, "The job refuses: the token is wrong.")
    assert not world.asked.is_set()


def test_a_fault_is_said_and_is_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(Failed, match="RuntimeError: a fault"):
        world.ask("GET", "/broken")
    assert "GET /broken" in caplog.text


def test_who_hangs_up_leaves_no_trace_and_disturbs_nobody(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_connection(("127.0.0.1", world.server.port)) as connection:
        connection.sendall(f"GET /slow HTTP/1.1\r\nAuthorization: Bearer {world.token.read_text()}\r\n\r\n".encode())
        assert world.asked.wait(30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close with a reset
    world.go_on.set()
    world.server.drain(30)
    assert world.ask("GET", "/x")["method"] == "GET"
    assert capfd.readouterr().err == ""


def test_a_drain_waits_for_those_who_asked(world: World) -> None:
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(world.ask("GET", "/slow")))
    asking.start()
    assert world.asked.wait(30)
    drained = threading.Thread(target=world.server.drain, args=(30,))
    drained.start()
    drained.join(0.1)
    assert drained.is_alive()
    world.go_on.set()
    drained.join(30)
    asking.join(30)
    assert len(answers) == 1


def test_nobody_there_and_no_token_are_said_with_the_way_out(world: World, tmp_path: Path) -> None:
    world.server.stop()
    with pytest.raises(Failed, match="Job 'j' does not answer") as gone:
        world.ask("GET", "/x")
    assert gone.value.next == "Start it."
    world.token.unlink()
    with pytest.raises(Failed, match="The token of job 'j' cannot be read: No such file"):
        world.ask("GET", "/x")
    world.server = LoopbackServer(world.token, world.perform, what="job", log=LOG)


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"\0" * 99,
     b"HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nno!", b"HTTP/1.1 404 x\r\nContent-Length: 2\r\n\r\n[]",
     b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 99_999, b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 500 + b"\r\n",
     b'HTTP/1.1 409 x\r\n\r\n{"error":["a"],"next":{"a":1},"untouched":7}',
     b"HTTP/1.1 302 x\r\nLocation: http://127.0.0.1:9/\r\n\r\n"],
    ids=lambda answer: repr(answer[:20]),
)  # fmt: skip
def test_somebody_else_who_listens_there_by_now_is_an_error_in_words(tmp_path: Path, answer: bytes) -> None:
    """The port of a driver that is gone may be anybody's."""
    (tmp_path / "token").write_text("t")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(StrobeError) as said:
            request(server.getsockname()[1], tmp_path / "token", "GET", "/", who="job 'a'", gone="Look.")
        thread.join()
    assert isinstance(said.value.what, str)
