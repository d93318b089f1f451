"""A snapshot that is asked: what can be asked, what is refused, what is held, and what is decoded again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import strobe
from strobe.look.cut import Cut, open_snapshot
from strobe.look.diff import changed_rows, diff_cuts
from strobe.look.engine import Engine, Limits
from strobe.look.relations import Lost, Relation
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.ids import SnapshotId
from strobe.store.leases import retiring
from tests.look.world import JOB, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def cut(world: World) -> Iterator[Cut]:
    world.take({1: 5, 2: 50}, {2: -5, 3: 1}, {3: None})
    with open_snapshot(JOB, world.home) as opened:
        yield opened


def rows(cut: Cut, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in cut.sql(query).to_pylist()]


def test_state_has_the_names_of_the_code_and_the_last_changes(cut: Cut) -> None:
    assert cut.state("balances").schema.names == ["account", "balance"]
    assert rows(cut, "from state.balances order by 1") == [(1, 5), (2, -5)]


def test_rows_in_flight_say_who_had_yet_to_read_them_and_where_they_are(cut: Cut) -> None:
    assert rows(cut, "from in_flight.postings order by position") == [(2, 7, "balances", 2), (3, 9, "balances", 3)]
    assert rows(cut, "select sum(delta) from channel.postings") == [(21,)]


def test_a_cut_adds_up(cut: Cut) -> None:
    query = """select sum(x) as total from (select balance as x from state.balances union all
               select delta from in_flight.postings) having total <> 16"""
    assert rows(cut, query) == []


def test_a_sink_is_what_it_showed_at_the_cut(cut: Cut) -> None:
    assert rows(cut, "from sink.balances") == [(1, 5)]
    assert "sink.postings" not in {r.full_name for r in cut.relations()}


def test_a_snapshot_says_what_it_is(cut: Cut) -> None:
    assert rows(cut, "select job, kind from meta.snapshot") == [(JOB, "checkpoint")]
    assert rows(cut, "select channel, consumer, rows_in_flight from meta.channels") == [("postings", "balances", 2)]
    assert rows(cut, 'select "offset" from meta.sources') == [('{"logOffset": 1}',)]


def test_two_snapshots_in_one_query(world: World, cut: Cut) -> None:
    cut.add("before", open_snapshot(world.take({1: 1}), world.home))
    assert rows(cut, "select count(*) from state.balances full join before.state.balances using (account)") == [(2,)]
    cut.add("state", open_snapshot(JOB, world.home))
    with pytest.raises(Misuse, match="cannot be called 'state'"):
        cut.sql("select 1")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("selec 1", "not SQL"),
        ("", "empty"),
        ("create table x (a int)", "only be read"),
        ("select 1; drop schema state", "only be read"),
        ("copy (select 1) to '/tmp/x'", "only be read"),
        ("set memory_limit = '10GB'", "only be read"),
        ("install httpfs", "only be read"),
        ("from read_csv('/etc/passwd')", "nothing else"),
        ("from read_parquet('s3://b/x')", "query"),
        ("from '/etc/passwd'", "no relation"),
        ("from state.balance", "Did you mean"),
        ("from balances", "Did you mean state.balances"),
        ("select nope from state.balances", "nope"),
    ],
)
def test_what_is_no_question_to_the_snapshot_is_refused(cut: Cut, query: str, said: str) -> None:
    with pytest.raises((Misuse, Failed), match=said) as refused:
        cut.sql(query)
    assert "LINE" not in str(refused.value)
    assert rows(cut, "select 1") == [(1,)]


def test_local_variables_of_whoever_asks_are_no_relations(cut: Cut) -> None:
    import pyarrow as pa

    secret = pa.table({"a": [1]})
    with pytest.raises(Misuse, match="no relation 'secret'"):
        cut.sql("from secret")
    assert secret.num_rows == 1


def test_a_query_that_takes_too_long_or_too_much_is_stopped(world: World) -> None:
    with open_snapshot(world.take({1: 1}), world.home, timeout=0.2) as cut, pytest.raises(Failed, match=r"after 0.2 s"):
        cut.sql("select count(*) from range(100000000) a, range(1000000) b")
    with open_snapshot(JOB, world.home, memory="100MB") as cut, pytest.raises(Failed, match="more memory"):
        cut.sql("select list(range) from range(100000000)")
    with pytest.raises(Misuse, match="memory"), open_snapshot(JOB, world.home, memory="lots") as cut:
        cut.sql("select 1")


def test_rows_in_flight_that_are_gone_are_not_taken_for_rows_that_were_let_go(world: World) -> None:
    """What every stage has read may be gone from `channel.…`, and nothing else."""
    where = world.take({1: 5})
    for file in (world.home / "jobs" / JOB / "channels" / "postings" / "data").iterdir():
        file.unlink()
    with open_snapshot(where, world.home) as cut:
        for relation in ("in_flight.postings", "channel.postings"):
            with pytest.raises(Lost, match=f"{relation} is lost"):
                cut.sql(f"from {relation}")
        assert rows(cut, "from state.balances") == [(1, 5)]


def test_a_snapshot_of_a_newer_format_is_refused_as_such(world: World) -> None:
    where = world.take({1: 5})
    (manifest,) = (world.home / "jobs" / JOB / "snapshots").glob("*/manifest.json")
    value = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**value, "format": 99}))
    with pytest.raises(StrobeError, match="format 99"):
        open_snapshot(where, world.home)


def test_a_damaged_file_costs_its_relation_and_no_other(world: World) -> None:
    world.take({1: 1}, {2: 2})
    path = world.blob(1, "state/0/0/2.changelog")
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    with open_snapshot(JOB, world.home) as cut:
        with pytest.raises(Lost, match=r"state.balances is lost: .*2.changelog"):
            cut.sql("from state.balances")
        assert len(rows(cut, "from in_flight.postings")) == 2


def test_a_table_without_columns_is_refused_in_words() -> None:
    engine = Engine(Limits())
    engine.add(
        [
            Relation("sink", "files", "", lambda: pa.table({})),
            Relation("sink", "rows", "", lambda: pa.table({"n": [1, 2]})),
        ]
    )
    with pytest.raises(Failed, match=r"^sink\.files is not a table that can be asked"):
        engine.sql("select * from sink.files")
    assert engine.sql("select count(*) as n from sink.rows").to_pylist() == [{"n": 2}]


def test_no_snapshot_is_told(world: World) -> None:
    with pytest.raises(Misuse, match="no complete checkpoint"):
        open_snapshot(JOB, world.home)
    with pytest.raises(Misuse, match="no snapshot 'nope'"):
        open_snapshot("nope", world.home)


def test_a_snapshot_is_held_until_the_cut_is_closed(world: World) -> None:
    world.take({1: 1})
    world.take({1: 2})
    with open_snapshot(f"{JOB}/1", world.home), retiring(world.home, JOB) as leased:
        assert leased == frozenset({SnapshotId(1)})
    with retiring(world.home, JOB) as leased:
        assert leased == frozenset()
    with pytest.raises(Misuse):
        open_snapshot(f"{JOB}/9", world.home)
    with retiring(world.home, JOB) as leased:
        assert leased == frozenset()


def test_the_next_snapshot_decodes_only_what_changed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STROBE_CACHE", str(tmp_path / "cache"))
    first: dict[int, int | None] = {n: n for n in range(1000)}
    last: dict[int, int | None] = {7: 70, 8: None, 5000: 1}
    world.take(first)
    world.take(first, last)

    def asked(snapshot: str) -> tuple[int, Any]:
        with open_snapshot(snapshot, world.home) as cut:
            found = rows(cut, "select count(*), sum(balance) from state.balances")[0]
            return cut.cache.decoded, found

    total = sum(range(1000))
    assert asked(f"{JOB}/1") == (1000, (1000, total))
    assert asked(f"{JOB}/1") == (0, (1000, total))
    assert asked(f"{JOB}/2") == (2, (1000, total + 63 - 8 + 1))
    for file in (tmp_path / "cache").iterdir():
        file.write_bytes(b"no Parquet")
    assert asked(f"{JOB}/2") == (1000, (1000, total + 63 - 8 + 1))


def test_the_cache_is_bounded(world: World, tmp_path: Path) -> None:
    from strobe.look.cache import StateCache
    from strobe.look.relations import relations_of
    from strobe.store.locate import locate

    cache = StateCache(tmp_path / "cache", largest=20_000)
    for number in range(8):
        found = locate(world.take({n: n * number for n in range(300)}), world.home)
        relations = {r.full_name: r for r in relations_of(found, found.load(), None, cache)}
        assert relations["state.balances"].load().num_rows == 300
        cache.keep()
    files = list((tmp_path / "cache").iterdir())
    assert 0 < len(files) < 8
    assert sum(file.stat().st_size for file in files) <= 20_000
    assert (tmp_path / "cache").stat().st_mode & 0o77 == 0


def test_a_diff_counts_rows_by_their_keys(world: World) -> None:
    first: dict[int, int | None] = {1: 1, 2: 2, 3: 3}
    then = open_snapshot(world.take(first), world.home)
    now = open_snapshot(world.take(first, {1: None, 2: 20, 4: 4}, read_up_to=3), world.home)
    with now:
        diff = diff_cuts(then, now)
        (table,) = diff.tables
        assert (table.relation, table.rows_before, table.rows_after) == ("state.balances", 3, 3)
        assert (table.added, table.removed, table.changed) == (1, 1, 1)
        assert not diff.same_state
        assert diff.channels[0].in_flight == {"balances": (2, 0)}
        assert [s.batch for s in diff.stages if s.stage == "balances"] == [(1, 2)]
        found = changed_rows(then, now, "balances")["balances"].to_pylist()
        assert [tuple(row.values()) for row in found] == [
            ("removed", 1, 1), ("before", 2, 2), ("after", 2, 20), ("added", 4, 4),
        ]  # fmt: skip
        with pytest.raises(Misuse, match="Did you mean 'balances'"):
            changed_rows(then, now, "balance")


def test_it_is_a_name_of_the_package() -> None:
    assert strobe.open_snapshot is open_snapshot
