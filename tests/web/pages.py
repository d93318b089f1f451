"""A server of the page within the test's own process."""

from __future__ import annotations

import http.client
import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from strobe.web.serving import Options, bind, server_of


class Served:
    """`with Served(home) as page`: `page.url` has the token, `page.get("/jobs")` asks with it."""

    def __init__(self, home: Path | str, **options: Any) -> None:
        if isinstance(home, Path):
            (home / "jobs").mkdir(parents=True, exist_ok=True)
        self._served = bind(Options(home, port=0, **options))
        self.url = self._served.url
        self.access = self._served.access
        self.port = int(self._served.socket.getsockname()[1])
        ready = threading.Event()
        self._server = server_of(self._served, ready.set)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._served.socket]}, daemon=True)
        self._thread.start()
        assert ready.wait(60)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join(60)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """As anybody may: with these headers, and no others."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        status, _, body = self.ask("GET", f"/api/v1{path}", headers=self._bearer)
        assert status == 200, body
        return json.loads(body)

    def refused(self, path: str, method: str = "GET", body: dict[str, Any] | None = None) -> tuple[int, dict[str, str]]:
        status, _, said = (
            self.post_raw(path, body) if method == "POST" else self.ask(method, f"/api/v1{path}", headers=self._bearer)
        )
        assert status >= 400, said
        return status, json.loads(said)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        status, _, said = self.post_raw(path, body)
        assert status == 200, said
        return json.loads(said)

    def post_raw(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, str], bytes]:
        headers = {**self._bearer, "Content-Type": "application/json"}
        return self.ask("POST", f"/api/v1{path}", json.dumps(body or {}).encode(), headers)

    @property
    def _bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.access.token}"}
