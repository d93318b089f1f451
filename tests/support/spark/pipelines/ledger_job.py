"""The ledger that the crash tests run with `strobe run`: endless, or bounded when BOUNDED is set."""

from __future__ import annotations

import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe

DDL = "id BIGINT, src INT, dst INT, amount BIGINT, ts TIMESTAMP"
DATA = Path(os.environ["LEDGER_DATA"])
OUT = os.environ["LEDGER_OUT"]

pipeline = strobe.Pipeline(
    "ledger",
    checkpoint=strobe.CheckpointConfig(
        interval=0.3, mode=os.environ.get("LEDGER_MODE", "aligned"), retained=1, tolerable_failures=3
    ),
    chain=bool(os.environ.get("LEDGER_CHAIN")),
)


@pipeline.stage(uid="transfers", trigger={"availableNow": True} if os.environ.get("BOUNDED") else None)
def transfers(spark: SparkSession) -> DataFrame:
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", 1).parquet(str(DATA))


@pipeline.stage(uid="postings", reads="transfers", to=strobe.DeltaSink(f"{OUT}/postings"))
def postings(transfers: DataFrame) -> DataFrame:
    debit = transfers.select("id", F.col("src").alias("account"), (-F.col("amount")).alias("delta"))
    return debit.union(transfers.select("id", F.col("dst").alias("account"), F.col("amount").alias("delta")))


@pipeline.stage(
    uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink(f"{OUT}/balances", key="account")
)
def balances(postings: DataFrame) -> DataFrame:
    return postings.groupBy("account").agg(F.sum("delta").alias("balance"))
