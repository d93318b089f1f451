"""Law 1 for logs: what is in flight is what lies between the reader's position and the barrier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.positions import (
    ChannelCut,
    ConsumerCut,
    LogGraph,
    LogSnapshot,
    check_log_snapshot,
)
from strobe.verify.violation import Rule, Violation

BRONZE, SILVER, GOLD, AUDIT = (NodeId(n) for n in ("bronze", "silver", "gold", "audit"))
RAW, CLEAN = ChannelId("raw"), ChannelId("clean")
GRAPH = LogGraph((BRONZE, SILVER, GOLD, AUDIT), {RAW: BRONZE, CLEAN: SILVER}, {RAW: (SILVER, AUDIT), CLEAN: (GOLD,)})


def check_in_turn(*snapshots: LogSnapshot) -> tuple[Violation, ...]:
    """Snapshots of one timeline, each against the one before it."""
    before = (None, *snapshots)
    return tuple(v for b, s in zip(before, snapshots, strict=False) for v in check_log_snapshot(GRAPH, s, b))


def snapshot(
    number: int = 1, *, raw: int = 10, silver: int = 7, audit: int = 10, clean: int = 5, gold: int = 5
) -> LogSnapshot:
    """What law 1 demands for these positions."""
    return LogSnapshot(
        SnapshotId(number),
        frozenset(GRAPH.nodes),
        {
            RAW: ChannelCut(
                RAW, BRONZE, raw, {SILVER: ConsumerCut(silver, silver, raw), AUDIT: ConsumerCut(audit, audit, raw)}
            ),
            CLEAN: ChannelCut(CLEAN, SILVER, clean, {GOLD: ConsumerCut(gold, gold, clean)}),
        },
    )


def with_consumer(consumer: ConsumerCut, barrier: int = 10) -> LogSnapshot:
    """The same with another reader of raw."""
    good = snapshot(raw=barrier, audit=0)
    raw = good.channels[RAW]
    return replace(good, channels={**good.channels, RAW: replace(raw, consumers={**raw.consumers, SILVER: consumer})})


def only(violations: tuple[Violation, ...]) -> Violation:
    assert len(violations) == 1, [v.sentence for v in violations]
    return violations[0]


def test_a_range_from_the_consumed_to_the_barriers_position_is_right() -> None:
    assert check_log_snapshot(GRAPH, snapshot()) == ()


def test_a_reader_beyond_the_barrier_shows_an_effect_without_its_cause() -> None:
    violation = only(check_log_snapshot(GRAPH, with_consumer(ConsumerCut(12, 12, 10))))
    assert (violation.rule, violation.channel, violation.node) == (Rule.EFFECT_WITHOUT_CAUSE, RAW, SILVER)
    assert violation.sentence == (
        "Snapshot 1: silver had read raw up to 12 when it recorded, but bronze had appended only up to 10 when it did: "
        "the cut shows an effect without its cause."
    )


@pytest.mark.parametrize(
    ("start", "end", "harm"),
    [
        (6, 10, "what it had read already would be read again"),
        (8, 10, "what lies outside of that range would never be read"),
        (7, 9, "what lies outside of that range would never be read"),
        (7, 11, "what was appended after the barrier would be read as well"),
        (7, 7, "what lies outside of that range would never be read"),
        (5, 12, "would be read again, and what was appended after the barrier would be read as well"),
    ],
)
def test_any_other_range_is_named_with_the_harm_that_it_does(start: int, end: int, harm: str) -> None:
    violation = only(check_log_snapshot(GRAPH, with_consumer(ConsumerCut(7, start, end))))
    assert violation.rule is Rule.RANGE_MISMATCH
    assert f"(7, 10] is in flight, but the snapshot holds ({start}, {end}]" in violation.sentence
    assert harm in violation.sentence


def test_a_stage_without_a_state_is_named() -> None:
    partial = replace(snapshot(), recorded=frozenset({BRONZE, SILVER, AUDIT}))
    violation = only(check_log_snapshot(GRAPH, partial))
    assert (violation.rule, violation.node) == (Rule.MISSING_STATE, GOLD)


def test_a_channel_without_a_position_is_named() -> None:
    good = snapshot()
    violation = only(check_log_snapshot(GRAPH, replace(good, channels={RAW: good.channels[RAW]})))
    assert (violation.rule, violation.channel) == (Rule.MISSING_CHANNEL, CLEAN)


def test_a_reader_whose_position_is_missing_is_named() -> None:
    good = snapshot()
    raw = replace(good.channels[RAW], consumers={SILVER: good.channels[RAW].consumers[SILVER]})
    violation = only(check_log_snapshot(GRAPH, replace(good, channels={**good.channels, RAW: raw})))
    assert (violation.rule, violation.node) == (Rule.MISSING_CHANNEL, AUDIT)


def test_readers_and_producers_that_the_graph_does_not_have_are_named() -> None:
    good = snapshot()
    stranger = replace(good.channels[CLEAN], consumers={GOLD: ConsumerCut(5, 5, 5), AUDIT: ConsumerCut(5, 5, 5)})
    violation = only(check_log_snapshot(GRAPH, replace(good, channels={**good.channels, CLEAN: stranger})))
    assert (violation.rule, violation.node) == (Rule.WRONG_END, AUDIT)
    usurper = replace(good.channels[CLEAN], producer=BRONZE)
    violation = only(check_log_snapshot(GRAPH, replace(good, channels={**good.channels, CLEAN: usurper})))
    assert (violation.rule, violation.node) == (Rule.WRONG_END, BRONZE)


def test_names_that_the_graph_does_not_have_are_named() -> None:
    good = snapshot()
    more = replace(good, recorded=good.recorded | {NodeId("tin")})
    assert only(check_log_snapshot(GRAPH, more)).rule is Rule.UNKNOWN_NAME
    lead = ChannelId("lead")
    more = replace(good, channels={**good.channels, lead: ChannelCut(lead, BRONZE, 1, {})})
    assert only(check_log_snapshot(GRAPH, more)).rule is Rule.UNKNOWN_NAME


def test_positions_rise_from_snapshot_to_snapshot() -> None:
    assert check_in_turn(snapshot(1), snapshot(2, raw=12, audit=12), snapshot(3, raw=12, audit=12)) == ()


def test_a_barrier_that_went_backwards_is_named() -> None:
    violation = only(check_in_turn(snapshot(1, clean=6), snapshot(2, clean=5)))
    assert (violation.rule, violation.node, violation.snapshot) == (Rule.POSITION_BACKWARDS, SILVER, 2)
    assert "silver had appended clean up to 5, but in snapshot 1" in violation.sentence


def test_a_reader_that_went_backwards_is_named() -> None:
    violation = only(check_in_turn(snapshot(1, silver=8), snapshot(2, silver=7)))
    assert (violation.rule, violation.node) == (Rule.POSITION_BACKWARDS, SILVER)
    assert "silver had read raw up to 7" in violation.sentence
