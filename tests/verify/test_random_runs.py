"""Random runs of the protocols: right ones are accepted and proved, changed ones are found out.

Every check here is one that can fail: each mutation changes what a snapshot says, or where a node recorded, in a way
that the run does not bear out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from strobe.model.cut import Cut, Message
from strobe.model.events import Completed, Recorded, Sent
from strobe.model.ids import ChannelId
from strobe.verify.causality import Causality
from strobe.verify.consistency import check_cut, check_journal
from strobe.verify.history import NodeEvent
from strobe.verify.journal import Journal
from strobe.verify.reachability import prove
from tests.verify.bank import Bank, random_run

RIGHT = ["chandy-lamport", "lai-yang"]


def cuts(run: Journal) -> list[Cut]:
    return [event.cut for event in run.events if isinstance(event, Completed)]


def money(run: Journal, cut: Cut) -> int:
    in_flight = sum(int(m.payload[0]) for content in cut.channels.values() for m in content)
    return sum(map(int, cut.states.values())) + in_flight


def by_node(run: Journal) -> Journal:
    """As if merged from one file per node."""
    nodes = [e for e in run.events if isinstance(e, NodeEvent)]
    rest = [e for e in run.events if not isinstance(e, NodeEvent)]
    return Journal(run.header, [*(e for n in run.header.graph.nodes for e in nodes if e.node == n), *rest])


@pytest.mark.parametrize("protocol", RIGHT)
@given(rng=st.randoms(), snapshots=st.integers(1, 4))
def test_a_right_protocol_gives_consistent_cuts_that_are_proved(protocol: str, rng: Random, snapshots: int) -> None:
    run = random_run(rng, protocol, snapshots=snapshots)
    report = check_journal(run)
    assert report.ok, report.sentence
    for cut in cuts(run):
        proof = prove(run, cut, Bank(run.header.graph))
        assert proof.holds, proof.sentence
        assert money(run, cut) == 100 * len(run.header.graph.nodes)


@pytest.mark.parametrize("protocol", RIGHT)
@given(rng=st.randoms())
def test_the_order_of_lines_of_different_nodes_does_not_matter(protocol: str, rng: Random) -> None:
    merged = by_node(random_run(rng, protocol))
    report = check_journal(merged)
    assert report.ok, report.sentence
    for cut in cuts(merged):
        assert prove(merged, cut, Bank(merged.header.graph)).holds


@given(rng=st.randoms())
def test_a_snapshot_by_the_clock_is_consistent_exactly_when_it_can_be_proved(rng: Random) -> None:
    """Two independent judges, the balance of messages and the replayed theorem, on cuts of both kinds."""
    run = random_run(rng, "agreed-clock", snapshots=3)
    for cut in cuts(run):
        assert (check_cut(run, cut) == ()) == prove(run, cut, Bank(run.header.graph)).holds


def test_snapshots_by_the_clock_make_money_appear_and_vanish() -> None:
    totals = set[int]()
    rules = set[str]()
    for seed in range(50):
        run = random_run(Random(seed), "agreed-clock")
        for cut in cuts(run):
            right = 100 * len(run.header.graph.nodes)
            totals.add((money(run, cut) > right) - (money(run, cut) < right))
            rules |= {v.rule for v in check_cut(run, cut)}
    assert totals == {-1, 0, 1}
    assert rules == {"effect-without-cause", "missing-message"}


@given(rng=st.randoms())
def test_law_1_is_that_no_recorded_step_depends_on_one_that_is_not(rng: Random) -> None:
    """The definition of a consistent cut by happens-before, against the checker's by channels."""
    run = random_run(rng, "agreed-clock", steps=25)
    causality = Causality(run)
    for cut in cuts(run):
        recorded = {e.node: e.step for e in run.events if isinstance(e, Recorded) and e.snapshot == cut.snapshot}
        closed = all(
            causality.clock(i).get(node, 0) <= recorded[node]
            for i, e in enumerate(run.events)
            if isinstance(e, NodeEvent) and not isinstance(e, Recorded) and e.step <= recorded[e.node]
            for node in recorded
        )
        assert closed == ("effect-without-cause" not in {v.rule for v in check_cut(run, cut)})


# ── changed snapshots ───────────────────────────────────────────────────────────────────────────────────────────────


def full_channel(rng: Random, cut: Cut) -> ChannelId:
    full = sorted(channel for channel, content in cut.channels.items() if content)
    assume(full)
    return rng.choice(full)


def without(rng: Random, run: Journal, cut: Cut) -> Cut:
    channel = full_channel(rng, cut)
    content = list(cut.channels[channel])
    content.pop(rng.randrange(len(content)))
    return replace(cut, channels={**cut.channels, channel: tuple(content)})


def with_another(rng: Random, run: Journal, cut: Cut) -> Cut:
    """Any message that was ever sent on the channel, or one that never was, put in where it does not belong."""
    channel = rng.choice(sorted(cut.channels))
    held = {m.seq for m in cut.channels[channel]}
    sent = [Message(e.seq, e.payload) for e in run.events if isinstance(e, Sent) and e.channel == channel]
    message = rng.choice([m for m in (*sent, Message(999, [1, 0])) if m.seq not in held])
    content = sorted((*cut.channels[channel], message), key=lambda m: m.seq)
    return replace(cut, channels={**cut.channels, channel: tuple(content)})


def with_one_twice(rng: Random, run: Journal, cut: Cut) -> Cut:
    channel = full_channel(rng, cut)
    content = cut.channels[channel]
    return replace(cut, channels={**cut.channels, channel: (content[0], *content)})


def with_other_payload(rng: Random, run: Journal, cut: Cut) -> Cut:
    channel = full_channel(rng, cut)
    first, *rest = cut.channels[channel]
    changed = Message(first.seq, [first.payload[0] + 1, first.payload[1]])
    return replace(cut, channels={**cut.channels, channel: (changed, *rest)})


def without_a_node(rng: Random, run: Journal, cut: Cut) -> Cut:
    gone = rng.choice(sorted(cut.states))
    return replace(cut, states={n: s for n, s in cut.states.items() if n != gone})


def without_a_channel(rng: Random, run: Journal, cut: Cut) -> Cut:
    gone = rng.choice(sorted(cut.channels))
    return replace(cut, channels={c: m for c, m in cut.channels.items() if c != gone})


Change = Callable[[Random, Journal, Cut], Cut]


@pytest.mark.parametrize("protocol", RIGHT)
@pytest.mark.parametrize(
    "change", [without, with_another, with_one_twice, with_other_payload, without_a_node, without_a_channel]
)
@settings(max_examples=40)
@given(rng=st.randoms())
def test_a_changed_snapshot_is_found_out(change: Change, protocol: str, rng: Random) -> None:
    run = random_run(rng, protocol, snapshots=1)
    found = cuts(run)
    assume(found)
    changed = change(rng, run, found[0])
    assert check_cut(run, changed) != ()
    assert not prove(run, changed, Bank(run.header.graph)).holds


@given(rng=st.randoms())
def test_a_changed_state_is_found_out_by_the_proof(rng: Random) -> None:
    run = random_run(rng, snapshots=1)
    found = cuts(run)
    assume(found)
    node = rng.choice(sorted(found[0].states))
    changed = replace(found[0], states={**found[0].states, node: found[0].states[node] + 1})
    assert not prove(run, changed, Bank(run.header.graph)).holds


@pytest.mark.parametrize("protocol", RIGHT)
@given(rng=st.randoms())
def test_a_recording_that_is_moved_over_a_step_with_a_message_is_found_out(protocol: str, rng: Random) -> None:
    """Shift one node's recording by one step that sends or receives something: the cut's content no longer fits."""
    run = random_run(rng, protocol, snapshots=1)
    found = cuts(run)
    assume(found)
    at = rng.choice([i for i, e in enumerate(run.events) if isinstance(e, Recorded)])
    record = run.events[at]
    assert isinstance(record, Recorded)
    step = record.step + rng.choice([0, 1])  # the step that changes sides
    touched = [e for e in run.events if isinstance(e, NodeEvent) and (e.node, e.step) == (record.node, step)]
    moved_over = [e for e in touched if isinstance(e, Sent) or hasattr(e, "seq")]
    ends = {(c.source, c.target) for c in run.header.graph.channels}
    assume(moved_over and (record.node, record.node) not in ends)
    shifted = replace(record, step=step - 1 if step == record.step else step)
    moved = Journal(run.header, [*run.events[:at], shifted, *run.events[at + 1 :]])
    assert check_cut(moved, found[0]) != ()
    assert not check_journal(moved).ok
