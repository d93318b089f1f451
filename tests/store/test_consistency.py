"""Law 1 on manifests: each way in which recorded positions can fail to be a consistent cut is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId, Timeline
from strobe.store.consistency import check_manifest
from strobe.store.manifest import ChannelRecord, InFlight, Manifest, NodeRecord
from strobe.verify.violation import Rule
from tests.store.snapshot_samples import BALANCES, CHANNEL, POSTINGS, manifest

FRAUD = NodeId("fraud")
FAN_OUT = Graph(
    (POSTINGS, BALANCES, FRAUD),
    (
        Channel(ChannelId("postings>balances"), POSTINGS, BALANCES),
        Channel(ChannelId("postings>fraud"), POSTINGS, FRAUD),
    ),
)


def cut(
    read: Mapping[NodeId, int] | None = None,
    flights: Mapping[NodeId, tuple[int, int]] | None = None,
    barrier: int | None = 12,
    producer: NodeId = POSTINGS,
    snapshot: int = 1,
    timeline: int = 1,
) -> Manifest:
    read = {BALANCES: 10, FRAUD: 12} if read is None else read
    flights = {BALANCES: (10, 12), FRAUD: (12, 12)} if flights is None else flights
    nodes = {n: NodeRecord(inputs={CHANNEL: read[n]} if n in read else {}) for n in FAN_OUT.nodes}
    in_flight = {n: InFlight(*flight) for n, flight in flights.items()}
    record = ChannelRecord(producer, "channels/postings", barrier, in_flight)
    return manifest(
        snapshot, {}, graph=FAN_OUT, nodes=nodes, channels={CHANNEL: record}, timeline=Timeline(timeline)
    )  # fmt: skip


def rules(made: Manifest, previous: Manifest | None = None) -> list[Rule]:
    return [violation.rule for violation in check_manifest(made, previous)]


def test_a_consistent_cut_has_no_violation() -> None:
    assert rules(cut()) == []
    assert rules(manifest(1, {})) == []


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (cut(read={BALANCES: 13, FRAUD: 12}, flights={BALANCES: (12, 12), FRAUD: (12, 12)}), Rule.EFFECT_WITHOUT_CAUSE),
        (cut(flights={BALANCES: (9, 12), FRAUD: (12, 12)}), Rule.RANGE_MISMATCH),
        (cut(flights={BALANCES: (11, 12), FRAUD: (12, 12)}), Rule.RANGE_MISMATCH),
        (cut(flights={BALANCES: (10, 13), FRAUD: (12, 12)}), Rule.RANGE_MISMATCH),
        (cut(flights={BALANCES: (10, 11), FRAUD: (12, 12)}), Rule.RANGE_MISMATCH),
        (cut(flights={BALANCES: (10, 12)}), Rule.MISSING_CHANNEL),
        (cut(flights={BALANCES: (10, 12), FRAUD: (12, 12), POSTINGS: (12, 12)}), Rule.WRONG_END),
        (cut(producer=FRAUD), Rule.WRONG_END),
        (replace(cut(read={}), channels={}), Rule.MISSING_CHANNEL),
    ],
)
def test_each_fault_is_found(broken: Manifest, rule: Rule) -> None:
    assert rules(broken) == [rule]


def test_a_position_that_was_not_recorded_is_not_taken_for_a_right_one() -> None:
    assert rules(cut(read={FRAUD: 12})) == [Rule.RANGE_MISMATCH]
    assert set(rules(cut(barrier=None))) == {Rule.EFFECT_WITHOUT_CAUSE}


def test_positions_never_go_back_on_a_timeline() -> None:
    earlier = cut(barrier=13, flights={BALANCES: (10, 13), FRAUD: (12, 13)})
    assert rules(earlier) == []
    assert rules(cut(snapshot=2), earlier) == [Rule.POSITION_BACKWARDS]
    assert rules(cut(snapshot=2, timeline=2), earlier) == []


def test_a_channel_that_is_one_of_the_graph_is_judged_by_its_own_id() -> None:
    """Two channels side by side between the same nodes, as live processes have them."""
    one, two = ChannelId("one"), ChannelId("two")
    graph = Graph((POSTINGS, BALANCES), (Channel(one, POSTINGS, BALANCES), Channel(two, POSTINGS, BALANCES)))
    nodes = {POSTINGS: NodeRecord(), BALANCES: NodeRecord(inputs={one: 3, two: 5})}
    channels = {
        one: ChannelRecord(POSTINGS, None, 4, {BALANCES: InFlight(3, 4)}),
        two: ChannelRecord(POSTINGS, None, 5, {BALANCES: InFlight(5, 5)}),
    }
    assert rules(manifest(1, {}, graph=graph, nodes=nodes, channels=channels)) == []
    channels[two] = ChannelRecord(POSTINGS, None, 4, {BALANCES: InFlight(4, 4)})
    (violation,) = check_manifest(manifest(1, {}, graph=graph, nodes=nodes, channels=channels))
    assert (violation.rule, violation.channel) == (Rule.EFFECT_WITHOUT_CAUSE, two)


def test_a_channel_that_counts_nothing_is_left_to_the_journal() -> None:
    graph = Graph((POSTINGS, BALANCES), (Channel(ChannelId("c"), POSTINGS, BALANCES),))
    nodes = {POSTINGS: NodeRecord(), BALANCES: NodeRecord()}
    channels = {ChannelId("c"): ChannelRecord(POSTINGS)}
    assert rules(manifest(1, {}, graph=graph, nodes=nodes, channels=channels)) == []
