"""How other processes reach what runs: HTTP on loopback, a bearer token in a file that only its owner may read.

Each start writes a new token. Requests and answers are JSON objects; errors are {"error", "untouched",
"next"} with a 4xx or 5xx status. What takes long is answered when it is done, however long that is. Whoever hangs up no
longer wants an answer. A request must have come within seconds; see `strobe.hosts.shared.strangers`.

When a driver is gone its port may belong to anybody. So an answer counts only if it has the shape that the operation's
answers have. `request` checks that, for everybody who asks.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import io
import json
import logging
import os
import secrets
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, Final

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.shared.strangers import Opening, Strangers, end_connection, is_shortage
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.redaction import redact
from strobe.model.strict_json import NotJson, check_value, parse
from strobe.store.small_files import as_kind, read_small

__all__ = ["Answer", "LoopbackServer", "error_answer", "request"]

_LARGEST_BODY: Final = 1 << 16
_LARGEST_REQUEST: Final = _LARGEST_BODY + (1 << 14)  # with its headers
_LARGEST_ANSWER: Final = 256 << 20
_REQUEST_SECONDS: Final = 10.0
_NO_ANSWER: Final = (ValueError, http.client.HTTPException)
_LARGEST_NUMBER: Final = 10**300  # a float can hold it, so it can be shown
_POLL: Final = 0.05  # seconds; how long a stop waits for the server's thread to look

# Status and value; None if whoever asked has hung up.
Answer = tuple[int, Any] | None
Perform = Callable[[str, str, dict[str, Any], socket.socket], Answer]


class LoopbackServer:
    """Listens from the moment it is made. `perform` gets method, path, body and connection, in a thread of its own."""

    def __init__(self, token_file: Path, perform: Perform, *, what: str, log: logging.Logger) -> None:
        """`what` it is that people reach here: "job", "system"."""
        token = secrets.token_urlsafe(32)
        token_file.parent.mkdir(parents=True, exist_ok=True)
        token_file.unlink(missing_ok=True)
        with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
        self._idle = threading.Condition()
        self._busy = 0
        self._server = _Server(_handler(self, token, perform, what, log), log)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL,), name="control", daemon=True)
        self._thread.start()

    def drain(self, patience: float) -> None:
        """Wait until everybody who asked has their answer."""
        with self._idle:
            self._idle.wait_for(lambda: self._busy == 0, patience)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        with self._idle:
            self._busy += 1
        try:
            yield
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()


class _Server(ThreadingHTTPServer):
    """Whatever happens to one connection, the others are served."""

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, handler: type[BaseHTTPRequestHandler], log: logging.Logger) -> None:
        self.strangers = Strangers(log)
        self._log = log
        super().__init__(("127.0.0.1", 0), handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if is_shortage(error):
                self.strangers.make_room(error)
                SYSTEM.sleep(_POLL)
            raise  # the server's loop goes on

    def process_request(self, request: Any, client_address: Any) -> None:
        self.strangers.enter(request, partial(end_connection, request))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.strangers.leave(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        self._log.debug("a connection ended before it had an answer", exc_info=True)


def error_answer(error: StrobeError, status: int) -> Answer:
    return status, {"error": error.what, "untouched": error.untouched, "next": error.next}


def _handler(
    server: LoopbackServer, token: str, perform: Perform, what: str, log: logging.Logger
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server: _Server

        def setup(self) -> None:
            super().setup()
            self._opening = Opening(self.connection, seconds=_REQUEST_SECONDS, most=_LARGEST_REQUEST)
            self.rfile = io.BufferedReader(self._opening)

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

        def _serve(self, method: str) -> None:
            with server._counted(), contextlib.suppress(OSError):
                answer = self._answer(method)
                if answer is None:
                    return
                data = json.dumps(answer[1]).encode()
                self.send_response(answer[0])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def _answer(self, method: str) -> Answer:
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), token.encode()):
                return 401, {
                    "error": f"The {what} refuses: the token is wrong.",
                    "untouched": "Nothing was changed.",
                    "next": f"Ask with the home directory that the {what} was started with, unchanged.",
                }
            try:
                length = int(self.headers.get("Content-Length") or 0)
                if not 0 <= length <= _LARGEST_BODY:
                    return 413, {"error": "The request is too large."}
                body = json.loads(self.rfile.read(length) or b"{}")
                if not isinstance(body, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError) as error:
                return 400, {"error": f"The request cannot be read: {error}."}
            self._opening.is_over()
            self.server.strangers.leave(self.connection)
            try:
                return perform(method, self.path, body, self.connection)
            except Exception as error:
                log.exception("%s %s", method, self.path)
                return 500, {"error": redact(f"{type(error).__name__}: {error}")}

    return Handler


def request(
    port: int,
    token_file: Path,
    method: str,
    path: str,
    body: Mapping[str, Any] | None = None,
    *,
    who: str,
    gone: str,
    kind: Any = dict[str, Any],
    timeout: float | None = 10.0,
) -> dict[str, Any]:
    """Ask `who` listens at this port, as "job 'ledger'". `gone`: what to do if nobody answers, or somebody else does.
    `kind`: the type of the answer; what comes back is the whole object, with fields that this type does not have."""
    try:
        token = read_small(token_file, _LARGEST_BODY).decode(errors="replace").strip()
    except OSError as error:
        raise Failed(f"The token of {who} cannot be read: {error.strerror}.", next="Ask as its owner.") from error
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if method == "GET" else json.dumps(body or {}).encode(),
        method=method,
        headers={"Authorization": f"Bearer {token}"},
    )
    try:
        # Never through a proxy, whatever the environment says, nor to where an answer points: the token is for this
        # machine alone.
        with urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay).open(asked, timeout=timeout) as answer:
            value = _object(answer)
            as_kind(value, kind)
            return value
    except urllib.error.HTTPError as error:
        said = _refusal(error)
        if said is None:
            raise _stranger(port, who, gone, str(error)) from error
        raise (Misuse if error.code in (400, 404, 409) else Failed)(**said) from error
    except OSError as error:
        raise Failed(f"{who[0].upper()}{who[1:]} does not answer: {error}.", next=gone) from error
    except _NO_ANSWER as error:
        raise _stranger(port, who, gone, str(error) or type(error).__name__) from error


def _stranger(port: int, who: str, gone: str, why: str) -> Failed:
    return Failed(
        f"What answers at port {port} is not {who}, or is of another version of Strobe: {why.rstrip('.')}.", next=gone
    )


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _object(answer: IO[bytes]) -> dict[str, Any]:
    data = answer.read(_LARGEST_ANSWER + 1)
    if len(data) > _LARGEST_ANSWER:
        raise ValueError(f"the answer has more than {_LARGEST_ANSWER} bytes")
    if not data:
        raise NotJson("the answer is empty")
    value = parse(data, halves=True)
    if not isinstance(value, dict):
        raise NotJson("the answer is not a JSON object")
    _check_numbers(check_value(value, "the answer"))
    return value


def _check_numbers(value: Any) -> None:
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict | list):
            todo += each.values() if isinstance(each, dict) else each
        elif isinstance(each, int) and abs(each) > _LARGEST_NUMBER:
            raise NotJson("a number in it is too large")


def _refusal(error: urllib.error.HTTPError) -> dict[str, str] | None:
    """What an error says in words, if it is one of ours."""
    try:
        said = _object(error)
    except (OSError, *_NO_ANSWER):
        return None
    texts = {name: said.get(name, "") for name in ("error", "untouched", "next")}
    if not texts["error"] or not all(isinstance(text, str) for text in texts.values()):
        return None
    return {"what": texts["error"], "untouched": texts["untouched"], "next": texts["next"]}
