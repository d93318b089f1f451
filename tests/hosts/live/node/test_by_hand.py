"""`strobe live node`: nodes that somebody else starts, where they are to run, and what is said when they do not fit."""

from __future__ import annotations

import contextlib
import secrets
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from strobe.hosts.live.wire.tls import Tls
from tests.support.live.certificates import certificates
from tests.support.live.commandline import EXAMPLES, Terminal, up
from tests.support.live.proxies import free_ports

BRANCH = f'class = "{EXAMPLES}/bank.py:Branch"\n'
IDLE = f'class = "{EXAMPLES}/ring.py:Station"\n'


@pytest.fixture
def strobe(tmp_path: Path) -> Terminal:
    (tmp_path / "cluster.key").write_text(secrets.token_hex(32))
    return Terminal(tmp_path)


@dataclass
class Started:
    process: subprocess.Popen[str]
    said: str
    errors: Path


@contextmanager
def started(strobe: Terminal, *args: str) -> Iterator[Started]:
    """`strobe live node …` from the moment it listens."""
    errors = strobe.directory / "node.err"
    with errors.open("w") as stream:
        process = subprocess.Popen(
            strobe.command("live", "node", *args),
            cwd=strobe.directory,
            stdout=subprocess.PIPE,
            stderr=stream,
            text=True,
        )
    assert process.stdout is not None
    try:
        yield Started(process, process.stdout.readline(), errors)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def forwarded(port: int, to: int) -> Iterator[None]:
    """What a router does: whoever connects to the one port reaches the other."""

    class Way(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", to)) as there:
                back = threading.Thread(target=carry, args=(there, self.request), daemon=True)
                back.start()
                carry(self.request, there)
                back.join()

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    class Router(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        block_on_close = False

    with Router(("127.0.0.1", port), Way) as router:
        threading.Thread(target=router.serve_forever, args=(0.05,), daemon=True).start()
        yield
        router.shutdown()


def topology(port: int, *, key: str = "cluster.key", tls: Tls | None = None, nodes: str = "ab") -> str:
    """Node b is started by hand; a, if there is one, by `up`."""
    text = f'name = "two"\nchannels = "complete"\nkey_file = "{key}"\n'
    if "a" in nodes:
        text += f"[nodes.a]\n{BRANCH}"
    text += f'[nodes.b]\n{BRANCH if "a" in nodes else IDLE}address = "127.0.0.1:{port}"\nremote = true\n'
    if tls is not None:
        text += f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\nauthority = "{tls.authority}"\n'
    return text


def test_a_node_behind_a_router_with_tls_and_a_journal_is_part_of_the_system(strobe: Terminal) -> None:
    port, inside = free_ports(2)
    (strobe.directory / "two.toml").write_text(topology(port, tls=certificates(strobe.directory / "tls")))
    listening = started(strobe, "two.toml", "b", "--listen", f"127.0.0.1:{inside}", "--journal")
    with forwarded(port, inside), listening as node:
        assert f"b listens on 127.0.0.1:{inside} and waits for two" in node.said
        with up(strobe, "two.toml", "--interval", "0", "--journal"):
            strobe.ask("live", "break", "b.transfers >= 5")
            taken = strobe.ask("live", "snapshot")["snapshot"]
            assert strobe("verify", f"two/{taken}").code == 0
            strobe.ask("live", "down")
        assert node.process.wait(30) == 0
        assert node.errors.read_text() == ""
    journal = strobe.ask("live", "journal", "two", "two.journal")
    assert journal["events"] > 0
    verdict = strobe.ask("sim", "verify", "two.journal")
    assert verdict["violations"] == []
    assert {s["snapshot"] for s in verdict["snapshots"]} >= {taken}


def test_a_node_with_another_key_or_another_tls_is_named_with_the_reason_and_serves_the_right_one(
    strobe: Terminal,
) -> None:
    (port,) = free_ports(1)
    right, other = certificates(strobe.directory / "tls"), certificates(strobe.directory / "other", "somebody else")
    (strobe.directory / "other.key").write_text(secrets.token_hex(32))
    keys = [(strobe.directory / name).read_text() for name in ("cluster.key", "other.key")]
    wrong = {
        "key": (topology(port, key="other.key", tls=right, nodes="b"), "does not know the key"),
        "authority": (topology(port, tls=other, nodes="b"), "the authority in [tls] has not signed its certificate"),
        "no-tls": (topology(port, nodes="b"), "perhaps it uses TLS, and this side does not"),
    }
    (strobe.directory / "two.toml").write_text(topology(port, tls=right, nodes="b"))
    with started(strobe, "two.toml", "b") as node:
        assert "b listens on" in node.said
        for name, (text, why) in wrong.items():
            (strobe.directory / f"{name}.toml").write_text(text)
            done = strobe("live", "up", f"{name}.toml", "--wait", "1.5", "--json")
            assert done.code == 1, done.out
            what = done.json["error"]["what"]
            assert f"Node b at 127.0.0.1:{port} could not be reached within 1.5 s" in what
            assert why in what
            for key in keys:
                assert key not in done.out + done.err + node.errors.read_text()
        assert node.process.poll() is None
        assert strobe.ask("live", "up", "two.toml", "--for", "0.2")["snapshot"] == 1
        assert node.process.wait(30) == 0


def test_a_node_whose_handler_fails_is_lost_at_once_for_that_reason_and_waited_for(strobe: Terminal) -> None:
    (port,) = free_ports(1)
    (strobe.directory / "frail.py").write_text(
        "from dataclasses import dataclass\nfrom strobe.hosts.live import Process\n"
        "@dataclass\nclass Frail(Process):\n    calm: bool = True\n"
        "    def on_start(self):\n        self.after(0.2)\n"
        "    def on_timer(self, name):\n        raise ValueError('too much')\n"
    )
    text = topology(port, nodes="b").replace(IDLE, 'class = "frail.py:Frail"\n')
    (strobe.directory / "two.toml").write_text(text)
    with started(strobe, "two.toml", "b") as node, up(strobe, "two.toml", "--interval", "0"):
        assert node.process.wait(30) == 1
        deadline = time.monotonic() + 15  # less than a node that merely cannot be reached is given
        while (b := strobe.ask("live", "status")["nodes"][0])["trouble"] != "nobody listens there":
            assert time.monotonic() < deadline, b
            time.sleep(0.05)
        assert b["state"] == "missing"
        log = strobe.home / "jobs" / "two" / "logs" / "driver.log"
        assert "Node b is lost: a handler failed: ValueError: too much" in log.read_text()
        with started(strobe, "two.toml", "b"):
            while strobe.ask("live", "status")["incarnation"] == 1:
                assert time.monotonic() < deadline + 15
                time.sleep(0.05)


@pytest.mark.parametrize(
    ("text", "args", "what"),
    [
        (topology(7001), ("c",), "There is no node 'c'"),
        (topology(7001), ("a",), "is started by the system itself"),
        (topology(7001).replace('key_file = "cluster.key"\n', ""), ("b",), "has no key"),
        (topology(7001, key="nowhere.key"), ("b",), "nowhere.key cannot be read"),
        (topology(7001, key="short.key"), ("b",), "has 3 bytes; at least 16 are needed"),
        (topology(7001, key="empty.key"), ("b",), "has 0 bytes; at least 16 are needed"),
        (topology(7001), ("b", "--listen", "7001"), "is not an address"),
        (topology(7001, tls=Tls("no.pem", "no.key", "no.pem")), ("b",), "TLS cannot be set up"),
    ],
    ids=["unknown", "not by hand", "no key", "key not there", "short key", "empty key", "listen", "tls files"],
)
def test_a_node_that_cannot_be_meant_is_refused_in_one_sentence(
    strobe: Terminal, text: str, args: tuple[str, ...], what: str
) -> None:
    (strobe.directory / "two.toml").write_text(text)
    (strobe.directory / "short.key").write_text("abc")
    (strobe.directory / "empty.key").write_text("\n")
    done = strobe("live", "node", "two.toml", *args, "--json")
    assert done.code == 2, done.out + done.err
    assert what in done.json["error"]["what"]


def test_a_port_in_use_is_named_by_a_node_started_by_hand(strobe: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (strobe.directory / "two.toml").write_text(topology(port))
        done = strobe("live", "node", "two.toml", "b", "--json")
    assert done.code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.json["error"]["what"]
