"""Reads what the ledger has delivered, with each system's own client and nothing of Strobe, and judges it.

The generator's topic is judged, too: everything else relies on each transfer being there once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import psycopg
from deltalake import DeltaTable

from chaos.topics import COMMITS, POSTINGS, TRANSFERS, pinned, read_all
from chaos.transfers import Balance, Posting, Transfer, balances, postings, transfers
from chaos.verdicts import Verdict, compare

__all__ = ["Outputs", "judge", "left_behind"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where everything is: Kafka's servers, a DSN, and the directory of the Delta tables."""

    kafka: str
    postgres: str
    delta: Path
    transfers: str = TRANSFERS  # the topics
    postings: str = POSTINGS

    def sent(self) -> Iterator[Transfer]:
        return (Transfer(**json.loads(m.value() or b"{}")) for m in read_all(self.kafka, self.transfers))

    def kafka_postings(self) -> Iterator[Posting]:
        return (Posting(**json.loads(m.value() or b"{}")) for m in read_all(self.kafka, self.postings))

    def postgres_postings(self) -> Iterator[Posting]:
        return (Posting(*row) for row in self.query("SELECT id, leg, account, cents FROM postings"))

    def postgres_balances(self) -> Iterator[Balance]:
        return (Balance(*row) for row in self.query("SELECT account, cents, postings FROM balances"))

    def delta_transfers(self) -> Iterator[Transfer]:
        return (Transfer(*row) for row in self._table("transfers", "id", "source", "target", "cents"))

    def delta_balances(self) -> Iterator[Balance]:
        return (Balance(*row) for row in self._table("balances", "account", "cents", "postings"))

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres, autocommit=True, connect_timeout=10) as connection:
            return connection.execute(sql.encode()).fetchall()

    def _table(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        where = self.delta / name
        if not DeltaTable.is_deltatable(str(where)):
            return []
        with duckdb.connect() as connection:
            connection.register("found", DeltaTable(str(where)).to_pyarrow_dataset())
            return connection.table("found").select(*columns).fetchall()


def judge(outputs: Outputs, seed: int) -> list[Verdict]:
    """One verdict for the input, and one for each output."""
    sent = list(outputs.sent())
    truth = {t.id: t for t in transfers(seed, len({t.id for t in sent}))}
    both = {(p.id, p.leg): p for p in postings(truth.values())}
    totals = dict(balances(both.values()))
    leg = lambda p: (p.id, p.leg)  # noqa: E731
    return [
        compare("transfers sent (Kafka)", truth, sent, lambda t: t.id),
        compare("transfers, Delta", truth, outputs.delta_transfers(), lambda t: t.id),
        compare("postings, Kafka", both, outputs.kafka_postings(), leg),
        compare("postings, Postgres", both, outputs.postgres_postings(), leg),
        compare("balances, Postgres", totals, outputs.postgres_balances(), lambda b: b.account),
        compare("balances, Delta", totals, outputs.delta_balances(), lambda b: b.account),
    ]


def left_behind(outputs: Outputs) -> list[str]:
    """What the end of a job must not leave: a prepared transaction, or one that keeps Kafka's readers waiting."""
    topics = [outputs.transfers, outputs.postings, COMMITS]
    gids = outputs.query("SELECT gid FROM pg_prepared_xacts")
    return [
        *(f"Postgres has the prepared transaction {gid}" for (gid,) in gids),
        *(f"an open transaction pins topic {t}" for t in pinned(outputs.kafka, topics)),
    ]
