"""Law 1, rule by rule, on runs small enough to follow by hand. In all of them a and b start with 100 each."""

from __future__ import annotations

import pytest

from strobe.model.cut import Cut, Message
from strobe.model.events import Completed, Duplicated, Event, Lost, Restarted
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.verify.consistency import check_cut, check_journal
from strobe.verify.violation import MEANING, Rule, Violation
from tests.verify.bank import AB, BA, A, B, cut, get, idle, journal, pay, record

TEN = [10, 0]


def only(violations: tuple[Violation, ...]) -> Violation:
    assert len(violations) == 1, [v.sentence for v in violations]
    return violations[0]


def rules(violations: tuple[Violation, ...]) -> list[Rule]:
    return [v.rule for v in violations]


# ── a consistent cut ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_in_flight_that_is_recorded_is_right() -> None:
    run = journal(*pay(A, 1, AB, 1), record(A, 1), record(B, 0), get(B, 1, AB, 1))
    assert check_cut(run, cut({A: 90, B: 100}, {AB: [(1, TEN)]})) == ()


def test_a_message_received_before_the_recording_is_in_the_state_and_not_in_the_channel() -> None:
    run = journal(*pay(A, 1, AB, 1), get(B, 1, AB, 1), record(A, 1), record(B, 1))
    assert check_cut(run, cut({A: 90, B: 110})) == ()


def test_a_message_sent_after_both_recordings_is_nowhere_in_the_cut() -> None:
    run = journal(record(A, 0), record(B, 0), *pay(A, 1, AB, 1), get(B, 1, AB, 1))
    assert check_cut(run, cut({A: 100, B: 100})) == ()


def test_a_message_that_never_arrives_is_still_in_flight() -> None:
    run = journal(*pay(A, 1, AB, 1), record(A, 1), record(B, 0))
    assert check_cut(run, cut({A: 90, B: 100}, {AB: [(1, TEN)]})) == ()


def test_the_order_of_lines_of_different_nodes_means_nothing() -> None:
    run = journal(record(B, 0), get(B, 1, AB, 1), *pay(A, 1, AB, 1), record(A, 1))
    assert check_cut(run, cut({A: 90, B: 100}, {AB: [(1, TEN)]})) == ()


# ── an effect without its cause: money appears ──────────────────────────────────────────────────────────────────────


def test_money_appears_when_a_receipt_is_recorded_but_its_send_is_not() -> None:
    run = journal(record(A, 0), idle(B, 1), *pay(A, 1, AB, 1), get(B, 2, AB, 1), record(B, 2))
    violation = only(check_cut(run, cut({A: 100, B: 110})))
    assert violation.rule is Rule.EFFECT_WITHOUT_CAUSE
    assert violation.sentence == (
        "Snapshot 1: b had received message 1 on a→b (step 2) before it recorded (after step 2), but a sent it (step "
        "1) only after it recorded (after step 0): the cut shows an effect without its cause."
    )


def test_a_violation_names_the_message_and_the_two_events_with_their_places() -> None:
    run = journal(record(A, 0), *pay(A, 1, AB, 1), get(B, 1, AB, 1), record(B, 1))
    violation = only(check_cut(run, cut({A: 100, B: 110})))
    assert (violation.snapshot, violation.channel, violation.message) == (1, AB, Message(1, TEN))
    assert violation.first is not None
    assert violation.second is not None
    assert (violation.first.event, violation.first.position, violation.first.line) == (run.events[2], 2, 4)
    assert (violation.second.event, violation.second.position) == (run.events[3], 3)


def test_an_effect_without_its_cause_is_no_better_for_being_recorded_as_in_flight() -> None:
    run = journal(record(A, 0), *pay(A, 1, AB, 1), get(B, 1, AB, 1), record(B, 1))
    assert Rule.EFFECT_WITHOUT_CAUSE in rules(check_cut(run, cut({A: 100, B: 110}, {AB: [(1, TEN)]})))


# ── a channel's content ─────────────────────────────────────────────────────────────────────────────────────────────


def test_money_vanishes_when_a_message_in_flight_is_not_recorded() -> None:
    run = journal(*pay(A, 1, AB, 1), record(A, 1), record(B, 0), get(B, 1, AB, 1))
    violation = only(check_cut(run, cut({A: 90, B: 100})))
    assert violation.rule is Rule.MISSING_MESSAGE
    assert violation.sentence == (
        "Snapshot 1: a sent message 1 on a→b (step 1) before it recorded (after step 1) and b received it (step 1) "
        "only after it recorded (after step 0), but the recorded content of a→b does not hold it: the message vanishes "
        "from the cut."
    )


def test_a_message_that_never_arrived_may_not_be_missing_either() -> None:
    run = journal(*pay(A, 1, AB, 1), record(A, 1), record(B, 0))
    violation = only(check_cut(run, cut({A: 90, B: 100})))
    assert violation.rule is Rule.MISSING_MESSAGE
    assert "b had not received it when it recorded (after step 0)" in violation.sentence


def test_one_missing_message_among_several_is_named() -> None:
    run = journal(*pay(A, 1, AB, 1), *pay(A, 2, AB, 2), *pay(A, 3, AB, 3), record(A, 3), record(B, 0))
    violation = only(check_cut(run, cut({A: 70, B: 100}, {AB: [(1, TEN), (3, TEN)]})))
    assert (violation.rule, violation.message) == (Rule.MISSING_MESSAGE, Message(2, TEN))


def test_a_message_may_not_be_both_received_and_in_flight() -> None:
    run = journal(*pay(A, 1, AB, 1), get(B, 1, AB, 1), record(A, 1), record(B, 1))
    violation = only(check_cut(run, cut({A: 90, B: 110}, {AB: [(1, TEN)]})))
    assert violation.rule is Rule.EXTRA_MESSAGE
    assert "b had received it already (step 1) before it recorded (after step 1)" in violation.sentence


def test_a_message_behind_the_marker_may_not_be_recorded() -> None:
    run = journal(record(A, 0), *pay(A, 1, AB, 1), record(B, 0), get(B, 1, AB, 1))
    violation = only(check_cut(run, cut({A: 100, B: 100}, {AB: [(1, TEN)]})))
    assert violation.rule is Rule.LATE_MESSAGE
    assert "a sent it (step 1) only after it recorded (after step 0)" in violation.sentence


def test_a_message_that_nobody_sent_may_not_be_recorded() -> None:
    run = journal(record(A, 0), record(B, 0))
    violation = only(check_cut(run, cut({A: 100, B: 100}, {AB: [(9, TEN)]})))
    assert (violation.rule, violation.message) == (Rule.INVENTED_MESSAGE, Message(9, TEN))


def test_a_message_is_recorded_with_the_payload_that_it_was_sent_with() -> None:
    run = journal(*pay(A, 1, AB, 1), record(A, 1), record(B, 0))
    violation = only(check_cut(run, cut({A: 90, B: 100}, {AB: [(1, [1000, 0])]})))
    assert violation.rule is Rule.ALTERED_MESSAGE
    assert "holds message 1 as [1000,0], but a sent [10,0]" in violation.sentence


def test_one_and_true_are_different_payloads() -> None:
    run = journal(*pay(A, 1, AB, 1, 1, 0), record(A, 1), record(B, 0))
    assert rules(check_cut(run, cut({A: 99, B: 100}, {AB: [(1, [True, 0])]}))) == [Rule.ALTERED_MESSAGE]


def test_fifo_content_is_in_the_order_of_sending() -> None:
    events = (*pay(A, 1, AB, 1), *pay(A, 2, AB, 2), record(A, 2), record(B, 0))
    backwards = cut({A: 80, B: 100}, {AB: [(2, TEN), (1, TEN)]})
    violation = only(check_cut(journal(*events), backwards))
    assert violation.rule is Rule.CONTENT_ORDER
    assert "message 2 stands before message 1, but a sent message 1 first" in violation.sentence
    assert check_cut(journal(*events, order="reorder"), backwards) == ()


def test_parallel_receipts_out_of_order_are_counted_message_by_message() -> None:
    """On a reordering channel the second message may be in the state while the first is still in flight."""
    run = journal(
        *pay(A, 1, AB, 1), *pay(A, 2, AB, 2), get(B, 1, AB, 2), record(A, 2), record(B, 1), order="reorder"
    )  # fmt: skip
    assert check_cut(run, cut({A: 80, B: 110}, {AB: [(1, TEN)]})) == ()
    assert sorted(rules(check_cut(run, cut({A: 80, B: 110}, {AB: [(2, TEN)]})))) == [
        Rule.EXTRA_MESSAGE,
        Rule.MISSING_MESSAGE,
    ]


def test_each_channel_is_judged_by_itself() -> None:
    run = journal(*pay(A, 1, AB, 1), *pay(B, 1, BA, 1), record(A, 1), record(B, 1))
    violation = only(check_cut(run, cut({A: 90, B: 90}, {AB: [(1, TEN)]})))
    assert (violation.rule, violation.channel) == (Rule.MISSING_MESSAGE, BA)


# ── channels that lose and duplicate ────────────────────────────────────────────────────────────────────────────────


def test_a_lost_message_is_missing_from_the_cut_under_its_own_name() -> None:
    run = journal(*pay(A, 1, AB, 1), Lost(AB, 1), record(A, 1), record(B, 0))
    violation = only(check_cut(run, cut({A: 90, B: 100})))
    assert violation.rule is Rule.LOST_MESSAGE
    assert "the channel dropped it: neither b's state nor the recorded content holds it" in violation.sentence
    assert violation.second is not None
    assert violation.second.event == Lost(AB, 1)


def test_a_message_lost_after_the_cut_does_no_harm_to_it() -> None:
    run = journal(record(A, 0), record(B, 0), *pay(A, 1, AB, 1), Lost(AB, 1))
    assert check_cut(run, cut({A: 100, B: 100})) == ()


def test_a_lost_message_that_the_snapshot_still_holds_is_not_lost_to_it() -> None:
    run = journal(*pay(A, 1, AB, 1), Lost(AB, 1), record(A, 1), record(B, 0))
    assert check_cut(run, cut({A: 90, B: 100}, {AB: [(1, TEN)]})) == ()


def test_a_message_received_twice_before_the_recording_counts_twice_in_the_state() -> None:
    run = journal(
        *pay(A, 1, AB, 1), Duplicated(AB, 1), get(B, 1, AB, 1), get(B, 2, AB, 1), record(A, 1), record(B, 2)
    )  # fmt: skip
    violation = only(check_cut(run, cut({A: 90, B: 120})))
    assert violation.rule is Rule.DUPLICATE_MESSAGE
    assert "2 times (steps 1, 2)" in violation.sentence


def test_a_message_received_once_on_each_side_of_the_recording_is_a_duplicate_if_recorded() -> None:
    events: tuple[Event, ...] = (
        *pay(A, 1, AB, 1), Duplicated(AB, 1), get(B, 1, AB, 1), record(A, 1), record(B, 1), get(B, 2, AB, 1)
    )  # fmt: skip
    assert rules(check_cut(journal(*events), cut({A: 90, B: 110}, {AB: [(1, TEN)]}))) == [Rule.DUPLICATE_MESSAGE]
    assert check_cut(journal(*events), cut({A: 90, B: 110})) == ()


def test_a_message_recorded_twice_is_a_duplicate() -> None:
    run = journal(
        *pay(A, 1, AB, 1), Duplicated(AB, 1), record(A, 1), record(B, 0), get(B, 1, AB, 1), get(B, 2, AB, 1)
    )  # fmt: skip
    violation = only(check_cut(run, cut({A: 90, B: 100}, {AB: [(1, TEN), (1, TEN)]})))
    assert violation.rule is Rule.DUPLICATE_MESSAGE
    assert "holds message 1 2 times, but a sent it once" in violation.sentence


# ── the cut is whole ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_that_never_recorded_is_named() -> None:
    violation = only(check_cut(journal(record(A, 0)), cut({A: 100, B: 100})))
    assert (violation.rule, violation.node) == (Rule.MISSING_RECORD, B)


def test_a_snapshot_of_which_the_journal_knows_nothing_lacks_every_record() -> None:
    assert rules(check_cut(journal(), cut({A: 100, B: 100}))) == [Rule.MISSING_RECORD, Rule.MISSING_RECORD]


def test_a_missing_state_is_named() -> None:
    violation = only(check_cut(journal(record(A, 0), record(B, 0)), cut({A: 100})))
    assert (violation.rule, violation.node) == (Rule.MISSING_STATE, B)


def test_a_missing_channel_is_named_even_if_it_was_empty() -> None:
    violation = only(
        check_cut(journal(record(A, 0), record(B, 0)), Cut(SnapshotId(1), {A: 100, B: 100}, {AB: ()}))
    )  # fmt: skip
    assert (violation.rule, violation.channel) == (Rule.MISSING_CHANNEL, BA)


def test_a_state_of_nobody_is_named() -> None:
    run = journal(record(A, 0), record(B, 0))
    violation = only(check_cut(run, cut({A: 100, B: 100, NodeId("z"): 5})))
    assert (violation.rule, "'z'" in violation.sentence) == (Rule.UNKNOWN_NAME, True)


def test_a_node_that_recorded_twice_is_named() -> None:
    violation = only(check_cut(journal(record(A, 0), idle(A, 1), record(A, 1), record(B, 0)), cut({A: 100, B: 100})))
    assert (violation.rule, violation.node) == (Rule.RECORDED_TWICE, A)


# ── whole journals ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_completed_snapshot_is_checked_also_when_they_overlap() -> None:
    """b records 2 before 1, a the other way round, so the cuts cross."""
    run = journal(
        record(A, 0, 1), *pay(A, 1, AB, 1), record(A, 1, 2),
        record(B, 0, 2), idle(B, 1), record(B, 1, 1), get(B, 2, AB, 1),
        Completed(cut({A: 90, B: 100}, {AB: [(1, TEN)]}, snapshot=2)),
        Completed(cut({A: 100, B: 100}, snapshot=1)),
    )  # fmt: skip
    report = check_journal(run)
    assert report.ok, report.sentence
    assert [(c.snapshot, c.in_flight) for c in report.snapshots] == [(2, 1), (1, 0)]


def test_the_report_counts_what_happened() -> None:
    run = journal(
        *pay(A, 1, AB, 1), get(B, 1, AB, 1), *pay(A, 2, AB, 2), Lost(AB, 2), Duplicated(AB, 2), record(A, 2, 7),
        idle(B, 2),
    )  # fmt: skip
    report = check_journal(run)
    assert (report.events, report.steps, report.sent, report.received) == (9, 4, 2, 1)
    assert (report.lost, report.duplicated, report.epochs, report.unfinished) == (1, 1, 1, (7,))


def test_the_verdict_is_a_sentence() -> None:
    good = journal(record(A, 0), record(B, 0), Completed(cut({A: 100, B: 100})))
    assert check_journal(good).sentence == "1 snapshot checked over 3 events: every one is a consistent cut."
    bad = journal(record(A, 0), record(B, 0), Completed(cut({A: 100})))
    assert "1 violation. The first: Snapshot 1 is called complete" in check_journal(bad).sentence


def test_a_snapshot_completed_twice_is_named() -> None:
    done = Completed(cut({A: 100, B: 100}))
    assert rules(check_journal(journal(record(A, 0), record(B, 0), done, done)).violations) == [Rule.COMPLETED_TWICE]


def test_a_report_can_be_written_as_json() -> None:
    run = journal(record(A, 0), *pay(A, 1, AB, 1), get(B, 1, AB, 1), record(B, 1), Completed(cut({A: 100, B: 110})))
    found = check_journal(run).to_json()
    assert found["ok"] is False
    assert found["violations"][0]["rule"] == "effect-without-cause"
    assert found["violations"][0]["message"] == [1, TEN]
    assert found["violations"][0]["events"] == [
        [4, ["send", "a", 1, "a→b", 1, TEN]],
        [5, ["receive", "b", 1, "a→b", 1]],
    ]


@pytest.mark.parametrize("rule", list(Rule))
def test_every_rule_has_a_meaning(rule: Rule) -> None:
    assert MEANING[rule]


# ── restarts ────────────────────────────────────────────────────────────────────────────────────────────────────────

FLIGHT = cut({A: 90, B: 100}, {AB: [(1, TEN)]})
BEFORE: tuple[Event, ...] = (*pay(A, 1, AB, 1), record(A, 1), record(B, 0), Completed(FLIGHT))


def test_after_a_restart_the_recorded_messages_are_in_flight_again() -> None:
    run = journal(
        *BEFORE, get(B, 1, AB, 1), Restarted(Incarnation(2), FLIGHT),
        record(A, 1, 2), record(B, 1, 2), get(B, 2, AB, 1),
        Completed(cut({A: 90, B: 100}, {AB: [(1, TEN)]}, snapshot=2)),
    )  # fmt: skip
    report = check_journal(run)
    assert report.ok, report.sentence
    assert (report.epochs, [c.incarnation for c in report.snapshots]) == (2, [1, 2])


def test_a_message_that_a_restart_brought_back_may_not_vanish_from_the_next_cut() -> None:
    run = journal(*BEFORE, Restarted(Incarnation(2), FLIGHT), record(A, 1, 2), record(B, 0, 2))
    violation = only(check_cut(run, cut({A: 90, B: 100}, snapshot=2)))
    assert violation.rule is Rule.MISSING_MESSAGE
    assert "message 1 was in flight on a→b when this incarnation began" in violation.sentence


def test_a_snapshot_id_that_is_used_again_after_a_restart_belongs_to_the_new_incarnation() -> None:
    run = journal(
        record(A, 0, 1), Restarted(Incarnation(2), cut({A: 100, B: 100}, snapshot=0)),
        *pay(A, 1, AB, 1), record(A, 1, 1), record(B, 0, 1), Completed(FLIGHT),
    )  # fmt: skip
    report = check_journal(run)
    assert report.ok, report.sentence
    assert report.unfinished == (1,)  # that of the first incarnation


def test_a_snapshot_id_that_is_used_again_does_not_reach_back_into_the_old_incarnation() -> None:
    again = cut({A: 90, B: 110})
    run = journal(
        *BEFORE, Restarted(Incarnation(2), cut({A: 100, B: 100}, snapshot=0)),
        *pay(A, 2, AB, 2), get(B, 1, AB, 2), record(A, 2, 1), record(B, 1, 1), Completed(again),
    )  # fmt: skip
    report = check_journal(run)
    assert report.ok, report.sentence
    assert [c.incarnation for c in report.snapshots] == [1, 2]
    assert check_cut(run, FLIGHT) == check_cut(run, again) == ()


def test_a_line_of_completion_that_stands_behind_the_restart_belongs_to_its_records() -> None:
    run = journal(*BEFORE[:-1], Restarted(Incarnation(2), cut({A: 100, B: 100}, snapshot=0)), Completed(FLIGHT))
    report = check_journal(run)
    assert report.ok, report.sentence
    assert report.snapshots[0].incarnation == 1


@pytest.mark.parametrize(
    ("restart", "what"),
    [
        (cut({A: 91, B: 100}, {AB: [(1, TEN)]}), "the state of a differs"),
        (cut({A: 90, B: 100}), "the content of a→b differs"),
        (cut({A: 90}, {AB: [(1, TEN)]}), "has no state for b"),
        (cut({A: 90, B: 100}, snapshot=0), "the state of a differs"),
    ],
)
def test_a_restart_begins_with_what_its_snapshot_holds(restart: Cut, what: str) -> None:
    violation = only(check_journal(journal(*BEFORE, Restarted(Incarnation(2), restart))).violations)
    assert violation.rule is Rule.RESTART_CUT
    assert what in violation.sentence


def test_a_restart_from_a_snapshot_of_another_run_is_taken_at_its_word() -> None:
    run = journal(Restarted(Incarnation(5), cut({A: 1, B: 2}, {AB: [(40, TEN)]}, snapshot=77)), get(B, 12, AB, 40))
    assert check_journal(run).ok
