"""The proofs at the beginning of a connection: what somebody without the key can make of those of others."""

from __future__ import annotations

import msgspec
import pytest

from strobe.hosts.live.wire.auth import Accepting, Claim, Dialling, _Challenge
from strobe.hosts.live.wire.framing import FrameReader
from strobe.model.errors import PeerFault
from strobe.model.ids import Incarnation

KEY = b"k" * 32


def body(data: bytes) -> bytes:
    return next(iter(FrameReader().feed(data)))[1]


def test_a_proof_for_one_greeting_is_none_for_another() -> None:
    """Somebody listens where a node is dialled, perhaps at the port of one that is gone, and greets another node with
    what he likes, the dialling node's own greeting at its end. With a nonce that reaches into that greeting the same
    bytes would be proved for both."""
    dialling, accepting = Dialling(KEY, Claim("a", "a-b", Incarnation(1), "s", False, 0)), Accepting(KEY)
    greeting = body(dialling.begin())
    claim = {"node": "c", "channel": "", "incarnation": 9, "session": "mine", "running": True, "received": 0}
    wanted = {"version": 1, "nonce": b"n" * 32, "claim": claim, "rest": greeting}
    forged = msgspec.msgpack.encode(wanted)
    assert forged.endswith(greeting)
    challenge = msgspec.msgpack.decode(body(accepting.greeted(forged)), type=_Challenge)
    reaching = _Challenge(challenge.nonce + forged.removesuffix(greeting), challenge.proof)
    with pytest.raises(PeerFault, match="nonce"):
        accepting.proved(body(dialling.challenged(msgspec.msgpack.encode(reaching))))


def test_both_sides_of_a_pair_know_each_other() -> None:
    claim = Claim("a", "a-b", Incarnation(1), "s", False, 0)
    dialling, accepting = Dialling(KEY, claim), Accepting(KEY)
    challenge = accepting.greeted(body(dialling.begin()))
    assert accepting.proved(body(dialling.challenged(body(challenge)))) == claim
