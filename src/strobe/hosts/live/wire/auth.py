"""Who is at the other end: a shared key, proved by both sides, never sent.

        dialling side                                accepting side
        HELLO      claim, nonce          ───▶
                                         ◀───        CHALLENGE  nonce, proof("accepting")
        PROOF      proof("dialling")     ───▶
                                         ◀───        WELCOME  what has been received, or REFUSED  reason

A proof is an HMAC-SHA256 under the key over the side's name, the whole HELLO and the accepting side's nonce. Both
nonces are fresh, so a proof is useless on another connection; because of the side's name it cannot be sent back to its
author. This proves who speaks when a connection is made. Against somebody who can change bytes on the way, use TLS as
well.

No I/O: each side is a function from the frame that came to the frame that goes.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

import msgspec

from strobe.hosts.live.wire.framing import UNREADABLE, FrameKind, frame
from strobe.model.errors import Misuse, PeerFault
from strobe.model.ids import Incarnation

__all__ = ["Accepting", "Claim", "Dialling", "Refusal", "Welcome", "check_key"]

VERSION: Final = 1
_NONCE: Final = 32
_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Claim:
    """What the dialling side wants: to be `node`, and to go on with `session` on `channel` (empty: control).

    `running` says whether its incarnation has started: then everyone was ready for it.
    """

    node: str
    channel: str
    incarnation: Incarnation
    session: str
    running: bool
    received: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """`life` names the accepting process: a restarted one has another."""

    received: int
    life: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """`incarnation` is the accepting side's, if it is the reason."""

    reason: str
    incarnation: Incarnation = Incarnation(0)  # noqa: RUF009


@dataclass(frozen=True, slots=True)
class _Hello:
    version: int
    nonce: bytes
    claim: Claim


@dataclass(frozen=True, slots=True)
class _Challenge:
    nonce: bytes
    proof: bytes


_hello: Final = msgspec.msgpack.Decoder(_Hello).decode
_challenge: Final = msgspec.msgpack.Decoder(_Challenge).decode
_welcome: Final = msgspec.msgpack.Decoder(Welcome).decode
_refusal: Final = msgspec.msgpack.Decoder(Refusal).decode


def check_key(key: bytes) -> bytes:
    if len(key) < 16:
        raise Misuse(
            f"The shared key has {len(key)} bytes; at least 16 are needed.",
            untouched="Nothing was started.",
            next="Make one: python -c 'import secrets; print(secrets.token_hex(32))'",
        )
    return key


def _proof(key: bytes, side: bytes, hello: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, side + b"\0" + nonce + hello, hashlib.sha256)


def _wrong(what: str) -> PeerFault:
    return PeerFault(f"{what}.", next="Both ends need the same key.")


class Dialling:
    """The side that opens the connection."""

    def __init__(self, key: bytes, claim: Claim) -> None:
        self._key = key
        self._hello = _encode(_Hello(VERSION, secrets.token_bytes(_NONCE), claim))

    def begin(self) -> bytes:
        return frame(FrameKind.HELLO, self._hello)

    def challenged(self, body: bytes) -> bytes:
        """Answers the challenge, once the other side has proved itself."""
        try:
            challenge = _challenge(body)
        except UNREADABLE as error:
            raise PeerFault(f"A challenge cannot be read: {error}.") from None
        if len(challenge.nonce) != _NONCE:  # a longer one could reach into the greeting, and be a proof of another one
            raise PeerFault(f"A challenge has a nonce of {len(challenge.nonce)} bytes, not {_NONCE}.")
        if not hmac.compare_digest(challenge.proof, _proof(self._key, b"accepting", self._hello, challenge.nonce)):
            raise _wrong("The accepting side does not know the key")
        return frame(FrameKind.PROOF, _proof(self._key, b"dialling", self._hello, challenge.nonce))

    @staticmethod
    def answered(kind: int, body: bytes) -> Welcome | Refusal:
        try:
            return _welcome(body) if kind == FrameKind.WELCOME else _refusal(body)
        except UNREADABLE as error:
            raise PeerFault(f"The answer to a greeting cannot be read: {error}.") from None


class Accepting:
    """The side that is connected to. `claim` may be trusted once `proved` has returned."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._hello = b""
        self._nonce = secrets.token_bytes(_NONCE)

    def greeted(self, body: bytes) -> bytes:
        self._hello = body
        return frame(
            FrameKind.CHALLENGE, _encode(_Challenge(self._nonce, _proof(self._key, b"accepting", body, self._nonce)))
        )

    def proved(self, body: bytes) -> Claim:
        if not self._hello or not hmac.compare_digest(body, _proof(self._key, b"dialling", self._hello, self._nonce)):
            raise _wrong("The dialling side does not know the key")
        try:
            hello = _hello(self._hello)
        except UNREADABLE as error:
            raise PeerFault(f"A greeting cannot be read: {error}.") from None
        if hello.version != VERSION:
            raise PeerFault(f"The peer speaks version {hello.version} of the protocol, and this process {VERSION}.")
        return hello.claim

    @staticmethod
    def welcome(received: int, life: str) -> bytes:
        return frame(FrameKind.WELCOME, _encode(Welcome(received, life)))

    @staticmethod
    def refuse(refusal: Refusal) -> bytes:
        return frame(FrameKind.REFUSED, _encode(refusal))
