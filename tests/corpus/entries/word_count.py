"""Words are counted as they come: the first example that everybody runs, as a running count and as a top list."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("word_count", checkpoint=strobe.CheckpointConfig(interval=1))


@pipeline.stage("lines")
def lines(spark):
    return spark.readStream.text(f"{IN}/lines")


@pipeline.stage("counts", reads="lines", output_mode="update", to=strobe.DeltaSink("counts", key="word"))
def counts(lines):
    words = lines.select(F.explode(F.split("value", " ")).alias("word")).where("word != ''")
    return words.groupBy("word").count()


@pipeline.stage("lengths", reads="counts", to=strobe.DeltaSink("lengths"))
def lengths(counts):
    return counts.select("word", F.length("word").alias("length"), "count")


SOURCES = {"lines": "text"}
STEPS = [
    ("lines", ["apache spark", "spark streams and spark batches"]),
    ("lines", ["", "streams of streams"]),
    ("lines", ["apache hadoop", "spark"]),
]
