"""Clicks become sessions, sessions and orders are joined, with orders that no session explains, and late ones."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("visits", checkpoint=strobe.CheckpointConfig(interval=1, mode="unaligned"))


@pipeline.stage("clicks")
def clicks(spark):
    return spark.readStream.schema("user STRING, page STRING, at TIMESTAMP").json(f"{IN}/clicks")


@pipeline.stage("orders", to=strobe.FileSink("orders"))
def orders(spark):
    raw = spark.readStream.text(f"{IN}/orders")
    parts = F.split("value", ";")
    return raw.select(
        parts[0].cast("long").alias("order"), parts[1].alias("buyer"), F.to_timestamp(parts[2]).alias("bought"),
        parts[3].cast("decimal(10,2)").alias("total"),
    )  # fmt: skip


@pipeline.stage("sessions", reads="clicks", to=strobe.DeltaSink("sessions"))
def sessions(clicks):
    timed = clicks.withWatermark("at", "5 minutes")
    grouped = timed.groupBy("user", F.session_window("at", "15 minutes").alias("w"))
    counted = grouped.agg(F.count("*").alias("clicks"), F.sort_array(F.collect_set("page")).alias("pages"))
    return counted.select("user", F.col("w.start").alias("begin"), F.col("w.end").alias("end"), "clicks", "pages")


@pipeline.stage("explained", reads=["sessions", "orders"], to=strobe.DeltaSink("explained"))
def explained(sessions, orders):
    left = orders.withWatermark("bought", "30 minutes")
    right = sessions.withWatermark("end", "30 minutes")
    on = F.expr(
        "buyer = user AND bought BETWEEN begin AND end + INTERVAL 30 MINUTES AND end < bought + INTERVAL 3 HOURS"
    )
    return left.join(right, on, "left_outer").select("order", "buyer", "total", "begin", "clicks")


@pipeline.stage("revenue", reads="explained", output_mode="update", to=strobe.DeltaSink("revenue", key="known"))
def revenue(explained):
    known = F.col("begin").isNotNull().alias("known")
    return explained.groupBy(known).agg(F.sum("total").alias("total"), F.approx_count_distinct("buyer").alias("buyers"))


def click(user, page, minute):
    return {"user": user, "page": page, "at": f"2024-05-01T{8 + minute // 60:02}:{minute % 60:02}:00Z"}


def order(number, buyer, minute, total):
    return f"{number};{buyer};2024-05-01T{8 + minute // 60:02}:{minute % 60:02}:00Z;{total}"


SOURCES = {"clicks": "json", "orders": "text"}
STEPS = [
    ("clicks", [click("ann", "/", 0), click("ann", "/tea", 4), click("bob", "/", 2)]),
    ("orders", [order(1, "ann", 6, "12.50"), order(2, "eve", 7, "99.00")]),
    ("clicks", [click("bob", "/ink", 50), click("ann", "/", 3), click("cat", "/", 52)]),
    ("orders", [order(3, "bob", 55, "7.00"), order(4, "cat", 58, "1.00")]),
    ("clicks", [click("dan", "/", 200), click("ann", "/late", 5)]),
    ("orders", [order(5, "dan", 205, "3.00"), order(6, "ann", 5, "8.00")]),
    ("clicks", [click("fay", "/", 500)]),
    ("orders", [order(7, "fay", 505, "4.00")]),
    ("clicks", [click("gus", "/", 900)]),
    ("orders", [order(8, "gus", 905, "4.00")]),
]
