"""Every stateful operator over a restore: the tables are those of the same query run as plain Spark, without a stop.

One job has all operators. It takes a checkpoint and a savepoint in the middle, and ends. What it leaves is kept, and
brought back from the one or the other, in place or somewhere else, with the partitions that it had, more, or fewer.
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
from strobe.model.ids import NodeId
from strobe.store.locate import locate
from tests.hosts.spark.pipeline.test_operators import DDL, FILES, QUERIES, ROWS, plain, read_events, table, write_events
from tests.support.spark.images import Images
from tests.support.spark.jobs import PATIENCE, Overtaking, check_checkpoints, eventually, finish, stage
from tests.support.spark.ledger_data import delta_rows
from tests.support.spark.restoring import start

pytestmark = pytest.mark.spark

UIDS = (*QUERIES, "pairs")


class Hold:
    """Keeps every stage in its batch `at` until that is raised, so that a snapshot falls right behind that batch."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.held: dict[str, int] = {}
        self._raised = threading.Condition()

    def sink(self, uid: str) -> strobe.ForeachBatchSink:
        def hold(batch: DataFrame, batch_id: int) -> None:
            with self._raised:
                if batch_id >= self.at:
                    self.held[uid] = batch_id
                    assert self._raised.wait_for(lambda: batch_id < self.at, PATIENCE)

        return strobe.ForeachBatchSink(hold)

    def snapshot(self, job: strobe.Job, take: Callable[[], str]) -> str:
        """Taken behind the batch in which every stage is held; they are held again in the next one."""
        eventually(lambda: self.held == dict.fromkeys(UIDS, self.at), f"every stage is in batch {self.at}", job)
        before = len(job.status().checkpoints)
        with ThreadPoolExecutor(1) as pool:
            taking = pool.submit(take)
            eventually(lambda: len(job.status().checkpoints) > before, "the snapshot is under way", job)
            self.raise_to(self.at + 1)
            return taking.result(PATIENCE)

    def raise_to(self, at: int) -> None:
        with self._raised:
            self.at = at
            self._raised.notify_all()


def operators(data: Path, hold: Hold | None = None) -> strobe.Pipeline:
    """All files are there from the start, so that no stage idles in the middle: an idle stage runs a batch without
    rows, after which other rows are too late, in plain Spark too."""
    config = Overtaking(interval=None, retained=100, mode="unaligned")
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


@pytest.fixture(scope="module")
def left(spark: SparkSession, data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Images, str, str]:
    """What the job has left, and its checkpoint and its savepoint, behind the third batch and the fourth."""
    root = tmp_path_factory.mktemp("operators") / "job"
    hold = Hold(at=2)
    job = start(operators(data, hold), root, spark)
    try:
        checkpoint = hold.snapshot(job, lambda: f"operators/{job.checkpoint()}")
        savepoint = hold.snapshot(job, lambda: str(job.savepoint(root / "savepoint")))
        # What comes after them is undone, or belongs to the original only.
        hold.raise_to(FILES + 100)
        eventually(lambda: all(stage(job, uid).batch >= 4 for uid in UIDS), "all files are processed", job)
    finally:
        hold.raise_to(FILES + 100)
        job.stop()
    for snapshot, files in ((checkpoint, 2), (savepoint, 1)):
        assert locate(snapshot, root / "home").load().rows_in_flight >= files * ROWS * len(UIDS)
    images = Images(root)
    images.keep("stopped")
    return images, checkpoint, savepoint


@pytest.mark.parametrize(
    ("kind", "partitions"),
    [("checkpoint", 4), ("savepoint", None), ("moved savepoint", 1)],
    ids=["rollback-to-more-partitions", "savepoint-in-place", "moved-savepoint-forked-to-fewer"],
)
def test_operators_go_on_as_if_they_had_never_stopped(
    spark: SparkSession,
    data: Path,
    expected: dict[str, list[Row]],
    left: tuple[Images, str, str],
    kind: str,
    partitions: int | None,
) -> None:
    images, checkpoint, savepoint = left
    images.put_back("stopped", spark)
    root = where = images.root
    snapshot = checkpoint if kind == "checkpoint" else savepoint
    if kind == "moved savepoint":
        snapshot = str(shutil.move(savepoint, root / "elsewhere"))
        shutil.rmtree(root / "home")
        where = root / "new"
    theirs = (str(root),) if kind == "moved savepoint" else ()
    again = start(operators(data), where, spark, snapshot=snapshot, partitions=partitions, sinks_from=theirs)
    try:
        finish(again)
    finally:
        again.stop()
    for name in QUERIES:
        assert sorted(table(spark, where / name)) == expected[name], name
    assert pairs_of(where / "pairs") == expected_pairs(spark, data)
    last = check_checkpoints(again)[-1]
    assert {last.nodes[NodeId(uid)].partitions for uid in UIDS} == {partitions or 2}
