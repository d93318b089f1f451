"""The checker itself: a checker that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos.auditor import Holdings, audit_money
from chaos.transfers import Balance, Posting, balances, postings, transfers
from chaos.verdicts import Verdict, compare

SENT = list(transfers(5, 40))
POSTINGS = list(postings(SENT))
TRUTH = {(p.id, p.leg): p for p in POSTINGS}


def judged(found: list[Posting]) -> Verdict:
    return compare("postings", TRUTH, found, lambda p: (p.id, p.leg))


def test_what_is_as_it_should_be_is_good() -> None:
    verdict = judged(POSTINGS[::-1])
    assert verdict.good
    assert (verdict.expected, verdict.found) == (80, 80)


@pytest.mark.parametrize(
    ("change", "lost", "duplicated", "wrong"),
    [
        (lambda rows: rows[:-1], 1, 0, 0),
        (lambda rows: [], 80, 0, 0),
        (lambda rows: [*rows, rows[7]], 0, 1, 0),
        (lambda rows: [*rows, *rows, *rows], 0, 160, 0),
        (lambda rows: [*rows[1:], rows[5]], 1, 1, 0),
        (lambda rows: [replace(rows[0], cents=rows[0].cents + 1), *rows[1:]], 0, 0, 1),
        (lambda rows: [*rows, Posting(4711, 0, 1, 1)], 0, 0, 1),
    ],
    ids=[
        "a row lost",
        "all lost",
        "a row twice",
        "all three times",
        "one lost, one twice",
        "another amount",
        "unknown",
    ],
)
def test_a_fault_is_counted_and_shown(
    change: Callable[[list[Posting]], list[Posting]], lost: int, duplicated: int, wrong: int
) -> None:
    verdict = judged(change(POSTINGS))
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == (lost, duplicated, wrong)
    assert not verdict.good
    assert verdict.samples


def test_a_wrong_balance_is_found() -> None:
    truth = dict(balances(POSTINGS))
    one = next(iter(truth.values()))
    found = [*truth.values()]
    found[0] = Balance(one.account, one.cents, one.postings + 2)
    assert compare("balances", truth, found, lambda b: b.account).wrong == 1


def held(read: int, in_postings: int, in_flight: int) -> Holdings:
    """A cut: `read` transfers are read, so many are through `postings`, so many postings are not in the state yet."""
    through = POSTINGS[: 2 * in_postings]
    state = balances(through[: len(through) - in_flight])
    return Holdings(
        tuple(SENT[in_postings:read]),
        tuple(through[len(through) - in_flight :]),
        {account: (b.cents, b.postings) for account, b in state.items()},
    )


@pytest.mark.parametrize(("read", "through", "in_flight"), [(0, 0, 0), (10, 10, 0), (40, 25, 7), (30, 0, 0)])
def test_a_cut_that_holds_everything_once_conserves_money(read: int, through: int, in_flight: int) -> None:
    assert audit_money(SENT[:read], held(read, through, in_flight)) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda h: replace(h, transfers=h.transfers[1:]),
        lambda h: replace(h, transfers=(*h.transfers, h.transfers[0])),
        lambda h: replace(h, postings=h.postings[1:]),
        lambda h: replace(h, accounts={**h.accounts, POSTINGS[0].account: (0, 0)}),
        lambda h: replace(h, accounts={a: (c + 1, n) for a, (c, n) in h.accounts.items()}),
    ],
    ids=["a transfer lost", "a transfer twice", "a posting lost", "an account empty", "a cent too many"],
)
def test_a_cut_that_loses_or_repeats_money_is_found(change: Callable[[Holdings], Holdings]) -> None:
    assert audit_money(SENT[:30], change(held(30, 20, 5)))
