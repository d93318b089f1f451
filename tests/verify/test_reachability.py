"""The theorem of the paper: the recorded state lies on a legal run that takes the same steps to the same end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from strobe.model.cut import Cut, Json
from strobe.model.events import Duplicated, Event, Internal, Lost, Restarted, Sent
from strobe.model.ids import ChannelId, Incarnation, NodeId
from strobe.verify.journal import Journal
from strobe.verify.reachability import prove
from tests.verify.bank import AB, BA, BC, RING, TWO, A, B, Bank, C, cut, get, idle, journal, pay, record

BANK = Bank(TWO)
TEN = [10, 0]

# a records at once, then acts twice; b acts, receives what a sent afterwards only behind its own recording.
CONCURRENT = journal(
    record(A, 0), *pay(A, 1, AB, 1), *pay(A, 2, AB, 2), *pay(B, 1, BA, 1), idle(B, 2), record(B, 2), get(B, 3, AB, 1)
)  # fmt: skip
CONCURRENT_CUT = cut({A: 100, B: 90}, {BA: [(1, TEN)]})


def test_steps_before_the_recordings_move_ahead_of_those_behind() -> None:
    proof = prove(CONCURRENT, CONCURRENT_CUT, BANK)
    assert proof.holds, proof.sentence
    assert proof.order == ((B, 1), (B, 2), (A, 1), (A, 2), (B, 3))
    assert proof.cut == 2


def test_moved_steps_and_exchanges_are_counted() -> None:
    proof = prove(CONCURRENT, CONCURRENT_CUT, BANK)
    assert (proof.moved, proof.swaps) == (2, 4)
    assert "2 of them stand earlier than they did (4 exchanges of independent neighbours)" in proof.sentence


def test_a_state_that_really_occurred_needs_no_move() -> None:
    run = journal(*pay(A, 1, AB, 1), record(A, 1), record(B, 0), get(B, 1, AB, 1))
    proof = prove(run, cut({A: 90, B: 100}, {AB: [(1, TEN)]}), BANK)
    assert (proof.holds, proof.moved, proof.swaps, proof.order) == (True, 0, 0, ((A, 1), (B, 1)))


def test_causes_stay_before_their_effects_on_each_side_of_the_cut() -> None:
    """c acts first but records at once; what a set going runs through b to c before b records."""
    run = journal(
        record(C, 0), idle(C, 1), *pay(A, 1, AB, 1, 10, 1), record(A, 1), get(B, 1, AB, 1), Sent(B, 1, BC, 1, [5, 0]),
        record(B, 1), get(C, 2, BC, 1), graph=RING,
    )  # fmt: skip
    proof = prove(run, cut({A: 90, B: 105, C: 100}, {BC: [(1, [5, 0])]}, graph=RING), Bank(RING))
    assert proof.holds, proof.sentence
    assert proof.order == ((A, 1), (B, 1), (C, 1), (C, 2))


def test_a_journal_merged_from_files_is_proved_as_well() -> None:
    merged = journal(
        record(B, 0), get(B, 1, AB, 1), *pay(B, 2, BA, 1), *pay(A, 1, AB, 1), record(A, 1), get(A, 2, BA, 1)
    )  # fmt: skip
    proof = prove(merged, cut({A: 90, B: 100}, {AB: [(1, TEN)]}), BANK)
    assert proof.holds, proof.sentence
    assert proof.order == ((A, 1), (B, 1), (B, 2), (A, 2))


def test_a_reordering_channel_is_replayed_in_the_order_of_its_receipts() -> None:
    run = journal(
        *pay(A, 1, AB, 1, 1), *pay(A, 2, AB, 2, 2), get(B, 1, AB, 2), record(A, 2), record(B, 1), get(B, 2, AB, 1),
        order="reorder",
    )  # fmt: skip
    assert prove(run, cut({A: 97, B: 102}, {AB: [(1, [1, 0])]}), BANK).holds


def test_what_a_reordering_channel_holds_may_be_recorded_in_any_order() -> None:
    events = (*pay(A, 1, AB, 1, 1), *pay(A, 2, AB, 2, 2), record(A, 2), record(B, 0))
    backwards = cut({A: 97, B: 100}, {AB: [(2, [2, 0]), (1, [1, 0])]})
    assert prove(journal(*events, order="reorder"), backwards, BANK).holds
    assert not prove(journal(*events), backwards, BANK).holds


def test_after_a_restart_the_replay_begins_from_the_restored_cut() -> None:
    start = cut({A: 90, B: 100}, {AB: [(1, TEN)]})
    run = journal(
        *pay(A, 1, AB, 1), *pay(A, 2, AB, 2), Restarted(Incarnation(2), start),
        get(B, 1, AB, 1), *pay(A, 3, AB, 3), record(A, 3, 2), record(B, 1, 2), get(B, 2, AB, 3),
    )  # fmt: skip
    proof = prove(run, cut({A: 80, B: 110}, {AB: [(3, TEN)]}, snapshot=2), BANK)
    assert proof.holds, proof.sentence
    assert proof.order == ((B, 1), (A, 3), (B, 2))


def test_a_message_lost_behind_the_cut_does_not_hinder_the_proof() -> None:
    run = journal(
        record(A, 0), record(B, 0), *pay(A, 1, AB, 1), *pay(A, 2, AB, 2), Lost(AB, 1), get(B, 1, AB, 2)
    )  # fmt: skip
    assert prove(run, cut({A: 100, B: 100}), BANK).holds


def test_a_message_duplicated_behind_the_cut_does_not_hinder_the_proof() -> None:
    run = journal(
        record(A, 0), record(B, 0), *pay(A, 1, AB, 1), Duplicated(AB, 1), get(B, 1, AB, 1), get(B, 2, AB, 1)
    )  # fmt: skip
    assert prove(run, cut({A: 100, B: 100}), BANK).holds


# ── what cannot be proved ───────────────────────────────────────────────────────────────────────────────────────────


def refuted(run: Journal, recorded: Cut, app: Bank = BANK) -> str:
    proof = prove(run, recorded, app)
    assert not proof.holds
    return proof.sentence


def test_an_effect_without_its_cause_fits_into_no_order() -> None:
    run = journal(record(A, 0), *pay(A, 1, AB, 1), get(B, 1, AB, 1), record(B, 1))
    assert refuted(run, cut({A: 100, B: 110})) == (
        "Snapshot 1 is not reachable: step 1 of b receives message 1 on a→b and was recorded, but a sends it in step "
        "1, after its recording: no order puts the one before the cut and the other behind it."
    )


def test_a_state_that_differs_in_one_bit_is_found() -> None:
    assert "leads b to the state 90, but the snapshot holds 91" in refuted(
        CONCURRENT, cut({A: 100, B: 91}, {BA: [(1, TEN)]})
    )


def test_a_content_that_lacks_a_message_is_found() -> None:
    assert "the run leaves message 1 ([10,0]) in b→a, but the snapshot holds nothing" in refuted(
        CONCURRENT, cut({A: 100, B: 90})
    )


def test_a_content_with_another_payload_is_found() -> None:
    assert "but the snapshot holds message 1 ([11,0])" in refuted(
        CONCURRENT, cut({A: 100, B: 90}, {BA: [(1, [11, 0])]})
    )


def test_a_missing_state_or_channel_is_found() -> None:
    assert "it holds no state for b" in refuted(CONCURRENT, cut({A: 100}, {BA: [(1, TEN)]}))
    whole = CONCURRENT_CUT
    partial = Cut(whole.snapshot, whole.states, {BA: whole.channels[BA]})
    assert "it holds no content for channel a→b" in refuted(CONCURRENT, partial)


def test_a_node_that_never_recorded_is_named() -> None:
    assert "b never recorded for it" in refuted(journal(record(A, 0)), cut({A: 100, B: 100}))


def test_a_send_that_the_application_would_not_make_is_found() -> None:
    run = journal(Internal(A, 1, [AB, 10, 0]), Sent(A, 1, AB, 1, [11, 0]), record(A, 1), record(B, 0))
    assert "in the journal step 1 of a sends [11,0] on a→b (message 1), but replayed it sends [10,0] on a→b" in refuted(
        run, cut({A: 90, B: 100}, {AB: [(1, [11, 0])]})
    )


@pytest.mark.parametrize(
    ("step", "what"),
    [
        ((Internal(A, 1, [AB, 10, 0]),), "replayed, sends [10,0] on a→b, but in the journal it sends only 0 messages"),
        ((idle(A, 1), Sent(A, 1, AB, 1, TEN)), "sends message 1 on a→b, but replayed it sends only 0 messages"),
    ],
)
def test_a_send_too_few_or_too_many_is_found(step: tuple[Event, ...], what: str) -> None:
    assert what in refuted(journal(*step, record(A, 1), record(B, 0)), cut({A: 90, B: 100}))


def test_an_application_that_refuses_a_step_is_quoted() -> None:
    run = journal(Internal(A, 1, "nonsense"), record(A, 1), record(B, 0))
    assert "the application refuses step 1 of a (ValueError" in refuted(run, cut({A: 100, B: 100}))


def test_another_application_than_that_of_the_journal_is_found() -> None:
    class Rich(Bank):
        def initial(self, node: NodeId) -> Json:
            return 1_000

    assert "a starts in the state 100 in the journal, but this application starts it in 1000" in refuted(
        CONCURRENT, CONCURRENT_CUT, Rich(TWO)
    )


def test_an_application_that_remembers_more_than_its_state_is_found() -> None:
    """Then the order matters, and the reordered run does not end where the actual one did."""

    class Forgetful(Bank):
        calls = 0

        def act(self, node: NodeId, state: Json, action: Json) -> tuple[Json, Sequence[tuple[ChannelId, Json]]]:
            Forgetful.calls += 1
            state, sends = super().act(node, state, action)
            return (state + 1 if Forgetful.calls == 8 else state), sends

    assert "the reordered run ends with b in the state" in refuted(CONCURRENT, CONCURRENT_CUT, Forgetful(TWO))


def test_steps_that_wait_for_each_other_prove_nothing() -> None:
    run = journal(
        record(A, 0), record(B, 0), get(A, 1, BA, 1), *pay(A, 2, AB, 1), get(B, 1, AB, 1), *pay(B, 2, BA, 1)
    )  # fmt: skip
    assert "no order of them is possible" in refuted(run, cut({A: 100, B: 100}))


def test_a_fifo_channel_that_reordered_is_found() -> None:
    run = journal(
        *pay(A, 1, AB, 1), *pay(A, 2, AB, 2), get(B, 1, AB, 2), get(B, 2, AB, 1), record(A, 2), record(B, 2)
    )  # fmt: skip
    assert "receives message 2 on a→b, but message 1 is ahead of it" in refuted(run, cut({A: 80, B: 120}))


def test_a_message_lost_before_the_cut_leaves_the_recorded_state_out_of_reach() -> None:
    run = journal(*pay(A, 1, AB, 1), Lost(AB, 1), record(A, 1), record(B, 0))
    assert "the run leaves message 1 ([10,0]) in a→b" in refuted(run, cut({A: 90, B: 100}))


def test_a_message_delivered_twice_without_a_reason_is_found() -> None:
    run = journal(*pay(A, 1, AB, 1), get(B, 1, AB, 1), get(B, 2, AB, 1), record(A, 1), record(B, 2))
    assert "it was delivered before" in refuted(run, cut({A: 90, B: 120}))


def test_a_message_delivered_more_often_than_the_channel_says_is_found_behind_the_cut_too() -> None:
    events: tuple[Event, ...] = (
        record(A, 0), record(B, 0), *pay(A, 1, AB, 1), get(B, 1, AB, 1), get(B, 2, AB, 1)
    )  # fmt: skip
    untouched = cut({A: 100, B: 100})
    assert "step 2 of b receives message 1 on a→b, but the channel does not hold it any more" in refuted(
        journal(*events), untouched
    )
    assert prove(journal(Duplicated(AB, 1), *events), untouched, BANK).holds
    assert "step 3 of b" in refuted(journal(Duplicated(AB, 1), *events, get(B, 3, AB, 1)), untouched)


def test_a_proof_can_be_written_as_json() -> None:
    found = prove(CONCURRENT, CONCURRENT_CUT, BANK).to_json()
    assert (found["holds"], found["order"][0], found["cut"]) == (True, ["b", 1], 2)
