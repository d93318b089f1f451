"""Several operators with state in one stage: duplicates out, windows, windows of windows; a join of windows."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("chained", checkpoint=strobe.CheckpointConfig(interval=1))


@pipeline.stage("hits")
def hits(spark):
    return spark.readStream.schema("id BIGINT, page STRING, at TIMESTAMP").json(f"{IN}/hits")


@pipeline.stage("hours", reads="hits", to=strobe.DeltaSink("hours"))
def hours(hits):
    once = hits.withWatermark("at", "5 minutes").dropDuplicatesWithinWatermark(["id"])
    tens = once.groupBy(F.window("at", "10 minutes"), "page").count()
    whole = tens.groupBy(F.window(F.window_time("window"), "1 hour"), "page")
    return whole.agg(F.sum("count").alias("hits"), F.max("count").alias("most")).select(
        "window.start", "page", "hits", "most"
    )


@pipeline.stage("shares", reads="hits", to=strobe.DeltaSink("shares"))
def shares(hits):
    timed = hits.withWatermark("at", "5 minutes")
    pages = timed.groupBy(F.window("at", "10 minutes").alias("w"), "page").agg(F.count("*").alias("n"))
    total = timed.groupBy(F.window("at", "10 minutes").alias("w")).agg(F.count("*").alias("of"))
    return pages.join(total, "w").select("w.start", "page", "n", "of")


def hit(id, page, minute):
    return {"id": id, "page": page, "at": f"2024-05-01T{12 + minute // 60:02}:{minute % 60:02}:00Z"}


SOURCES = {"hits": "json"}
STEPS = [
    ("hits", [hit(1, "/", 1), hit(2, "/", 2), hit(1, "/", 1), hit(3, "/a", 4)]),
    ("hits", [hit(4, "/", 12), hit(2, "/", 2), hit(5, "/a", 13), hit(6, "/a", 14)]),
    ("hits", [hit(7, "/", 47), hit(8, "/b", 48), hit(9, "/", 3)]),
    ("hits", [hit(10, "/", 75), hit(11, "/b", 76)]),
    ("hits", [hit(12, "/", 200)]),
]
