"""How other terminals reach a running system, over `strobe.hosts.shared.loopback`.

`runtime.json` in the system's home says on which port, and what has become of the system. Requests are taken by threads
and performed in the system's event loop, where everything else happens too. A request whose sender no longer waits is
cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from strobe.hosts.live.system.answers import ANSWERS
from strobe.hosts.shared.durable import write_durably
from strobe.hosts.shared.loopback import Answer, LoopbackServer, error_answer, request
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.store.holding import is_held
from strobe.store.jobs import jobs_in
from strobe.store.layout import JobLayout
from strobe.store.runtime import LIVE, UNKNOWN, Runtime, read_runtime, runtime_json

__all__ = ["Action", "CommandServer", "RuntimeFile", "ask", "live_runtime", "running_systems", "the_system"]

_log = logging.getLogger("strobe.live")
_POLL: Final = 0.25

Action = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


# ── the system's side ───────────────────────────────────────────────────────────────────────────────────────────────


class RuntimeFile:
    """What the system says of itself, for whoever looks at its home. Only its holder writes it."""

    def __init__(self, home: Path, name: str, **facts: Any) -> None:
        self._path = home.absolute() / JobLayout(name).runtime
        self._said = Runtime(kind=LIVE, job=name, pid=os.getpid(), host=socket.gethostname(), **facts)

    def say(self, **facts: Any) -> None:
        self._said = replace(self._said, **facts)
        try:
            write_durably(self._path, runtime_json(self._said), durable=False)
        except OSError as error:
            raise Failed(
                f"{self._path} cannot be written: {error.strerror or error}.",
                untouched="The system's snapshots are as they were.",
                next="Choose another --home, or make it writable.",
            ) from error


class CommandServer:
    """Listens from the moment it is made. Must be made in the event loop in which the actions are to run."""

    def __init__(self, token_file: Path, actions: Mapping[tuple[str, str], Action]) -> None:
        self._loop = asyncio.get_running_loop()
        self._actions = actions
        self._waiting: set[Future[dict[str, Any]]] = set()
        self._lock = threading.Lock()
        self._server = LoopbackServer(token_file, self._perform, what="system", log=_log)
        self.port = self._server.port

    async def stop(self, patience: float = 2.0) -> None:
        """Stop listening. Every open request gets its answer, or an error."""
        with self._lock:
            for future in self._waiting:
                future.cancel()
        await asyncio.to_thread(self._server.drain, patience)
        await asyncio.to_thread(self._server.stop)

    def _perform(self, method: str, path: str, body: dict[str, Any], connection: socket.socket) -> Answer:
        """Called in a thread."""
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
            return error_answer(error, 400 if isinstance(error, Misuse) else 500)
        except CancelledError:
            return 503, {"error": "The system has ended.", "next": "Bring it up again: strobe live up TOPOLOGY"}
        finally:
            self._waiting.discard(future)


def _hung_up(connection: socket.socket) -> bool:
    try:
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


# ── the other side ──────────────────────────────────────────────────────────────────────────────────────────────────


def live_runtime(home: Path, name: str) -> Runtime | None:
    """None if it is not a live system, or was never started here."""
    runtime = read_runtime(home, name)
    return runtime if runtime is not None and runtime.kind == LIVE else None


def running_systems(home: Path) -> tuple[str, ...]:
    return tuple(name for name in jobs_in(home) if is_held(home, name) and live_runtime(home, name) is not None)


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
    if live_runtime(home, name) is None:
        raise Misuse(
            f"{name!r} is not a live system.", untouched="Nothing was changed.", next=f"See: strobe status {name}"
        )
    return name


def ask(
    home: Path, name: str, method: str, path: str, body: dict[str, Any] | None = None, *, timeout: float | None = 10.0
) -> dict[str, Any]:
    """Ask a running system something, from another process."""
    runtime = live_runtime(home, name) or UNKNOWN
    if not is_held(home, name) or runtime.port is None:
        raise Misuse(
            f"System {name!r} is not running.",
            untouched="Nothing was changed.",
            next=f"Bring it up: strobe live up {runtime.topology or 'TOPOLOGY'}",
        )
    return request(
        runtime.port, home / JobLayout(name).token, method, path, body, timeout=timeout, who=f"system {name!r}",
        kind=ANSWERS.get((method, path), dict[str, Any]),
        gone=f"If its process {runtime.pid or '?'} is gone, bring it up again: strobe live up TOPOLOGY",
    )  # fmt: skip
