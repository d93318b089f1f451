"""`strobe sql` and `strobe diff` as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Strobe
from tests.look.world import JOB, World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    made.take({1: 5, 2: 3})
    made.take({1: 5, 2: 3}, {2: -3})
    monkeypatch.setenv("STROBE_HOME", str(made.home))
    monkeypatch.chdir(tmp_path)
    return made


def test_a_query_is_answered_in_each_shape(strobe: Strobe, world: World) -> None:
    query = "select account, balance from state.balances order by account"
    assert strobe("sql", JOB, query).out == "account  balance\n      1        5\n      2       -3\n2 rows\n"
    assert strobe("sql", JOB, query, "--format", "csv").out == "account,balance\n1,5\n2,-3\n"
    shown = "| account | balance |\n|---|---|\n| 1 | 5 |\n| 2 | -3 |\n"
    assert strobe("sql", f"{JOB}/2", query, "--format", "markdown").out == shown
    for how in (["--json"], ["--format", "json"]):
        done = strobe("sql", JOB, query, *how)
        assert json.loads(done.out) == [{"account": 1, "balance": 5}, {"account": 2, "balance": -3}]


def test_a_column_of_decimals_is_texts_in_json_with_all_digits(strobe: Strobe, world: World) -> None:
    query = "select * from (values (0.00, {'x': 2.00}), (10.25, {'x': null})) as t(d, s) union all select null, null"
    shown = [{"d": "0.00", "s": {"x": "2.00"}}, {"d": "10.25", "s": {"x": None}}, {"d": None, "s": None}]
    assert strobe("sql", JOB, query, "--json").json == shown
    assert '{"x": "2.00"}' in strobe("sql", JOB, query).out
    assert strobe("sql", JOB, "select sum(1::bigint) as n", "--json").json == [{"n": 1}], "a whole number stays one"


def test_null_is_not_shown_as_a_text_without_characters(strobe: Strobe, world: World) -> None:
    query = "select null::text as a, '' as b, 'x,\"y' as c"
    assert strobe("sql", JOB, query).out.splitlines()[1].split() == ["NULL", 'x,"y']
    assert strobe("sql", JOB, query, "--format", "csv").out == 'a,b,c\n,"","x,""y"\n'
    assert strobe("sql", JOB, query, "--format", "markdown").out.splitlines()[2] == '| NULL |  | x,"y |'
    assert strobe("sql", JOB, "select null as a", "--format", "csv").out == 'a\n""\n', "no reader passes it over"


def test_an_answer_goes_to_a_file(strobe: Strobe, world: World, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    assert strobe("sql", JOB, "from state.balances", "--to", "out.parquet").code == 0
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "out", "out.parquet"]
    done = strobe("sql", JOB, "from state.balances", "--to", "nowhere/out.parquet")
    assert done.code == 2
    assert "no directory" in done.err
    done = strobe("sql", JOB, "from state.balances", "--to", "out.csv")
    assert (done.code, "--to writes Parquet" in done.err, (tmp_path / "out.csv").exists()) == (2, True, False)


def test_queries_come_from_a_file_and_name_two_snapshots(strobe: Strobe, world: World, tmp_path: Path) -> None:
    (tmp_path / "q.sql").write_text("select 1;\nselect sum(b.balance) - sum(a.balance) as d\n"
                                    "from state.balances a join before.state.balances b using (account)")  # fmt: skip
    done = strobe("sql", f"{JOB}/2", "-f", "q.sql", "--with", f"before={JOB}/1", "--format", "csv")
    assert (done.code, done.out) == (0, "d\n6\n")


def test_what_can_be_asked_is_listed(strobe: Strobe, world: World) -> None:
    out = strobe("sql", JOB, ".tables").out
    for name in ("state.balances", "in_flight.postings", "channel.postings", "sink.balances", "meta.timings"):
        assert name in out
    assert "int64" in strobe("sql", JOB, ".schema state.balances").out
    assert strobe("sql", JOB, ".schema nothing").code == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("sql", "nope", "select 1"), 2, "no snapshot 'nope'"),
        (("sql", f"{JOB}/9", "select 1"), 2, "no checkpoint 9"),
        (("sql", JOB, "selec"), 2, "not SQL"),
        (("sql", JOB, "from read_csv('/etc/passwd')"), 2, "nothing else"),
        (("sql", JOB, "select 1", "-f", "x.sql"), 2, "given twice"),
        (("sql", JOB, "-f", "none.sql"), 2, "cannot be read"),
        (("sql", JOB, "select 1", "--with", "before"), 2, "names no snapshot"),
        (("sql", JOB, "select 1", "--timeout", "0"), 2, "must be more than 0"),
        (("sql", JOB, "select 1", "--memory", "much"), 2, "memory"),
        (("sql", JOB, "select 1", "--json", "--format", "csv"), 2, "contradict"),
        (("sql", JOB, "select 1", "--to", "a.parquet", "--format", "csv"), 2, "'csv' would be ignored"),
        (("sql", JOB, ".nothing"), 2, "no command"),
        (("diff", JOB, "nope"), 2, "no snapshot 'nope'"),
        (("diff", f"{JOB}/1", JOB, "--stage", "postings"), 2, "has no state"),
    ],
)
def test_a_mistake_is_told_in_words(strobe: Strobe, world: World, words: tuple[str, ...], code: int, said: str) -> None:
    done = strobe(*words)
    assert done.code == code
    assert said in done.err + done.out
    assert "Traceback" not in done.err + done.out


@pytest.mark.parametrize("shape", ["table", "csv", "json", "markdown"])
def test_nothing_in_a_row_commands_the_terminal(strobe: Strobe, world: World, shape: str) -> None:
    done = strobe("sql", JOB, """select chr(27) || '[2J' as "x" """, "--format", shape)
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "1b[2J" in done.out


def test_lines_of_a_pipe_are_queries(strobe: Strobe, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO("select 1\n as one;\nbad;\n.tables\nselect 2 as two"))
    done = strobe("sql", JOB, "--format", "csv")
    assert done.code == 2, "a script notices that one of them failed"
    assert done.out.startswith("one\n1\n")
    assert done.out.endswith("two\n2\n")
    assert "not SQL" in done.err


def test_ctrl_c_ends_a_query_and_lets_go(world: World) -> None:
    query = "select count(*) from range(100000000) a, range(1000000) b"
    program = "import sys; from strobe.cli.main import main; main(sys.argv[1:])"
    asking = subprocess.Popen(
        [sys.executable, "-c", program, "sql", JOB, query], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    leases = world.home / world.layout.leases
    while not leases.exists():
        assert asking.poll() is None
    asking.send_signal(signal.SIGINT)
    _, said = asking.communicate(timeout=60)
    assert asking.returncode == 130
    assert "Traceback" not in said


def test_a_diff_is_a_summary_and_then_rows(strobe: Strobe, world: World) -> None:
    out = strobe("diff", f"{JOB}/1", f"{JOB}/2").out
    assert "state.balances     2      0        0        1" in out
    value = json.loads(strobe("diff", f"{JOB}/1", f"{JOB}/2", "--json").out)
    assert value["tables"][0]["changed"] == 1
    assert value["same_state"] is False
    out = strobe("diff", f"{JOB}/1", f"{JOB}/2", "--stage", "balances").out
    assert "before" in out
    assert "The state is the same." in strobe("diff", JOB, JOB).out


def test_snapshots_in_a_bucket_are_asked_by_every_name_that_they_have(
    strobe: Strobe, s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their channels and sinks are where the job is: from its home all is there, from elsewhere what the bucket has."""
    world = World(tmp_path, s3_url)
    world.take({7: 1, 8: 1})
    world.take({7: 1, 8: 1}, {7: -5})
    home = ("--home", str(world.home))
    total = "select sum(balance)::bigint as total from state.balances"
    assert strobe("sql", JOB, total, "--json", *home).json == [{"total": -4}]
    assert strobe("sql", f"{JOB}/1", total, "--json", *home).json == [{"total": 2}]
    assert strobe("sql", JOB, "select sum(delta)::int as d from in_flight.postings", "--json", *home).json == [
        {"d": 16}
    ]
    both = """
        select count(*) as n from state.balances now join before.state.balances was using (account)
        where now.balance <> was.balance
    """
    assert strobe("sql", JOB, both, "--with", f"before={JOB}/1", "--json", *home).json == [{"n": 1}]
    told = strobe("bisect", JOB, "--sql", "from state.balances where balance < 0", "--json", *home).json
    assert (told["last_good"]["snapshot"], told["first_bad"]["snapshot"]) == (1, 2)
    # Somebody else, with nothing but the bucket's address.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in (f"{s3_url}/jobs/{JOB}", f"{s3_url}/jobs/{JOB}/snapshots/chk-000002"):
        assert strobe("sql", name, total, "--json").json == [{"total": -4}]
    rules = elsewhere / "rules.sql"
    rules.write_text("select * from state.balances where balance < 0")
    assert strobe("check", f"{s3_url}/jobs/{JOB}/snapshots/chk-000001", "-f", str(rules)).code == 0
    assert strobe("check", f"{s3_url}/jobs/{JOB}", "-f", str(rules)).code == 1
    lost = strobe("sql", f"{s3_url}/jobs/{JOB}", "from in_flight.postings")
    assert (lost.code, "Traceback" in lost.err) == (1, False), lost.err
    assert not list(elsewhere.glob(".strobe*"))
