"""What tests need beside the S3 API of tests/servers/s3.py: credentials, buckets, and a proxy in front of it that fails
on demand. Where the packages are not installed, whatever needs them is skipped and says so.
"""

from __future__ import annotations

import http.client
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import Any

from tests.conftest import missing

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "AKIAFORTESTSONLY",
    "AWS_SECRET_ACCESS_KEY": "not-to-be-printed",
    "AWS_REGION": "us-east-1",
}


def need_packages() -> None:
    lacking = [name for name in ("obstore", "moto", "flask", "flask_cors") if find_spec(name) is None]
    if lacking:
        missing(f"no S3 server: {', '.join(lacking)} not installed (extras s3 and dev)")


def make_bucket(endpoint: str, bucket: str) -> None:
    host = endpoint.removeprefix("http://")
    request = urllib.request.Request(f"http://{host}/{bucket}", method="PUT", data=b"")
    urllib.request.urlopen(request, timeout=20).close()


Fault = Callable[["FaultyProxy", BaseHTTPRequestHandler, str, str], bool]
"""Is shown (proxy, request, method, path); True if it has dealt with the request."""


class FaultyProxy:
    """Passes requests on, unless `fault` deals with them. `seen` has what came, as (method, path)."""

    def __init__(self, behind: str) -> None:
        self._behind = behind.removeprefix("http://")
        self.fault: Fault | None = None
        self.released = threading.Event()  # set at the end: a fault that hangs waits for it
        self.seen: list[tuple[str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.seen.append((self.command, self.path))
                if proxy.fault is not None and proxy.fault(proxy, self, self.command, self.path):
                    self.close_connection = True
                    return
                self.answer(*proxy.forward(self.command, self.path, body, dict(self.headers)))

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

            def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                        self.send_header(name, value)
                length = {n.lower(): v for n, v in headers}.get("content-length")
                self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def forward(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self._behind, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


def refuse(status: int, code: str, when: Callable[[str, str], bool]) -> Fault:
    """Answers with an error as S3 words it."""

    def fault(proxy: FaultyProxy, request: Any, method: str, path: str) -> bool:
        if not when(method, path):
            return False
        body = f"<Error><Code>{code}</Code><Message>No.</Message><AWSAccessKeyId>x</AWSAccessKeyId></Error>".encode()
        request.answer(status, [("Content-Type", "application/xml")], body)
        return True

    return fault


def reset(when: Callable[[str, str], bool]) -> Fault:
    """Closes the connection without an answer."""

    def fault(proxy: FaultyProxy, request: Any, method: str, path: str) -> bool:
        return when(method, path)

    return fault


def hang(when: Callable[[str, str], bool]) -> Fault:
    """Never answers, until the test is over."""

    def fault(proxy: FaultyProxy, request: Any, method: str, path: str) -> bool:
        if when(method, path):
            proxy.released.wait()
            return True
        return False

    return fault
