"""The worked examples, step by step, as the books tell them."""

from __future__ import annotations

from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.workloads import workload
from strobe.hosts.sim.workloads.two_process import TwoProcess
from strobe.hosts.sim.world import Choice, World
from strobe.model.cut import Cut, Message
from strobe.model.ids import SnapshotId

FIRST = SnapshotId(1)


def taken(example: str, protocol: str, *choices: tuple[str, str] | tuple[str, str, int]) -> Cut:
    """The snapshot after these choices; its initiators are all that a choice may name."""
    script = TwoProcess.scripts()[example]
    load = workload("two-process", 2, script.params)
    plan = [(FIRST, load.graph.nodes)]
    world = World(load.graph, load, PROTOCOLS[protocol], scripts=script.actions, plan=plan)
    for choice in choices:
        world.perform(Choice(*choice))
    return world.finished[FIRST].cut


def values(cut: Cut) -> list[int]:
    return [next(v for k, v in state.items() if k in ("balance", "x", "y")) for state in cut.states.values()]


def content(cut: Cut) -> dict[str, tuple[Message, ...]]:
    return {channel: messages for channel, messages in cut.channels.items() if messages}


def test_recorded_after_sending_and_before_receiving_fifty_vanish() -> None:
    cut = taken(
        "transfer", "agreed-clock",
        ("act", "A"), ("initiate", "A", 1), ("initiate", "B", 1), ("deliver", "A-B"),
    )  # fmt: skip
    assert values(cut) == [150, 200]
    assert workload("two-process").check(cut) == "50 vanished: the two banks have 400 together."


def test_recorded_before_sending_and_after_receiving_fifty_appear() -> None:
    cut = taken(
        "transfer", "agreed-clock",
        ("initiate", "A", 1), ("act", "A"), ("deliver", "A-B"), ("initiate", "B", 1),
    )  # fmt: skip
    assert values(cut) == [200, 250]
    assert workload("two-process").check(cut) == "50 appeared: the two banks have 400 together."


def test_chandy_lamport_finds_the_fifty_in_the_channel() -> None:
    """B records by itself while the money is under way."""
    cut = taken(
        "transfer", "chandy-lamport",
        ("act", "A"), ("initiate", "B", 1), ("deliver", "B-A"), ("deliver", "A-B"), ("deliver", "A-B"),
    )  # fmt: skip
    assert values(cut) == [150, 200]
    assert content(cut) == {"A-B": (Message(1, 50),)}
    assert workload("two-process").check(cut) is None


def test_the_snapshot_begun_when_all_messages_have_arrived() -> None:
    """P has x = 10, Q has y = 5, and both channels are empty."""
    cut = taken(
        "messages", "chandy-lamport",
        ("act", "P"), ("deliver", "P-Q"), ("act", "Q"), ("deliver", "Q-P"),
        ("initiate", "P", 1), ("deliver", "P-Q"), ("deliver", "Q-P"),
    )  # fmt: skip
    assert values(cut) == [10, 5]
    assert content(cut) == {}


def test_the_snapshot_begun_by_p_right_after_sending_m1() -> None:
    """m1 comes before the marker, so it is in Q's state: x = 0, y = 5, both channels empty."""
    cut = taken(
        "messages", "chandy-lamport",
        ("act", "P"), ("initiate", "P", 1), ("deliver", "P-Q"), ("deliver", "P-Q"), ("deliver", "Q-P"),
    )  # fmt: skip
    assert values(cut) == [0, 5]
    assert content(cut) == {}


def test_m2_sent_before_the_recording_of_q_is_in_the_channel() -> None:
    """What the channel holds was sent before its sender recorded, and received after its receiver did."""
    cut = taken(
        "messages", "chandy-lamport",
        ("act", "P"), ("initiate", "P", 1), ("deliver", "P-Q"), ("act", "Q"), ("deliver", "P-Q"),
        ("deliver", "Q-P"), ("deliver", "Q-P"),
    )  # fmt: skip
    assert values(cut) == [0, 5]
    assert content(cut) == {"Q-P": (Message(1, "m2"),)}


def test_m2_sent_after_the_recording_of_q_is_not() -> None:
    cut = taken(
        "messages", "chandy-lamport",
        ("act", "P"), ("initiate", "P", 1), ("deliver", "P-Q"), ("deliver", "P-Q"), ("act", "Q"), ("deliver", "Q-P"),
    )  # fmt: skip
    assert values(cut) == [0, 5]
    assert content(cut) == {}
