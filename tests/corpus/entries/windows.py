"""Tumbling, sliding and session windows over the same readings, with late rows of which some still count."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("windows", checkpoint=strobe.CheckpointConfig(interval=1, mode="unaligned"))


@pipeline.stage("readings")
def readings(spark):
    rows = spark.readStream.schema("sensor STRING, at TIMESTAMP, value DOUBLE").json(f"{IN}/readings")
    return rows.where("value IS NOT NULL")


@pipeline.stage("tumbling", reads="readings", to=strobe.DeltaSink("tumbling"))
def tumbling(readings):
    windows = readings.withWatermark("at", "10 minutes").groupBy(F.window("at", "10 minutes"), "sensor")
    return windows.agg(F.avg("value").alias("mean"), F.count("*").alias("n")).select("window.*", "sensor", "mean", "n")


@pipeline.stage(
    "sliding", reads="readings", output_mode="update", to=strobe.DeltaSink("sliding", key=["start", "sensor"])
)
def sliding(readings):
    windows = readings.withWatermark("at", "10 minutes").groupBy(F.window("at", "10 minutes", "5 minutes"), "sensor")
    return windows.agg(F.max("value").alias("most")).select(F.col("window.start").alias("start"), "sensor", "most")


@pipeline.stage("sessions", reads="readings", to=strobe.DeltaSink("sessions"))
def sessions(readings):
    gap = F.when(F.col("sensor") == "slow", "20 minutes").otherwise("5 minutes")
    grouped = readings.withWatermark("at", "10 minutes").groupBy(F.session_window("at", gap).alias("w"), "sensor")
    return grouped.agg(F.count("*").alias("n"), F.sum("value").alias("sum")).select(
        "w.start", "w.end", "sensor", "n", "sum"
    )


def at(minute, second=0):
    return f"2024-05-01T{12 + minute // 60:02}:{minute % 60:02}:{second:02}Z"


def reading(sensor, minute, value):
    return {"sensor": sensor, "at": at(minute), "value": value}


SOURCES = {"readings": "json"}
STEPS = [
    ("readings", [reading("a", 1, 1.5), reading("a", 4, 2.5), reading("slow", 2, 10.0), reading("b", 9, None)]),
    ("readings", [reading("a", 13, 4.0), reading("b", 12, 0.25), reading("slow", 18, 20.0)]),
    ("readings", [reading("a", 8, 7.0), reading("a", 31, 1.0), reading("b", 27, 3.0)]),  # 8: late, and it counts
    ("readings", [reading("a", 3, 99.0), reading("b", 52, 5.0)]),  # 3: too late
    ("readings", [reading("c", 120, 0.0)]),
]
