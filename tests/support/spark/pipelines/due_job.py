"""Counts in windows of ten seconds, in a stage that reads files and in one that reads a channel. What each batch gives
is a file of its own: what the tests of batches without rows run with `strobe run`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe

pipeline = strobe.Pipeline("due", checkpoint=strobe.CheckpointConfig(interval=None), chain=False)
OUT = Path(os.environ["DUE_OUT"])


def read(spark: SparkSession) -> DataFrame:
    return spark.readStream.schema("id BIGINT, key STRING, ts TIMESTAMP").json(os.environ["DUE_DATA"])


def count(events: DataFrame) -> DataFrame:
    counted = events.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "10 seconds").alias("w"), "key").count()
    return counted.select(F.col("w.start").cast("string").alias("start"), "key", "count")


def note(uid: str) -> strobe.ForeachBatchSink:
    def write(batch: DataFrame, batch_id: int) -> None:
        (OUT / uid).mkdir(parents=True, exist_ok=True)
        (OUT / uid / f"{batch_id}.json").write_text(json.dumps(sorted(map(list, batch.collect()))))

    return strobe.ForeachBatchSink(write)


pipeline.stage(uid="events", trigger={"availableNow": True})(read)
pipeline.stage(uid="windows", reads="events", to=note("windows"))(count)
pipeline.stage(uid="own", trigger={"availableNow": True}, to=note("own"))(lambda spark: count(read(spark)))
