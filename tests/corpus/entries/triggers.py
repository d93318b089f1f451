"""A source that ends, and a stage that runs every half second."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("triggers", checkpoint=strobe.CheckpointConfig(interval=1))


@pipeline.stage("steady", trigger={"processingTime": "500 milliseconds"})
def steady(spark):
    return spark.readStream.schema("n BIGINT").json(f"{IN}/numbers")


@pipeline.stage(
    "sums", reads="steady", output_mode="update", trigger={"processingTime": "300 milliseconds"},
    to=strobe.DeltaSink("sums", key="odd", delivery="on_snapshot"),
)  # fmt: skip
def sums(steady):
    return (
        steady.groupBy((F.col("n") % 2 == 1).alias("odd"))
        .agg(F.sum("n").alias("sum"), F.collect_set("n").alias("all"))
        .select("odd", "sum", F.sort_array("all").alias("all"))
    )


SOURCES = {"numbers": "json"}
STEPS = [
    ("numbers", [{"n": 1}, {"n": 2}]),
    ("numbers", [{"n": 3}, {"n": 5}]),
    ("numbers", [{"n": 8}]),
]
