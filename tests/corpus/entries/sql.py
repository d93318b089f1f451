"""Stages in SQL: views over channels, common tables, windows, a join with a table of values."""

import os

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("sql", checkpoint=strobe.CheckpointConfig(interval=1))


@pipeline.stage("trips")
def trips(spark):
    spark.readStream.schema("id BIGINT, zone INT, started TIMESTAMP, fare DECIMAL(8,2)").json(
        f"{IN}/trips"
    ).createOrReplaceTempView("raw_trips")
    return spark.sql("SELECT *, fare * 0.1 AS tip FROM raw_trips WHERE fare > 0")


@pipeline.stage("zones", reads="trips", output_mode="update", to=strobe.DeltaSink("zones", key="name"))
def zones(trips, spark):
    trips.createOrReplaceTempView("trips")
    return spark.sql("""
        WITH names AS (SELECT * FROM VALUES (1, 'airport'), (2, 'centre') AS t(zone, name))
        SELECT name, count(*) AS trips, sum(fare) AS fares, percentile_approx(fare, 0.5) AS median
        FROM trips JOIN names USING (zone)
        GROUP BY name
    """)


@pipeline.stage("quarters", reads="trips", to=strobe.DeltaSink("quarters"))
def quarters(trips, spark):
    trips.withWatermark("started", "0 seconds").createOrReplaceTempView("timed_trips")
    return spark.sql("""
        SELECT window.start AS quarter, count_if(zone = 1) AS airport, sum(tip) AS tips
        FROM timed_trips GROUP BY window(started, '15 minutes')
        HAVING count(*) > 1
    """)


def trip(id, zone, minute, fare):
    return {"id": id, "zone": zone, "started": f"2024-05-01T12:{minute:02}:00Z", "fare": fare}


SOURCES = {"trips": "json"}
STEPS = [
    ("trips", [trip(1, 1, 1, "50.00"), trip(2, 2, 4, "7.50"), trip(3, 2, 5, "-1.00")]),
    ("trips", [trip(4, 1, 16, "44.10"), trip(5, 3, 17, "12.00"), trip(6, 2, 18, "9.90")]),
    ("trips", [trip(7, 2, 31, "8.00"), trip(8, 1, 2, "40.00")]),
    ("trips", [trip(9, 2, 59, "5.00")]),
]
