"""Every stateful operator over a restore: the tables are those of the same query run as plain Spark, without a stop.

One job has all operators. It is stopped in the middle, and brought back from a checkpoint or a savepoint, in place or
somewhere else, with the partitions that it had, more, or fewer.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.store.locate import locate
from tests.spark.jobs import PATIENCE, check_checkpoints, eventually, finish, stage
from tests.spark.ledger_data import delta_rows
from tests.spark.restoring import start
from tests.spark.test_operators import DDL, QUERIES, plain, read_events, table, write_events

pytestmark = pytest.mark.spark


class Hold:
    """Keeps every stage in its batch `at` until it is let go, so that a snapshot falls right behind that batch."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.free = threading.Event()
        self.held: set[str] = set()

    def sink(self, uid: str) -> strobe.ForeachBatchSink:
        def hold(batch: DataFrame, batch_id: int) -> None:
            if batch_id >= self.at:
                self.held.add(uid)
                self.free.wait(PATIENCE)

        return strobe.ForeachBatchSink(hold)


def operators(data: Path, hold: Hold | None = None) -> strobe.Pipeline:
    """All files are there from the start, so that no stage idles in the middle: an idle stage runs a batch without
    rows, after which other rows are too late, in plain Spark too."""
    config = strobe.CheckpointConfig(interval=None, retained=100, mode="unaligned")
    pipeline = strobe.Pipeline("operators", checkpoint=config)

    @pipeline.stage(uid="events", trigger=None if hold else {"availableNow": True})
    def events(spark: SparkSession) -> DataFrame:
        return read_events(spark, data)

    def add(uid: str, query: Callable[[DataFrame], DataFrame], output_mode: str, key: str | None) -> None:
        sinks: list[Any] = [strobe.DeltaSink(uid, key=key or ()), *([hold.sink(uid)] if hold else ())]
        pipeline.stage(uid=uid, reads="events", output_mode=output_mode, to=sinks, max_rows_per_batch=1)(query)

    for name, (query, output_mode, key) in QUERIES.items():
        add(name, query, output_mode, key)
    add("pairs", joined, "append", None)
    return pipeline


def joined(events: DataFrame) -> DataFrame:
    left = events.where("key < 2").selectExpr("id as order", "amount")
    right = events.where("key >= 2").selectExpr("id as payment", "amount as paid")
    return left.join(right, F.expr("amount = paid")).select("order", "payment", "amount")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_events(tmp_path_factory.mktemp("events") / "in")


@pytest.fixture(scope="module")
def expected(spark: SparkSession, data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    scratch = tmp_path_factory.mktemp("plain")
    return {name: sorted(plain(spark, data, name, scratch / name)) for name in QUERIES}


def pairs_of(path: Path) -> list[tuple[object, ...]]:
    return delta_rows(path, 'select "order", payment, amount from t order by 1, 2')


def expected_pairs(spark: SparkSession, data: Path) -> list[tuple[object, ...]]:
    rows = joined(spark.read.schema(DDL).parquet(str(data))).collect()
    return sorted((r.order, r.payment, r.amount) for r in rows)


@pytest.mark.parametrize(
    ("kind", "partitions"),
    [("checkpoint", 4), ("savepoint", None), ("moved savepoint", 1)],
    ids=["rollback-to-more-partitions", "savepoint-in-place", "moved-savepoint-forked-to-fewer"],
)
def test_operators_go_on_as_if_they_had_never_stopped(
    spark: SparkSession,
    data: Path,
    expected: dict[str, list[Row]],
    tmp_path: Path,
    kind: str,
    partitions: int | None,
) -> None:
    hold = Hold(at=2)
    job = start(operators(data, hold), tmp_path, spark)
    uids = {*QUERIES, "pairs"}
    eventually(lambda: hold.held == uids, "every stage is in its third batch", job)
    with ThreadPoolExecutor(1) as pool:
        if kind == "checkpoint":
            taking = pool.submit(lambda: f"operators/{job.checkpoint()}")
        else:
            taking = pool.submit(lambda: str(job.savepoint(tmp_path / "savepoint")))
        eventually(lambda: bool(job.status().checkpoints), "the snapshot is under way", job)
        hold.free.set()
        snapshot = taking.result(PATIENCE)
    # What comes after the snapshot is undone, or belongs to the original only.
    eventually(lambda: all(stage(job, uid).batch >= 4 for uid in uids), "all files are processed", job)
    job.stop()
    assert locate(snapshot, tmp_path / "home").load().rows_in_flight >= 2 * 40 * len(uids)
    where = tmp_path
    if kind == "moved savepoint":
        snapshot = str(shutil.move(snapshot, tmp_path / "elsewhere"))
        shutil.rmtree(tmp_path / "home")
        where = tmp_path / "new"
    theirs = (str(tmp_path),) if kind == "moved savepoint" else ()
    again = start(operators(data), where, spark, snapshot=snapshot, partitions=partitions, sinks_from=theirs)
    finish(again)
    for name in QUERIES:
        assert sorted(table(spark, where / name)) == expected[name], name
    assert pairs_of(where / "pairs") == expected_pairs(spark, data)
    last = check_checkpoints(again)[-1]
    assert {last.nodes[uid].partitions for uid in (*QUERIES, "pairs")} == {partitions or 2}  # type: ignore[index]
