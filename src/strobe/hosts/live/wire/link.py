"""Sessions over real connections: dialling, accepting, resuming, noticing silence.

A `Link` is one end of a session, for as long as the session lives; connections come and go below it. Whoever dials
keeps dialling while the link is open. A connection that sends nonsense, fails the handshake, stays silent or breaks
ends with one line in the log; the link and its session only notice that a connection is gone.

Writes of one turn of the event loop go out as one frame. Items are handed over in the list in which they came.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final

from strobe.hosts.live.wire.auth import Accepting, Claim, Dialling, Refusal, Welcome
from strobe.hosts.live.wire.buffered import Buffered
from strobe.hosts.live.wire.framing import HANDSHAKE_LIMIT, MAX_FRAME, FrameKind, FrameReader, frame
from strobe.hosts.live.wire.session import Session
from strobe.hosts.live.wire.tls import Door, peer_of, why_broken
from strobe.hosts.shared.strangers import Strangers
from strobe.model.backoff import backoff
from strobe.model.errors import PeerFault
from strobe.model.ids import Incarnation

__all__ = ["Accept", "Address", "Dialer", "Link", "listen"]

_log = logging.getLogger("strobe.live")

Address = tuple[str, int]
Accept = Callable[[Claim], "Link | Refusal"]
"""Asked when a peer has proved itself: the link that its connection belongs to, or why there is none."""

# A busy machine may be slow. The dialling side tries again with longer timeouts, so that it gets through in the end,
# and soon after a broken network is back; the accepting side waits longer than any of these.
ACCEPT_SECONDS: Final = 60.0
DIAL_SECONDS: Final = (10.0, 20.0, 30.0)
HEARTBEAT_SECONDS: Final = 2.0
_AT_ONCE: Final = 32  # connections that are accepted before the first of them is looked at
_SILENT_BEATS: Final = 3
_SOON: Final = 0.005  # seconds until a little that has come is acknowledged


class Link:
    """One end of a session. `receive` gets what comes, in order; `congestion` hears when it begins and when it ends."""

    def __init__(
        self,
        name: str,
        receive: Callable[[list[bytes]], None],
        *,
        session: Session | None = None,
        congestion: Callable[[bool], None] | None = None,
        before_write: Callable[[], None] | None = None,
    ) -> None:
        self.name = name
        self.session = session or Session()
        self.closed = False
        self._receive = receive
        self._congestion = congestion
        self._before_write = before_write
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.scheduled = False
        self._answering: asyncio.TimerHandle | None = None
        self._reading = True
        self._was_congested = False

    @property
    def connected(self) -> bool:
        return self._transport is not None

    def is_congested(self) -> bool:
        """Whether it is congested. If so, `congestion` is called when that is over."""
        if self.session.congested:
            self._was_congested = True
        return self._was_congested

    def send(self, item: bytes) -> None:
        """Takes the item; it leaves with all others of this turn of the event loop."""
        self.session.send(item)
        if not self.scheduled:
            self.schedule()

    def schedule(self) -> None:
        """What was added leaves in this turn of the event loop."""
        self.scheduled = True
        self._loop.call_soon(self.flush)

    def answer(self) -> None:
        """After what has come: what may leave now, leaves; an acknowledgement at once if much is owed, else soon."""
        session = self.session
        if session.queued or not session.owes or session.owes_much:
            self.flush()
        elif self._answering is None:
            self._answering = self._loop.call_later(_SOON, self._answer_now)

    def _answer_now(self) -> None:
        self._answering = None
        self.flush()

    def flush(self) -> None:
        self.scheduled = False
        transport = self._transport
        if transport is not None:
            data = self.session.take()
            if data:
                if self._before_write is not None:
                    self._before_write()
                transport.write(data)
        if not self._was_congested and self.session.congested:
            self._was_congested = True
            if self._congestion is not None:
                self._congestion(True)

    def pause(self) -> None:
        """Take nothing more from the connection until `resume`: the peer will notice by the window."""
        self._reading = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if not self._reading:
            self._reading = True
            if self._transport is not None:
                self._transport.resume_reading()

    def close(self) -> None:
        """The session is over. What was sent and not acknowledged is given up."""
        self.closed = True
        if self._answering is not None:
            self._answering.cancel()
        if self._transport is not None:
            transport, self._transport = self._transport, None
            self.session.disconnect()
            transport.abort()

    # ── called by connections ───────────────────────────────────────────────────────────────────────────────────────

    def attach(self, transport: asyncio.Transport, peer_received: int) -> None:
        """A connection is up. One that was still there is replaced: the peer has given it up."""
        if self._transport is not None:
            self._transport.abort()
        self.session.disconnect()
        self.session.connect(peer_received)
        self._transport = transport
        if not self._reading:
            transport.pause_reading()
        self.flush()

    def detach(self, transport: asyncio.Transport) -> None:
        if self._transport is transport:
            self._transport = None
            self.session.disconnect()

    def is_at(self, transport: asyncio.Transport) -> bool:
        return self._transport is transport

    def data(self, body: bytes) -> None:
        items = self.session.data(body)
        if items:
            self._receive(items)

    def acknowledgement(self, body: bytes) -> None:
        self.session.acknowledgement(body)
        if self._was_congested and not self.session.congested:
            self._was_congested = False
            if self._congestion is not None:
                self._congestion(False)


class _Connection(Buffered):
    """What both sides of a connection share: frames, the handshake's deadline, heartbeats, one line at the end."""

    def __init__(self, max_frame: int, patience: float) -> None:
        super().__init__()
        self._reader = FrameReader(HANDSHAKE_LIMIT)
        self._patience = patience
        self._max_frame = max_frame
        self._link: Link | None = None
        self._wanted: Link | None = None  # what the connection is to be for, as far as that is known before it is made
        self._peer = "?"
        self._heard = False
        self._silent = 0
        self._timer: asyncio.TimerHandle | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peer = peer_of(transport)
        self._timer = asyncio.get_running_loop().call_later(self._patience, self._too_late)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        link = self._link
        try:
            for kind, body in self._reader.feed(data):
                if link is None:
                    self._handshake(kind, body)
                    link = self._link
                elif kind == FrameKind.DATA:
                    link.data(body)
                elif kind == FrameKind.ACK:
                    link.acknowledgement(body)
                elif kind == FrameKind.PING:
                    self._transport.write(frame(FrameKind.PONG))
                elif kind != FrameKind.PONG:
                    raise PeerFault(f"{FrameKind(kind).name} came in the middle of a session.")
                if self._transport.is_closing():
                    return
        except PeerFault as fault:
            self._drop(str(fault))
            return
        if link is not None and link.is_at(self._transport):
            link.answer()

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._link is not None:
            self._link.detach(self._transport)
        if not self.ended.done():
            self.ended.set_result(None)

    @abstractmethod
    def _handshake(self, kind: int, body: bytes) -> None:
        """A frame that came before the two sides know each other."""

    def _established(self, link: Link, peer_received: int) -> None:
        self._reader.limit = self._max_frame
        self._link = link
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_SECONDS, self._beat)
        link.attach(self._transport, peer_received)

    def _beat(self) -> None:
        """A half-open connection is silent for ever: ask, and if nobody answers, end it."""
        reading = self._transport.is_reading()
        self._silent = 0 if self._heard or not reading else self._silent + 1
        self._heard = False
        if self._silent >= _SILENT_BEATS:
            self._drop("it has been silent for too long")
            return
        if self._silent:
            self._transport.write(frame(FrameKind.PING))
        self._timer = asyncio.get_running_loop().call_later(HEARTBEAT_SECONDS, self._beat)

    def _too_late(self) -> None:
        self._drop(f"no handshake within {self._patience:g} s")

    def _drop(self, why: str) -> None:
        link = self._link or self._wanted
        whose = f" of {link.name}" if link is not None else ""
        _log.warning("Connection%s with %s dropped: %s", whose, self._peer, why)
        self._transport.abort()


class _Accepted(_Connection):
    def __init__(self, key: bytes, life: str, accept: Accept, max_frame: int, strangers: Strangers) -> None:
        super().__init__(max_frame, ACCEPT_SECONDS)
        self._strangers = strangers
        self._auth = Accepting(key)
        self._accept = accept
        self._life = life
        self._expected = FrameKind.HELLO

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._strangers.enter(self, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._strangers.leave(self)
        super().connection_lost(error)

    def _handshake(self, kind: int, body: bytes) -> None:
        if kind != self._expected:
            raise PeerFault(f"{FrameKind(kind).name} came where {self._expected.name} was expected.")
        if kind == FrameKind.HELLO:
            self._expected = FrameKind.PROOF
            self._transport.write(self._auth.greeted(body))
            return
        claim = self._auth.proved(body)
        self._strangers.leave(self)
        answer = self._accept(claim)
        if isinstance(answer, Refusal):
            self._transport.write(self._auth.refuse(answer))
            self._transport.close()
            return
        self._transport.write(self._auth.welcome(answer.session.received, self._life))
        self._established(answer, claim.received)


class _Dialled(_Connection):
    def __init__(self, dialer: Dialer, max_frame: int, patience: float) -> None:
        super().__init__(max_frame, patience)
        self._wanted = dialer.link
        self._dialer = dialer
        self._auth = Dialling(dialer.key, dialer.claim())
        self._challenged = False
        self._answered = False  # welcomed, refused, or broken off by this side

    def _drop(self, why: str) -> None:
        self._answered = True
        self._dialer.last_error = why
        super()._drop(why)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answered:
            self._dialer.last_error = why_broken(error, tls=self._transport.get_extra_info("ssl_object") is not None)
        super().connection_lost(error)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport.write(self._auth.begin())

    def _handshake(self, kind: int, body: bytes) -> None:
        if not self._challenged and kind == FrameKind.CHALLENGE:
            self._challenged = True
            self._transport.write(self._auth.challenged(body))
        elif self._challenged and kind in (FrameKind.WELCOME, FrameKind.REFUSED):
            answer = self._auth.answered(kind, body)
            self._answered = True
            if isinstance(answer, Refusal):
                self._dialer.refused(answer)
                self._transport.close()
            elif self._dialer.welcomed(answer):
                self._established(self._dialer.link, answer.received)
            else:
                self._transport.close()
        else:
            raise PeerFault(f"{FrameKind(kind).name} came in the middle of a handshake.")


class Dialer:
    """Keeps a link connected: dials, and dials again, until the link is closed."""

    def __init__(
        self,
        link: Link,
        address: Address,
        key: bytes,
        *,
        node: str,
        channel: str = "",
        incarnation: Incarnation = Incarnation(0),  # noqa: B008
        session: str = "",
        tls: ssl.SSLContext | None = None,
        max_frame: int = MAX_FRAME,
        is_running: Callable[[], bool] | None = None,
        on_refused: Callable[[Refusal], None] | None = None,
        on_welcome: Callable[[Welcome], bool] | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        """`on_welcome` returns False to refuse: the process at the other end is not the one that the session is
        with."""
        self.link = link
        self.key = key
        self.address = address
        self.last_error = ""
        self._claim = (node, channel, incarnation, session)
        self._tls = tls
        self._max_frame = max_frame
        self._is_running = is_running
        self._on_refused = on_refused
        self._on_welcome = on_welcome
        self._on_lost = on_lost
        self._task = asyncio.get_running_loop().create_task(self._dial())

    def claim(self) -> Claim:
        running = self._is_running is not None and self._is_running()
        return Claim(*self._claim, running, self.link.session.received)

    def welcomed(self, welcome: Welcome) -> bool:
        if self.link.closed:
            return False  # meanwhile
        self.last_error = ""
        return self._on_welcome is None or self._on_welcome(welcome)

    def refused(self, refusal: Refusal) -> None:
        self.last_error = refusal.reason
        if self._on_refused is not None:
            self._on_refused(refusal)

    def close(self) -> None:
        self.link.close()
        self._task.cancel()

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        failures, attempts = 0, 0
        while not self.link.closed:
            patience = DIAL_SECONDS[min(attempts, len(DIAL_SECONDS) - 1)]
            try:
                async with asyncio.timeout(patience):
                    _, connection = await loop.create_connection(
                        partial(_Dialled, self, self._max_frame, patience), *self.address, ssl=self._tls
                    )
            except TimeoutError:
                self.last_error = f"no connection within {patience:g} s"
                attempts += 1
            except (OSError, UnicodeError) as error:  # ValueError: not a possible host name
                self.last_error = why_broken(error, tls=self._tls is not None)
            else:
                began = loop.time()
                await connection.ended
                if connection._link is None:
                    attempts += loop.time() - began >= patience
                else:
                    failures, attempts = 0, 0
                    if self._on_lost is not None and not self.link.closed:
                        self._on_lost()
            failures += 1
            await asyncio.sleep(backoff(failures, 0.02, 1.0, 1.6) * random.uniform(0.5, 1.0))


async def listen(
    address: Address,
    key: bytes,
    life: str,
    accept: Accept,
    *,
    tls: ssl.SSLContext | None = None,
    max_frame: int = MAX_FRAME,
    strangers: Strangers | None = None,
) -> asyncio.Server:
    """`strangers` are those who have connected to this process and not yet proved who they are."""
    strangers = strangers or Strangers(_log)
    inside = partial(_Accepted, key, life, accept, max_frame, strangers)
    factory = inside if tls is None else partial(Door, inside, tls, ACCEPT_SECONDS, strangers)
    return await asyncio.get_running_loop().create_server(factory, *address, backlog=_AT_ONCE)
