"""The session and its frames, without any I/O: two ends joined in memory."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strobe.hosts.live.wire.auth import Accepting, Claim, Dialling, Refusal, Welcome, check_key
from strobe.hosts.live.wire.framing import FrameKind, FrameReader, frame
from strobe.hosts.live.wire.session import Session
from strobe.model.errors import HostFault, Misuse, PeerFault
from strobe.model.ids import Incarnation

# ── frames ──────────────────────────────────────────────────────────────────────────────────────────────────────────

frames = st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=300)), max_size=8)


@given(frames, st.data())
def test_frames_come_out_whole_however_the_bytes_are_cut(
    sent: list[tuple[FrameKind, bytes]], data: st.DataObject
) -> None:
    reader, rest = FrameReader(1024), b"".join(frame(k, b) for k, b in sent)
    got: list[tuple[int, bytes]] = []
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        got += reader.feed(rest[:size])
        rest = rest[size:]
    assert got == sent
    assert reader.waiting == 0


@given(st.binary(max_size=100))
def test_any_bytes_are_frames_or_the_peers_fault(data: bytes) -> None:
    reader = FrameReader(64)
    try:
        list(reader.feed(data))
    except PeerFault:
        return
    assert reader.waiting <= 4 + 64


def test_an_oversized_frame_is_refused_by_its_length_alone() -> None:
    with pytest.raises(PeerFault, match="1,000,001 bytes was announced"):
        list(FrameReader(1000).feed((1_000_001).to_bytes(4, "big") + b"\x06"))


# ── the session ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Wire:
    """One connection at a time between two sessions; what is under way when it breaks is lost, at any byte."""

    def __init__(self, seed: int, **options: int) -> None:
        self.dice = random.Random(seed)
        self.ends = (Session(**options), Session(**options))
        self.got: tuple[list[bytes], list[bytes]] = ([], [])
        self.connect()

    def connect(self) -> None:
        a, b = self.ends
        a.disconnect()
        b.disconnect()
        a.connect(b.received)
        b.connect(a.received)
        self.flying = [b"", b""]
        self.readers = (FrameReader(1 << 20), FrameReader(1 << 20))

    def carry(self, sender: int, part: bool = True) -> None:
        """Some of what the sender has written reaches the other end, cut anywhere."""
        self.flying[sender] += self.ends[sender].take()
        size = self.dice.randint(0, len(self.flying[sender])) if part else len(self.flying[sender])
        data, self.flying[sender] = self.flying[sender][:size], self.flying[sender][size:]
        end, got = self.ends[1 - sender], self.got[1 - sender]
        for kind, body in self.readers[1 - sender].feed(data):
            if kind == FrameKind.DATA:
                got.extend(end.data(body))
            else:
                assert kind == FrameKind.ACK
                end.acknowledgement(body)

    def settle(self) -> None:
        for _ in range(1000):
            self.carry(0, part=False)
            self.carry(1, part=False)
            if all(end.idle for end in self.ends):
                return
        raise AssertionError("the two ends never came to rest")


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 400), st.sampled_from([64, 4096, 1 << 22]))
def test_nothing_is_lost_repeated_or_reordered_whatever_breaks(seed: int, count: int, window: int) -> None:
    wire = Wire(seed, window=window, max_frame=4096)
    dice, sent = random.Random(seed + 1), ([], [])  # type: tuple[random.Random, tuple[list[bytes], list[bytes]]]
    for number in range(count):
        action = dice.random()
        if action < 0.5:
            who = dice.randrange(2)
            for _ in range(dice.randint(1, 30)):
                item = b"%d:%d:" % (who, number) + bytes(dice.randint(0, 200))
                sent[who].append(item)
                wire.ends[who].send(item)
        elif action < 0.92:
            wire.carry(dice.randrange(2))
        else:
            wire.connect()
    wire.settle()
    assert wire.got[1] == sent[0], f"seed {seed}"
    assert wire.got[0] == sent[1], f"seed {seed}"


def test_no_more_than_the_window_is_on_its_way() -> None:
    wire = Wire(1, window=1000, max_frame=4096)
    sender = wire.ends[0]
    for _ in range(100):
        sender.send(bytes(900))
    wire.flying[0] += sender.take()
    assert sender.unacknowledged <= 1000 + 4096
    assert sender.congested
    assert sender.queued > 90
    wire.settle()
    assert not sender.congested
    assert len(wire.got[1]) == 100


def test_many_empty_items_never_make_a_frame_too_long() -> None:
    wire = Wire(1, window=1 << 22, max_frame=4096)
    wire.readers = (FrameReader(4096), FrameReader(4096))
    for _ in range(50_000):
        wire.ends[0].send(b"")
    wire.settle()
    assert len(wire.got[1]) == 50_000


def test_an_item_that_no_frame_can_hold_is_refused() -> None:
    with pytest.raises(HostFault, match="does not fit"):
        Session(max_frame=4096).send(bytes(5000))


def test_a_gap_is_the_peers_fault() -> None:
    a, b = Session(), Session()
    a.connect(0)
    b.connect(0)
    a.send(b"1")
    a.take()
    a.send(b"2")
    second = a.take()
    with pytest.raises(PeerFault, match="left something out"):
        b.data(second[5:])


def test_a_peer_of_another_session_is_found_out() -> None:
    a = Session()
    with pytest.raises(PeerFault, match="another session"):
        a.connect(7)


def test_acknowledging_what_was_never_sent_is_the_peers_fault() -> None:
    a = Session()
    a.connect(0)
    with pytest.raises(PeerFault, match="acknowledged"):
        a.acknowledgement(b"\x05")


@given(st.binary(max_size=60))
def test_any_body_of_a_data_or_ack_frame_is_read_or_the_peers_fault(body: bytes) -> None:
    end = Session()
    end.connect(0)
    for read in (end.data, end.acknowledgement):
        try:
            read(body)
        except PeerFault:
            continue


# ── the handshake ───────────────────────────────────────────────────────────────────────────────────────────────────

KEY = b"k" * 32
CLAIM = Claim("a", "a-b", Incarnation(3), "s", False, 17)


def body_of(data: bytes) -> bytes:
    ((_, body),) = FrameReader(1024).feed(data)
    return body


def test_both_ends_prove_that_they_know_the_key() -> None:
    dialling, accepting = Dialling(KEY, CLAIM), Accepting(KEY)
    challenge = accepting.greeted(body_of(dialling.begin()))
    proof = dialling.challenged(body_of(challenge))
    assert accepting.proved(body_of(proof)) == CLAIM
    assert dialling.answered(FrameKind.WELCOME, body_of(accepting.welcome(5, "x"))) == Welcome(5, "x")
    refusal = Refusal("no", Incarnation(4))
    assert dialling.answered(FrameKind.REFUSED, body_of(accepting.refuse(refusal))) == refusal


def test_the_dialling_side_finds_out_a_wrong_key() -> None:
    dialling, accepting = Dialling(KEY, CLAIM), Accepting(b"x" * 32)
    with pytest.raises(PeerFault, match="accepting side does not know the key"):
        dialling.challenged(body_of(accepting.greeted(body_of(dialling.begin()))))


def test_a_proof_is_worth_nothing_on_another_connection() -> None:
    dialling, accepting, other = Dialling(KEY, CLAIM), Accepting(KEY), Accepting(KEY)
    proof = dialling.challenged(body_of(accepting.greeted(body_of(dialling.begin()))))
    other.greeted(body_of(dialling.begin()))
    with pytest.raises(PeerFault, match="dialling side does not know the key"):
        other.proved(body_of(proof))


def test_a_proof_cannot_be_sent_back_to_its_maker() -> None:
    accepting = Accepting(KEY)
    hello = body_of(Dialling(b"x" * 32, CLAIM).begin())
    challenge = body_of(accepting.greeted(hello))
    with pytest.raises(PeerFault):
        accepting.proved(challenge[-32:])


def test_a_short_key_is_refused() -> None:
    with pytest.raises(Misuse, match="at least 16"):
        check_key(b"short")


def test_an_acknowledgement_is_due_when_much_has_come_and_not_for_every_frame() -> None:
    here, there = Session(window=16_000), Session(window=16_000)
    here.connect(0)
    there.connect(0)
    due = []
    for _ in range(4):
        here.send(bytes(400))
        for _, body in FrameReader(4096).feed(here.take()):
            there.data(body)
        due.append((there.owes, there.owes_much))
    assert due == [(True, False), (True, False), (True, True), (True, True)], "a sixteenth of the window has come"
    assert there.take()
    assert (there.owes, there.owes_much) == (False, False)
