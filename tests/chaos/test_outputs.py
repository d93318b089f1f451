"""The checker on real systems: whatever is lost, doubled or wrong in one of them is found there and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake

from chaos.outputs import Outputs, judge, left_behind
from chaos.transfers import balances, postings, transfers
from chaos.world import TABLES
from tests.support.spark.kafka_world import new_topic, produce
from tests.support.spark.postgres_world import Database

pytestmark = pytest.mark.services("kafka", "postgres")

SEED, COUNT = 11, 30
SENT = list(transfers(SEED, COUNT))
BOTH = list(postings(SENT))
TOTALS = list(balances(BOTH).values())


def lines(rows: list[object]) -> list[bytes]:
    return [json.dumps(asdict(row)).encode() for row in rows]  # type: ignore[call-overload]


@pytest.fixture
def outputs(kafka: str, postgres: str, tmp_path: Path) -> Iterator[Outputs]:
    """All systems as they should be."""
    database = Database(postgres)
    database.run(TABLES)
    found = Outputs(kafka, database.dsn, tmp_path, new_topic(kafka, "sent"), new_topic(kafka, "postings"))
    produce(kafka, found.transfers, lines([*SENT]))
    produce(kafka, found.postings, lines([*BOTH]))
    with psycopg.connect(database.dsn) as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO postings VALUES (%s, %s, %s, %s)", [tuple(asdict(p).values()) for p in BOTH])
        cursor.executemany("INSERT INTO balances VALUES (%s, %s, %s)", [tuple(asdict(b).values()) for b in TOTALS])
    for name, rows in (("transfers", SENT), ("balances", TOTALS)):
        write_deltalake(str(tmp_path / name), pa.Table.from_pylist([asdict(row) for row in rows]))
    yield found
    database.drop()


def faults(outputs: Outputs) -> dict[str, tuple[int, int, int]]:
    """Lost, duplicated and wrong, where anything is."""
    return {v.what: (v.lost, v.duplicated, v.wrong) for v in judge(outputs, SEED) if not v.good}


def test_systems_as_they_should_be_are_good(outputs: Outputs) -> None:
    assert faults(outputs) == {}
    assert [v.found for v in judge(outputs, SEED)] == [30, 30, 60, 60, len(TOTALS), len(TOTALS)]


def test_a_transfer_of_another_seed_is_wrong_everywhere(outputs: Outputs) -> None:
    assert all(not v.good for v in judge(outputs, SEED + 1))


def test_a_message_twice_is_found(outputs: Outputs) -> None:
    produce(outputs.kafka, outputs.postings, lines([BOTH[3]]))
    assert faults(outputs) == {"postings, Kafka": (0, 1, 0)}


def test_a_message_lost_is_found(outputs: Outputs, kafka: str) -> None:
    topic = new_topic(kafka, "fewer")
    produce(kafka, topic, lines([*BOTH[1:]]))
    fewer = Outputs(outputs.kafka, outputs.postgres, outputs.delta, outputs.transfers, topic)
    assert faults(fewer) == {"postings, Kafka": (1, 0, 0)}


@pytest.mark.parametrize(
    ("statement", "what", "found"),
    [
        ("DELETE FROM postings WHERE id = 4 AND leg = 1", "postings, Postgres", (1, 0, 0)),
        ("INSERT INTO postings SELECT * FROM postings WHERE id = 4", "postings, Postgres", (0, 2, 0)),
        ("UPDATE balances SET cents = cents + 1 WHERE postings = 1", "balances, Postgres", None),
        ("DELETE FROM balances", "balances, Postgres", (len(TOTALS), 0, 0)),
    ],
)
def test_a_fault_in_postgres_is_found(
    outputs: Outputs, statement: str, what: str, found: tuple[int, int, int] | None
) -> None:
    with psycopg.connect(outputs.postgres, autocommit=True) as connection:
        connection.execute(statement.encode())
    seen = faults(outputs)
    assert list(seen) == [what]
    assert seen[what] == found or (found is None and seen[what][2] > 0)


def test_a_row_lost_or_doubled_in_a_delta_table_is_found(outputs: Outputs) -> None:
    table = DeltaTable(str(outputs.delta / "transfers"))
    table.delete("id = 9")
    assert faults(outputs) == {"transfers, Delta": (1, 0, 0)}
    write_deltalake(table, pa.Table.from_pylist([asdict(SENT[9]), asdict(SENT[8])]), mode="append")
    assert faults(outputs) == {"transfers, Delta": (0, 1, 0)}


def test_a_wrong_balance_in_a_delta_table_is_found(outputs: Outputs) -> None:
    DeltaTable(str(outputs.delta / "balances")).update(
        {"cents": "cents + 1"}, predicate=f"account = {TOTALS[0].account}"
    )
    assert faults(outputs) == {"balances, Delta": (0, 0, 1)}


def test_a_transaction_that_stays_prepared_is_left_behind(outputs: Outputs) -> None:
    with psycopg.connect(outputs.postgres, autocommit=True) as connection:
        connection.execute("BEGIN; UPDATE balances SET cents = 0; PREPARE TRANSACTION 'chaos-left'")
        try:
            assert "Postgres has the prepared transaction chaos-left" in left_behind(outputs)
        finally:
            connection.execute("ROLLBACK PREPARED 'chaos-left'")


def test_an_open_transaction_that_pins_a_topic_is_left_behind(outputs: Outputs) -> None:
    producer = Producer({"bootstrap.servers": outputs.kafka, "transactional.id": outputs.postings, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(outputs.postings, b"{}")
    producer.flush(30)
    assert f"an open transaction pins topic {outputs.postings}" in left_behind(outputs)
    producer.abort_transaction(30)
    assert f"an open transaction pins topic {outputs.postings}" not in left_behind(outputs)
