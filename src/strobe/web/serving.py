"""Binds the port and serves until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

import uvicorn

from strobe.hosts.shared.strangers import Strangers
from strobe.model.errors import Failed, Misuse
from strobe.web.application import application
from strobe.web.connections import BACKLOG, connections, take_trouble
from strobe.web.home_place import HomePlace
from strobe.web.operations import Desk
from strobe.web.security import Access

__all__ = ["DEFAULT_PORT", "Options", "Served", "bind", "serve", "server_of"]

DEFAULT_PORT: Final = 8670
_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_TOKEN: Final = "STROBE_UI_TOKEN"  # noqa: S105  (the name of a variable)
_SHORTEST: Final = 16  # characters of a token that somebody chose
_GOODBYE: Final = 1  # seconds for connections that are open at the end


@dataclass(frozen=True, slots=True)
class Options:
    """`home`: a directory, or `s3://bucket/prefix`. `public_url`: the address at which a proxy shows it, with its
    path."""

    home: Path | str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    public_url: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """A page whose port is bound and which is about to be served."""

    socket: socket.socket
    access: Access
    address: str
    home: HomePlace
    read_only: bool

    @property
    def url(self) -> str:
        return f"{self.address}/?token={quote(self.access.token)}"


def bind(options: Options) -> Served:
    """Check the options and bind the port: everything that can be wrong is found here."""
    home = HomePlace(options.home)
    token = os.environ.get(_TOKEN) or secrets.token_urlsafe(32)
    if len(token) < _SHORTEST:
        raise Misuse(f"{_TOKEN} has fewer than {_SHORTEST} characters.", untouched="Nothing was started.")
    public = _public(options.public_url)
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise _unbound(options, error) from None
    port = int(listener.getsockname()[1])
    shown = f"[{options.host}]" if ":" in options.host else options.host
    names = {*_LOOPBACK, shown.lower()}
    if options.host in ("0.0.0.0", "::"):  # noqa: S104  (asked for)
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        shown = socket.gethostname()
    hosts = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
    if public is not None:
        hosts.add(public.netloc.lower())
    access = Access(
        token,
        frozenset(hosts),
        "" if public is None else public.path.rstrip("/"),
        public is not None and public.scheme == "https",
    )
    address = f"http://{shown}:{port}" if public is None else options.public_url.rstrip("/")
    return Served(listener, access, address, home, options.read_only)


def serve(served: Served, ready: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGINT or SIGTERM. `ready` is called once pages are answered."""
    with contextlib.suppress(KeyboardInterrupt, asyncio.CancelledError):
        server_of(served, ready).run(sockets=[served.socket])


def server_of(served: Served, ready: Callable[[], None] = lambda: None) -> uvicorn.Server:
    """The server. It also ends when its `should_exit` is set."""
    desk = Desk(served.home, read_only=served.read_only)
    strangers = Strangers(logging.getLogger("strobe.web"))
    config = uvicorn.Config(
        application(desk, served.access),
        log_level="critical",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GOODBYE,
        ws="none",
        limit_concurrency=256,
        http=connections(strangers),
        backlog=BACKLOG,
    )
    return _Server(config, strangers, ready)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, strangers: Strangers, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._strangers = strangers
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        take_trouble(self._strangers, asyncio.get_running_loop())
        await super().startup(sockets)
        self._ready()


def _public(url: str) -> SplitResult | None:
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise Misuse(
            f"{url!r} is not the address of a page.", untouched="Nothing was started.",
            next="Such as --public-url https://ops.example.org/strobe",
        )  # fmt: skip
    return parts


def _unbound(options: Options, error: OSError) -> Failed:
    where = f"{options.host}:{options.port}"
    if error.errno == errno.EADDRINUSE:
        return Failed(
            f"Port {options.port} is in use on {options.host}: perhaps `strobe ui` runs already.",
            untouched="Nothing was started, and the process that has the port was left alone.",
            next="Choose another one: --port N, or --port 0 for one that is free.",
        )
    return Failed(
        f"{where} cannot be listened on: {error.strerror or error}.",
        untouched="Nothing was started.",
        next="Choose another --port or --host.",
    )
