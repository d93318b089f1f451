"""Impressions and clicks of advertisements, joined in every way that two streams can be."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("joins", checkpoint=strobe.CheckpointConfig(interval=1))
CONDITION = "click_ad = ad AND clicked BETWEEN shown AND shown + INTERVAL 1 HOUR"


@pipeline.stage("impressions")
def impressions(spark):
    return spark.readStream.schema("ad INT, shown TIMESTAMP").json(f"{IN}/impressions")


@pipeline.stage("clicks")
def clicks(spark):
    return spark.readStream.schema("click_ad INT, clicked TIMESTAMP, user STRING").json(f"{IN}/clicks")


def join(how):
    sink = strobe.DeltaSink(how)

    @pipeline.stage(how, reads=["impressions", "clicks"], to=sink)
    def joined(impressions, clicks):
        left = impressions.withWatermark("shown", "2 hours")
        right = clicks.withWatermark("clicked", "3 hours")
        return left.join(right, F.expr(CONDITION), how)


for kind in ("inner", "left_outer", "right_outer", "full_outer", "left_semi"):
    join(kind)


def shown(ad, hour, minute=0):
    return {"ad": ad, "shown": f"2024-05-01T{hour:02}:{minute:02}:00Z"}


def clicked(ad, hour, minute, user):
    return {"click_ad": ad, "clicked": f"2024-05-01T{hour:02}:{minute:02}:00Z", "user": user}


SOURCES = {"impressions": "json", "clicks": "json"}
STEPS = [
    ("impressions", [shown(1, 1), shown(2, 1, 30), shown(3, 2)]),
    ("clicks", [clicked(1, 1, 5, "ann"), clicked(1, 1, 50, "bob"), clicked(9, 2, 0, "eve")]),
    ("impressions", [shown(4, 6), shown(1, 7)]),
    ("clicks", [clicked(4, 6, 59, "ann"), clicked(4, 7, 1, "late"), clicked(3, 2, 10, "cat")]),
    ("impressions", [shown(2, 2), shown(5, 12)]),  # 2: too late
    ("clicks", [clicked(5, 13, 0, "dan"), clicked(2, 9, 0, "fay")]),
    ("impressions", [shown(6, 20)]),
    ("clicks", [clicked(6, 21, 1, "gus")]),
]
