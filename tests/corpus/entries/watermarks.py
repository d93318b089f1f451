"""Several watermarks in one query: the slowest decides, or, if the stage says so, the fastest."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("watermarks", checkpoint=strobe.CheckpointConfig(interval=1))
POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def source(uid):
    @pipeline.stage(uid)
    def read(spark):
        return spark.readStream.schema("at TIMESTAMP, n INT").json(f"{IN}/{uid}")


source("north")
source("south")


def counted(north, south):
    both = north.withWatermark("at", "5 minutes").union(south.withWatermark("at", "15 minutes"))
    return both.groupBy(F.window("at", "10 minutes")).agg(F.sum("n").alias("n")).select("window.start", "n")


pipeline.stage("slowest", reads=["north", "south"], to=strobe.DeltaSink("slowest"))(counted)
pipeline.stage("fastest", reads=["north", "south"], to=strobe.DeltaSink("fastest"), conf={POLICY: "max"})(counted)


def row(minute, n):
    return {"at": f"2024-05-01T{12 + minute // 60:02}:{minute % 60:02}:00Z", "n": n}


SOURCES = {"north": "json", "south": "json"}
STEPS = [
    ("north", [row(1, 1), row(12, 2)]),
    ("south", [row(3, 10), row(25, 20)]),
    ("north", [row(40, 3)]),
    ("south", [row(8, 30), row(50, 40)]),
    ("north", [row(90, 4), row(41, 5)]),
    ("south", [row(91, 50)]),
]
