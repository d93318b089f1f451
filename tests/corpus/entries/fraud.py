"""Card payments: scored by a pandas UDF, watched card by card with state and timers, counted by merchant, reported."""

import os

import pandas as pd
from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("fraud", checkpoint=strobe.CheckpointConfig(interval=1), partitions=2)
RISKY = {"casino": 0.6, "jewels": 0.4}
HOME = {"4001": "CH", "4002": "DE"}


@F.pandas_udf("double")
def risk(amount: pd.Series, category: pd.Series) -> pd.Series:
    return (amount.astype(float) / 1000).clip(upper=0.4) + category.map(RISKY).fillna(0.0)


class Velocity(StatefulProcessor):
    """Three payments of one card within ten minutes, or two countries within an hour, make an alert."""

    def init(self, handle):
        self.handle = handle
        self.recent = handle.getListState("recent", "at BIGINT, country STRING, score DOUBLE")
        self.alerts = handle.getValueState("alerts", "n INT, last BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        for row in sorted(rows, key=lambda r: (r["at"], r["id"])):
            now = int(row["at"].timestamp() * 1000)
            recent = [r for r in self.recent.get() if r[0] > now - 3_600_000] if self.recent.exists() else []
            recent = [*recent, (now, row["country"], row["score"])]
            self.recent.put(recent)
            self.handle.registerTimer(now + 3_600_000)
            close = [r for r in recent if r[0] > now - 600_000]
            countries = {r[1] for r in recent}
            score = sum(r[2] for r in close)
            if len(close) >= 3 or len(countries) > 1 or score > 1.2:
                n = (self.alerts.get()[0] if self.alerts.exists() else 0) + 1
                self.alerts.update((n, now))
                why = "fast" if len(close) >= 3 else "far" if len(countries) > 1 else "risky"
                yield Row(card=key[0], id=row["id"], why=why, score=round(score, 3), n=n)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        old = expiredTimerInfo.getExpiryTimeInMs() - 3_600_000
        left = [r for r in self.recent.get() if r[0] > old] if self.recent.exists() else []
        if left:
            self.recent.put(left)
            return
        self.recent.clear()
        if self.alerts.exists():
            yield Row(card=key[0], id=-1, why="calm", score=0.0, n=self.alerts.get()[0])
            self.alerts.clear()

    def close(self):
        pass


@pipeline.stage("payments")
def payments(spark):
    schema = "id BIGINT, card STRING, at TIMESTAMP, amount DECIMAL(12,2), category STRING, country STRING"
    return (
        spark.readStream.schema(schema)
        .json(f"{IN}/payments")
        .withWatermark("at", "15 minutes")
        .dropDuplicatesWithinWatermark(["id"])
    )


@pipeline.stage("scored", reads="payments", to=strobe.FileSink("scored"))
def scored(payments):
    home = F.create_map(*[F.lit(x) for pair in HOME.items() for x in pair])
    return payments.withColumn("score", risk("amount", "category")).withColumn(
        "abroad", F.col("country") != home[F.col("card")]
    )


@pipeline.stage("alerts", reads="scored", to=strobe.DeltaSink("alerts"))
def alerts(scored):
    out = "card STRING, id BIGINT, why STRING, score DOUBLE, n INT"
    return (
        scored.withWatermark("at", "15 minutes")
        .groupBy("card")
        .transformWithState(Velocity(), out, "Append", "EventTime")
    )


@pipeline.stage("cards", reads="alerts", output_mode="update", to=strobe.DeltaSink("cards", key="card"))
def cards(alerts):
    return (
        alerts.where("why != 'calm'").groupBy("card").agg(F.count("*").alias("alerts"), F.max("score").alias("worst"))
    )


@pipeline.stage("merchants", reads="scored", to=strobe.DeltaSink("merchants"))
def merchants(scored):
    hours = scored.withWatermark("at", "15 minutes").groupBy(F.window("at", "1 hour"), "category")
    return hours.agg(F.sum("amount").alias("turnover"), F.avg("score").alias("risk")).select(
        "window.start", "category", "turnover", F.round("risk", 6).alias("risk")
    )


def paid(id, card, minute, amount, category="food", country="CH"):
    at = f"2024-05-01T{8 + minute // 60:02}:{minute % 60:02}:00Z"
    return {"id": id, "card": card, "at": at, "amount": amount, "category": category, "country": country}


SOURCES = {"payments": "json"}
STEPS = [
    (
        "payments",
        [paid(1, "4001", 0, "20.00"), paid(2, "4002", 1, "900.00", "casino", "DE"), paid(1, "4001", 0, "20.00")],
    ),
    (
        "payments",
        [paid(3, "4001", 4, "35.50"), paid(4, "4001", 6, "1.99", "jewels"), paid(5, "4002", 30, "10.00", "food", "FR")],
    ),
    (
        "payments",
        [
            paid(6, "4003", 58, "5000.00", "casino"),
            paid(7, "4003", 59, "700.00", "jewels"),
            paid(3, "4001", 4, "35.50"),
        ],
    ),
    ("payments", [paid(8, "4001", 130, "12.00"), paid(9, "4002", 10, "1.00")]),
    ("payments", [paid(10, "4004", 300, "1.00")]),
]
