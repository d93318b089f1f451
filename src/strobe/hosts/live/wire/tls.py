"""TLS between nodes, on top of the shared key: each side shows a certificate that the same authority has signed.

Whoever connects and cannot do that, or does not speak TLS at all, is dropped at once, with one line in the log.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import ClassVar, Final

from strobe.hosts.live.wire.buffered import Buffered
from strobe.hosts.shared.strangers import Strangers
from strobe.model.errors import Misuse

__all__ = ["NOBODY", "Door", "Tls", "peer_of", "why_broken"]

_log = logging.getLogger("strobe.live")
NOBODY: Final = "nobody listens there"


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM: this node's certificate and key, and the authority that everyone's certificates come from."""

    certificate: str
    key: str
    authority: str

    def accepting(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def dialling(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        # Nodes are reached by address and prove by the key who they are; the certificate proves that they belong here.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except (OSError, ssl.SSLError) as error:
            raise Misuse(
                f"TLS cannot be set up from {self.certificate}, {self.key} and {self.authority}: {error}.",
                untouched="Nothing was started.",
                next="Name files in PEM: a certificate, its key, and the authority's certificate.",
            ) from error
        return context


def why_broken(error: BaseException | None, *, tls: bool) -> str:
    """Why no session came of a connection, in words that help. `tls`: whether this side uses it."""
    if isinstance(error, OSError) and _number(error) == errno.ECONNREFUSED:
        return NOBODY
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the authority in [tls] has not signed its certificate ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        said = (error.reason or str(error)).lower().replace("_", " ")
        return f"it does not speak TLS as this side does ({said}); [tls] has to be the same at both ends"
    if error is None or isinstance(error, ConnectionError):
        # Neither side says why it refuses the other's certificate: it hangs up.
        perhaps = "[tls] is not the same at both ends" if tls else "it uses TLS, and this side does not"
        return f"it hung up in the middle of the handshake; perhaps {perhaps}"
    number = _number(error) if isinstance(error, OSError) else 0
    return os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)


def _number(error: OSError) -> int:
    """The system's error number. Where a name has several addresses, asyncio has the numbers only in the error's
    text."""
    said = re.findall(r"\[Errno (\d+)\]", str(error)) if error.errno is None else []
    return int(said[-1]) if said else error.errno or 0


def peer_of(transport: asyncio.BaseTransport) -> str:
    host = transport.get_extra_info("peername")
    return f"{host[0]}:{host[1]}" if isinstance(host, tuple) else "peer"


class Door(asyncio.Protocol):
    """A connection to the accepting side until TLS is set up; then `inside` takes it over, as if it had been connected
    from the start. asyncio's own TLS servers do not report a handshake that fails.
    """

    _knocking: ClassVar[set[asyncio.Task[None]]] = set()  # the event loop alone would not keep them alive

    def __init__(
        self, inside: Callable[[], Buffered], context: ssl.SSLContext, seconds: float, strangers: Strangers
    ) -> None:
        self._strangers = strangers
        self._inside = inside
        self._context = context
        self._seconds = seconds

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._strangers.enter(self, transport.abort)
        task = asyncio.get_running_loop().create_task(self._upgrade(transport))
        self._knocking.add(task)
        task.add_done_callback(self._knocking.discard)

    async def _upgrade(self, transport: asyncio.Transport) -> None:
        early, peer = _Early(), peer_of(transport)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport, early, self._context, server_side=True, ssl_handshake_timeout=self._seconds
            )
        except OSError as error:
            _log.warning("Connection with %s dropped: %s", peer, why_broken(error, tls=True))
            return
        finally:
            self._strangers.leave(self)
        if secured is None or early.lost:
            return
        protocol = self._inside()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if early.data:
            protocol.data_received(bytes(early.data))


class _Early(asyncio.Protocol):
    """Keeps what comes together with the end of the handshake."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
