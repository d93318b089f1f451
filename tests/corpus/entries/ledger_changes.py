"""Changes of a database fan out: the newest row of each customer, a history, and counts; deletions are rows as well."""

import os

from pyspark.sql import Window
from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("ledger_changes", checkpoint=strobe.CheckpointConfig(interval=1))


@pipeline.stage("changes")
def changes(spark):
    raw = spark.readStream.text(f"{IN}/log")
    change = F.from_json(
        "value", "lsn BIGINT, op STRING, before STRUCT<id: INT>, after STRUCT<id: INT, name: STRING, city: STRING>"
    )
    parsed = raw.select(change.alias("c")).where("c.lsn IS NOT NULL")
    return parsed.select("c.lsn", "c.op", F.coalesce("c.after.id", "c.before.id").alias("id"), "c.after")


@pipeline.stage("history", reads="changes", to=strobe.DeltaSink("history", delivery="on_snapshot"))
def history(changes):
    return changes.select("lsn", "op", "id", F.to_json("after").alias("row"))


@pipeline.stage("current", reads="changes", output_mode="update", to=strobe.DeltaSink("current", key="id"))
def current(changes):
    newest = changes.groupBy("id").agg(F.max_by(F.struct("op", "after"), "lsn").alias("c"), F.max("lsn").alias("lsn"))
    return newest.select("id", "lsn", (F.col("c.op") == "d").alias("gone"), "c.after.name", "c.after.city")


def rank(batch, batch_id):
    """A window over rows works on a batch."""
    order = Window.partitionBy("city").orderBy("id")
    batch.withColumn("rank", F.row_number().over(order)).count()


@pipeline.stage("cities", reads="current", to=[strobe.DeltaSink("cities"), strobe.ForeachBatchSink(rank)])
def cities(current):
    return current.where("NOT gone").select("city", "id", "lsn")


def line(lsn, op, id, name=None, city=None):
    before = "null" if op == "c" else f'{{"id": {id}}}'
    after = "null" if op == "d" else f'{{"id": {id}, "name": "{name}", "city": "{city}"}}'
    return f'{{"lsn": {lsn}, "op": "{op}", "before": {before}, "after": {after}}}'


SOURCES = {"log": "text"}
STEPS = [
    ("log", [line(1, "c", 1, "Ann", "Basel"), line(2, "c", 2, "Bob", "Bern")]),
    ("log", [line(3, "u", 1, "Ann", "Chur"), "not json at all", line(4, "d", 2)]),
    ("log", [line(6, "c", 3, "Cat", "Basel"), line(5, "c", 2, "Bob", "Genf")]),
    ("log", [line(7, "u", 3, "Cate", "Basel"), line(8, "d", 1)]),
]
