"""A stage that reads another one and a source of its own, with a watermark on each."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("channel_and_source", checkpoint=strobe.CheckpointConfig(interval=1))


@pipeline.stage("rides")
def rides(spark):
    return spark.readStream.schema("ride INT, begun TIMESTAMP").json(f"{IN}/rides")


@pipeline.stage("ended", reads="rides", to=strobe.DeltaSink("ended"))
def ended(rides, spark):
    ends = spark.readStream.schema("of INT, done TIMESTAMP").json(f"{IN}/ends").withWatermark("done", "10 minutes")
    on = F.expr("ride = of AND done BETWEEN begun AND begun + INTERVAL 1 HOUR")
    return rides.withWatermark("begun", "10 minutes").join(ends, on, "left_outer").select("ride", "begun", "done")


def ride(ride, hour, minute=0):
    return {"ride": ride, "begun": f"2024-05-01T{hour:02}:{minute:02}:00Z"}


def end(of, hour, minute=0):
    return {"of": of, "done": f"2024-05-01T{hour:02}:{minute:02}:00Z"}


SOURCES = {"rides": "json", "ends": "json"}
STEPS = [
    ("rides", [ride(1, 8), ride(2, 8, 30)]),
    ("ends", [end(1, 8, 40)]),
    ("rides", [ride(3, 12)]),
    ("ends", [end(3, 12, 50), end(2, 12)]),
    ("rides", [ride(4, 18)]),
    ("ends", [end(7, 19)]),
]
