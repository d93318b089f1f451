"""Rows of every type through a channel, and state with composite keys of several types."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("types", checkpoint=strobe.CheckpointConfig(interval=1))
SCHEMA = """
    day DATE, flag BOOLEAN, price DECIMAL(20,4), local TIMESTAMP_NTZ, blob STRING, tags ARRAY<STRING>,
    scores MAP<STRING, DOUBLE>, place STRUCT<lat: FLOAT, lon: FLOAT, names: ARRAY<STRUCT<lang: STRING, name: STRING>>>,
    small TINYINT, short SMALLINT
"""


@pipeline.stage("items")
def items(spark):
    read = spark.readStream.schema(SCHEMA).json(f"{IN}/items")
    return (
        read.withColumn("blob", F.unbase64("blob"))
        .withColumn("Größe in m", F.lit(1.5))
        .withColumnRenamed("Größe in m", "größe")
    )


@pipeline.stage("exploded", reads="items", to=strobe.DeltaSink("exploded"))
def exploded(items):
    flat = items.select("*", F.explode_outer("place.names").alias("name"), F.map_keys("scores").alias("keys"))
    return flat.select(
        "day", "local", "price", "name.*", "keys", F.hex("blob").alias("blob"), "größe", "small", "short"
    )


@pipeline.stage(
    "grouped", reads="items", output_mode="update", to=strobe.DeltaSink("grouped", key=["day", "flag", "price"])
)
def grouped(items):
    return items.groupBy("day", "flag", "price").agg(
        F.count("*").alias("n"), F.max("local").alias("newest"), F.min_by("blob", "local").alias("first"),
        F.sort_array(F.collect_list("tags")).alias("tags"), F.last("place").alias("place"),
    )  # fmt: skip


def item(**fields):
    return fields


NAMES = [{"lang": "de", "name": "Zürich"}]
FULL = item(
    day="2024-02-29",
    flag=True,
    price="1.5000",
    local="2024-02-29T23:59:59.999999",
    blob="AAEC",
    tags=["a", "b"],
    scores={"x": 1.0, "y": 2.5},
    place={"lat": 1.25, "lon": -0.5, "names": NAMES},
    small=-128,
    short=32767,
)
OLD = {**FULL, "local": "1969-12-31T23:59:59", "blob": "/w==", "tags": [], "scores": {}, "place": {"names": []}}
LOW = item(day="1582-10-15", flag=False, price="-9999999999999999.9999", local="9999-12-31T00:00:00", tags=[None, "ü"])
NONE = item(day=None, flag=None, price=None)
SOURCES = {"items": "json"}
STEPS = [
    ("items", [FULL, NONE]),
    ("items", [OLD, LOW]),
    ("items", [{**NONE, "tags": ["again"], "place": {"lat": 0.5, "lon": None, "names": None}}]),
]
