"""A Postgres table gets the columns that a stage returns and that it does not have, if it may: schema="evolve"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)  # fmt: skip

import strobe
from strobe.model.errors import Failed, Misuse
from tests.support.spark.postgres_world import Database, context_of, set_up_numbers

pytestmark = pytest.mark.services("postgres")

HALF = StructField("Half, exactly", DecimalType(12, 1))


def wide(twice: DataType = LongType()) -> StructType:  # noqa: B008
    known = [StructField("id", LongType()), StructField("twice", twice)]
    return StructType([*known, HALF, StructField("tags", ArrayType(StringType()))])


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    found = Database(postgres)
    yield found
    found.drop()


def columns_of(database: Database) -> list[tuple[Any, ...]]:
    query = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'target' ORDER BY 1"
    return database.rows(query)


def sink(database: Database, **options: Any) -> strobe.PostgresSink:
    return strobe.PostgresSink(database.dsn, "target", **{"schema": "evolve", **options})


def test_columns_are_added_with_their_types_and_only_then(database: Database, tmp_path: Path) -> None:
    set_up_numbers(database, 0)
    more = context_of(tmp_path, wide(), mode="append")
    with pytest.raises(Misuse, match="it has no column 'Half, exactly'"):
        sink(database, schema="fixed").open(more)
    with pytest.raises(Misuse, match="column 'twice'"):
        sink(database).open(context_of(tmp_path, wide(DoubleType()), mode="append"))
    assert columns_of(database) == [("id", "bigint"), ("twice", "bigint")], "what is refused for another reason stays"
    sink(database).open(more)
    added = [("Half, exactly", "numeric"), ("id", "bigint"), ("tags", "ARRAY"), ("twice", "bigint")]
    assert columns_of(database) == added
    sink(database).open(more)
    assert columns_of(database) == added
    with pytest.raises(Misuse, match="schema='grow' is not one of fixed, evolve"):
        sink(database, schema="grow")


def test_a_plan_of_a_fork_adds_no_columns(database: Database, tmp_path: Path) -> None:
    set_up_numbers(database, 0)
    more = context_of(tmp_path, wide(), mode="append")
    assert sink(database).outlook(None, more, fork=True, again=False).problem is None
    assert columns_of(database) == [("id", "bigint"), ("twice", "bigint")]


def test_a_table_that_others_hold_is_left_alone(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up_numbers(database, 0)
    monkeypatch.setattr("strobe.hosts.spark.connectors.postgres.check._PATIENCE", "50ms")
    with psycopg.connect(database.dsn) as other:
        other.execute("LOCK TABLE target IN ROW EXCLUSIVE MODE")
        with pytest.raises(Failed, match="somebody has held the table"):
            sink(database).open(context_of(tmp_path, wide(), mode="append"))
    assert len(columns_of(database)) == 2
