"""A ledger that never stops: transfers → postings → balances, and a fraud branch that joins back.

Run it, kill it, run it again:

    strobe run examples/ledger.py
    strobe status ledger
    strobe checkpoint ledger
    strobe inspect ledger
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe

ACCOUNTS = 1000

pipeline = strobe.Pipeline("ledger", checkpoint=strobe.CheckpointConfig(interval=5.0, retained=3))


@pipeline.stage(uid="transfers")
def transfers(spark: SparkSession) -> DataFrame:
    """An endless, generated source: 500 transfers a second. The content of a row depends only on its number."""
    numbers = spark.readStream.format("rate").option("rowsPerSecond", 500).load()
    pick = F.pmod(F.xxhash64("value"), F.lit(ACCOUNTS))
    return numbers.select(
        F.col("value").alias("id"),
        F.col("timestamp").alias("ts"),
        pick.alias("src"),
        F.pmod(pick + 1 + F.pmod(F.col("value"), F.lit(ACCOUNTS - 1)), F.lit(ACCOUNTS)).alias("dst"),
        F.floor(strobe.stable_random("value") * 100 + 1).alias("amount"),
    )


@pipeline.stage(uid="postings", reads="transfers")
def postings(transfers: DataFrame) -> DataFrame:
    """Each transfer becomes two postings, which add up to nothing."""
    debit = transfers.select("id", F.col("src").alias("account"), (-F.col("amount")).alias("delta"))
    credit = transfers.select("id", F.col("dst").alias("account"), F.col("amount").alias("delta"))
    return debit.union(credit)


@pipeline.stage(
    uid="balances", reads="postings", output_mode="update", to=strobe.DeltaSink("out/balances", key="account")
)
def balances(postings: DataFrame) -> DataFrame:
    """A running balance per account. The sum over all accounts is always 0."""
    return postings.groupBy("account").agg(F.sum("delta").alias("balance"), F.count("*").alias("postings"))


@pipeline.stage(uid="suspects", reads="transfers")
def suspects(transfers: DataFrame) -> DataFrame:
    """Accounts that send a lot within ten seconds."""
    spent = (
        transfers.withWatermark("ts", "5 seconds")
        .groupBy(F.window("ts", "10 seconds"), F.col("src"))
        .agg(F.sum("amount").alias("spent"))
    )
    return spent.where("spent > 400").select(
        "src", "spent", F.col("window.start").alias("since"), F.col("window.end").alias("until")
    )


@pipeline.stage(uid="flagged", reads=["suspects", "transfers"], to=strobe.DeltaSink("out/flagged"))
def flagged(suspects: DataFrame, transfers: DataFrame) -> DataFrame:
    """Joined back: the transfers of an account in the window that made it a suspect."""
    s = suspects.withWatermark("until", "20 seconds").alias("s")
    t = transfers.withWatermark("ts", "20 seconds").alias("t")
    same = F.expr("s.src = t.src AND t.ts >= s.since AND t.ts < s.until")
    return t.join(s, same).select("t.id", "t.src", "t.dst", "t.amount", "t.ts", "s.spent")
