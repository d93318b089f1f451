"""Counts in windows of ten seconds, endless: what the tests of orders to a running job run with `strobe run`."""

from __future__ import annotations

import os

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe

config = strobe.CheckpointConfig(interval=1.0, tolerable_failures=1000)
pipeline = strobe.Pipeline("windows", checkpoint=config, chain=False)


@pipeline.stage(uid="transfers")
def transfers(spark: SparkSession) -> DataFrame:
    ddl = "id BIGINT, src INT, dst INT, amount BIGINT, ts TIMESTAMP"
    return spark.readStream.schema(ddl).option("maxFilesPerTrigger", 1).parquet(os.environ["WINDOWS_DATA"])


@pipeline.stage(uid="seconds", reads="transfers", to=strobe.DeltaSink(os.environ["WINDOWS_OUT"]))
def seconds(transfers: DataFrame) -> DataFrame:
    if os.environ.get("WINDOWS_FAULT"):
        raise RuntimeError(os.environ["WINDOWS_FAULT"])
    timed = transfers.withWatermark("ts", "5 seconds")
    counted = timed.groupBy(F.window("ts", "10 seconds").alias("w")).agg(F.count("*").alias("rows"))
    return counted.select(F.col("w.start").alias("start"), "rows")
