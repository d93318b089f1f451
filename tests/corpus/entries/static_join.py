"""Payments enriched with tables that stand still, a broadcast variable, an accumulator and a setting of the session."""

import os

from pyspark.sql import functions as F

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline(
    "static_join",
    checkpoint=strobe.CheckpointConfig(interval=1),
    conf={"spark.sql.session.timeZone": "UTC"},
)


@pipeline.stage("payments")
def payments(spark):
    return spark.readStream.schema("who STRING, amount BIGINT, currency STRING").parquet(f"{IN}/payments")


@pipeline.stage("priced", reads="payments", to=strobe.DeltaSink("priced"))
def priced(payments, spark):
    rates = spark.createDataFrame([("EUR", 110), ("USD", 100), ("CHF", 105)], "currency STRING, rate INT")
    names = spark.sparkContext.broadcast({"a": "Ann", "b": "Bob"})
    unknown = spark.sparkContext.accumulator(0)
    zone = spark.conf.get("spark.sql.session.timeZone")

    @F.udf("string")
    def name(who):
        if who not in names.value:
            unknown.add(1)
        return names.value.get(who, "?")

    joined = payments.join(F.broadcast(rates), "currency")
    return joined.select(
        name("who").alias("name"), (F.col("amount") * F.col("rate")).alias("cents"), F.lit(zone).alias("zone")
    )


@pipeline.stage("unpriced", reads="payments", to=strobe.DeltaSink("unpriced"))
def unpriced(payments, spark):
    rates = spark.createDataFrame([("EUR",), ("USD",), ("CHF",)], "known STRING")
    return payments.join(rates, payments.currency == rates.known, "left_anti")


@pipeline.stage("maybe", reads="payments", to=strobe.DeltaSink("maybe"))
def maybe(payments, spark):
    limits = spark.createDataFrame([("a", 50), ("c", 5)], "holder STRING, most BIGINT")
    return payments.join(limits, F.expr("who = holder AND amount > most"), "left_outer").drop("holder")


SOURCES = {"payments": "parquet"}
STEPS = [
    ("payments", [{"who": "a", "amount": 10, "currency": "EUR"}, {"who": "b", "amount": 20, "currency": "QQQ"}]),
    ("payments", [{"who": "c", "amount": 7, "currency": "CHF"}, {"who": "a", "amount": 60, "currency": "USD"}]),
    ("payments", [{"who": "b", "amount": 1, "currency": "EUR"}]),
]
