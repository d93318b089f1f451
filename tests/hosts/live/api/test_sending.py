"""What a process calls to send: one by one, and in lists, by the short way and by the long one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from strobe.hosts.live.api.codec import decode_message, encode_message, marker_item, message
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.node.ends import Output
from strobe.hosts.live.node.sending import send_quickly
from strobe.hosts.live.wire.session import Session
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId, SnapshotId
from tests.support.live.apps import Account, Transfer
from tests.support.live.systems import bank, money, run, system, verified


class Wire:
    """A link without a connection: what was sent is in its session."""

    name = "a-b"
    connected = False

    def __init__(self, max_frame: int) -> None:
        self.session = Session(max_frame=max_frame)
        self.scheduled = False

    def send(self, item: bytes) -> None:
        self.session.send(item)

    def schedule(self) -> None:
        assert not self.scheduled
        self.scheduled = True

    def close(self) -> None:
        pass

    def items(self) -> list[Any]:
        return [decode_message(item) for item in self.session._fresh]


class Sender:
    def __init__(self, process: Process | None = None, max_frame: int = 4096, before: int = 0) -> None:
        self.process = process or Process()
        self.wire = Wire(max_frame)
        self.output = Output(NodeId("b"), self.wire, self.wire, sent=before)
        self.the_long_way: list[Any] = []
        vars(self.process)["send"] = self.send
        send_quickly(self.process, {"b": self.output}, self.send)

    def send(self, to: str, message: Any) -> None:
        """As `Life.send` does it."""
        self.the_long_way.append(message)
        if to != "b":
            raise Misuse(f"no channel to {to!r}")
        item = encode_message(message)
        if len(item) > self.output.max_item:
            raise Misuse("too large")
        self.output.add(item)


@pytest.mark.parametrize("make", [list, tuple, iter], ids=["list", "tuple", "iterator"])
def test_a_list_is_its_messages_in_order(make: Callable[[list[Any]], Any]) -> None:
    sender = Sender()
    sender.process.send("b", "before")
    sender.process.send_all("b", make([Transfer(1), 2, "three"]))
    assert sender.wire.items() == ["before", Transfer(1), 2, "three"]
    assert sender.output.sent == 4
    assert sender.wire.scheduled
    assert not sender.the_long_way


def test_an_empty_list_sends_nothing() -> None:
    sender = Sender()
    sender.process.send_all("b", [])
    assert (sender.wire.items(), sender.output.sent, sender.wire.scheduled) == ([], 0, False)


@pytest.mark.parametrize(
    "bad", [object(), {"a": object()}, 2**70, "x" * 5000], ids=["class", "field", "number", "size"]
)
def test_those_before_one_that_cannot_be_sent_are_sent(bad: object) -> None:
    sender = Sender()
    with pytest.raises(Misuse):
        sender.process.send_all("b", [1, 2, bad, 4])
    with pytest.raises(Misuse):
        sender.process.send("b", bad)
    assert sender.wire.items() == [1, 2]
    assert sender.output.sent == 2


def test_a_receiver_that_is_none_is_refused_by_the_long_way() -> None:
    sender = Sender()
    for send in (sender.process.send, lambda to, message: sender.process.send_all(to, [message])):
        with pytest.raises(Misuse, match="no channel to 'c'"):
            send("c", 1)
    assert sender.wire.items() == []


def test_what_was_sent_is_as_it_was_when_it_was_sent() -> None:
    sender, changing = Sender(), [1]
    sender.process.send_all("b", [changing])
    changing.append(2)
    sender.process.send("b", changing)
    changing.append(3)
    assert sender.wire.items() == [[1], [1, 2]]


@pytest.mark.parametrize(
    "value",
    [None, True, -1, 2**64 - 1, 0.5, "", "ü" * 40, b"\x00" * 300, [1, [2]], (1, 2), {"a": {1: "b"}}, Transfer(7)],
    ids=str,
)
def test_both_ways_give_the_same_bytes(value: object) -> None:
    sender = Sender()
    sender.process.send("b", value)
    sender.process.send_all("b", [value])
    assert sender.wire.session._fresh == [encode_message(value)] * 2
    assert not sender.the_long_way


def test_a_marker_stands_where_it_was_sent_and_is_no_message() -> None:
    sender, marker = Sender(before=10), marker_item(SnapshotId(1))
    sender.process.send("b", 1)
    sender.process.send_all("b", [2, 3])
    assert sender.output.sent == 13
    sender.output.mark(marker)
    assert sender.output.sent == 13
    sender.process.send("b", 4)
    assert sender.wire.session._fresh == [*map(encode_message, (1, 2, 3)), marker, encode_message(4)]
    assert sender.output.sent == 14


def test_what_was_sent_is_counted_wherever_it_is() -> None:
    """Just taken, waiting for the window, on its way, acknowledged."""
    sender, session = Sender(), Session(window=100, max_frame=4096)
    sender.wire.session = session
    sender.output = Output(NodeId("b"), sender.wire, sender.wire, sent=0)
    vars(sender.process)["send"] = sender.send
    send_quickly(sender.process, {"b": sender.output}, sender.send)
    session.connect(0)
    for number in range(300):
        sender.process.send("b", "x" * 20)
        if number % 7 == 0:
            session.take()
        if number == 100:
            session.acknowledgement(msgspec.msgpack.encode(session._next - 1))
        assert sender.output.sent == number + 1
    assert session.congested


def test_a_class_that_is_registered_late_goes_the_short_way() -> None:
    sender = Sender()

    @message
    @dataclass
    class SentLate:
        number: int

    sender.process.send("b", SentLate(1))
    assert sender.wire.session._fresh == [encode_message(SentLate(1))]
    assert not sender.the_long_way


def test_a_class_with_a_send_of_its_own_gets_every_message() -> None:
    class Counting(Process):
        sent = 0

        def send(self, to: str, message: Any) -> None:
            self.sent += 1

    process = Counting()
    send_quickly(process, {}, lambda to, message: None)
    process.send_all("b", [1, 2, 3])
    assert process.sent == 3


@dataclass
class Payroll(Account):
    """Pays in lists."""

    def on_timer(self, name: str) -> None:
        for peer in self.peers:
            amount = min(self.balance, self.burst)
            self.balance -= amount
            self.send_all(peer, [Transfer(1) for _ in range(amount)])


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
def test_money_that_goes_in_lists_is_in_every_cut_once(tmp_path: Path, protocol: str) -> None:
    async def work() -> None:
        topology = bank("abc", Payroll)
        async with system(type(topology)("bank", topology.nodes, topology.channels, protocol), tmp_path) as live:
            for _ in range(5):
                loaded = verified(live, await live.snapshot())
                assert money(loaded) == 3000

    run(work)
