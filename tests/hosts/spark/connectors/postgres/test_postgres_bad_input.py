"""What is wrong is said when the job starts, with what to change; the database is left as it was. No Spark needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as t

import strobe
from strobe.hosts.spark.connectors.base import Unreachable
from strobe.model.errors import Fenced, Misuse, StrobeError
from tests.services import Server
from tests.support.spark.postgres_world import Database, context_of

pytestmark = pytest.mark.services("postgres")

ROWS = t.StructType([t.StructField("account", t.LongType()), t.StructField("balance", t.DecimalType(12, 2))])
TABLE = "account bigint PRIMARY KEY, balance numeric(12,2)"


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    found = Database(postgres)
    yield found
    found.drop()


def refusal(sink: strobe.PostgresSink, base: Path, schema: t.StructType = ROWS, *, mode: str = "update") -> StrobeError:
    with pytest.raises(StrobeError) as caught:
        sink.open(context_of(base, schema, mode=mode))
    return caught.value


def test_a_table_that_is_not_there_is_named_with_the_statement_that_makes_it(
    database: Database, tmp_path: Path
) -> None:
    error = refusal(strobe.PostgresSink(database.dsn, "balances", key="account"), tmp_path)
    assert isinstance(error, Misuse)
    assert "no such table" in error.what
    statement = error.next.removeprefix("Create it: ")
    database.run(statement)
    strobe.PostgresSink(database.dsn, "balances", key="account").open(context_of(tmp_path, ROWS))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("account bigint PRIMARY KEY", "it has no column 'balance' (it has account)"),
        ("account text PRIMARY KEY, balance numeric", "column 'account' is text, which takes no bigint"),
        ("account bigint PRIMARY KEY, balance numeric(12,1)", "column 'balance' is numeric(12,1)"),
        ("account bigint PRIMARY KEY, balance float8", "column 'balance' is double precision"),
        (f"{TABLE}, since date NOT NULL", "column 'since' must not be null, and the stage does not return it"),
        (
            "account bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, balance numeric",
            "column 'account' is always generated",
        ),
    ],
)
def test_a_table_of_another_shape_is_refused_with_the_column(
    database: Database, tmp_path: Path, table: str, said: str
) -> None:
    database.run(f"CREATE TABLE balances ({table})")
    error = refusal(strobe.PostgresSink(database.dsn, "balances", key="account"), tmp_path)
    assert isinstance(error, Misuse)
    assert said in error.what
    assert not database.rows("SELECT 1 FROM pg_tables WHERE tablename ~ '^strobe'")


@pytest.mark.parametrize(
    ("type", "column", "hint"),
    [
        (t.TimestampType(), "timestamp", "make it timestamptz"),
        (t.TimestampNTZType(), "timestamptz", "make it timestamp without time zone"),
        (t.DoubleType(), "real", "it would be rounded"),
        (t.MapType(t.StringType(), t.LongType()), "text", "make it jsonb"),
        (t.ArrayType(t.TimestampType()), "timestamp[]", "takes no array<timestamp>"),
        (t.VariantType(), "jsonb", "cast it in the stage"),
    ],
)
def test_what_would_change_a_value_in_silence_is_refused(
    database: Database, tmp_path: Path, type: t.DataType, column: str, hint: str
) -> None:
    database.run(f"CREATE TABLE target (v {column})")
    error = refusal(strobe.PostgresSink(database.dsn, "target"), tmp_path, t.StructType([t.StructField("v", type)]))
    assert hint in error.what


def test_columns_that_fill_themselves_may_be_left_out(database: Database, tmp_path: Path) -> None:
    database.run(f"CREATE TABLE balances ({TABLE}, n bigserial, at timestamptz NOT NULL DEFAULT now(), note text)")
    strobe.PostgresSink(database.dsn, "balances", key="account").open(context_of(tmp_path, ROWS))


def test_a_key_needs_a_unique_constraint_on_exactly_its_columns(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE balances (account bigint, balance numeric(12,2), UNIQUE (account, balance))")
    database.run("CREATE UNIQUE INDEX ON balances (account) WHERE balance > 0")
    error = refusal(strobe.PostgresSink(database.dsn, "balances", key="account"), tmp_path)
    assert "no primary key or unique constraint on account" in error.what
    assert error.next == 'Add one: ALTER TABLE balances ADD UNIQUE ("account")'
    database.run(error.next.removeprefix("Add one: "))
    strobe.PostgresSink(database.dsn, "balances", key="account").open(context_of(tmp_path, ROWS))


def test_a_key_that_the_stage_does_not_return_is_refused(database: Database, tmp_path: Path) -> None:
    error = refusal(strobe.PostgresSink(database.dsn, "balances", key=["account", "day"]), tmp_path)
    assert "it has no column day" in error.what


@pytest.mark.parametrize("name", ["strobe_batch", "strobe_row"])
def test_a_column_with_a_name_of_strobes_own_is_refused(database: Database, tmp_path: Path, name: str) -> None:
    rows = t.StructType([t.StructField("account", t.LongType()), t.StructField(name, t.LongType())])
    error = refusal(strobe.PostgresSink(database.dsn, "balances", key="account"), tmp_path, rows)
    assert f"the name '{name}' is Strobe's own" in error.what


def test_the_statement_that_is_proposed_makes_the_table(database: Database, tmp_path: Path) -> None:
    names = ['The "key"', "it's 100 %"]
    rows = t.StructType([t.StructField(name, t.LongType()) for name in names])
    sink = strobe.PostgresSink(database.dsn, "fresh", key=names[0])
    database.run(refusal(sink, tmp_path, rows).next.removeprefix("Create it: "))
    sink.open(context_of(tmp_path, rows))


def test_a_stage_that_replaces_everything_is_refused(database: Database, tmp_path: Path) -> None:
    assert "complete" in refusal(strobe.PostgresSink(database.dsn, "balances"), tmp_path, mode="complete").what


@pytest.mark.parametrize(
    "arguments",
    [{"delivery": "sometimes"}, {"table": ""}, {"table": ".x"}, {"key": ["a", "a"]}, {"key": 5}, {"key": ""}],
)
def test_what_can_never_be_meant_is_refused_at_once(arguments: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        strobe.PostgresSink("postgresql://localhost/x", **{"table": "t", **arguments})


def test_a_server_that_is_not_there_is_named_with_what_was_tried(tmp_path: Path) -> None:
    error = refusal(strobe.PostgresSink("postgresql://me:hidden-word@127.0.0.1:1/none", "balances"), tmp_path)
    assert isinstance(error, Unreachable)
    assert "127.0.0.1:1/none does not answer" in error.what
    assert "hidden-word" not in f"{error!r} {error} {error.__cause__} {error.__context__}"


def test_wrong_credentials_are_refused_and_never_shown(database: Database, tmp_path: Path) -> None:
    password = database.dsn.split(":")[2].partition("@")[0]
    error = refusal(strobe.PostgresSink(database.dsn.replace(password, "hidden-word"), "balances"), tmp_path)
    assert isinstance(error, Misuse)
    assert "refuses user 'strobe': wrong credentials" in error.what
    assert "hidden-word" not in f"{error!r} {error} {error.__cause__}"


@pytest.mark.parametrize("dsn", ["postgresql://me:hidden-word@h/db?nonsense=1", "host=h password=hidden-word nonsense"])
def test_a_connection_string_that_cannot_be_read_is_not_shown(dsn: str) -> None:
    with pytest.raises(Misuse) as caught:
        strobe.PostgresSink(dsn, "balances")
    assert "hidden-word" not in f"{caught.value!r} {caught.value} {caught.value.__cause__}"


def test_a_database_that_is_not_there_is_misuse(database: Database, tmp_path: Path) -> None:
    sink = strobe.PostgresSink(database.dsn.replace(database.name, "nowhere"), "balances")
    assert isinstance(refusal(sink, tmp_path), Misuse)


def test_without_the_right_to_write_it_says_what_is_needed(database: Database, tmp_path: Path) -> None:
    database.run(f"CREATE TABLE balances ({TABLE})")
    database.run(f"CREATE ROLE {database.name} LOGIN PASSWORD 'reader'")
    try:
        host = database.dsn.partition("@")[2]
        sink = strobe.PostgresSink(f"postgresql://{database.name}:reader@{host}", "balances")
        error = refusal(sink, tmp_path)
        assert isinstance(error, Misuse)
        assert "It needs INSERT" in error.next
    finally:
        database.run(f"DROP OWNED BY {database.name}; DROP ROLE {database.name}")


def test_prepared_transactions_that_are_switched_off_are_named_with_the_setting(tmp_path: Path) -> None:
    with Server("postgres", tmp_path, {"STROBE_POSTGRES_OPTIONS": "-c max_prepared_transactions=0"}) as server:
        database = Database(server.address)
        database.run(f"CREATE TABLE balances ({TABLE})")
        error = refusal(strobe.PostgresSink(database.dsn, "balances", delivery="on_snapshot"), tmp_path)
        assert isinstance(error, Misuse)
        assert "max_prepared_transactions is 0" in error.what
        assert "ALTER SYSTEM SET max_prepared_transactions" in error.next
        strobe.PostgresSink(database.dsn, "balances").open(context_of(tmp_path, ROWS))


def test_an_older_driver_is_fenced_off_when_it_opens(database: Database, tmp_path: Path) -> None:
    database.run(f"CREATE TABLE balances ({TABLE})")
    strobe.PostgresSink(database.dsn, "balances").open(context_of(tmp_path, ROWS, incarnation=2))
    assert isinstance(refusal(strobe.PostgresSink(database.dsn, "balances"), tmp_path), Fenced)


def test_a_job_of_the_same_name_in_another_home_is_refused_until_the_first_is_forgotten(
    database: Database, tmp_path: Path
) -> None:
    database.run(f"CREATE TABLE balances ({TABLE})")
    strobe.PostgresSink(database.dsn, "balances").open(context_of(tmp_path / "one", ROWS))
    error = refusal(strobe.PostgresSink(database.dsn, "balances"), tmp_path / "other")
    assert isinstance(error, Misuse)
    assert "in another home" in error.what
    database.run(error.next.partition("gone for good: ")[2])
    strobe.PostgresSink(database.dsn, "balances").open(context_of(tmp_path / "other", ROWS))
