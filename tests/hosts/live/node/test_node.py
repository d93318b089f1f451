"""One node in this process, spoken to by hand: the handshake of a restore, the fence."""

from __future__ import annotations

from typing import Any

from strobe.hosts.live.api.codec import decode_plain, encode_message, encode_state, marker_item
from strobe.hosts.live.api.topology import joined
from strobe.hosts.live.node.node import Node, NodeConfig
from strobe.hosts.live.snapshot.bulk import packed, unpacked
from strobe.hosts.live.wire.auth import Refusal
from strobe.hosts.live.wire.control import (
    Control,
    Go,
    IsReady,
    IsRefused,
    IsRunning,
    Order,
    PartTaken,
    Piece,
    TakePart,
    pack,
    pieces,
    unpack,
)
from strobe.hosts.live.wire.link import Dialer, Link
from strobe.model.graph import Graph
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from tests.support.live.apps import Account, Transfer
from tests.support.live.systems import run
from tests.support.waiting import until

KEY = b"the key of these tests, 32 bytes"
GRAPH = Graph((NodeId("a"), NodeId("b")), joined(("a", "b")))


class Hand:
    """The coordinator and node a, played by the test, in front of a real node b."""

    async def __aenter__(self) -> Hand:
        self.node = Node(NodeConfig(NodeId("b"), Account, {}, GRAPH, KEY))
        self.address = await self.node.listen()
        self.said: list[Control] = []
        self.pieces: dict[str, bytes] = {}
        self.control = Link("control", self._told)
        self.dialers = [Dialer(self.control, self.address, KEY, node="", session="s")]
        return self

    async def __aexit__(self, *exception: object) -> None:
        for dialer in self.dialers:
            dialer.close()
        self.node.close()

    def _told(self, items: list[bytes]) -> None:
        for item in items:
            message = unpack(item)
            if isinstance(message, Piece):
                self.pieces[message.channel] = self.pieces.get(message.channel, b"") + message.data
            else:
                self.said.append(message)

    def order(self, incarnation: int, snapshot: int = 0, **changes: Any) -> None:
        empty: dict[str, Any] = {"sent": {}, "received": {}, "timers": []}
        self.control.send(pack(Order(incarnation, 1, snapshot, {}, **{**empty, **changes})))

    def bring(self, incarnation: int, data: bytes, channel: str = "") -> int:
        """A state or a content, ahead of its order. Returns how many bytes."""
        for item in pieces(incarnation, data, channel=channel, max_item=1 << 20):
            self.control.send(item)
        return len(data)

    def channel(self, incarnation: int, *, running: bool = True) -> tuple[Link, list[Refusal]]:
        refused: list[Refusal] = []
        link = Link("a-b", lambda items: None)
        dialer = Dialer(link, self.address, KEY, node="a", channel="a-b", incarnation=Incarnation(incarnation),
                        is_running=lambda: running, on_refused=refused.append)  # fmt: skip
        self.dialers.append(dialer)
        return link, refused

    async def hears(self, message: Control) -> None:
        await until(lambda: message in self.said)

    async def part(self) -> PartTaken:
        await until(lambda: any(isinstance(message, PartTaken) for message in self.said))
        return next(message for message in self.said if isinstance(message, PartTaken))


def test_a_node_loads_says_ready_and_starts_when_told() -> None:
    async def work() -> None:
        async with Hand() as hand:
            hand.order(1)
            await hand.hears(IsReady(1))
            assert IsRunning(1) not in hand.said
            hand.control.send(pack(Go(1)))
            await hand.hears(IsRunning(1))

    run(work)


def test_what_was_in_flight_is_delivered_before_what_comes() -> None:
    async def work() -> None:
        async with Hand() as hand:
            size = hand.bring(3, encode_state({"balance": 5, "turn": 0}, "a"))
            content = [encode_message(Transfer(amount)) for amount in (10, 20)]
            held = hand.bring(3, b"".join(packed(content, 2)), "a-b")
            hand.order(3, 7, state_bytes=size, content_bytes={"a-b": held}, received={"a-b": 4})
            await hand.hears(IsReady(3))
            hand.control.send(pack(Go(3)))
            link, _ = hand.channel(3)
            link.send(encode_message(Transfer(100)))
            link.send(marker_item(SnapshotId(8)))
            part = await hand.part()
            assert decode_plain(hand.pieces[""])["balance"] == 135
            assert part.received == {"a-b": 7}
            assert part.contents == {"a-b": 0}

    run(work)


def test_messages_between_the_recording_and_the_marker_are_the_channels_content() -> None:
    async def work() -> None:
        async with Hand() as hand:
            hand.order(1)
            await hand.hears(IsReady(1))
            hand.control.send(pack(Go(1)))
            await hand.hears(IsRunning(1))
            hand.control.send(pack(TakePart(1, 1)))
            await until(lambda: hand.pieces)
            link, _ = hand.channel(1)
            inside, behind = encode_message(Transfer(1)), encode_message(Transfer(2))
            for item in (inside, marker_item(SnapshotId(1)), behind):
                link.send(item)
            part = await hand.part()
            assert part.contents == {"a-b": 1}
            assert unpacked(hand.pieces["a-b"]) == [inside]
            assert part.received == {"a-b": 0}

    run(work)


def test_a_voice_from_an_older_life_is_fenced_off_and_hears_it() -> None:
    async def work() -> None:
        async with Hand() as hand:
            hand.order(5)
            await hand.hears(IsReady(5))
            hand.control.send(pack(Go(5)))
            await hand.hears(IsRunning(5))
            _, refused = hand.channel(4)
            await until(lambda: refused)
            assert refused[0] == Refusal("that life is over", Incarnation(5))

    run(work)


def test_a_peer_that_runs_in_a_later_life_ends_this_one() -> None:
    async def work() -> None:
        async with Hand() as hand:
            hand.order(1)
            await hand.hears(IsReady(1))
            hand.control.send(pack(Go(1)))
            await hand.hears(IsRunning(1))
            hand.channel(2, running=True)
            await until(lambda: hand.node.life is None)

    run(work)


def test_a_peer_that_has_only_loaded_a_later_life_waits() -> None:
    async def work() -> None:
        async with Hand() as hand:
            hand.order(1)
            await hand.hears(IsReady(1))
            hand.control.send(pack(Go(1)))
            await hand.hears(IsRunning(1))
            _, refused = hand.channel(2, running=False)
            await until(lambda: refused)
            assert hand.node.life is not None
            hand.order(2)
            await hand.hears(IsReady(2))

    run(work)


def test_a_state_that_does_not_fit_the_class_is_refused_with_the_field() -> None:
    async def work() -> None:
        async with Hand() as hand:
            hand.order(2, 7, state_bytes=hand.bring(2, encode_state({"balance": "much"}, "a")))
            await until(lambda: any(isinstance(message, IsRefused) for message in hand.said))
            (refused,) = (message for message in hand.said if isinstance(message, IsRefused))
            assert "Account.balance" in refused.reason

    run(work)


def test_a_state_that_did_not_come_whole_is_refused() -> None:
    async def work() -> None:
        async with Hand() as hand:
            hand.order(2, 7, state_bytes=1 + hand.bring(2, encode_state({"balance": 1}, "a")))
            await until(lambda: any(isinstance(message, IsRefused) for message in hand.said))
            (refused,) = (message for message in hand.said if isinstance(message, IsRefused))
            assert "its state did not come whole" in refused.reason

    run(work)


def test_pieces_of_an_order_that_was_overtaken_are_no_part_of_the_next_one() -> None:
    async def work() -> None:
        async with Hand() as hand:
            for incarnation in (2, 3):
                size = hand.bring(incarnation, encode_state({"balance": incarnation, "turn": 0}, "a"))
                hand.order(incarnation, 7, state_bytes=size)
            await hand.hears(IsReady(3))
            assert hand.node.life is not None
            assert hand.node.life.process.snapshot()["balance"] == 3

    run(work)
