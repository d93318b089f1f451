"""Decoded state that is kept: what is read of it, what is not believed, and who may come in between."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from strobe.look import kept_rows, key_hashes
from strobe.look.cut import open_snapshot
from strobe.look.engine import Engine, Limits
from strobe.look.relations import Lost, Relation
from tests.look.world import JOB, World

FIRST: dict[int, int | None] = {n: n for n in range(1000)}
LAST: dict[int, int | None] = {7: 70, 8: None, 5000: 1}
EXPECTED = sorted({**{k: v for k, v in FIRST.items() if k != 8}, 7: 70, 5000: 1}.items())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("STROBE_CACHE", str(tmp_path / "cache"))
    made = World(tmp_path)
    made.take(FIRST)
    made.take(FIRST, LAST)
    return made


def asked(world: World, snapshot: int, query: str = "from state.balances order by account") -> tuple[int, list[Any]]:
    """How many rows were decoded, and the answer."""
    with open_snapshot(f"{JOB}/{snapshot}", world.home) as cut:
        found = [tuple(row.values()) for row in cut.sql(query).to_pylist()]
        return cut.cache.decoded, found


def test_a_file_with_another_byte_is_not_believed(world: World, tmp_path: Path) -> None:
    """Wherever the byte is: in the head, a column, the keys, their hashes, the checksums."""
    asked(world, 1)
    (file,) = (tmp_path / "cache").iterdir()
    content = file.read_bytes()
    assert asked(world, 2) == (2, EXPECTED)
    again = 0
    for place in [*range(5, len(content), len(content) // 30), len(content) - 1]:
        damaged = bytearray(content)
        damaged[place] ^= 0x40
        file.write_bytes(damaged)
        decoded, found = asked(world, 2)
        assert found == EXPECTED, f"byte {place} of {len(content)}"
        again += decoded >= 1000
        for other in (tmp_path / "cache").iterdir():
            other.unlink()
    assert again > 12  # the others are keys of rows that nobody looks for


@pytest.mark.parametrize("size", [0, 3, 20, 5000, -1])
def test_a_file_that_was_cut_off_is_not_believed(world: World, tmp_path: Path, size: int) -> None:
    asked(world, 1)
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(file.read_bytes()[:size])
    assert asked(world, 2) == (1000, EXPECTED)


def test_keys_whose_hashes_agree_are_told_apart(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (key_hashes, kept_rows):
        monkeypatch.setattr(module, "hashes_of", lambda keys: np.zeros(len(keys), np.uint64))
    asked(world, 1)
    assert asked(world, 2) == (2, EXPECTED)


def test_many_changes_are_kept_in_their_turn(world: World, tmp_path: Path) -> None:
    asked(world, 1)
    more: dict[int, int | None] = {n: -n for n in range(500)}
    world.take(FIRST, LAST, more)
    assert asked(world, 3, "select count(*), sum(balance) from state.balances")[0] == 501
    assert len(list((tmp_path / "cache").iterdir())) == 2
    expected = sorted({**dict(EXPECTED), **more}.items())
    assert asked(world, 3) == (0, expected)


def test_a_cut_that_goes_on_reads_other_columns_when_they_are_asked_for(world: World) -> None:
    for _ in range(2):
        with open_snapshot(f"{JOB}/2", world.home) as cut:
            assert cut.sql("select count(*) as n from state.balances").to_pylist() == [{"n": 1000}]
            assert cut.sql("select sum(balance) as n from state.balances").to_pylist() == [{"n": 499500 + 63 - 8 + 1}]
            assert cut.sql("from state.balances").schema.names == ["account", "balance"]
            assert cut.cache.decoded in (1000, 0)


def test_damage_is_found_whichever_columns_are_asked_for(world: World) -> None:
    path = world.blob(2, "state/0/0/2.changelog")
    path.chmod(0o600)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    asked(world, 1)
    for query in ("select count(*) from state.balances", "from state.balances"):
        with open_snapshot(f"{JOB}/2", world.home) as cut, pytest.raises(Lost, match=r"2.changelog"):
            cut.sql(query)


# ── only what is asked for ──────────────────────────────────────────────────────────────────────────────────────────

ROWS = pa.table({"id": [1, 2, 3], "a": ["x", "y", "x"], "b": [1.5, 2.5, 3.5], "s": [{"a": 1, "q": 2}] * 3})
OTHER = pa.table({"id": [2, 3, 4], "a": ["y", "z", "z"], "c": [True, False, None]})


def engine(*, narrow: bool) -> tuple[Engine, list[frozenset[str]]]:
    read: list[frozenset[str]] = []

    def some(table: pa.Table, columns: frozenset[str]) -> pa.Table:
        read.append(columns)
        return table.select([name for name in table.schema.names if name in columns])

    relations = []
    for schema, name, table in (("state", "t", ROWS), ("channel", "u", OTHER)):
        few = partial(some, table) if narrow else None
        relations.append(Relation(schema, name, "", partial(some, table, frozenset(table.schema.names)), table.schema,
                                  narrow=few))  # fmt: skip
    made = Engine(Limits())
    made.add(relations)
    return made, read


QUERIES = [
    "from state.t",
    "select * exclude (a) from state.t",
    "select t.* from state.t as t",
    "select t from state.t",
    "select x from state.t x",
    "select count(*) from state.t",
    "select count(t) from state.t",
    "select #2 from state.t",
    "select columns('a|b') from state.t",
    "select columns(c -> c like 'a%') from state.t",
    "select q from state.t as r(p, q, r, w)",
    "select id from state.t natural join channel.u",
    "select count(*) from state.t natural join channel.u",
    "select u.c from state.t join channel.u using (id)",
    "select ID, A from state.t where B > 2",
    "select state.t.a from state.t",
    "select t.s.q from state.t",
    "select s.a from state.t",
    "select s['q'] as q from state.t",
    "select (t).a from state.t",
    "select a, sum(b) from state.t group by all order by all",
    "select distinct on (a) b from state.t order by b",
    "select id, row_number() over (partition by a order by b desc) as n from state.t order by id",
    "select max(b) filter (where a = 'x') from state.t",
    "with x as (select id, b from state.t) select sum(b) from x where id in (select id from channel.u where c)",
    "with x as (from state.t) select count(*) from x",
    "select a as id from state.t order by id",
    "select 1 from state.t union by name select 2 as c from channel.u",
    "select (select max(u.id) from channel.u where u.a = t.a) from state.t order by all",
    "select l.b from state.t, lateral (select t.b + 1 as b) l order by 1",
    "select case when a = 'x' then b end, cast(id as decimal(9, 2)) from state.t where id between 1 and 2",
    "select [v + id for v in [1, 2]] from state.t",
    "select list_transform([1], v -> v + id) from state.t",
    "select a.id from state.t a positional join channel.u b",
    "pivot state.t on a using sum(b) group by id order by id",
    "select * from (pivot state.t on a using sum(b) group by id) order by id",
    "unpivot (select id, b from state.t) on id, b into name n value v",
    "describe state.t",
    "summarize state.t",
    "select unnest(s) from state.t",
    "select unnest(s, recursive := true) from state.t",
    "select count(distinct a), string_agg(a, ',' order by b) from state.t",
    "select nope from state.t",
    "select id from state.t where exists (from channel.u where u.id = t.id)",
    "select b from state.t tablesample 100%",
    "select id from state.t order by b limit 1",
    "select id, b from state.t qualify b = max(b) over ()",
    "from state.t select a",
    "select struct_pack(x := id).x from state.t",
    "select id from state.t semi join channel.u using (a)",
    "explain select a from state.t",
]


@pytest.fixture(scope="module")
def whole() -> Engine:
    return engine(narrow=False)[0]


@pytest.mark.parametrize("query", QUERIES)
def test_an_answer_does_not_depend_on_which_columns_were_read(query: str, whole: Engine) -> None:
    def answer(made: Engine) -> Any:
        try:
            found = made.sql(query)
        except Exception as error:
            return str(error)
        if query.startswith("explain"):
            return "plan"
        rows = found.to_pylist()  # in whatever order, unless the query says which
        return found.schema.names, rows if "order by" in query else sorted(rows, key=repr)

    made, _ = engine(narrow=True)
    try:
        assert answer(made) == answer(whole)
    finally:
        made.close()


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("select count(*) from state.t", {"id"}),
        ("select sum(B) from state.t", {"b"}),
        ("select a, count(*) from state.t where id > 1 group by a", {"a", "id"}),
        ("select sum(x) from (select b as x from state.t union all select id from channel.u)", {"b", "id"}),
    ],
)
def test_only_columns_that_a_query_names_are_read(query: str, columns: set[str]) -> None:
    made, read = engine(narrow=True)
    made.sql(query)
    assert frozenset().union(*read) == columns
    asked = len(read)
    made.sql("select count(*) from state.t")
    assert len(read) == asked  # nothing is read again for less
