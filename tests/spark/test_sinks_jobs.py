"""Delta tables and files that are delivered on snapshot, in whole jobs: one step for all, and back again."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.job import start_job
from strobe.hosts.spark.restore_plan import RestoreOptions
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from tests.spark.jobs import eventually, finish
from tests.spark.two_phase import add_file

pytestmark = pytest.mark.spark


def numbers(root: Path, *sinks: strobe.Sink, bounded: bool = True) -> strobe.Pipeline:
    """Ids, their parity as a key, and how often it was seen, to the sinks."""
    pipeline = strobe.Pipeline(
        "numbers", checkpoint=strobe.CheckpointConfig(interval=None, retained=5, tolerable_failures=3)
    )

    @pipeline.stage(
        uid="gold", to=sinks, trigger={"availableNow": True} if bounded else {"processingTime": "0 seconds"}
    )
    def gold(spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        return files.parquet(str(root / "in")).selectExpr("id", "id % 5 AS rest")

    return pipeline


def on_snapshot() -> tuple[strobe.Sink, ...]:
    return (
        strobe.DeltaSink("appended", delivery="on_snapshot"),
        strobe.DeltaSink("newest", key="rest", delivery="on_snapshot"),
        strobe.FileSink("files", delivery="on_snapshot"),
    )


def seen(root: Path) -> list[list[int]]:
    """The ids that others see in each of them."""
    tables = [DeltaTable(str(root / name)).to_pyarrow_table()["id"].to_pylist() for name in ("appended", "newest")]
    files = [str(f) for f in root.glob("files/batch=*/*.parquet")]
    found = duckdb.execute("SELECT id FROM read_parquet(?)", [files]).fetchall() if files else []
    return [sorted(tables[0]), sorted(tables[1]), sorted(row[0] for row in found)]


def await_batch(job: strobe.Job, batch: int) -> None:
    eventually(lambda: job.runners[NodeId("gold")].agent.batch >= batch, f"batch {batch}", job)


def shows(root: Path, rows: int) -> bool:
    return seen(root) == [list(range(rows)), list(range(rows - 5, rows)), list(range(rows))]


def test_tables_and_files_take_one_step_at_each_snapshot_and_go_back_with_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    add_file(tmp_path / "in", 0)
    pipeline = numbers(tmp_path, *on_snapshot(), bounded=False)
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    await_batch(job, 0)
    assert seen(tmp_path) == [[], [], []]
    first = job.checkpoint()
    eventually(lambda: shows(tmp_path, 5), "the first step", job)
    for number in (1, 2):
        add_file(tmp_path / "in", number)
        await_batch(job, number)
    assert shows(tmp_path, 5)
    job.checkpoint()
    eventually(lambda: shows(tmp_path, 15), "the second step", job)
    job.cancel()
    versions = [entry.name for entry in (tmp_path / "appended/_delta_log").glob("*.json")]
    data = [v for v in versions if '"add"' in (tmp_path / "appended/_delta_log" / v).read_text()]
    assert len(data) == 2, "one commit for each snapshot"

    back = RestoreOptions(snapshot=f"numbers/{first}")
    again = numbers(tmp_path, *on_snapshot(), bounded=False)
    restored = start_job(again, home=str(tmp_path / "home"), base=tmp_path, spark=spark, restore=back)
    assert shows(tmp_path, 5), "what the snapshot made visible, and nothing that came later"
    await_batch(restored, 2)
    restored.checkpoint()
    eventually(lambda: shows(tmp_path, 15), "the same rows once more", restored)
    restored.cancel()
    resumed = start_job(numbers(tmp_path, *on_snapshot()), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    finish(resumed)
    assert shows(tmp_path, 15)


def constrained(path: Path) -> None:
    """A table of somebody else's, which takes no id above 6."""
    columns = [Field("id", PrimitiveType("long"), nullable=False), Field("rest", PrimitiveType("long"))]
    DeltaTable.create(str(path), Schema(columns))
    DeltaTable(str(path)).alter.add_constraint({"small": "id < 7"})


@pytest.mark.parametrize("delivery", ["on_batch", "on_snapshot"])
def test_rows_that_a_table_does_not_take_are_set_aside_once_and_counted(
    tmp_path: Path, spark: SparkSession, delivery: str
) -> None:
    constrained(tmp_path / "out")
    for number in range(2):
        add_file(tmp_path / "in", number)
    sink = strobe.DeltaSink("out", delivery=delivery, dead_letters=strobe.DeadLetters("dead"))
    job = start_job(numbers(tmp_path, sink), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    finish(job)
    assert sorted(DeltaTable(str(tmp_path / "out")).to_pyarrow_table()["id"].to_pylist()) == list(range(7))
    letters = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table().to_pylist()
    assert sorted(json.loads(letter["row"])["id"] for letter in letters) == [7, 8, 9]
    assert {letter["reason"] for letter in letters} == {"it violates the constraint small: id < 7"}
    assert {(letter["job"], letter["sink"], letter["timeline"]) for letter in letters} == {("numbers", "gold/0", 1)}
    assert job.status().stages[0].dead_letters == 3
    table = spark.read.format("parquet").load([str(f) for f in (tmp_path / "dead").glob("*.parquet")])
    columns = table.selectExpr(f"from_json(row, '{letters[0]['schema']}') AS r").selectExpr("r.id", "r.rest")
    assert sorted(map(tuple, columns.collect())) == [(7, 2), (8, 3), (9, 4)]


def test_without_dead_letters_the_snapshot_fails_and_names_the_row(tmp_path: Path, spark: SparkSession) -> None:
    constrained(tmp_path / "out")
    add_file(tmp_path / "in", 1)
    pipeline = numbers(tmp_path, strobe.DeltaSink("out", delivery="on_snapshot"), bounded=False)
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    await_batch(job, 0)
    with pytest.raises(Failed, match=r'violates the constraint small: id < 7: \{"id": 7, "rest": 2\}, and 2 more'):
        job.checkpoint()
    assert DeltaTable(str(tmp_path / "out")).to_pyarrow_table().num_rows == 0
    job.cancel()
