"""Happens-before: a node's own order, send before receipt, and what follows."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.model.errors import Misuse
from strobe.model.events import Crashed, Internal, Received, Restarted, Sent
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId
from strobe.verify.causality import Causality, CausalLoop, legal_order
from strobe.verify.history import History, NodeEvent
from strobe.verify.journal import Journal
from tests.verify.bank import AB, BA, BC, CA, RING, A, B, C, cut, get, idle, journal, pay, random_run, record

RELAY = journal(
    *pay(A, 1, AB, 1),  # 0 1
    idle(C, 1),  # 2
    get(B, 1, AB, 1),  # 3
    *pay(B, 2, BC, 1),  # 4 5
    get(C, 2, BC, 1),  # 6
    idle(A, 2),  # 7
    graph=RING,
)


def test_a_nodes_earlier_step_happens_before_its_later_one() -> None:
    assert Causality(RELAY).happens_before(0, 7)
    assert not Causality(RELAY).happens_before(7, 0)


def test_a_send_happens_before_its_receipt() -> None:
    assert Causality(RELAY).happens_before(1, 3)
    assert not Causality(RELAY).happens_before(3, 1)


def test_the_relation_reaches_through_other_nodes() -> None:
    assert Causality(RELAY).happens_before(0, 6)


def test_events_that_no_message_links_are_concurrent() -> None:
    causality = Causality(RELAY)
    assert causality.concurrent(2, 5)
    assert causality.concurrent(7, 6)
    assert not causality.concurrent(0, 6)


def test_nothing_happens_before_itself() -> None:
    assert not any(Causality(RELAY).happens_before(i, i) for i in range(len(RELAY.events)))


def test_the_clock_holds_the_last_step_of_each_node_in_the_past() -> None:
    causality = Causality(RELAY)
    assert causality.clock(6) == {A: 1, B: 2, C: 2}
    assert causality.clock(2) == {C: 1}


def test_the_chain_is_the_sends_and_receipts_between_two_events() -> None:
    assert Causality(RELAY).chain(0, 6) == (0, 1, 3, 5, 6)
    assert Causality(RELAY).chain(6, 0) == ()


def test_the_chain_takes_the_fewest_messages() -> None:
    ac, cb = ChannelId("a→c"), ChannelId("c→b")
    graph = Graph((A, B, C), (Channel(AB, A, B), Channel(ac, A, C), Channel(cb, C, B)))
    run = journal(
        *pay(A, 1, AB, 1), *pay(A, 2, ac, 1), get(C, 1, ac, 1), *pay(C, 2, cb, 1),  # 0 1, 2 3, 4, 5 6
        get(B, 1, AB, 1), get(B, 2, cb, 1), graph=graph,  # 7 8
    )  # fmt: skip
    assert Causality(run).chain(0, 8) == (0, 1, 7, 8)
    assert Causality(run).chain(2, 8) == (2, 3, 4, 6, 8)


def test_a_chain_is_told_in_words() -> None:
    causality = Causality(RELAY)
    assert causality.tell(causality.chain(1, 6)) == (
        "a sends message 1 on a→b (step 1), then b receives message 1 on a→b (step 1), "
        "then b sends message 1 on b→c (step 2), then c receives message 1 on b→c (step 2)"
    )


def test_a_recording_stands_behind_its_step_and_before_the_next() -> None:
    run = journal(
        *pay(A, 1, AB, 1), record(A, 1), *pay(A, 2, AB, 2),  # 0 1 2 3 4
        get(B, 1, AB, 1), record(B, 1), get(B, 2, AB, 2),  # 5 6 7
    )  # fmt: skip
    causality = Causality(run)
    assert causality.happens_before(1, 6)
    assert not causality.happens_before(2, 5)
    assert causality.happens_before(2, 7)
    assert causality.concurrent(2, 6)


def test_a_message_that_a_restart_brought_back_has_no_cause_in_the_new_incarnation() -> None:
    run = journal(
        *pay(A, 1, AB, 1), Restarted(Incarnation(2), cut({A: 90, B: 100}, {AB: [(1, [10, 0])]})), get(B, 1, AB, 1)
    )
    assert Causality(run).clock(3) == {B: 1}
    with pytest.raises(Misuse, match="different incarnations"):
        Causality(run).happens_before(0, 3)


def test_a_crash_is_no_event_to_compare() -> None:
    with pytest.raises(Misuse, match="Crashed is not an event of a node"):
        Causality(journal(idle(A, 1), Crashed(A))).happens_before(0, 1)


def slow_pasts(run: Journal) -> dict[tuple[NodeId, int], set[tuple[NodeId, int]]]:
    """By definition: for each step the set of all steps that lead to it, itself among them."""
    pasts: dict[tuple[NodeId, int], set[tuple[NodeId, int]]] = {(node, 0): set() for node in run.header.graph.nodes}
    sent: dict[tuple[ChannelId, int], tuple[NodeId, int]] = {}
    for event in run.events:  # a legal order
        if isinstance(event, Internal | Received):
            here = (event.node, event.step)
            pasts[here] = pasts[event.node, event.step - 1] | {here}
            if isinstance(event, Received):
                pasts[here] |= pasts[sent[event.channel, event.seq]]
        elif isinstance(event, Sent):
            sent[event.channel, event.seq] = (event.node, event.step)
    return pasts


@given(st.randoms())
def test_on_random_runs_it_is_the_transitive_closure(rng: Random) -> None:
    run = random_run(rng, steps=25)
    causality, pasts = Causality(run), slow_pasts(run)
    events = [(i, e) for i, e in enumerate(run.events) if isinstance(e, NodeEvent)]
    for j, b in events:
        for i, a in events:
            # A recording or marker is followed by its node's next step.
            first = a.step if isinstance(a, Internal | Sent | Received) else a.step + 1
            expected = i < j if a.node == b.node else (a.node, first) in pasts[b.node, b.step]
            assert causality.happens_before(i, j) == expected, (i, j, run.events)


@given(st.randoms())
def test_every_chain_is_made_of_links(rng: Random) -> None:
    run = random_run(rng, steps=25)
    causality = Causality(run)
    nodes = [i for i, e in enumerate(run.events) if isinstance(e, NodeEvent)]
    for j in nodes[-5:]:
        for i in nodes:
            chain = causality.chain(i, j)
            assert bool(chain) == causality.happens_before(i, j)
            for p, q in pairwise(chain):
                a, b = run.events[p], run.events[q]
                assert isinstance(a, NodeEvent)
                assert isinstance(b, NodeEvent)
                sends = isinstance(a, Sent) and isinstance(b, Received) and (a.channel, a.seq) == (b.channel, b.seq)
                assert sends or (a.node == b.node and a.step <= b.step)


# ── a legal order ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_journal_in_a_legal_order_is_left_as_it_is() -> None:
    history = History(RELAY)
    assert legal_order(history, history.epochs[0]) == [0, 2, 3, 4, 6, 7]


def by_node(run: Journal) -> Journal:
    """As if merged from one file per node: first all lines of one, then all of the next."""
    nodes = [e for e in run.events if isinstance(e, NodeEvent)]
    rest = [e for e in run.events if not isinstance(e, NodeEvent)]
    return Journal(run.header, [*(e for n in sorted({e.node for e in nodes}) for e in nodes if e.node == n), *rest])


@given(st.randoms())
def test_a_journal_merged_node_by_node_is_brought_into_a_legal_order(rng: Random) -> None:
    run = by_node(random_run(rng))
    history = History(run)
    order = legal_order(history, history.epochs[0])
    assert sorted(order) == history.epochs[0].steps
    done = dict.fromkeys(run.header.graph.nodes, 0)
    for position in order:
        event = run.events[position]
        assert isinstance(event, NodeEvent)
        assert event.step == done[event.node] + 1
        if isinstance(event, Received):
            sent = run.events[history.sender(history.epochs[0], event.channel)[event.seq]]
            assert isinstance(sent, Sent)
            assert sent.step <= done[sent.node]
        done[event.node] = event.step


def test_steps_that_wait_for_each_other_have_no_order() -> None:
    run = journal(get(A, 1, BA, 1), *pay(A, 2, AB, 1), get(B, 1, AB, 1), *pay(B, 2, BA, 1))
    history = History(run)
    with pytest.raises(CausalLoop, match="a received message 1 on b→a in step 1, which b sent in step 2") as caught:
        legal_order(history, history.epochs[0])
    assert caught.value.receipts == (0, 3)


def test_three_nodes_that_wait_for_each_other_are_all_named() -> None:
    run = journal(
        get(A, 1, CA, 1), *pay(A, 2, AB, 1), get(B, 1, AB, 1), *pay(B, 2, BC, 1), get(C, 1, BC, 1), *pay(C, 2, CA, 1),
        graph=RING,
    )  # fmt: skip
    history = History(run)
    with pytest.raises(CausalLoop) as caught:
        legal_order(history, history.epochs[0])
    assert caught.value.receipts == (0, 6, 3)


def test_a_node_cannot_receive_what_it_sends_only_later() -> None:
    loop = ChannelId("loop")
    run = journal(get(A, 1, loop, 1), *pay(A, 2, loop, 1), graph=Graph((A,), (Channel(loop, A, A),)))
    history = History(run)
    with pytest.raises(CausalLoop, match="a received message 1 on loop in step 1, which a sent in step 2"):
        legal_order(history, history.epochs[0])
