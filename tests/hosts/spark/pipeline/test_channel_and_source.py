"""A stage that reads a channel and has a source of its own: both are part of every snapshot, in one batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from tests.support.spark.jobs import PATIENCE, check_checkpoints, eventually, stage
from tests.support.spark.ledger_data import delta_rows

DDL = "who STRING, amount BIGINT"


def test_the_session_is_asked_for_by_name() -> None:
    pipeline = strobe.Pipeline("mixed")

    @pipeline.stage(uid="orders", to=strobe.MemorySink())
    def orders(spark: SparkSession) -> DataFrame: ...  # type: ignore[empty-body]

    @pipeline.stage(uid="totals", reads="orders", to=strobe.MemorySink())
    def totals(spark: SparkSession, orders: DataFrame) -> DataFrame: ...  # type: ignore[empty-body]

    @pipeline.stage(uid="spark", to=strobe.MemorySink())
    def called_spark(spark: SparkSession) -> DataFrame: ...  # type: ignore[empty-body]

    @pipeline.stage(uid="confusing", reads="spark", to=strobe.MemorySink())
    def confusing(spark: DataFrame) -> DataFrame: ...  # type: ignore[empty-body]

    pipeline.check()
    wants = [uid for uid, spec in pipeline.stages.items() if spec.wants_session]
    assert wants == ["totals"], "a stage that is called spark comes before the session"
    with pytest.raises(Misuse, match=r"takes \(orders, session\), but it is given \(orders\)"):
        pipeline.stage(uid="wrong", reads="orders")(lambda orders, session: orders)


def mixed(root: Path, trigger: dict[str, Any] | None = None) -> strobe.Pipeline:
    """orders (files) → totals, which takes refunds from files of its own, and prices from a table."""
    config = strobe.CheckpointConfig(interval=None, retained=10, tolerable_failures=100)
    pipeline = strobe.Pipeline("mixed", checkpoint=config, chain=False)

    def files(spark: SparkSession, name: str) -> DataFrame:
        return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).json(str(root / name))

    @pipeline.stage(uid="orders", trigger=trigger)
    def orders(spark: SparkSession) -> DataFrame:
        return files(spark, "orders")

    @pipeline.stage(uid="totals", reads="orders", output_mode="update", trigger=trigger)
    def totals(orders: DataFrame, spark: SparkSession) -> DataFrame:
        refunds = files(spark, "refunds").select("who", (-F.col("amount")).alias("amount"))
        factors = spark.createDataFrame([("a", 1), ("b", 10)], "who STRING, factor BIGINT")
        both = refunds.union(orders).join(F.broadcast(factors), "who")
        return both.groupBy("who").agg(F.sum(F.col("amount") * F.col("factor")).alias("total"))

    @pipeline.stage(uid="out", reads="totals", to=strobe.DeltaSink("totals", key="who"))
    def out(totals: DataFrame) -> DataFrame:
        return totals

    return pipeline


class World:
    def __init__(self, root: Path, spark: SparkSession) -> None:
        self.root, self.spark = root, spark
        self.written = 0
        self.expected = {"a": 0, "b": 0}
        for name in ("orders", "refunds"):
            (root / name).mkdir()

    def put(self, kind: str, who: str, amount: int) -> None:
        self.written += 1
        hidden = self.root / kind / f".{self.written}"
        hidden.write_text(json.dumps({"who": who, "amount": amount}))
        hidden.rename(self.root / kind / f"{self.written}.json")
        self.expected[who] += amount * (1 if who == "a" else 10) * (1 if kind == "orders" else -1)

    def start(self, *, trigger: dict[str, Any] | None = None, **options: object) -> strobe.Job:
        restore = RestoreOptions(**options)  # type: ignore[arg-type]
        home = str(self.root / "home")
        return start_job(mixed(self.root, trigger), home=home, base=self.root, spark=self.spark, restore=restore)

    def totals(self) -> dict[str, int]:
        if not (self.root / "totals/_delta_log").is_dir():
            return {}
        return dict(delta_rows(self.root / "totals", "select who, total::BIGINT from t"))

    def caught_up(self, job: strobe.Job) -> None:
        eventually(lambda: self.totals() == self.expected, f"{self.expected}, not {self.totals()}", job)


@pytest.mark.spark
def test_a_channel_and_a_source_are_resumed_restored_and_drained_together(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path, spark)
    world.put("orders", "a", 100)
    world.put("orders", "b", 7)
    world.put("refunds", "a", 30)
    job = world.start()
    world.caught_up(job)
    early = job.checkpoint(120)
    record = job.store.load(early).nodes[NodeId("totals")]
    assert record.inputs.keys() == {"orders"}
    assert sorted(k for o in record.offsets for k in o) == ["channel", "logOffset", "version"]
    assert (stage(job, "out").rows_out or 0) >= 2, "a stage that only has a sink counts what that takes"
    assert stage(job, "orders").lag_rows is None
    world.put("refunds", "b", 2)
    world.put("orders", "a", 1)
    world.caught_up(job)
    job.stop()

    world.put("refunds", "a", 5)
    world.put("orders", "b", 3)
    job = world.start()
    world.caught_up(job)
    check_checkpoints(job)
    job.stop()

    job = world.start(snapshot=f"mixed/{early}", partitions=3)  # everything after it comes again, from both sides
    world.caught_up(job)
    assert stage(job, "totals").restarts == 0
    world.put("refunds", "a", 1000)
    world.caught_up(job)
    job.stop_with_savepoint(tmp_path / "savepoint", drain=True)
    assert job.state is strobe.JobState.STOPPED
    assert world.totals() == world.expected


@pytest.mark.spark
def test_a_job_ends_when_a_source_beside_a_channel_has_no_more(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path, spark)
    world.put("orders", "a", 100)
    for amount in range(1, 4):  # one file a batch: it has more to do than the stage that it reads
        world.put("refunds", "b", amount)
    for round in ("the first run", "another one"):
        job = world.start(trigger={"availableNow": True})
        try:
            assert job.wait(PATIENCE), round
        finally:
            job.stop()
        assert job.state is strobe.JobState.FINISHED
        assert world.totals() == world.expected, round
        world.put("refunds", "a", 5)
        world.put("orders", "b", 2)
