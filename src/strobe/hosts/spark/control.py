"""The control API of a running job: HTTP on loopback, a bearer token in a file that only its owner may read.

What can be asked is `api.OPERATIONS`; docs/reference/control-api.md describes it. Answers are JSON; errors are
{"error", "untouched", "next"} with a 4xx or 5xx status. An operation that takes long is answered when it is done,
however long that is: neither side gives up on the other while the connection stands.
"""

from __future__ import annotations

import hmac
import json
import logging
import os
import secrets
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from strobe.hosts.spark.api import Action, Answer, BadRequest
from strobe.hosts.spark.home import read_runtime
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.store.layout import JobLayout

__all__ = ["ControlServer", "call_job"]

_log = logging.getLogger("strobe.control")
_LARGEST_BODY = 1 << 16


class ControlServer:
    def __init__(self, token_file: Path, actions: dict[tuple[str, str], Action]) -> None:
        self.token = secrets.token_urlsafe(32)
        token_file.parent.mkdir(parents=True, exist_ok=True)
        token_file.unlink(missing_ok=True)
        with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.token)
        self._idle = threading.Condition()
        self._busy = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, actions))
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="control", daemon=True)
        self._thread.start()

    def drain(self, patience: float) -> None:
        """Wait until everybody who asked has their answer."""
        with self._idle:
            self._idle.wait_for(lambda: self._busy == 0, patience)

    def count(self, change: int) -> None:
        with self._idle:
            self._busy += change
            self._idle.notify_all()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(server: ControlServer, actions: dict[tuple[str, str], Action]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def _serve(self, method: str) -> None:
            server.count(+1)
            try:
                self._answer(method)
            finally:
                server.count(-1)

        def log_message(self, format: str, *args: Any) -> None:
            _log.debug(format, *args)

        def _answer(self, method: str) -> None:
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), server.token.encode()):
                return self._send(
                    401,
                    {
                        "error": "The job refuses: the token does not fit.",
                        "untouched": "Nothing was changed.",
                        "next": "Ask with the home directory that the job was started with, unchanged.",
                    },
                )
            action = actions.get((method, self.path))
            if action is None:
                return self._send(404, {"error": f"There is no {method} {self.path}."})
            try:
                length = int(self.headers.get("Content-Length") or 0)
                if length > _LARGEST_BODY:
                    return self._send(413, {"error": "The request is too large."})
                body = json.loads(self.rfile.read(length) or b"{}")
                if not isinstance(body, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                return self._send(400, {"error": f"The request cannot be read: {error}."})
            try:
                return self._send(200, action(body))
            except StrobeError as error:
                status = 400 if isinstance(error, BadRequest) else 409 if isinstance(error, Misuse) else 500
                return self._send(status, {"error": error.what, "untouched": error.untouched, "next": error.next})
            except Exception as error:
                _log.exception("%s %s", method, self.path)
                return self._send(500, {"error": f"{type(error).__name__}: {error}"})

        def _send(self, status: int, value: Answer) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def call_job(
    home: Path, job: str, method: str, path: str, body: dict[str, Any] | None = None, *, timeout: float | None = 10.0
) -> dict[str, Any]:
    """Ask a running job something, from another process."""
    runtime = read_runtime(home, job)
    if runtime is None:
        raise Misuse(f"There is no job {job!r} in {home}.", next="`strobe list` shows the jobs; --home says where.")
    if not isinstance(runtime.get("port"), int):
        raise Failed(
            f"Job {job!r} is {runtime.get('state', 'not running')}: it takes no orders now.",
            untouched="Nothing was changed.",
            next=f"Ask again when it runs: `strobe status {job}`.",
        )
    try:
        token = (home / JobLayout(job).token).read_text()
    except OSError as error:
        raise Failed(f"The token of job {job!r} cannot be read: {error.strerror}.", next="Ask as its owner.") from error
    request = urllib.request.Request(
        f"http://127.0.0.1:{runtime['port']}{path}",
        data=None if method == "GET" else json.dumps(body or {}).encode(),
        method=method,
        headers={"Authorization": f"Bearer {token}"},
    )
    try:
        # Never through a proxy, whatever the environment says: the token is for this machine alone.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as answer:
            value = json.loads(answer.read())
            return value if isinstance(value, dict) else {}
    except urllib.error.HTTPError as error:
        said = json.loads(error.read() or b"{}")
        kind = Misuse if error.code in (400, 404, 409) else Failed
        raise kind(
            said.get("error", str(error)), untouched=said.get("untouched", ""), next=said.get("next", "")
        ) from error
    except (OSError, ValueError) as error:
        raise Failed(
            f"Job {job!r} does not answer: {error}.",
            next=f"If its process {runtime.get('pid', '?')} is gone, `strobe run` resumes it.",
        ) from error
