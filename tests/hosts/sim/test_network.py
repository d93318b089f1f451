"""Channels: barriers overtake messages but never each other, and carry along what they jumped over."""

from __future__ import annotations

from strobe.hosts.sim.dice import Dice
from strobe.hosts.sim.network import Barrier, End, Item, Marker, Stamped, Wire
from strobe.hosts.sim.topology import anything, complete, line, node_names, random_connected, ring
from strobe.model.cut import Message
from strobe.model.graph import Channel
from strobe.model.ids import ChannelId, NodeId, SnapshotId


def m(seq: int) -> Message:
    return Message(seq, f"m{seq}")


def b(snapshot: int, *overtaken: int, overtook: bool = False) -> Barrier:
    return Barrier(SnapshotId(snapshot), overtook or bool(overtaken), tuple(m(seq) for seq in overtaken))


def wire(*items: Item) -> Wire:
    made = Wire(Channel(ChannelId("P-Q"), NodeId("P"), NodeId("Q")))
    made.queue.extend(items)
    return made


def test_an_overtaking_barrier_goes_ahead_of_all_messages() -> None:
    channel = wire(m(1), m(2))
    channel.put_overtaking(SnapshotId(1))
    assert list(channel.queue) == [b(1, 1, 2), m(1), m(2)]


def test_on_an_empty_channel_it_overtakes_nothing_but_may_have() -> None:
    channel = wire()
    channel.put_overtaking(SnapshotId(1))
    assert list(channel.queue) == [b(1, overtook=True)]


def test_it_never_overtakes_another_barrier() -> None:
    channel = wire(m(1), b(1), m(2), m(3))
    channel.put_overtaking(SnapshotId(2))
    assert list(channel.queue) == [m(1), b(1), b(2, 2, 3), m(2), m(3)]


def test_a_waiting_barrier_can_be_told_to_overtake() -> None:
    channel = wire(m(1), m(2), b(1), m(3))
    assert channel.let_overtake(SnapshotId(1))
    assert list(channel.queue) == [b(1, 1, 2), m(1), m(2), m(3)]


def test_a_barrier_that_is_not_there_cannot_overtake() -> None:
    channel = wire(m(1), b(2))
    assert not channel.let_overtake(SnapshotId(1))
    assert list(channel.queue) == [m(1), b(2)]


def test_what_it_jumps_over_later_comes_before_what_it_jumped_over_first() -> None:
    """Content is in the order of sending: the messages in front were sent before those behind."""
    channel = wire(m(1), b(1), m(2))
    channel.put_overtaking(SnapshotId(2))  # jumps over 2, stops behind barrier 1
    assert channel.queue.popleft() == m(1)
    assert channel.queue.popleft() == b(1)
    channel.queue.appendleft(m(1))  # barrier 1 has gone, message 1 not yet
    assert channel.let_overtake(SnapshotId(2))
    assert list(channel.queue) == [b(2, 1, 2), m(1), m(2)]


def test_nothing_overtakes_an_end() -> None:
    channel = wire(m(1), End())
    channel.put_overtaking(SnapshotId(1))
    assert list(channel.queue) == [m(1), End(), b(1, overtook=True)]


def test_messages_in_flight_are_told_apart_from_markers() -> None:
    assert wire(m(4), Marker(SnapshotId(1)), m(5), b(2), Stamped(m(7), 3)).unreceived() == (4, 5, 7)


def test_dice_throw_the_same_on_every_machine() -> None:
    """Numbers that were thrown once and written down."""
    dice = Dice(42)
    assert [dice.below(1000) for _ in range(5)] == [639, 111, 25, 741, 275]
    assert [dice.between(5, 7) for _ in range(6)] == [5, 5, 5, 7, 5, 7]
    assert dice.shuffled(range(8)) == [7, 4, 1, 2, 0, 3, 6, 5]
    assert [dice.chance(300) for _ in range(6)] == [True, True, True, True, False, False]


def test_shapes_are_what_they_are_called() -> None:
    nodes = node_names(5)
    assert len(complete(nodes).channels) == 20
    assert [(c.source, c.target) for c in ring(nodes).channels][-1] == ("n5", "n1")
    assert len(line(nodes).channels) == 8
    for seed in range(20):
        graph = random_connected(nodes, 12, Dice(seed))
        assert len(graph.channels) == 12
        assert all(graph.reachable([node]) == set(nodes) for node in nodes), seed
    loops = [c for seed in range(20) for c in anything(nodes, 12, Dice(seed)).channels if c.source == c.target]
    assert loops
