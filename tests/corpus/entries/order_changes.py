"""Change records fan out: upserts by two columns, one of them a time, with decimals; duplicates out; an audit trail."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("order_changes", checkpoint=strobe.CheckpointConfig(interval=1, mode="unaligned"))
RECORD = "id STRING, op STRING, at TIMESTAMP, shop INT, day TIMESTAMP, total DECIMAL(18,4)"


@pipeline.stage("changes")
def changes(spark):
    records = spark.readStream.text(f"{IN}/changes").select(F.from_json("value", RECORD).alias("r")).select("r.*")
    return records.where("id IS NOT NULL").withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])


@pipeline.stage("days", reads="changes", output_mode="update", to=strobe.DeltaSink("days", key=["shop", "day"]))
def days(changes):
    signed = F.when(F.col("op") == "cancel", -F.col("total")).otherwise(F.col("total"))
    grouped = changes.groupBy("shop", "day")
    return grouped.agg(F.sum(signed).alias("total"), F.max("at").alias("changed"), F.count("*").alias("n"))


@pipeline.stage("latest", reads="changes", output_mode="update",
                to=strobe.DeltaSink("latest", key=["day", "shop"], delivery="on_snapshot"))  # fmt: skip
def latest(changes):
    newest = changes.groupBy("shop", "day").agg(F.max_by(F.struct("op", "total"), F.struct("at", "id")).alias("c"))
    return newest.select("shop", "day", "c.op", "c.total")


@pipeline.stage("audit", reads="changes", to=strobe.FileSink("audit"))
def audit(changes):
    return changes.select("id", F.upper("op").alias("op"), "at", F.col("total").cast("string").alias("total"))


def change(id, op, minute, shop, day, total):
    at = f"2024-05-01T{8 + minute // 60:02}:{minute % 60:02}:00.250Z"
    day = "null" if day is None else f'"2024-05-{day:02}T00:00:00Z"'
    return f'{{"id": "{id}", "op": "{op}", "at": "{at}", "shop": {shop}, "day": {day}, "total": {total}}}'


SOURCES = {"changes": "text"}
STEPS = [
    ("changes", [change("a", "new", 0, 1, 1, "10.2500"), change("b", "new", 1, 2, 1, "0.0001"), "{ broken"]),
    ("changes", [change("a", "new", 0, 1, 1, "10.2500"), change("c", "cancel", 5, 1, 1, "3.2500")]),
    ("changes", [change("d", "new", 200, 1, 2, "99999999999999.9999"), change("e", "new", 201, 2, None, "1")]),
    (
        "changes",
        [change("f", "new", 2, 9, 1, "5"), change("d", "new", 200, 1, 2, "1"), change("g", "new", 203, 2, 1, "2")],
    ),
]
