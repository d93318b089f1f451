"""The truth that chaos is judged by: a pure function of seed and number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaos.transfers import ACCOUNTS, Balance, Posting, Transfer, balances, postings, transfer, transfers


@given(st.integers(0, 10**6), st.integers(0, 10**9))
def test_a_transfer_depends_on_seed_and_number_alone_and_moves_money_between_two_accounts(seed: int, n: int) -> None:
    one = transfer(seed, n)
    assert one == transfer(seed, n)
    assert one.id == n
    assert one.source != one.target
    assert {one.source, one.target} <= set(range(ACCOUNTS))
    assert one.cents > 0


def test_another_seed_gives_other_transfers() -> None:
    assert list(transfers(1, 50)) != list(transfers(2, 50))


def test_balances_are_what_postings_add_up_to() -> None:
    moved = [Transfer(0, 1, 2, 500), Transfer(1, 2, 3, 200)]
    assert list(postings(moved))[:2] == [Posting(0, 0, 1, -500), Posting(0, 1, 2, 500)]
    assert balances(postings(moved)) == {1: Balance(1, -500, 1), 2: Balance(2, 300, 2), 3: Balance(3, 200, 1)}


def test_whole_transfers_conserve_money() -> None:
    assert sum(b.cents for b in balances(postings(transfers(3, 1000))).values()) == 0
