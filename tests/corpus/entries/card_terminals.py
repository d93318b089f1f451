"""A fraud detector by card and terminal: a pandas UDF scores, pandas state remembers, timers end what is quiet."""

import os
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("card_terminals", checkpoint=strobe.CheckpointConfig(interval=1), partitions=2)
QUIET_MS = 20 * 60 * 1000


@F.pandas_udf("double")
def weighed(amounts: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for amount in amounts:
        yield (amount.astype(float) / 100).round(2).clip(upper=10)


class Watch(StatefulProcessor):
    """Each pair of card and terminal: the sum of its scores, until it has been quiet for twenty minutes."""

    def init(self, handle):
        self.handle = handle
        self.seen = handle.getValueState("seen", "score DOUBLE, payments INT, last TIMESTAMP, wakes BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        score, payments, last, wakes = self.seen.get() if self.seen.exists() else (0.0, 0, None, None)
        for frame in rows:
            score, payments = score + float(frame["score"].sum()), payments + len(frame)
            newest = frame["at"].max()
            last = newest if last is None else max(pd.Timestamp(last), newest)
        if wakes is not None:
            self.handle.deleteTimer(wakes)
        wakes = int(pd.Timestamp(last).timestamp() * 1000) + QUIET_MS
        self.handle.registerTimer(wakes)
        self.seen.update((round(score, 2), payments, pd.Timestamp(last).to_pydatetime(), wakes))
        if score > 5:
            yield _row(key, "alarm", score, payments)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        score, payments, _, _ = self.seen.get()
        self.seen.clear()
        yield _row(key, "quiet", score, payments)

    def close(self):
        pass


def _row(key, what, score, payments):
    card, terminal = key
    rest = {"what": [what], "score": [round(score, 2)], "payments": [payments]}
    return pd.DataFrame({"card": [card], "terminal": [terminal], **rest})


@pipeline.stage("payments")
def payments(spark):
    schema = "card STRING, terminal INT, at TIMESTAMP, amount DECIMAL(10,2)"
    return spark.readStream.schema(schema).json(f"{IN}/payments").withColumn("score", weighed("amount"))


@pipeline.stage("watched", reads="payments", to=strobe.DeltaSink("watched"))
def watched(payments):
    out = "card STRING, terminal INT, what STRING, score DOUBLE, payments INT"
    grouped = payments.withWatermark("at", "10 minutes").groupBy("card", "terminal")
    return grouped.transformWithStateInPandas(Watch(), out, "Append", "EventTime")


@pipeline.stage("alarms", reads="watched", output_mode="update",
                to=strobe.DeltaSink("alarms", key=["card", "terminal"]))  # fmt: skip
def alarms(watched):
    alarms = watched.where("what = 'alarm'").groupBy("card", "terminal")
    return alarms.agg(F.count("*").alias("alarms"), F.max("score").alias("worst"))


def paid(card, terminal, minute, amount):
    at = f"2024-05-01T{8 + minute // 60:02}:{minute % 60:02}:00Z"
    return {"card": card, "terminal": terminal, "at": at, "amount": amount}


SOURCES = {"payments": "json"}
STEPS = [
    ("payments", [paid("a", 1, 0, "120.00"), paid("a", 1, 2, "450.50"), paid("a", 2, 3, "9.90"), paid("b", 1, 4, "1")]),
    ("payments", [paid("a", 1, 15, "80.00"), paid("b", 1, 50, "990.00")]),
    ("payments", [paid("a", 2, 41, "700.00"), paid("c", 3, 52, "3.00"), paid("a", 1, 1, "5.00")]),
    ("payments", [paid("d", 4, 300, "1.00")]),
]
