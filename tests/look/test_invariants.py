"""Invariants: what a query or a function must give, and what becomes of it."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import strobe
from strobe.look.judging import check_names, invariants_in, judge
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.model.invariants import Invariant, Outcome, Verdict
from strobe.store.layout import JobLayout
from strobe.store.manifest import NOTHING
from strobe.store.verdicts import VerdictLog, read_verdicts


def cut(answer: Any = None, batch: Any = 3) -> Any:
    """Stands for a cut whose queries give `answer`, or raise it."""

    def sql(query: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    manifest = SimpleNamespace(snapshot=SnapshotId(12), nodes={"balances": SimpleNamespace(batch=batch)})
    return SimpleNamespace(sql=sql, manifest=manifest)


ROWS = {"a": [1, 2], "b": ["x", None]}


@pytest.mark.parametrize(
    "found",
    [pa.table(ROWS), pd.DataFrame(ROWS), pl.DataFrame(ROWS), [{"a": 1, "b": "x"}, {"a": 2, "b": None}]],
    ids=["Arrow", "pandas", "Polars", "dicts"],
)
def test_rows_in_any_form_are_a_violation(found: Any) -> None:
    verdict = judge(cut(), Invariant("n", function=lambda cut: found))
    assert (verdict.outcome, verdict.count, verdict.snapshot) == (Outcome.VIOLATED, 2, 12)
    assert [dict(row) for row in verdict.rows] == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]
    assert "2 rows that must not be there: a 1, b x; a 2, b None" in verdict.sentence


@pytest.mark.parametrize("found", [None, True, pa.table({"a": pa.array([], pa.int64())}), [], pl.DataFrame({"a": []})])
def test_no_rows_true_or_nothing_is_that_it_holds(found: Any) -> None:
    assert judge(cut(), Invariant("n", function=lambda cut: found)).outcome is Outcome.HOLDS


def test_false_is_a_violation_and_nonsense_a_failure() -> None:
    assert judge(cut(), Invariant("n", function=lambda cut: False)).outcome is Outcome.VIOLATED
    for found in (7, "no rows", {"a": 1}):
        verdict = judge(cut(), Invariant("n", function=partial(lambda found, cut: found, found)))
        assert (verdict.outcome, "The function returned" in verdict.why) == (Outcome.FAILED, True)


def test_what_a_function_raises_is_said() -> None:
    verdict = judge(cut(), Invariant("n", function=lambda cut: 1 / 0))
    assert (verdict.outcome, verdict.why) == (Outcome.FAILED, "ZeroDivisionError: division by zero")


def test_a_stage_that_has_not_run_is_no_failure() -> None:
    missing = Misuse("There is no relation 'state.balances' in the snapshot.")
    asked = Invariant("n", sql="select * from state.balances")
    assert judge(cut(missing, batch=NOTHING), asked).outcome is Outcome.SKIPPED
    assert judge(cut(missing, batch=3), asked).outcome is Outcome.FAILED


def test_a_verdict_keeps_few_rows_and_short_values() -> None:
    table = pa.table({"t": ["x" * 10_000] * 50, "d": pa.array([Decimal(10**30)] * 50)})
    verdict = judge(cut(table), Invariant("n", sql="select 1"))
    assert (verdict.count, len(verdict.rows)) == (50, 10)
    assert len(str(verdict.rows[0]["t"])) == 500
    assert verdict.rows[0]["d"] == str(10**30)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("select * from state.balanses", "there is no stage 'balanses'"),
        ('select * from in_flight."Balance-s"', "there is no stage 'balance-s'"),
        ("select sum(x) form state.balances", "is not SQL"),
        ("create table x (a int)", "is not one select"),
        ("select 1; select 2", "is not one select"),
        ("from balances", "asks for 'balances', which no snapshot has"),
        ("from '/etc/passwd'", "which no snapshot has"),
        ("with x as (from state.balances) select * from x, y", "asks for 'y'"),
        ("from read_csv('/etc/passwd')", "reads files with read_csv"),
        ("select (select count(*) from glob('*'))", "reads files with glob"),
        ("from in_flight.balances", "no stage reads 'balances': it has no channel"),
        ("from channel.balances", "no stage reads 'balances'"),
    ],
)
def test_queries_that_cannot_be_right_are_refused_before_anything_starts(sql: str, why: str) -> None:
    with pytest.raises(Misuse, match=why):
        check_names([Invariant("n", sql=sql)], ["balances", "postings"], ["postings"])


def test_names_that_are_right_are_not_refused() -> None:
    for sql in (
        "select * from state.balances",
        'select * from STATE."Balances"',
        "select * from state.balances__left l join in_flight.postings p on true",
        "select * from meta.stages",
        "with x as (select 1 as state) select * from x",
        "with recursive r as (select 1 as n union all select n + 1 from r where n < 5) from r, in_flight.postings",
        "select * from range(3), (values (1)) v, unnest([1, 2]), channel.postings",
    ):
        check_names([Invariant("n", sql=sql)], ["balances", "postings"], ["postings"])


def test_a_file_of_queries() -> None:
    text = "-- about money\n-- invariant: none is made\nselect 1 where false;\n-- invariant: none is lost\nselect 2"
    assert [(i.name, (i.sql or "").strip(" ;\n")) for i in invariants_in(text, "f.sql")] == [
        ("none is made", "select 1 where false"), ("none is lost", "select 2"),
    ]  # fmt: skip
    assert [i.name for i in invariants_in("select 1; select 2;", "f.sql")] == ["query 1", "query 2"]
    for wrong, why in (
        ("", "no query"),
        ("-- invariant: a\nselect 1; select 2", "has 2 queries"),
        ("-- invariant: a\nselect 1;\n-- invariant: a\nselect 2", "two invariants 'a'"),
        ("selec 1", "is not SQL"),
        ("select 0;\n-- invariant: a\nselect 1", "without a name"),
    ):
        with pytest.raises(Misuse, match=why):
            invariants_in(wrong, "f.sql")


@pytest.mark.parametrize(
    "wrong",
    [{"name": " ", "sql": "select 1"}, {"name": "n"}, {"name": "n", "sql": " "}, {"name": "n", "sql": "s", "every": 0}],
)
def test_an_invariant_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        Invariant(**wrong)


def test_verdicts_outlive_the_run_and_a_torn_line(tmp_path: Path) -> None:
    (tmp_path / JobLayout("j").root).mkdir(parents=True)
    log = VerdictLog(tmp_path, "j")
    for number in (1, 2):
        log.append(Verdict("n", SnapshotId(number), Outcome.HOLDS))
    with open(tmp_path / JobLayout("j").verdicts, "ab") as file:
        file.write(b'{"invariant": "n", "snap')
    VerdictLog(tmp_path, "j").append(Verdict("n", SnapshotId(3), Outcome.VIOLATED, count=1, rows=({"a": 1},)))
    assert [v.snapshot for v in read_verdicts(tmp_path, "j")] == [1, 2, 3]
    assert read_verdicts(tmp_path, "nobody") == ()


def test_verdicts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.store.verdicts._KEPT", 5)
    monkeypatch.setattr("strobe.store.verdicts._ROOM", 10)
    (tmp_path / JobLayout("j").root).mkdir(parents=True)
    log = VerdictLog(tmp_path, "j")
    for number in range(1, 13):
        log.append(Verdict("n", SnapshotId(number), Outcome.HOLDS))
    VerdictLog(tmp_path, "j")
    assert [v.snapshot for v in read_verdicts(tmp_path, "j")] == [8, 9, 10, 11, 12]


def test_a_decorator_without_its_function_is_refused() -> None:
    """Else nobody would notice that nothing is asked."""
    pipeline = strobe.Pipeline("shop")
    pipeline.invariant("forgotten")
    with pytest.raises(Misuse, match="'forgotten' needs a query or a function"):
        _ = pipeline.invariants
    assert pipeline.invariant("forgotten")(len) is len
    assert [i.function for i in pipeline.invariants] == [len]
