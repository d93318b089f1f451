"""Numbers from files to tables and files that deliver on snapshot, for tests that kill the driver."""

from __future__ import annotations

import os

import strobe

pipeline = strobe.Pipeline("numbers", checkpoint=strobe.CheckpointConfig(interval=0.3, retained=20))
SINKS = (
    strobe.DeltaSink("appended", delivery="on_snapshot"),
    strobe.DeltaSink("newest", key="rest", delivery="on_snapshot"),
    strobe.FileSink("files", delivery="on_snapshot"),
)
TRIGGER = {"availableNow": True} if os.environ.get("BOUNDED") else {"processingTime": "0 seconds"}


@pipeline.stage(uid="gold", to=SINKS, trigger=TRIGGER)
def gold(spark):  # type: ignore[no-untyped-def]
    files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    return files.parquet("in").selectExpr("id", "id % 5 AS rest")
