"""The rules of the run itself: what nodes and channels can do, whatever snapshots are taken."""

from __future__ import annotations

import pytest

from strobe.model.events import (
    Completed,
    Duplicated,
    Event,
    Lost,
    MarkerReceived,
    MarkerSent,
    Received,
    Restarted,
    Sent,
)
from strobe.model.ids import Incarnation, SnapshotId
from strobe.verify.consistency import check_journal
from strobe.verify.journal import Journal
from strobe.verify.violation import Rule, Violation
from tests.verify.bank import AB, BA, A, B, cut, get, idle, journal, pay, record

S1 = SnapshotId(1)


def violations(*events: Event, order: str = "fifo") -> tuple[Violation, ...]:
    return check_journal(journal(*events, order=order)).violations


def only(found: tuple[Violation, ...]) -> Violation:
    assert len(found) == 1, [v.sentence for v in found]
    return found[0]


# ── nodes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "events",
    [
        (idle(A, 2),),
        (idle(A, 1), idle(A, 3)),
        (idle(A, 1), idle(A, 1)),
        (idle(A, 1), idle(A, 2), idle(A, 1)),
    ],
)
def test_a_node_counts_its_steps_one_by_one(events: tuple[Event, ...]) -> None:
    assert Rule.STEP_ORDER in [v.rule for v in violations(*events)]


@pytest.mark.parametrize(
    "events",
    [
        (Sent(A, 1, AB, 1, 5),),
        (idle(A, 1), Sent(A, 2, AB, 1, 5)),
        (idle(A, 1), idle(A, 2), Sent(A, 1, AB, 1, 5)),
    ],
)
def test_a_send_belongs_to_the_step_that_is_under_way(events: tuple[Event, ...]) -> None:
    violation = only(violations(*events))
    assert violation.rule is Rule.STEP_ORDER
    assert "a sends outside of a step" in violation.sentence


def test_a_node_records_between_steps_never_inside_one() -> None:
    assert only(violations(idle(A, 1), record(A, 1), Sent(A, 1, AB, 1, 5))).rule is Rule.STEP_ORDER


def test_a_recording_names_the_step_that_it_stands_behind() -> None:
    violation = only(violations(idle(A, 1), idle(A, 2), record(A, 1)))
    assert violation.rule is Rule.RECORD_ORDER
    assert "after step 1, says the journal (line 4), but at that point it had done 2 steps" in violation.sentence
    assert only(violations(idle(A, 1), MarkerSent(A, 0, AB, S1))).rule is Rule.RECORD_ORDER


def test_after_a_restart_steps_go_on_counting_upward() -> None:
    restart = Restarted(Incarnation(2), cut({A: 100, B: 100}, snapshot=0))
    assert violations(idle(A, 1), idle(A, 2), restart, idle(A, 3)) == ()
    assert violations(idle(A, 1), idle(A, 2), restart, idle(A, 7), idle(A, 8)) == ()
    assert only(violations(idle(A, 1), idle(A, 2), restart, idle(A, 1))).rule is Rule.STEP_ORDER
    assert only(violations(idle(A, 1), restart, idle(A, 5), idle(A, 7))).rule is Rule.STEP_ORDER


def test_only_a_channels_own_ends_use_it() -> None:
    assert only(violations(idle(B, 1), Sent(B, 1, AB, 1, 5))).rule is Rule.WRONG_END
    found = violations(*pay(A, 1, AB, 1), Received(A, 2, AB, 1))
    assert only(found).rule is Rule.WRONG_END
    assert "a received message 1 on a→b (step 2), but only b can" in found[0].sentence


# ── channels ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_are_numbered_one_by_one() -> None:
    assert only(violations(*pay(A, 1, AB, 2))).rule is Rule.SEQ_ORDER
    assert only(violations(*pay(A, 1, AB, 1), *pay(A, 2, AB, 3))).rule is Rule.SEQ_ORDER
    assert only(violations(*pay(A, 1, AB, 1), *pay(A, 2, AB, 1))).rule is Rule.SEQ_ORDER


def test_a_receipt_without_a_send_is_named() -> None:
    violation = only(violations(get(B, 1, AB, 1)))
    assert violation.rule is Rule.RECEIVE_WITHOUT_SEND
    assert violation.sentence == "b received message 1 on a→b (step 1), but a never sent it."


def test_a_message_of_an_older_incarnation_is_stale() -> None:
    restart = Restarted(Incarnation(2), cut({A: 100, B: 100}, snapshot=0))
    violation = only(violations(*pay(A, 1, AB, 1), restart, get(B, 1, AB, 1)))
    assert violation.rule is Rule.STALE_MESSAGE
    assert "a sent it in incarnation 1 (step 1)" in violation.sentence


OVERTAKING = (*pay(A, 1, AB, 1), *pay(A, 2, AB, 2), get(B, 1, AB, 2), get(B, 2, AB, 1))


def test_a_fifo_channel_keeps_its_order() -> None:
    violation = only(violations(*OVERTAKING))
    assert violation.rule is Rule.FIFO_ORDER
    assert violation.sentence == (
        "b received message 1 on a→b (step 2) after message 2 (step 1), which a sent later: the channel did not keep "
        "its order."
    )


def test_a_reordering_channel_may_reorder() -> None:
    assert violations(*OVERTAKING, order="reorder") == ()


@pytest.mark.parametrize("order", ["fifo", "reorder"])
def test_a_message_delivered_twice_is_named(order: str) -> None:
    violation = only(
        violations(*pay(A, 1, AB, 1), Duplicated(AB, 1), get(B, 1, AB, 1), get(B, 2, AB, 1), order=order)
    )  # fmt: skip
    assert violation.rule is Rule.DUPLICATE_DELIVERY
    assert "b received message 1 on a→b (step 2), but it had received it before (step 1)" in violation.sentence


def test_a_gap_that_a_lost_message_leaves_is_no_reordering() -> None:
    assert violations(*pay(A, 1, AB, 1), *pay(A, 2, AB, 2), Lost(AB, 1), get(B, 1, AB, 2)) == ()


def test_steps_that_wait_for_each_other_are_named() -> None:
    violation = only(violations(get(A, 1, BA, 1), *pay(A, 2, AB, 1), get(B, 1, AB, 1), *pay(B, 2, BA, 1)))
    assert violation.rule is Rule.CAUSAL_LOOP
    assert violation.first is not None
    assert violation.second is not None


# ── markers of Chandy and Lamport's algorithm ───────────────────────────────────────────────────────────────────────


def sent(node: str, step: int = 0) -> MarkerSent:
    return MarkerSent(A if node == "a" else B, step, AB if node == "a" else BA, S1)


def received(node: str, step: int = 0) -> MarkerReceived:
    return MarkerReceived(A if node == "a" else B, step, BA if node == "a" else AB, S1)


DONE = Completed(cut({A: 100, B: 100}))
GOOD: tuple[Event, ...] = (record(A, 0), sent("a"), received("b"), record(B, 0), sent("b"), received("a"), DONE)


def with_markers(*events: Event, order: str = "fifo") -> Journal:
    return journal(*events, order=order, protocol="chandy-lamport")


def test_one_marker_each_way_on_every_channel_is_right_and_counted() -> None:
    report = check_journal(with_markers(*GOOD))
    assert report.ok, report.sentence
    assert (report.markers_sent, report.markers_received, report.snapshots[0].markers) == (2, 2, 2)


@pytest.mark.parametrize("gone", [1, 2, 4, 5])
def test_a_channel_without_its_marker_is_named(gone: int) -> None:
    violation = only(check_journal(with_markers(*GOOD[:gone], *GOOD[gone + 1 :])).violations)
    assert violation.rule is Rule.MARKER_COUNT
    assert violation.channel == (AB if gone < 3 else BA)


@pytest.mark.parametrize("twice", [1, 2, 4, 5])
def test_a_second_marker_is_named(twice: int) -> None:
    violation = only(check_journal(with_markers(*GOOD[:twice], GOOD[twice], *GOOD[twice:])).violations)
    assert violation.rule is Rule.MARKER_COUNT
    assert "2 markers were" in violation.sentence


def test_a_marker_that_goes_out_before_the_recording_is_named() -> None:
    violation = only(check_journal(with_markers(GOOD[1], GOOD[0], *GOOD[2:])).violations)
    assert violation.rule is Rule.MARKER_ORDER
    assert "before it recorded" in violation.sentence


def test_a_marker_that_goes_out_after_a_later_step_is_named() -> None:
    events = (record(A, 0), idle(A, 1), sent("a", 1), received("b"), record(B, 0), sent("b"), received("a", 1), DONE)
    violation = only(check_journal(with_markers(*events)).violations)
    assert violation.rule is Rule.MARKER_ORDER
    assert "only after step 1" in violation.sentence


def test_a_marker_that_overtakes_a_message_is_named() -> None:
    events = (
        *pay(A, 1, AB, 1), record(A, 1), sent("a", 1), received("b"), record(B, 0), sent("b"), received("a", 1),
        get(B, 1, AB, 1), Completed(cut({A: 90, B: 100}, {AB: [(1, [10, 0])]})),
    )  # fmt: skip
    violation = only(check_journal(with_markers(*events)).violations)
    assert violation.rule is Rule.MARKER_OVERTOOK
    assert "a had sent 1 message on a→b ahead of it, but b had received 0" in violation.sentence
    assert check_journal(with_markers(*events, order="reorder")).ok


def test_other_protocols_are_judged_by_their_cuts_alone() -> None:
    assert check_journal(journal(record(A, 0), record(B, 0), DONE, protocol="lai-yang")).ok
