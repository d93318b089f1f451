"""Which mode checkpoints have if the file does not say: unaligned, unless readers of tables could tell."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.pipeline.cut_mode import parted, with_mode
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId, SnapshotId
from tests.support.spark.jobs import eventually
from tests.support.spark.ledger_data import read_transfers, write_transfers


def _never(**channels: DataFrame) -> DataFrame:
    raise AssertionError("nothing is run")


def pipeline_of(shape: str, **config: Any) -> strobe.Pipeline:
    """`a>b>c! a>d!`: what reads what. A stage with a `!` delivers on snapshot, one with `?` on each batch, to a sink;
    one with `!!` has two sinks. `b~a`: a reads b, as a feedback."""
    pipeline = strobe.Pipeline("shape", checkpoint=strobe.CheckpointConfig(**config))
    reads: dict[str, list[Any]] = {}
    sinks: dict[str, list[strobe.Sink]] = {}
    for path in shape.split():
        back = "~" in path
        names = path.split("~" if back else ">")
        for name in names:
            uid = name.rstrip("!?")
            reads.setdefault(uid, [])
            if uid not in sinks or name != uid:
                delivery = "on_snapshot" if "!" in name else "on_batch"
                sinks[uid] = [strobe.MemorySink(delivery=delivery) for _ in range(len(name) - len(uid))]
        for producer, consumer in pairwise(name.rstrip("!?") for name in names):
            if producer not in reads[consumer]:
                reads[consumer].append(strobe.feedback(producer, "x INT") if back else producer)
    for uid, inputs in reads.items():
        pipeline.stage(uid=uid, reads=inputs, to=sinks[uid])(_never)
    return pipeline


@pytest.mark.parametrize(
    ("shape", "stage"),
    [
        ("a>b>c?", None),
        ("a>b? a>c? b>d?", None),  # readers of these see each batch, whatever the checkpoints do
        ("a>b>c!", None),  # one behind the other
        ("a>b>c!!", None),  # two tables of one stage have the same batches
        ("a>c! b>c!", None),  # two sources that have nothing to do with each other
        ("a>b! c>d!", None),
        ("a>b! a>c?", None),
        ("a>b! a>c!", "a"),
        ("a>b!>c!", "b"),  # the first table has rows that the second one does not have yet
        ("a>b>d! a>c>d!", "a"),  # one table, but a row's effect comes to it in two ways
        ("a>b>c>d! a>c>d!", "a"),
        ("a>c>d! b>c>d! c>e!", "c"),
        ("a>b>c! b~a", None),  # what goes around in a loop is in flight in either mode
        ("a>b!>c! b~a", "b"),
    ],
)
def test_checkpoints_are_aligned_by_default_if_rows_come_to_tables_in_two_ways(shape: str, stage: str | None) -> None:
    pipeline = pipeline_of(shape)
    assert parted(pipeline) == stage
    settled = with_mode(pipeline)
    assert settled.checkpoint.mode == ("unaligned" if stage is None else "aligned")
    assert settled.checkpoint.coordinator().everywhere == (stage is None)
    assert pipeline.checkpoint.mode is None, "what a user has declared stays as it is"
    assert replace(settled.checkpoint, mode=None) == pipeline.checkpoint, "nothing else is changed"


@pytest.mark.parametrize("mode", ["aligned", "unaligned", "aligned-with-timeout"])
@pytest.mark.parametrize("shape", ["a>b!", "a>b! a>c!"])
def test_a_mode_that_is_said_counts(shape: str, mode: str) -> None:
    pipeline = pipeline_of(shape, mode=mode)
    assert with_mode(pipeline) is pipeline
    assert pipeline.checkpoint.barrier_mode.value == mode


def test_a_config_by_itself_is_unaligned() -> None:
    config = strobe.CheckpointConfig()
    assert config.mode is None
    assert config.barrier_mode.value == "unaligned"
    assert config.coordinator().everywhere
    with pytest.raises(Misuse, match=r"mode='both'.*aligned, unaligned"):
        strobe.CheckpointConfig(mode="both")


@pytest.mark.spark
@pytest.mark.parametrize("mode", [None, "unaligned"])
def test_one_table_at_the_end_of_two_ways_adds_up_by_default(
    spark: SparkSession, tmp_path: Path, mode: str | None
) -> None:
    """Transfers go to debits and to credits, and both to one table of balances. Credits are held in their second
    commit, debits are through: then a checkpoint begins, and credits go on."""
    data = write_transfers(tmp_path / "in", files=6, rows=20)
    config = strobe.CheckpointConfig(interval=None, mode=mode)
    pipeline = strobe.Pipeline("ledger", checkpoint=config, chain=False)
    table, go = strobe.MemorySink(delivery="on_snapshot"), threading.Event()

    def hold(batch: DataFrame, batch_id: int) -> None:
        assert batch_id == 0 or go.wait(300)

    @pipeline.stage(uid="transfers")
    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(uid="debits", reads="transfers")
    def debits(transfers: DataFrame) -> DataFrame:
        return transfers.select((-F.col("amount")).alias("delta"))

    @pipeline.stage(uid="credits", reads="transfers", max_rows_per_batch=1, to=strobe.ForeachBatchSink(hold))
    def credits(transfers: DataFrame) -> DataFrame:
        return transfers.select(F.col("amount").alias("delta"))

    @pipeline.stage(uid="balances", reads=["debits", "credits"], output_mode="complete", to=table)
    def balances(debits: DataFrame, credits: DataFrame) -> DataFrame:
        return debits.union(credits).agg(F.sum("delta").alias("total"))

    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        runners = job.runners
        eventually(lambda: runners[NodeId("debits")].rows_out == 120, "all debits", job)
        eventually(lambda: runners[NodeId("balances")].agent.idle, "and their balances", job)
        taken: list[SnapshotId] = []
        asking = threading.Thread(target=lambda: taken.append(job.checkpoint()))
        asking.start()
        eventually(lambda: [p.acknowledged > 0 for p in job.status().checkpoints] == [True], "it has begun", job)
        go.set()
        asking.join(300)
        manifest = job.store.load(taken[0])
        eventually(lambda: job.status().sinks[-1].in_doubt == 0 and bool(table.rows()), "the table", job)
        (row,) = table.rows()
    finally:
        go.set()
        job.stop()
    if mode is None:
        assert (manifest.mode, manifest.rows_in_flight) == ("aligned", 0)
        assert row["total"] == 0, "money was seen that is not there"
    else:
        assert manifest.rows_in_flight > 0
        assert row["total"] < 0, "what the default is for"
