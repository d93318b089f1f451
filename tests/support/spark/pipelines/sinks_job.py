"""Numbers from files to tables and files, on snapshot or as DELIVERY says, for tests that kill the driver."""

from __future__ import annotations

import os

import strobe

pipeline = strobe.Pipeline("numbers", checkpoint=strobe.CheckpointConfig(interval=0.3, retained=20))
DELIVERY = os.environ.get("DELIVERY", "on_snapshot")
SINKS = (
    strobe.DeltaSink("appended", delivery=DELIVERY),
    strobe.DeltaSink("newest", key="rest", delivery=DELIVERY),
    strobe.FileSink("files", delivery=DELIVERY),
)
TRIGGER = {"availableNow": True} if os.environ.get("BOUNDED") else {"processingTime": "0 seconds"}


@pipeline.stage(uid="gold", to=SINKS, trigger=TRIGGER)
def gold(spark):  # type: ignore[no-untyped-def]
    files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    return files.parquet("in").selectExpr("id", "id % 5 AS rest")
