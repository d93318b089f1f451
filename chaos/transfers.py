"""What must come out, computed from a seed and a number alone.

Transfer `i` is a pure function of (seed, i): the number of transfers determines every row of every output. Nothing here
uses Kafka, Spark or a database, so the truth cannot share a fault with what it judges.

Money is whole cents. A transfer is two postings that add up to nothing, so the balances of any number of whole
transfers do, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["ACCOUNTS", "Balance", "Posting", "Transfer", "balances", "postings", "transfer", "transfers"]

ACCOUNTS = 100


@dataclass(frozen=True, slots=True, order=True)
class Transfer:
    id: int
    source: int
    target: int
    cents: int


@dataclass(frozen=True, slots=True, order=True)
class Posting:
    """`leg` 0 takes from an account, `leg` 1 gives to another."""

    id: int
    leg: int
    account: int
    cents: int


@dataclass(frozen=True, slots=True, order=True)
class Balance:
    """What an account has, and how many postings that comes from."""

    account: int
    cents: int
    postings: int


def transfer(seed: int, number: int) -> Transfer:
    bits = int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=12).digest())
    source, bits = bits % ACCOUNTS, bits // ACCOUNTS
    apart, bits = bits % (ACCOUNTS - 1), bits // (ACCOUNTS - 1)
    return Transfer(number, source, (source + 1 + apart) % ACCOUNTS, 1 + bits % 100_000)


def transfers(seed: int, count: int) -> Iterator[Transfer]:
    return (transfer(seed, number) for number in range(count))


def postings(of: Iterable[Transfer]) -> Iterator[Posting]:
    for one in of:
        yield Posting(one.id, 0, one.source, -one.cents)
        yield Posting(one.id, 1, one.target, one.cents)


def balances(of: Iterable[Posting]) -> Mapping[int, Balance]:
    """By account; accounts without a posting are not there."""
    cents: dict[int, int] = {}
    number: dict[int, int] = {}
    for one in of:
        cents[one.account] = cents.get(one.account, 0) + one.cents
        number[one.account] = number.get(one.account, 0) + 1
    return {account: Balance(account, cents[account], number[account]) for account in cents}
