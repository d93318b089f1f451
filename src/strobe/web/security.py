"""Who may ask: an ASGI layer in front of everything.

- *Host*: only the server's own names. Another site's name that resolves to this machine is refused,
  before anything is looked at.
- *Token*: it comes once in the address that the terminal prints, and is exchanged for a cookie that scripts cannot read
  and other sites cannot send. Programs send it as `Authorization: Bearer`.
- *Origin*: what changes something comes from the page itself, or from a program.
- *Read-only*: requests that would change something are refused.
- Every answer forbids scripts, styles, frames and connections from elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import html
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import msgspec

from strobe.web.connections import is_known
from strobe.web.views import Refusal

__all__ = ["POLICY", "Access", "Secured"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_SAFE: Final = ("GET", "HEAD")
_LARGEST_BODY: Final = 1 << 16


@dataclass(frozen=True)
class Access:
    """`hosts`: what the Host header may say, lower case, with port. `base`: the path below which a proxy serves it,
    without a slash at its end. `secure`: people reach it over https."""

    token: str
    hosts: frozenset[str]
    base: str = ""
    secure: bool = False

    @property
    def cookie(self) -> str:
        """The cookie's name. Cookies ignore ports, so two servers on one machine must use different names."""
        return f"strobe-{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"

    @property
    def cookie_value(self) -> str:
        """Not the token itself: somebody who reads the cookie cannot make an address with it."""
        return hmac.new(self.token.encode(), b"cookie", hashlib.sha256).hexdigest()

    def set_cookie(self) -> bytes:
        secure = "; Secure" if self.secure else ""
        return f"{self.cookie}={self.cookie_value}; Path={self.base or '/'}; HttpOnly; SameSite=Strict{secure}".encode()


class Secured:
    def __init__(self, application: Application, access: Access) -> None:
        self._application = application
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._application(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method, path = scope["method"], self._inner(scope["path"])
        refused = self._refusal(method, headers)
        if refused is not None:
            await _answer(send, *refused)
            return
        if path is None:
            await _redirect(send, f"{self._access.base}/", None)
            return
        token = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if token and method == "GET" and path == "/" and _same(token, self._access.token):
            arrive = _redirect if headers.get("sec-fetch-site", "none") in ("same-origin", "none") else _arrive
            await arrive(send, f"{self._access.base}/", self._access.set_cookie())
            return
        if not self._known(headers):
            await self._stranger(send, path, wrong=bool(token))
            return
        is_known(scope)
        await self._application({**scope, "path": path, "raw_path": path.encode()}, receive, _with_headers(send))

    def _inner(self, path: str) -> str | None:
        """The path without the base path, which a proxy may remove or leave. None if its slash is missing."""
        base = self._access.base
        if base and path == base:
            return None
        return path[len(base) :] if base and path.startswith(f"{base}/") else path

    def _refusal(self, method: str, headers: dict[str, str]) -> tuple[int, Refusal] | None:
        host = headers.get("host", "").lower()
        if host not in self._access.hosts:
            return 421, Refusal(
                f"This server is not {host[:100]!r}.",
                "Nothing was looked at.",
                "Open the address that `strobe ui` has printed. Behind a proxy, start it with --public-url.",
            )
        if method in _SAFE:
            return None
        origin = headers.get("origin")
        if origin is not None and _host_of(origin) not in self._access.hosts:
            return 403, Refusal("Another site asks.", "Nothing was changed.", "Use the page itself.")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, Refusal("Another site asks.", "Nothing was changed.", "Use the page itself.")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > _LARGEST_BODY or "transfer-encoding" in headers:
            return 413, Refusal("The request is too large, or does not say how large it is.", "Nothing was changed.")
        if int(length) and headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return 415, Refusal("The body of a request is JSON.", "Nothing was changed.")
        return None

    def _known(self, headers: dict[str, str]) -> bool:
        bearer = headers.get("authorization", "")
        if bearer.startswith("Bearer "):
            return _same(bearer.removeprefix("Bearer ").strip(), self._access.token)
        try:
            jar: SimpleCookie = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        given = jar.get(self._access.cookie)
        return given is not None and _same(given.value, self._access.cookie_value)

    async def _stranger(self, send: Send, path: str, *, wrong: bool) -> None:
        what = "The token is wrong." if wrong else "This page asks who you are, and does not know you yet."
        refusal = Refusal(
            what,
            "Nothing was shown.",
            "Open the address that `strobe ui` has printed in its terminal: it has the token.",
        )
        if path.startswith("/api/"):
            await _answer(send, 401, refusal)
            return
        words = f"<p>{refusal.error}</p><p>{refusal.next.replace('`strobe ui`', '<code>strobe ui</code>')}</p>"
        body = (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Strobe</title><h1>Strobe</h1>{words}</html>'
        )
        await _send(send, 401, body.encode(), [(b"content-type", b"text/html; charset=utf-8")])


def _host_of(origin: str) -> str:
    """Empty if it is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in _HEADERS}
            given = [pair for pair in message.get("headers", []) if pair[0].lower() not in own]
            message = {**message, "headers": [*given, *_HEADERS]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, refusal: Refusal) -> None:
    await _send(send, status, msgspec.json.encode(refusal), [(b"content-type", b"application/json")])


async def _redirect(send: Send, where: str, cookie: bytes | None) -> None:
    headers = [(b"location", where.encode("latin-1"))]
    await _send(send, 303, b"", headers + ([(b"set-cookie", cookie)] if cookie else []))


async def _arrive(send: Send, where: str, cookie: bytes) -> None:
    """Whoever comes from a file or from another site goes on from here: a browser keeps the cookie to itself for as
    long as it follows what others began."""
    there = html.escape(where)
    body = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Strobe</title>'
        f'<meta http-equiv="refresh" content="0;url={there}"><p><a href="{there}">Strobe</a></p></html>'
    )
    await _send(send, 200, body.encode(), [(b"content-type", b"text/html; charset=utf-8"), (b"set-cookie", cookie)])


async def _send(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", str(len(body)).encode())
    sending = _with_headers(send)
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [*headers, length, (b"cache-control", b"no-store")],
    }
    await sending(start)
    await sending({"type": "http.response.body", "body": body})
