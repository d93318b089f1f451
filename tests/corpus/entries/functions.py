"""Every kind of Python function that Spark runs, one after the other."""

import os
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("functions", checkpoint=strobe.CheckpointConfig(interval=1))


@F.udf("string")
def shout(text):
    return text.upper()


@F.udf(returnType="array<string>", useArrow=True)
def letters(text):
    return sorted(set(text))


@F.pandas_udf("double")
def scaled(n: pd.Series) -> pd.Series:
    return n * 1.5


@F.pandas_udf("long")
def shifted(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    by = 100  # made once for each task
    for batch in batches:
        yield batch + by


@F.arrow_udf("long")
def squared(n: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.multiply(n, n)


@F.pandas_udf("name string, size long")
def described(text: pd.Series, n: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"name": text.str.title(), "size": n + text.str.len()})


@F.udtf(returnType="part STRING, at INT")
class Parts:
    def eval(self, text: str):
        for at, part in enumerate(text.split("-")):
            yield part, at


def doubled(frames):
    for frame in frames:
        frame["n"] = frame["n"] * 2
        yield pd.concat([frame, frame.head(1)])


def tagged(batches):
    for batch in batches:
        yield batch.append_column("tag", pa.array([f"#{n}" for n in batch.column("n").to_pylist()]))


@pipeline.stage("words")
def words(spark):
    return spark.readStream.schema("text STRING, n BIGINT").json(f"{IN}/words").repartition(1)


@pipeline.stage("scalar", reads="words", to=strobe.DeltaSink("scalar"))
def scalar(words):
    return words.select(
        shout("text").alias("shout"), letters("text").alias("letters"), scaled("n").alias("scaled"),
        shifted("n").alias("shifted"), squared("n").alias("squared"), described("text", "n").alias("described"),
    )  # fmt: skip


@pipeline.stage("parts", reads="words", to=strobe.DeltaSink("parts"))
def parts(words):
    return words.lateralJoin(Parts(F.col("text").outer())).select("text", "part", "at")


@pipeline.stage("mapped", reads="words", to=strobe.DeltaSink("mapped"))
def mapped(words):
    twice = words.mapInPandas(doubled, "text STRING, n BIGINT")
    return twice.mapInArrow(tagged, "text STRING, n BIGINT, tag STRING")


def by_length(frame):
    return pd.DataFrame({"length": [len(frame["text"].iloc[0])], "words": [" ".join(sorted(frame["text"]))]})


@F.pandas_udf("double")
def mean(n: pd.Series) -> float:
    return float(n.mean())


def each_batch(batch, batch_id):
    """Grouped functions work on the rows of a batch."""
    grouped = batch.groupBy(F.length("text")).applyInPandas(by_length, "length INT, words STRING")
    means = batch.groupBy(F.length("text").alias("length")).agg(mean("n").alias("mean"))
    rows = grouped.join(means, "length").orderBy("length").collect()
    assert all(row["mean"] is not None for row in rows)


@pipeline.stage("batches", reads="words", to=[strobe.DeltaSink("batches"), strobe.ForeachBatchSink(each_batch)])
def batches(words):
    return words


SOURCES = {"words": "json"}
STEPS = [
    ("words", [{"text": "over-the-top", "n": 3}, {"text": "plain", "n": 4}]),
    ("words", [{"text": "a-b", "n": -1}, {"text": "x", "n": 0}]),
    ("words", [{"text": "twice", "n": 7}]),
]
