"""What one load does to a table: types, marks, fences, keys, rows that cannot be written. No Spark is needed for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from strobe.hosts.spark.connectors.postgres.connect import Dsn, table_of
from strobe.hosts.spark.connectors.postgres.load import BATCH, Load, Outcome, Verdict, load
from tests.support.spark.postgres_world import Database

pytestmark = pytest.mark.services("postgres")


@pytest.fixture
def database(postgres: str) -> Iterator[Database]:
    found = Database(postgres)
    found.run("CREATE TABLE strobe_sinks (sink text PRIMARY KEY, owner text, incarnation bigint)")
    found.run(
        "CREATE TABLE strobe_batches (sink text, timeline bigint, batch bigint, incarnation bigint, at timestamptz, "
        "PRIMARY KEY (sink, timeline))"
    )
    found.run("INSERT INTO strobe_sinks VALUES ('job/sink', 'me', 1)")
    yield found
    found.drop()


def order(database: Database, table: str, *names: str, key: tuple[str, ...] = (), **more: Any) -> Load:
    with psycopg.connect(database.dsn) as connection:
        found = table_of(connection, table)
    assert found is not None
    columns = tuple(c for name in names if (c := found.column(name)) is not None)
    given = {"through": 0, "timeline": 1, "incarnation": 1, **more}
    return Load(Dsn(database.dsn), "test", found.schema, table, columns, key, "job/sink", "me", **given)


def batches(*rows: tuple[Any, ...], names: str = "k v", batch: int = 0, types: Any = None) -> Iterator[pa.RecordBatch]:
    schema = types or pa.schema([("k", pa.int64()), ("v", pa.string())])
    table = pa.Table.from_pylist([dict(zip(names.split(), row, strict=True)) for row in rows], schema=schema)
    table = table.append_column(BATCH, pa.array([batch] * len(rows), pa.int64()))
    return iter(table.to_batches(max_chunksize=3))


def several(*parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return iter([batch for part in parts for batch in part])


def table(database: Database, extra: str = "") -> None:
    database.run(f"CREATE TABLE target (k bigint, v text{extra})")


ROWS = [(1, "a"), (2, "b")]


def test_every_type_arrives_as_it_was(database: Database) -> None:
    at = datetime(2024, 5, 6, 7, 8, 9, 123456)
    values: dict[str, tuple[pa.DataType, str, list[Any]]] = {
        "b": (pa.bool_(), "boolean", [True, False, None]),
        "i2": (pa.int8(), "smallint", [-128, 127, None]),
        "i8": (pa.int64(), "bigint", [-(2**63), 2**63 - 1, None]),
        "f4": (pa.float32(), "real", [1.5, math.inf, None]),
        "f8": (pa.float64(), "double precision", [0.1, -math.inf, None]),
        "n": (pa.decimal128(38, 10), "numeric(38,10)", [Decimal("-12345678901234567890.0123456789"), Decimal(0), None]),
        "s": (pa.string(), "text", ["", 'q"uo\\te, \n\r\t\\. \\N äöü 🙂', None]),
        "d": (pa.date32(), "date", [date(1, 1, 1), date(9999, 12, 31), None]),
        "tz": (pa.timestamp("us", "UTC"), "timestamptz", [at.replace(tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), None]),
        "ts": (pa.timestamp("us"), "timestamp", [at, datetime(1960, 1, 1, 0, 0, 0, 1), None]),
        "y": (pa.binary(), "bytea", [b"\0\\x\xff", b"", None]),
        "iv": (pa.duration("us"), "interval", [timedelta(days=3, microseconds=1), timedelta(0), None]),
        "ai": (pa.list_(pa.int32()), "int[]", [[1, None, -3], [], None]),
        "at": (pa.list_(pa.string()), "text[]", [["", 'a"b\\c,{}', None, "NULL"], [], None]),
        "am": (pa.list_(pa.list_(pa.float64())), "float8[]", [[[1.5, -2.0], [3.0, 4.0]], [], None]),
    }
    database.run(f"CREATE TABLE target ({', '.join(f'{n} {sql}' for n, (_, sql, _) in values.items())})")
    schema = pa.schema([(name, type) for name, (type, _, _) in values.items()])
    rows = list(zip(*(column for _, _, column in values.values()), strict=True))
    given = batches(*rows, names=" ".join(values), types=schema)
    assert load(order(database, "target", *values), given) == Outcome(Verdict.WRITTEN, 3)
    assert database.rows("SELECT * FROM target") == rows


_KEYS: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "boolean": (pa.bool_(), "boolean", [True, False]),
    "tinyint": (pa.int8(), "smallint", [-128, 127]),
    "bigint": (pa.int64(), "bigint", [-(2**63), 2**53, 2**53 + 1]),
    "float": (pa.float32(), "real", [0.0, 1.5, math.nan, math.inf]),
    "double": (pa.float64(), "double precision", [0.0, 0.1, math.nan, -math.inf]),
    "decimal": (pa.decimal128(38, 10), "numeric(38,10)", [Decimal("0.1"), Decimal("-0.1")]),
    "string": (pa.string(), "text", ["", "a", "A", "it's", 'q"', "\\", "%s", "é", "e\u0301", "🙂"]),
    "binary": (pa.binary(), "bytea", [b"", b"\0", b"\0\xff"]),
    "date": (pa.date32(), "date", [date(1, 1, 1), date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), "timestamptz", [datetime(y, 1, 1, tzinfo=UTC) for y in (1, 1970)]),
    "timestamp_ntz": (pa.timestamp("us"), "timestamp", [datetime(1970, 1, 1), datetime(1970, 1, 1, microsecond=1)]),
    "interval": (pa.duration("us"), "interval", [timedelta(days=3, microseconds=1), timedelta(0)]),
    "array": (pa.list_(pa.string()), "text[]", [["", None], [], ["a,b"]]),
    "struct": (pa.struct([("x", pa.int64())]), "jsonb", [{"x": 1}, {"x": None}]),
}  # fmt: skip


@pytest.mark.parametrize("kinds", [[kind] for kind in _KEYS] + [["string", "double", "timestamp", "struct"]], ids=str)
@pytest.mark.parametrize("sorted_out", [False, True])
def test_every_type_is_a_key(database: Database, kinds: list[str], sorted_out: bool) -> None:
    names = [f'The "{kind}" %s' for kind in kinds]
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    columns = [f"{name} {_KEYS[kind][1]}" for name, kind in zip(quoted.split(", "), kinds, strict=True)]
    database.run(f"CREATE TABLE target ({', '.join(columns)}, v bigint, PRIMARY KEY ({quoted}))")
    keys = list(zip(*(_KEYS[kind][2][:2] if len(kinds) > 1 else _KEYS[kind][2] for kind in kinds), strict=True))
    schema = pa.schema([*((name, _KEYS[kind][0]) for name, kind in zip(names, kinds, strict=True)), ("v", pa.int64())])
    for turn in range(3):
        rows = [{**dict(zip(names, key, strict=True)), "v": turn * 100 + n} for n, key in enumerate(keys)]
        given = pa.Table.from_pylist(rows, schema=schema).append_column(BATCH, pa.array([turn] * len(rows), pa.int64()))
        into = order(database, "target", *names, "v", key=tuple(names), through=turn, sorted_out=sorted_out)
        assert load(into, iter(given.to_batches())) == Outcome(Verdict.WRITTEN, len(rows))
    assert database.rows("SELECT v FROM target ORDER BY v") == [(200 + n,) for n in range(len(keys))]


def test_minus_zero_is_zero(database: Database) -> None:
    database.run("CREATE TABLE target (k float8 PRIMARY KEY, v bigint)")
    schema = pa.schema([("k", pa.float64()), ("v", pa.int64())])
    for turn, zero in enumerate((0.0, -0.0)):
        given = batches((zero, turn), types=schema, batch=turn)
        load(order(database, "target", "k", "v", key=("k",), through=turn), given)
    assert database.rows("SELECT v FROM target") == [(1,)]


def test_nested_values_go_into_json(database: Database) -> None:
    database.run("CREATE TABLE target (m jsonb, s jsonb, l jsonb)")
    schema = pa.schema([
        ("m", pa.map_(pa.string(), pa.int64())), ("s", pa.struct([("x", pa.date32()), ("y", pa.list_(pa.string()))])),
        ("l", pa.list_(pa.struct([("z", pa.float64())]))),
    ])  # fmt: skip
    row = ([("a", 1)], {"x": date(2024, 1, 2), "y": ["ü", None]}, [{"z": 0.5}])
    given = batches(row, (None, None, None), names="m s l", types=schema)
    assert load(order(database, "target", "m", "s", "l"), given).verdict is Verdict.WRITTEN
    want = ({"a": 1}, {"x": "2024-01-02", "y": ["ü", None]}, [{"z": 0.5}])
    assert database.rows("SELECT * FROM target") == [want, (None, None, None)]


def test_nan_arrives_as_nan(database: Database) -> None:
    database.run("CREATE TABLE target (k bigint, x float8)")
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64())])
    load(order(database, "target", "k", "x"), batches((1, math.nan), names="k x", types=schema))
    assert database.rows("SELECT x = 'NaN' FROM target") == [(True,)]


def test_one_column_with_nulls_loses_no_row(database: Database) -> None:
    database.run("CREATE TABLE target (v text)")
    schema = pa.schema([("v", pa.string())])
    load(order(database, "target", "v"), batches((None,), ("",), (None,), names="v", types=schema))
    assert sorted(database.rows("SELECT v FROM target"), key=str) == [("",), (None,), (None,)]


def test_a_string_goes_into_any_type_that_reads_it(database: Database) -> None:
    database.run("CREATE TYPE mood AS ENUM ('fine'); CREATE TABLE target (u uuid, j jsonb, m mood, n int)")
    names = "u j m n"
    schema = pa.schema([(name, pa.string()) for name in names.split()])
    row = ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", '{"a": [1]}', "fine", "17")
    assert load(order(database, "target", *names.split()), batches(row, names=names, types=schema)).rows == 1
    assert database.rows("SELECT u::text, j, m::text, n FROM target") == [(row[0], {"a": [1]}, "fine", 17)]


def test_a_batch_is_written_once_however_often_it_is_loaded(database: Database) -> None:
    table(database)
    one = order(database, "target", "k", "v")
    assert [load(one, batches(*ROWS)).verdict for _ in range(2)] == [Verdict.WRITTEN, Verdict.THERE]
    assert load(replace(one, through=1), batches((3, "c"))).verdict is Verdict.WRITTEN
    assert load(one, batches(*ROWS)).verdict is Verdict.THERE
    assert database.rows("SELECT count(*) FROM target") == [(3,)]
    assert database.rows("SELECT batch FROM strobe_batches") == [(1,)]


def test_a_batch_without_rows_has_a_mark_too(database: Database) -> None:
    table(database)
    assert load(order(database, "target", "k", "v", through=4), iter(())).verdict is Verdict.WRITTEN
    assert database.rows("SELECT batch FROM strobe_batches") == [(4,)]


@pytest.mark.parametrize("gid", [None, "strobe/test/fenced"])
def test_a_load_of_an_older_incarnation_writes_nothing(database: Database, gid: str | None) -> None:
    table(database)
    old = order(database, "target", "k", "v", gid=gid)
    database.run("UPDATE strobe_sinks SET incarnation = 2")
    assert load(old, batches(*ROWS)).verdict is Verdict.FENCED
    assert (database.rows("SELECT * FROM target"), database.prepared()) == ([], [])


def test_a_load_that_wakes_up_after_its_batch_was_written_by_another_writes_nothing(database: Database) -> None:
    """It sleeps before its first row; meanwhile its connection is ended and the batch is written by somebody else."""
    table(database)
    sleeper = order(database, "target", "k", "v")

    def rows() -> Iterator[pa.RecordBatch]:
        database.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'test'")
        assert load(replace(sleeper, application="second"), batches((9, "right"))).verdict is Verdict.WRITTEN
        yield from batches(*ROWS)

    assert load(sleeper, rows()).verdict is Verdict.PASSING
    assert database.rows("SELECT * FROM target") == [(9, "right")]


def test_two_attempts_at_the_same_batch_never_write_side_by_side(database: Database) -> None:
    table(database)
    first = order(database, "target", "k", "v")
    second: list[Outcome] = []

    def rows() -> Iterator[pa.RecordBatch]:
        second.append(load(replace(first, lock_timeout=50), batches(*ROWS)))
        yield from batches(*ROWS)

    assert load(first, rows()).verdict is Verdict.WRITTEN
    assert second[0].verdict is Verdict.PASSING
    assert len(database.rows("SELECT * FROM target")) == 2


def test_what_is_prepared_is_invisible_until_it_is_committed(database: Database) -> None:
    table(database)
    assert load(order(database, "target", "k", "v", gid="strobe/test/1"), batches(*ROWS)).verdict is Verdict.WRITTEN
    assert (database.rows("SELECT * FROM target"), database.rows("SELECT * FROM strobe_batches")) == ([], [])
    assert database.prepared() == ["strobe/test/1"]
    database.run("COMMIT PREPARED 'strobe/test/1'")
    assert database.rows("SELECT * FROM target") == ROWS


@pytest.mark.parametrize("gid", [None, "strobe/test/upsert"])
def test_an_upsert_changes_what_is_there_and_adds_the_rest(database: Database, gid: str | None) -> None:
    table(database, ", other int DEFAULT 7, PRIMARY KEY (k)")
    database.run("INSERT INTO target VALUES (1, 'old', 1), (5, 'kept', 5)")
    done = load(order(database, "target", "k", "v", key=("k",), gid=gid), batches(*ROWS))
    assert done == Outcome(Verdict.WRITTEN, 2)
    if gid:
        database.run(f"COMMIT PREPARED '{gid}'")
    assert database.rows("SELECT * FROM target ORDER BY k") == [(1, "a", 1), (2, "b", 7), (5, "kept", 5)]
    assert not database.rows("SELECT 1 FROM pg_tables WHERE tablename ~ 'strobe_load'")


def test_of_several_batches_the_last_one_wins(database: Database) -> None:
    table(database, ", PRIMARY KEY (k)")
    given = several(
        batches((1, "new"), batch=2), batches((1, "old"), (2, "kept"), batch=0), batches((1, "older"), batch=1)
    )
    load(order(database, "target", "k", "v", key=("k",), through=2), given)
    assert database.rows("SELECT * FROM target ORDER BY k") == [(1, "new"), (2, "kept")]


def test_rows_of_one_batch_with_the_same_key_are_refused_unless_they_are_the_same(database: Database) -> None:
    table(database, ", PRIMARY KEY (k)")
    one = order(database, "target", "k", "v", key=("k",))
    refused = load(one, batches((1, "a"), (1, "b")))
    assert refused.verdict is Verdict.FAILED
    assert "batch 0 has several rows with the key k = 1" in refused.message
    assert load(one, batches((1, "a"), (2, None), (1, "a"), (2, None))).verdict is Verdict.WRITTEN
    assert database.rows("SELECT * FROM target ORDER BY k") == [(1, "a"), (2, None)]


@pytest.mark.parametrize(
    ("constraint", "rows", "said"),
    [
        (", UNIQUE (k)", [(1, "a"), (1, "b")], "Key (k)=(1) already exists"),
        (", CHECK (k < 10)", [(1, "a"), (11, "b")], "Failing row contains (11, b)"),
        (" NOT NULL", [(1, "a"), (2, None)], "Failing row contains (2, null)"),
        (", FOREIGN KEY (k) REFERENCES accounts", [(1, "a"), (99, "b")], "Key (k)=(99) is not present"),
        (", UNIQUE (k) DEFERRABLE INITIALLY DEFERRED", [(1, "a"), (1, "b")], "Key (k)=(1) already exists"),
    ],
)
@pytest.mark.parametrize("gid", [None, "strobe/test/violation"])
def test_a_constraint_names_the_row_and_nothing_is_visible(
    database: Database, constraint: str, rows: list[tuple[Any, ...]], said: str, gid: str | None
) -> None:
    database.run("CREATE TABLE accounts (id bigint PRIMARY KEY); INSERT INTO accounts VALUES (1)")
    table(database, constraint)
    outcome = load(order(database, "target", "k", "v", gid=gid), batches(*rows))
    assert outcome.verdict is Verdict.REJECTED
    assert said in outcome.rejected[0][1]
    assert (database.rows("SELECT * FROM target"), database.prepared()) == ([], [])
    assert not database.rows("SELECT * FROM strobe_batches")


def test_a_nul_character_is_a_fault_of_its_row(database: Database) -> None:
    table(database)
    outcome = load(order(database, "target", "k", "v"), batches((1, "a"), (2, "b\0c")))
    assert (outcome.verdict, outcome.rejected[0][0]) == (Verdict.REJECTED, {"k": 2, "v": "b\0c"})
    assert "NUL" in outcome.rejected[0][1]
    assert database.rows("SELECT * FROM target") == []


# ── rows that are sorted out ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", [(), ("k",)])
def test_rows_that_cannot_be_written_are_found_and_the_rest_is_written(
    database: Database, key: tuple[str, ...]
) -> None:
    table(database, ", PRIMARY KEY (k), CHECK (v <> 'bad')")
    rows = [(n, "bad" if n in (3, 4, 17) else "nul\0" if n == 8 else "good") for n in range(20)]
    one = order(database, "target", "k", "v", key=key, gid="strobe/test/sorted", sorted_out=True)
    outcome = load(one, batches(*rows))
    assert (outcome.verdict, outcome.rows) == (Verdict.WRITTEN, 16)
    assert sorted(row["k"] for row, _, _ in outcome.rejected) == [3, 4, 8, 17]
    assert all(batch == 0 for _, _, batch in outcome.rejected)
    database.run("COMMIT PREPARED 'strobe/test/sorted'")
    assert database.rows("SELECT count(*), count(*) FILTER (WHERE v = 'good') FROM target") == [(16, 16)]


def test_on_batch_nothing_is_written_before_the_rejected_rows_are_told(database: Database) -> None:
    table(database, ", CHECK (k > 0)")
    one = order(database, "target", "k", "v", sorted_out=True)
    told = load(one, batches((0, "bad"), (1, "a")))
    assert (told.verdict, database.rows("SELECT * FROM target")) == (Verdict.REJECTED, [])
    assert load(replace(one, told=told.digest), batches((0, "bad"), (1, "a"))).verdict is Verdict.WRITTEN
    assert database.rows("SELECT * FROM target") == [(1, "a")]


def test_an_older_row_stands_if_the_newer_one_is_rejected(database: Database) -> None:
    table(database, ", PRIMARY KEY (k), CHECK (v <> 'bad')")
    given = several(batches((1, "good"), batch=0), batches((1, "bad"), batch=1))
    one = order(database, "target", "k", "v", key=("k",), through=1, gid="strobe/test/older", sorted_out=True)
    assert [(row, batch) for row, _, batch in load(one, given).rejected] == [({"k": 1, "v": "bad"}, 1)]
    database.run("COMMIT PREPARED 'strobe/test/older'")
    assert database.rows("SELECT * FROM target") == [(1, "good")]


def test_a_key_that_is_null_is_a_fault_of_its_row(database: Database) -> None:
    table(database, ", UNIQUE (k)")
    outcome = load(order(database, "target", "k", "v", key=("k",)), batches((None, "a")))
    assert (outcome.verdict, outcome.rejected[0][1]) == (Verdict.REJECTED, "key column 'k' is null")


def test_a_server_that_is_not_there_is_worth_another_attempt(database: Database) -> None:
    table(database)
    one = order(database, "target", "k", "v")
    away = load(replace(one, dsn=Dsn("postgresql://me:hidden-word@127.0.0.1:1/none")), batches(*ROWS))
    assert away.verdict is Verdict.PASSING
    assert "hidden-word" not in repr((away, one, Dsn("postgresql://me:hidden-word@127.0.0.1:1/none")))
