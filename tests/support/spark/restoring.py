"""What the tests of restores share: a ledger that can be stopped, changed and brought back, and how to read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.ids import NodeId
from tests.support.spark.jobs import eventually
from tests.support.spark.ledger_data import delta_rows, read_transfers

BOUNDED = {"availableNow": True}


def ledger(
    data: Path, *, bounded: bool = False, retained: int = 100, chain: bool = False, seen: bool = True
) -> strobe.Pipeline:
    """transfers → postings (append) → balances (upsert). Checkpoints only when asked. `seen`: postings have a sink."""
    config = strobe.CheckpointConfig(interval=None, retained=retained, tolerable_failures=100)
    pipeline = strobe.Pipeline("ledger", checkpoint=config, chain=chain)

    @pipeline.stage(uid="transfers", trigger=BOUNDED if bounded else None)
    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(uid="postings", reads="transfers", to=strobe.DeltaSink("postings") if seen else ())
    def postings(transfers: DataFrame) -> DataFrame:
        debit = transfers.select("id", F.col("src").alias("account"), (-F.col("amount")).alias("delta"))
        return debit.union(transfers.select("id", F.col("dst").alias("account"), F.col("amount").alias("delta")))

    @pipeline.stage(
        uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink("balances", key="account")
    )
    def balances(postings: DataFrame) -> DataFrame:
        return postings.groupBy("account").agg(F.sum("delta").alias("balance"))

    return pipeline


def start(
    pipeline: strobe.Pipeline, root: Path, spark: SparkSession, *, home: str = "home", base: str = "", **options: Any
) -> strobe.Job:
    return start_job(pipeline, home=str(root / home), base=root / base, spark=spark, restore=RestoreOptions(**options))


def postings_of(root: Path) -> list[tuple[Any, ...]]:
    return delta_rows(root / "postings", "select id, account, delta::BIGINT from t order by 1, 2, 3")


def balances_of(root: Path) -> list[tuple[Any, ...]]:
    return delta_rows(root / "balances", "select account, balance::BIGINT from t order by 1")


def await_postings(job: strobe.Job, root: Path, rows: int) -> None:
    """Until so many transfers are posted, and everything that follows from them is done."""
    eventually(
        lambda: (
            all(runner.agent.lag() == (0, 0) for runner in job.runners.values())
            and (root / "postings/_delta_log").is_dir()
            and len(postings_of(root)) == 2 * rows
            and job.runners[NodeId("balances")].agent.idle
        ),
        f"{rows} transfers posted",
        job,
    )
