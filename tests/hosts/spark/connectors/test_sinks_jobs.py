"""Delta tables and files that are delivered on snapshot, in whole jobs: one step for all, and back again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Failed
from strobe.model.ids import NodeId
from tests.support.spark.jobs import eventually, finish
from tests.support.spark.two_phase import add_file

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


def hourly(root: Path) -> strobe.Pipeline:
    """How much each shop sold in each hour, as a stage in New York computes it: two keys, one of them a window."""
    pipeline = strobe.Pipeline("hourly", checkpoint=strobe.CheckpointConfig(interval=None, retained=5))
    key = ["window", "shop's name"]

    @pipeline.stage(
        uid="hours",
        output_mode="update",
        trigger={"availableNow": True},
        conf={"spark.sql.session.timeZone": "America/New_York"},
        to=[
            strobe.DeltaSink("batch", key=key),
            strobe.DeltaSink("snapshot", key=key, delivery="on_snapshot"),
            strobe.DeltaSink("batch by shop", key=key, partition_by="shop's name"),
            strobe.DeltaSink(
                "snapshot by hour", key=["shop's name", "start"], partition_by="start", delivery="on_snapshot"
            ),
        ],
    )
    def hours(spark: SparkSession) -> DataFrame:
        sales = spark.readStream.schema("at timestamp, shop string, price double").option("maxFilesPerTrigger", 1)
        window = F.window("at", "1 hour")
        found = sales.json(str(root / "in")).withWatermark("at", "1 day").groupBy(window, F.col("shop").alias(key[1]))
        return found.agg(
            F.count("*").alias("n"), F.max("at").alias("newest`sale"), F.collect_list("price").alias("prices"),
            F.max(F.create_map(F.lit("at"), F.col("at")).getItem("at")).alias("to"),
        ).select("*", "window.start", F.create_map("n", "window").alias("by n"))  # fmt: skip

    return pipeline


def sell(root: Path, number: int) -> None:
    """Two hours, one of which New York's clocks show twice; shops with and without a name."""
    (root / "in").mkdir(exist_ok=True)
    sales = [
        {
            "at": f"2024-11-03T0{5 + i % 2}:1{i}:00.25Z",
            "shop": ("it's", "ü/x", None)[i % 3],
            "price": (-0.0, 0.0)[i % 2],
        }
        for i in range(6)
    ]
    (root / f"in/{number}.json").write_text("\n".join(map(json.dumps, sales)))


def sold(root: Path) -> list[list[tuple[str, Any, int]]]:
    tables = [
        DeltaTable(str(root / name)).to_pyarrow_table().to_pylist()
        for name in ("batch", "snapshot", "batch by shop", "snapshot by hour")
    ]
    return [
        sorted((f"{row['start']:%H:%M %Z}", str(row["shop's name"]), row["n"]) for row in table if row["start"])
        for table in tables
    ]


def test_keys_of_times_and_texts_in_another_time_zone_and_back_again(tmp_path: Path, spark: SparkSession) -> None:
    def run(snapshot: str | None = None) -> list[list[tuple[str, Any, int]]]:
        back = RestoreOptions(snapshot=snapshot)
        finish(start_job(hourly(tmp_path), home=str(tmp_path / "home"), base=tmp_path, spark=spark, restore=back))
        return sold(tmp_path)

    def rows(times: int) -> list[tuple[str, str, int]]:
        return sorted((hour, shop, times) for hour in ("05:00 UTC", "06:00 UTC") for shop in ("it's", "ü/x", "None"))

    sell(tmp_path, 0)
    assert run() == [rows(1)] * 4
    first = max(int(p.name[4:]) for p in (tmp_path / "home/jobs/hourly/snapshots").iterdir())
    sell(tmp_path, 1)
    sell(tmp_path, 2)
    assert run() == [rows(3)] * 4
    assert run(f"hourly/{first}") == [rows(3)] * 4


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
