"""Sinks whose stage returns other columns than before: a table that may grow does, one that may not refuses at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.connectors.base import Sink
from strobe.hosts.spark.job.rehearse import dry_resume
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Misuse
from tests.support.spark.jobs import finish
from tests.support.spark.ledger_data import read_transfers, write_transfers
from tests.support.spark.restoring import BOUNDED, start

pytestmark = pytest.mark.spark

FIRST = ("id", "src", "struct(dst) as about", "amount as gone")
SECOND = ("id", "cast(src as bigint) as src", "struct(dst, amount) as about", "amount as more")


def pipeline(data: Path, sinks: list[Sink], columns: tuple[str, ...]) -> strobe.Pipeline:
    found = strobe.Pipeline("growing", checkpoint=strobe.CheckpointConfig(interval=None, retained=10))

    @found.stage(uid="rows", trigger=BOUNDED, to=sinks)
    def rows(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data).selectExpr(*columns)

    return found


def sinks(schema: str = "evolve") -> list[Sink]:
    return [
        strobe.DeltaSink("appended", schema=schema),
        strobe.DeltaSink("keyed", key="id", schema=schema),
        strobe.DeltaSink("later", delivery="on_snapshot", schema=schema),
    ]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table().to_pylist(), key=lambda r: int(r["id"]))


def expected(data: Path, spark: SparkSession, old: int) -> list[dict[str, Any]]:
    """The first `old` rows were written by the first version."""
    found = []
    for r in sorted(spark.read.parquet(str(data)).collect(), key=lambda r: int(r.id)):
        first = r.id < old
        about = {"dst": r.dst, "amount": None if first else r.amount}
        gone, more = (r.amount, None) if first else (None, r.amount)
        found.append({"id": r.id, "src": r.src, "about": about, "gone": gone, "more": more})
    return found


def without_new(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**{k: v for k, v in r.items() if k != "more"}, "about": {"dst": r["about"]["dst"]}} for r in rows]


def test_a_table_grows_with_its_stage_and_goes_back_with_it(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=20)
    names = ("appended", "keyed", "later")
    finish(start(pipeline(data, sinks(), FIRST), tmp_path, spark))
    write_transfers(data, files=2, rows=20)
    versions = {name: DeltaTable(str(tmp_path / name)).version() for name in names}
    with pytest.raises(Misuse, match="no column more") as refused:
        start(pipeline(data, sinks("fixed"), SECOND), tmp_path, spark)
    assert 'schema="evolve"' in refused.value.next
    with pytest.raises(Misuse, match=r"src is string here"):
        start(pipeline(data, sinks(), ("id", "cast(src as string) as src")), tmp_path, spark)
    changed, home = pipeline(data, sinks(), SECOND), str(tmp_path / "home")
    plan = dry_resume(changed, restore=RestoreOptions(), home=home, base=tmp_path, spark=spark)
    assert [w for w in plan.warnings if "keyed" in w] == [
        "rows: Delta table keyed (upsert by id) gets the column 'more' (bigint) and is rewritten with 'src' as bigint, "
        "'about' as struct<dst:int,amount:bigint>"
    ]
    assert {name: DeltaTable(str(tmp_path / name)).version() for name in names} == versions

    finish(start(pipeline(data, sinks(), SECOND), tmp_path, spark))
    for name in names:
        assert rows_of(tmp_path / name) == expected(data, spark, 20), name
    write_transfers(data, files=3, rows=20)
    finish(start(pipeline(data, sinks(), SECOND), tmp_path, spark))
    for name in names:
        assert rows_of(tmp_path / name) == expected(data, spark, 20), name

    # Back to before the change, with the new file and with the old one.
    finish(start(pipeline(data, sinks(), SECOND), tmp_path, spark, snapshot="growing/1"))
    for name in names:
        assert rows_of(tmp_path / name) == expected(data, spark, 20), name
    finish(start(pipeline(data, sinks("fixed"), FIRST), tmp_path, spark, snapshot="growing/1"))
    for name in names:
        assert without_new(rows_of(tmp_path / name)) == without_new(expected(data, spark, 1000)), name


def test_an_unknown_rule_for_columns_is_refused() -> None:
    with pytest.raises(Misuse, match="schema='merge'"):
        strobe.DeltaSink("t", schema="merge")
