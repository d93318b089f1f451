"""The gate: how a query's sources ask the driver how far they may read.

Spark runs a Python source's planning in a process of its own, beside the driver. The gate is the driver's end of a
conversation with these processes: one TCP connection each, over loopback only, opened with a secret token. Requests
and answers are JSON objects, each after its length in four bytes. A connection carries one request at a time, so a
`GateHandler` may take its time to answer: Spark waits in between, and so does the query. Before the token has come,
little is read, and not for long; see `strobe.hosts.shared.strangers`.

A handler's `StrobeError` reaches the source as the same words and fails the query. When the gate closes or the
driver dies, the connections close, every source that asks gets `GateClosed`, and its process ends.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from strobe.hosts.shared.strangers import Opening, Strangers, end_connection, is_shortage
from strobe.hosts.spark.channel.log import DataFile
from strobe.model.errors import Failed, PeerFault, StrobeError
from strobe.model.ids import ChannelId, NodeId

__all__ = ["Gate", "GateAddress", "GateClient", "GateClosed", "GateHandler"]

_LENGTH: Final = struct.Struct(">I")
_MAX_FRAME: Final = 64 * 1024 * 1024
_MAX_HELLO: Final = 1024
_HELLO_SECONDS: Final = 10.0
_HOST: Final = "127.0.0.1"
_ACCEPT_PAUSE: Final = 0.1

Read = Callable[[int], bytes | None]

_logger = logging.getLogger(__name__)


class GateClosed(Failed):
    """The driver is gone, or has closed its gate."""


class GateHandler(Protocol):
    """What the driver answers. Calls come from one thread per source; those of one source come one after the other."""

    def latest(self, stage: NodeId, channel: ChannelId, start: int, reader: str) -> int:
        """How far `stage`, which stands at version `start`, may read now. `start` means: nothing yet. May block.
        `reader` tells apart several readers of one channel in one query (a self-join)."""
        ...

    def available(self, stage: NodeId, channel: ChannelId) -> int:
        """Where the channel ends now: the goal of a query that runs until it has caught up (Trigger.AvailableNow)."""
        ...

    def initial(self, stage: NodeId, channel: ChannelId) -> int:
        """Where a stage begins that has not read the channel yet."""
        ...

    def files(self, stage: NodeId, channel: ChannelId, start: int, end: int) -> Sequence[DataFile]:
        """The files of the commits in (start, end], in order."""
        ...

    def committed(self, stage: NodeId, channel: ChannelId, end: int) -> None:
        """Spark will not ask for anything up to `end` again."""
        ...


@dataclass(frozen=True, slots=True)
class GateAddress:
    port: int
    token: str


class Gate:
    """Serves `handler` until `close()`."""

    def __init__(self, handler: GateHandler) -> None:
        self._handler = handler
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._strangers = Strangers(_logger)
        self._ending = threading.Event()
        self._listener = socket.create_server((_HOST, 0), backlog=128)
        self.address = GateAddress(self._listener.getsockname()[1], secrets.token_hex(32))
        self._acceptor = threading.Thread(target=self._accept, name="gate", daemon=True)
        self._acceptor.start()

    def close(self) -> None:
        """Close all connections: whoever waits for an answer gets `GateClosed`. Does not wait for handlers."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._ending.set()
            connections = list(self._open)
        # Closing a listener does not wake its accept(); shutting it down does.
        for sock in (self._listener, *connections):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                # A lack of descriptors, a connection that was gone already: sources of later queries must still get in.
                if is_shortage(error):
                    self._strangers.make_room(error)
                else:
                    _logger.warning("the gate could not accept a connection: %s; it is tried again", error)
                self._ending.wait(_ACCEPT_PAUSE)
                continue
            self._strangers.enter(sock, partial(end_connection, sock))
            try:
                threading.Thread(target=self._serve, args=(sock,), name="gate-source", daemon=True).start()
            except RuntimeError as error:
                _logger.warning("the gate could not serve a connection: %s", error)
                self._strangers.leave(sock)
                sock.close()  # its query fails, and is started again

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                opening = Opening(sock, seconds=_HELLO_SECONDS, most=_LENGTH.size + _MAX_HELLO)
                hello = _decoded(_exactly(opening.read, _size(opening.read, _MAX_HELLO)))
                if not hmac.compare_digest(ascii(hello.get("token")), ascii(self.address.token)):
                    return
                opening.is_over()
                self._strangers.leave(sock)
                with self._lock:
                    if self._closed:
                        return
                    self._open.add(sock)
                _send(sock, {"ok": True})
                while True:
                    _send(sock, self._answer(_receive(sock)))
            except (GateClosed, PeerFault, OSError):
                return
            except Exception:
                _logger.exception("a connection to the gate failed")
            finally:
                self._strangers.leave(sock)
                with self._lock:
                    self._open.discard(sock)

    def _answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            stage, channel = NodeId(request["stage"]), ChannelId(request["channel"])
            match request["ask"]:
                case "latest":
                    return {"version": self._handler.latest(stage, channel, request["start"], request["reader"])}
                case "available":
                    return {"version": self._handler.available(stage, channel)}
                case "initial":
                    return {"version": self._handler.initial(stage, channel)}
                case "files":
                    files = self._handler.files(stage, channel, request["start"], request["end"])
                    return {"files": [[f.path, f.rows, f.size] for f in files]}
                case "committed":
                    self._handler.committed(stage, channel, request["end"])
                    return {}
                case other:
                    raise PeerFault(f"The gate does not know the request {other!r}.")
        except StrobeError as e:
            return {"error": str(e)}
        except Exception as e:
            _logger.exception("the gate could not answer %s", request)
            return {"error": f"The driver failed to answer: {type(e).__name__}: {e}"}


class GateClient:
    """The source's end. Connects when first used; one request at a time."""

    def __init__(self, address: GateAddress, stage: NodeId, channel: ChannelId) -> None:
        self._address = address
        self._who = {"stage": stage, "channel": channel, "reader": secrets.token_hex(8)}
        self._sock: socket.socket | None = None

    def latest(self, start: int) -> int:
        return int(self._ask("latest", start=start)["version"])

    def available(self) -> int:
        return int(self._ask("available")["version"])

    def initial(self) -> int:
        return int(self._ask("initial")["version"])

    def files(self, start: int, end: int) -> tuple[DataFile, ...]:
        return tuple(DataFile(*f) for f in self._ask("files", start=start, end=end)["files"])

    def committed(self, end: int) -> None:
        self._ask("committed", end=end)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _ask(self, what: str, **details: int) -> Mapping[str, Any]:
        try:
            if self._sock is None:
                self._sock = self._connect()
            _send(self._sock, {"ask": what, **self._who, **details})
            answer = _receive(self._sock)
        except OSError as e:
            self.close()
            raise GateClosed(f"Stage {self._who['stage']}: the driver is gone ({e}).") from e
        except GateClosed:
            self.close()
            raise
        if "error" in answer:
            raise Failed(str(answer["error"]))
        return answer

    def _connect(self) -> socket.socket:
        sock = socket.create_connection((_HOST, self._address.port), timeout=_HELLO_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _send(sock, {"token": self._address.token})
        _receive(sock)
        sock.settimeout(None)
        return sock


def _send(sock: socket.socket, message: Mapping[str, Any]) -> None:
    body = json.dumps(message, separators=(",", ":")).encode()
    sock.sendall(_LENGTH.pack(len(body)) + body)


def _receive(sock: socket.socket) -> Mapping[str, Any]:
    return _decoded(_exactly(sock.recv, _size(sock.recv, _MAX_FRAME)))


def _size(read: Read, most: int) -> int:
    (length,) = _LENGTH.unpack(_exactly(read, _LENGTH.size))
    if length > most:
        raise PeerFault(f"A gate message of {length} bytes is too long.")
    return int(length)


def _decoded(data: bytes) -> Mapping[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise PeerFault(f"A gate message is not JSON: {e}.") from e
    if not isinstance(message, dict):
        raise PeerFault("A gate message is not an object.")
    return message


def _exactly(read: Read, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        chunk = read(count - len(parts))
        if not chunk:
            raise GateClosed("The driver has closed its gate.")
        parts += chunk
    return bytes(parts)
