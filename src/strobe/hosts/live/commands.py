"""How other terminals reach a running system: HTTP on loopback, a bearer token in a file that only its owner may read.

`runtime.json` in the system's home says on which port, and what has become of the system; `token` is written anew for
each start. Answers are JSON; errors are {"error", "untouched", "next"} with a 4xx or 5xx status. What takes long is
answered when it is done. Requests are taken by threads and performed in the system's event loop, where everything else
happens too. Whoever hangs up no longer wants an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import secrets
import select
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from strobe.model.errors import Damaged, Failed, Misuse, StrobeError
from strobe.store.holding import is_held
from strobe.store.layout import JobLayout
from strobe.store.locate import jobs_in

__all__ = ["Action", "CommandServer", "RuntimeFile", "ask", "read_runtime", "running_systems", "the_system"]

_log = logging.getLogger("strobe.live")
_LARGEST_BODY: Final = 1 << 16
_POLL: Final = 0.25

Action = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


# ── the system's side ───────────────────────────────────────────────────────────────────────────────────────────────


class RuntimeFile:
    """What the system says of itself, for whoever looks at its home. Only its holder writes it."""

    def __init__(self, home: Path, name: str, **facts: Any) -> None:
        self._path = home.absolute() / JobLayout(name).runtime
        self._facts = {"kind": "live", "pid": os.getpid(), "host": socket.gethostname(), **facts}

    def say(self, **facts: Any) -> None:
        self._facts.update(facts)
        temporary = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(self._facts, indent=1))
            os.replace(temporary, self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise Failed(
                f"{self._path} cannot be written: {error.strerror or error}.",
                untouched="The system's snapshots are as they were.",
                next="Choose another --home, or make it writable.",
            ) from error


class CommandServer:
    """Listens from the moment it is made. Must be made in the event loop in which the actions are to run."""

    def __init__(self, token_file: Path, actions: Mapping[tuple[str, str], Action]) -> None:
        self.token = secrets.token_urlsafe(32)
        self._loop = asyncio.get_running_loop()
        self._actions = actions
        self._waiting: set[Future[dict[str, Any]]] = set()
        self._lock = threading.Lock()
        token_file.unlink(missing_ok=True)
        with os.fdopen(os.open(token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.token)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="commands", daemon=True)
        self._thread.start()

    async def stop(self, patience: float = 2.0) -> None:
        """Everybody who asked has an answer, or is told that there will be none."""
        with self._lock:
            for future in self._waiting:
                future.cancel()
        deadline = self._loop.time() + patience
        while self._waiting and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()

    def serve(self, method: str, path: str, body: dict[str, Any], connection: socket.socket) -> tuple[int, Any] | None:
        """Called in a thread. None: whoever asked has hung up."""
        action = self._actions.get((method, path))
        if action is None:
            return 404, {"error": f"There is no {method} {path}."}

        async def perform() -> dict[str, Any]:
            return await action(body)

        with self._lock:
            future = asyncio.run_coroutine_threadsafe(perform(), self._loop)
            self._waiting.add(future)
        try:
            while True:
                try:
                    return 200, future.result(_POLL)
                except TimeoutError:
                    if _hung_up(connection):
                        future.cancel()
                        return None
        except StrobeError as error:
            status = 400 if isinstance(error, Misuse) else 500
            return status, {"error": error.what, "untouched": error.untouched, "next": error.next}
        except CancelledError:
            return 503, {"error": "The system has ended.", "next": "Bring it up again: strobe live up TOPOLOGY"}
        except Exception as error:
            _log.exception("%s %s", method, path)
            return 500, {"error": f"{type(error).__name__}: {error}"}
        finally:
            self._waiting.discard(future)


def _hung_up(connection: socket.socket) -> bool:
    try:
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def _handler(server: CommandServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def log_message(self, format: str, *args: Any) -> None:
            _log.debug(format, *args)

        def _serve(self, method: str) -> None:
            answer = self._answer(method)
            if answer is None:
                return
            data = json.dumps(answer[1]).encode()
            with contextlib.suppress(OSError):
                self.send_response(answer[0])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def _answer(self, method: str) -> tuple[int, Any] | None:
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), server.token.encode()):
                return 401, {
                    "error": "The system refuses: the token does not fit.",
                    "untouched": "Nothing was changed.",
                    "next": "Ask with the home directory that the system was started with, unchanged.",
                }
            try:
                length = int(self.headers.get("Content-Length") or 0)
                if not 0 <= length <= _LARGEST_BODY:
                    return 413, {"error": "The request is too large."}
                body = json.loads(self.rfile.read(length) or b"{}")
                if not isinstance(body, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                return 400, {"error": f"The request cannot be read: {error}."}
            return server.serve(method, self.path, body, self.connection)

    return Handler


# ── the other side ──────────────────────────────────────────────────────────────────────────────────────────────────


def read_runtime(home: Path, name: str) -> dict[str, Any] | None:
    """What the system says of itself; None if it is no live system, or was never started here."""
    path = home / JobLayout(name).runtime
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise Damaged(
            f"{path} cannot be read: {error}.",
            untouched="Nothing was changed.",
            next="Bring the system up again: that writes it anew. Its snapshots do not depend on it.",
        ) from error
    return value if isinstance(value, dict) and value.get("kind") == "live" else None


def running_systems(home: Path) -> tuple[str, ...]:
    return tuple(name for name in jobs_in(home) if is_held(home, name) and read_runtime(home, name) is not None)


def the_system(home: Path, name: str | None) -> str:
    """The system of that name, which must be known; or the only one that runs."""
    running = running_systems(home)
    if name is None:
        if len(running) != 1:
            raise Misuse(
                f"{len(running) or 'No'} live systems run in {home}.",
                untouched="Nothing was changed.",
                next=f"Say which: {', '.join(running)}." if running else "Bring one up: strobe live up TOPOLOGY",
            )
        return running[0]
    known = jobs_in(home)
    if name not in known:
        raise Misuse(
            f"There is no system {name!r} in {home}.",
            untouched="Nothing was changed.",
            next=f"Those that are there: {', '.join(known) or 'none'}. Another home: --home DIR.",
        )
    if read_runtime(home, name) is None:
        raise Misuse(
            f"{name!r} is no live system.", untouched="Nothing was changed.", next=f"See: strobe status {name}"
        )
    return name


def ask(
    home: Path, name: str, method: str, path: str, body: dict[str, Any] | None = None, *, timeout: float | None = 10.0
) -> dict[str, Any]:
    """Ask a running system something, from another process."""
    runtime = read_runtime(home, name) or {}
    if not is_held(home, name) or not isinstance(runtime.get("port"), int):
        raise Misuse(
            f"System {name!r} is not running.",
            untouched="Nothing was changed.",
            next=f"Bring it up: strobe live up {runtime.get('topology', 'TOPOLOGY')}",
        )
    try:
        token = (home / JobLayout(name).token).read_text()
    except OSError as error:
        raise Failed(f"The token of {name!r} cannot be read: {error.strerror}.", next="Ask as its owner.") from error
    request = urllib.request.Request(
        f"http://127.0.0.1:{runtime['port']}{path}",
        data=None if method == "GET" else json.dumps(body or {}).encode(),
        method=method,
        headers={"Authorization": f"Bearer {token.strip()}"},
    )
    try:
        # Never through a proxy, whatever the environment says: the token is for this machine alone.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as answer:
            value = json.loads(answer.read())
            return value if isinstance(value, dict) else {}
    except urllib.error.HTTPError as error:
        said = json.loads(error.read() or b"{}")
        kind = Misuse if error.code in (400, 404) else Failed
        raise kind(
            said.get("error", str(error)), untouched=said.get("untouched", ""), next=said.get("next", "")
        ) from error
    except (OSError, ValueError) as error:
        raise Failed(
            f"System {name!r} does not answer: {error}.",
            next=f"If its process {runtime.get('pid', '?')} is gone, bring it up again: strobe live up TOPOLOGY",
        ) from error
