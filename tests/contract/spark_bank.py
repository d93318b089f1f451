"""The bank on Spark: transfers, the postings that follow from them, a balance per account."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.look.cut import open_snapshot
from strobe.store.consistency import check_manifest
from strobe.store.manifest import Manifest
from tests.support.spark.jobs import finish
from tests.support.spark.ledger_data import delta_rows, expected_balances, read_transfers, write_transfers

__all__ = ["BankRun", "run_bank"]

TOTAL = """select coalesce(sum(x), 0) from (select balance as x from state.balances
           union all select delta from in_flight.postings)"""


class BankRun:
    """A run that has ended: what its snapshots say, and whether the balances are right."""

    def __init__(self, home: Path, manifests: list[Manifest], *, right: bool) -> None:
        self.manifests = manifests
        self.right = right
        self._home = home

    def violations(self) -> list[str]:
        """Of law 1, in each snapshot and against the one before it."""
        before = [None, *self.manifests]
        return [v.sentence for b, m in zip(before, self.manifests, strict=False) for v in check_manifest(m, b)]

    def totals(self) -> list[int]:
        """The money in each snapshot in which every stage has run: debits and credits, in state and in flight."""
        found = []
        for manifest in self.manifests:
            if all(node.batch is not None and node.batch >= 0 for node in manifest.nodes.values()):
                with open_snapshot(f"bank/{manifest.snapshot}", self._home) as cut:
                    found.append(int(cut.sql(TOTAL).column(0)[0].as_py()))
        return found


def run_bank(root: Path, mode: str, seed: int, spark: SparkSession) -> BankRun:
    data = write_transfers(root / "in", files=8, rows=50, seed=seed)
    settings = strobe.CheckpointConfig(interval=0.2, retained=1000, tolerable_failures=1000, mode=mode)
    pipeline = strobe.Pipeline("bank", checkpoint=settings, chain=False)

    @pipeline.stage(uid="transfers", trigger={"availableNow": True})
    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(uid="postings", reads="transfers")
    def postings(transfers: DataFrame) -> DataFrame:
        debit = transfers.select(F.col("src").alias("account"), (-F.col("amount")).alias("delta"))
        return debit.union(transfers.select(F.col("dst").alias("account"), F.col("amount").alias("delta")))

    @pipeline.stage(
        uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink("balances", key="account")
    )
    def balances(postings: DataFrame) -> DataFrame:
        return postings.groupBy("account").agg(F.sum("delta").alias("balance"))

    home = root / "home"
    job = start_job(pipeline, home=str(home), base=root, spark=spark)
    finish(job)
    manifests = [job.store.load(snapshot) for snapshot in job.store.list()]
    shown = delta_rows(root / "balances", "select account, balance::BIGINT from t order by 1")
    return BankRun(home, manifests, right=shown == expected_balances(data))
