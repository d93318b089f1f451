"""Bytes that come over a connection, made hostile: what live nodes, the gate and the control API read.

Real messages are taken, and something is done to their bytes, or to the values before they are packed: then the
handshake's proofs fit, since whoever knows the key may still speak nonsense. What must hold: a `PeerFault`, or a value
of the declared type; no other error, no more than ten seconds, no more memory than the message has. A gate and a
control API on real sockets serve those who know the secret afterwards, as before.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import random
import socket
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from strobe.hosts.live.api import codec
from strobe.hosts.live.wire import auth, control
from strobe.hosts.live.wire.datagrams import _SEAL, Ack, Data, Sealer
from strobe.hosts.live.wire.framing import Frame, FrameKind, FrameReader, frame
from strobe.hosts.live.wire.session import Session
from strobe.hosts.shared.loopback import LoopbackServer, request
from strobe.hosts.spark.channel.gate import Gate, GateClient, GateHandler
from strobe.model.errors import PeerFault
from strobe.model.ids import ChannelId, Incarnation, NodeId
from tests.hostile.cases import Violation, alarm
from tests.hostile.mutations import hostile, places

__all__ = ["run_frame_case"]

_KEY: Final = b"k" * 32
_NUMBERS: Final = (0, 1, 2, 255, 2**15, 2**16, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)


@codec.message
@dataclass(frozen=True)
class Pay:
    amount: int
    note: str = ""


def run_frame_case(seed: int, number: int, root: Path) -> str:
    """As `cases.run_case`."""
    dice = random.Random(f"frames/{seed}/{number}")
    name = dice.choice(list(WAYS))
    done = f"seed {seed}, frame case {number}: {name}"
    try:
        with alarm():
            WAYS[name](dice, root)
    except PeerFault:
        pass
    except Exception:
        raise Violation(f"{done} ends with an error of its own:\n{traceback.format_exc()}") from None
    return done


# ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _spoiled(dice: random.Random, data: bytes) -> bytes:
    """Something is done to some of the bytes."""
    out = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(out) + 1)
        match dice.randrange(6):
            case 0 if out:
                out[at % len(out)] ^= 1 << dice.randrange(8)
            case 1:
                del out[at:]
            case 2:
                out[at:at] = dice.randbytes(dice.choice((1, 4, 100)))
            case 3:
                out[at : at + 4] = struct.pack("!I", dice.choice(_NUMBERS) & 0xFFFFFFFF)
            case 4:
                out[at:at] = dice.choice((b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x91" * 50_000, b"\xc1"))
            case _:
                del out[at : at + dice.choice((1, 2, 8))]
    return bytes(out)


def _packed(dice: random.Random, data: bytes, canary: Path) -> bytes:
    """One of the values in it is another one, and it is packed as it should be."""
    value = [msgspec.msgpack.decode(data)]
    _, parent, key = dice.choice(list(places(value)))
    parent[key] = hostile(dice, canary)
    try:
        return msgspec.msgpack.encode(value[0])
    except (OverflowError, ValueError, UnicodeEncodeError, RecursionError):
        return _spoiled(dice, data)


def _bad(dice: random.Random, data: bytes, root: Path) -> bytes:
    return _packed(dice, data, root) if dice.random() < 0.5 else _spoiled(dice, data)


# ── live nodes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _frames(dice: random.Random, root: Path) -> None:
    bodies = [dice.randbytes(dice.choice((0, 1, 50, 900))) for _ in range(4)]
    data = _spoiled(dice, b"".join(frame(dice.choice(list(FrameKind)), body) for body in bodies))
    reader, found = FrameReader(), list[Frame]()
    while data:
        size = dice.choice((1, 3, 1000))
        found += reader.feed(data[:size])
        data = data[size:]
    assert all(kind in set(FrameKind) for kind, _ in found)


def _greeting(dice: random.Random, root: Path) -> None:
    """The hello is nonsense, and the proof of it fits."""
    dialling = auth.Dialling(_KEY, _claim())
    hello = _bad(dice, _body(dialling.begin()), root)
    accepting = auth.Accepting(_KEY)
    challenge = msgspec.msgpack.decode(_body(accepting.greeted(hello)))
    nonce = challenge["nonce"] if isinstance(challenge, dict) else challenge[0]
    claim = accepting.proved(auth._proof(_KEY, b"dialling", hello, nonce))
    assert isinstance(claim, auth.Claim)


def _challenge(dice: random.Random, root: Path) -> None:
    dialling = auth.Dialling(_KEY, _claim())
    challenge = _body(auth.Accepting(_KEY).greeted(_body(dialling.begin())))
    dialling.challenged(_bad(dice, challenge, root))


def _answer(dice: random.Random, root: Path) -> None:
    welcome = _body(auth.Accepting.welcome(7, "life"))
    refused = _body(auth.Accepting.refuse(auth.Refusal("no")))
    auth.Dialling.answered(dice.choice(list(FrameKind)), _bad(dice, dice.choice((welcome, refused)), root))


def _claim() -> auth.Claim:
    return auth.Claim("a", "e", Incarnation(1), "session", True, 0)


def _body(data: bytes) -> bytes:
    return next(iter(FrameReader(1 << 20).feed(data)))[1]


def _control(dice: random.Random, root: Path) -> None:
    kinds = [k for k in vars(control).values() if isinstance(k, type) and issubclass(k, control._Message)]
    kind = dice.choice([k for k in kinds if k is not control._Message])
    fields = msgspec.structs.fields(kind)
    values = {f.encode_name: dice.choice((1, "a", [], {}, None, b"x", [1], {"a": 1}, 2**63)) for f in fields}
    tag = kind.__struct_config__.tag
    item = control._MESSAGE + msgspec.msgpack.encode({"type": tag, **values})
    found = control.unpack(item if dice.random() < 0.3 else item[:1] + _bad(dice, item[1:], root))
    assert isinstance(found, (control._Message, control.Piece))


def _piece(dice: random.Random, root: Path) -> None:
    item = next(control.pieces(dice.choice(_NUMBERS) & (2**63 - 1), b"data", channel="größe", max_item=1000))
    control.unpack(_spoiled(dice, item))


def _datagram(dice: random.Random, root: Path) -> None:
    sealer = Sealer(_KEY)
    sealed = sealer.seal(dice.choice((Data(1, "e", 1, [b"x"]), Ack(1, "e", 1, [2]))))
    body = _bad(dice, sealed[_SEAL:], root)
    seal = hmac.digest(_KEY, body, hashlib.sha256)[:_SEAL]
    for datagram in (seal + body, _spoiled(dice, sealed)):
        assert sealer.open(datagram) is None or isinstance(sealer.open(datagram), (Data, Ack))


def _session(dice: random.Random, root: Path) -> None:
    sender, receiver = Session(), Session()
    sender.connect(0)
    receiver.connect(0)
    for _ in range(3):
        sender.send(dice.randbytes(20))
    for kind, body in FrameReader(1 << 24).feed(sender.take()):
        if kind == FrameKind.DATA:
            receiver.data(_spoiled(dice, body))
    receiver.acknowledgement(dice.randbytes(dice.choice((0, 4, 8, 16))))


def _message(dice: random.Random, root: Path) -> None:
    item = codec.encode_message(Pay(3, "x"))
    bad = _spoiled(dice, item)
    for read in (codec.decode_message, codec.marker_id, codec.count_of, codec.item_to_json):
        with contextlib.suppress(PeerFault):
            if read is not codec.marker_id or codec.is_marker(bad):
                read(bad)


# ── the driver's ports ──────────────────────────────────────────────────────────────────────────────────────────────


class _Handler:
    def available(self, stage: NodeId, channel: ChannelId) -> int:
        return 7

    def files(self, stage: NodeId, channel: ChannelId, start: int, end: int) -> list[Any]:
        return []


def _gate(dice: random.Random, root: Path) -> None:
    with Gate(cast(GateHandler, _Handler())) as gate:
        hello = json.dumps({"token": gate.address.token if dice.random() < 0.5 else "x"}).encode()
        asked: dict[str, Any] = {"ask": "available", "stage": "s", "channel": "c", "start": 1, "end": 2}
        _, parent, key = dice.choice(list(places(asked)))
        parent[key] = hostile(dice, root)
        words = [hello, json.dumps(asked).encode(), b"[" * 50_000, b'{"ask":' * 9999]
        data = b"".join(struct.pack("!I", len(w)) + w for w in dice.sample(words, 3))
        _say(gate.address.port, data if dice.random() < 0.5 else _spoiled(dice, data))
        client = GateClient(gate.address, NodeId("s"), ChannelId("c"))
        assert client.available() == 7
        client.close()


def _api(dice: random.Random, root: Path) -> None:
    token = root / "case-token"
    server = LoopbackServer(token, lambda *_: (200, {"n": 7}), what="job", log=logging.getLogger("strobe.test"))
    try:
        secret = token.read_text() if dice.random() < 0.5 else "größe\x1b"
        body = dice.choice((b"{}", b"[" * 50_000, b"\xff", b'{"a":1e999}', b"9" * 5000, b""))
        length = dice.choice((str(len(body)), "-1", "1e3", "99999999999999999999", "", "\x00", "0x10"))
        line = dice.choice(("GET /v1/status HTTP/1.1", "POST / HTTP/1.1", "X" * 9000, "GET /%00%ff HTTP/9.9", "GET"))
        head = f"{line}\r\nAuthorization: Bearer {secret}\r\nContent-Length: {length}\r\n\r\n"
        data = head.encode() + body
        _say(server.port, data if dice.random() < 0.6 else _spoiled(dice, data))
        assert request(server.port, token, "GET", "/", who="job", gone="") == {"n": 7}
    finally:
        server.stop()
        token.unlink()


def _say(port: int, data: bytes) -> None:
    """And hang up."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as peer, contextlib.suppress(OSError):
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65536):
            pass


WAYS: Final[dict[str, Callable[[random.Random, Path], None]]] = {
    "frames": _frames,
    "greeting": _greeting,
    "challenge": _challenge,
    "answer": _answer,
    "control message": _control,
    "piece of a state": _piece,
    "datagram": _datagram,
    "session": _session,
    "message": _message,
    "gate": _gate,
    "control API": _api,
}
