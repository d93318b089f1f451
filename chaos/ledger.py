"""The pipeline that is put under faults; an ordinary one, which `strobe run chaos/ledger.py` runs.

Transfers come from a Kafka topic. Each becomes two postings, and postings become balances. Every stage has sinks:
transfers go to a Delta table, postings to a Kafka topic and a Postgres table, balances to a Postgres and a Delta table;
all on snapshot except the last. Where things are comes from the environment: LEDGER_KAFKA (bootstrap servers),
LEDGER_POSTGRES (a DSN), LEDGER_OUT (a directory), and LEDGER_STORE if checkpoints do not go to the home directory;
LEDGER_INTERVAL and LEDGER_MODE say how often and how they are taken.
"""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import strobe

KAFKA = os.environ["LEDGER_KAFKA"]
POSTGRES = os.environ["LEDGER_POSTGRES"]
OUT = os.environ["LEDGER_OUT"]

pipeline = strobe.Pipeline(
    "ledger",
    checkpoint=strobe.CheckpointConfig(
        interval=float(os.environ.get("LEDGER_INTERVAL", "2")),
        timeout=60,
        tolerable_failures=100_000,  # servers become unreachable here; the job should wait for them
        retained=4,
        mode=os.environ.get("LEDGER_MODE", "aligned"),
        store=os.environ.get("LEDGER_STORE") or None,
    ),
    restart=strobe.RestartPolicy(attempts=100_000, longest_pause=3.0),
    # A driver lives for a minute here: its JVM should be quick at the start rather than in the long run.
    conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
)


@pipeline.stage(uid="transfers", to=strobe.DeltaSink(f"{OUT}/transfers", delivery="on_snapshot").named("delta"))
def transfers(spark: SparkSession) -> DataFrame:
    read = strobe.read_kafka(spark, KAFKA, "transfers", max_rows_per_batch=5000)
    row = f.from_json(f.col("value").cast("string"), "id BIGINT, source BIGINT, target BIGINT, cents BIGINT")
    return read.select(row.alias("row")).select("row.*")


@pipeline.stage(
    uid="postings",
    reads="transfers",
    to=[
        strobe.KafkaSink(KAFKA, "postings", key="account").named("kafka"),
        strobe.PostgresSink(POSTGRES, "postings", delivery="on_snapshot").named("postgres"),
    ],
)
def postings(transfers: DataFrame) -> DataFrame:
    take = f.struct(f.lit(0).alias("leg"), f.col("source").alias("account"), (-f.col("cents")).alias("cents"))
    give = f.struct(f.lit(1).alias("leg"), f.col("target").alias("account"), f.col("cents").alias("cents"))
    return transfers.select("id", f.explode(f.array(take, give)).alias("p")).select("id", "p.*")


@pipeline.stage(
    uid="balances",
    reads="postings",
    output_mode="update",
    to=[
        strobe.PostgresSink(POSTGRES, "balances", key="account", delivery="on_snapshot").named("postgres"),
        strobe.DeltaSink(f"{OUT}/balances", key="account").named("delta"),
    ],
)
def balances(postings: DataFrame) -> DataFrame:
    return postings.groupBy("account").agg(f.sum("cents").alias("cents"), f.count("*").alias("postings"))
