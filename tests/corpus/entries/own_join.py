"""Two sources and an outer join in one stage, with one side far ahead of the other."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("own_join", checkpoint=strobe.CheckpointConfig(interval=1))


@pipeline.stage("settled", to=strobe.DeltaSink("settled"))
def settled(spark):
    orders = spark.readStream.schema("order BIGINT, ordered TIMESTAMP").json(f"{IN}/orders")
    paid = spark.readStream.schema("paid_order BIGINT, paid TIMESTAMP").json(f"{IN}/payments")
    left = orders.withWatermark("ordered", "30 minutes")
    right = paid.withWatermark("paid", "10 minutes")
    on = F.expr("order = paid_order AND paid BETWEEN ordered AND ordered + INTERVAL 30 MINUTES")
    return left.join(right, on, "left_outer")


def ordered(order, hour, minute=0):
    return {"order": order, "ordered": f"2024-05-01T{hour:02}:{minute:02}:00Z"}


def paid(order, hour, minute=0):
    return {"paid_order": order, "paid": f"2024-05-01T{hour:02}:{minute:02}:00Z"}


SOURCES = {"orders": "json", "payments": "json"}
STEPS = [
    ("orders", [ordered(1, 10), ordered(2, 10, 10), ordered(3, 10, 20)]),
    ("payments", [paid(1, 10, 15), paid(8, 11)]),
    ("orders", [ordered(4, 12)]),
    ("payments", [paid(4, 12, 20), paid(2, 12, 30)]),
    ("orders", [ordered(5, 18), ordered(6, 13)]),
    ("payments", [paid(5, 18, 10), paid(9, 19)]),
]
