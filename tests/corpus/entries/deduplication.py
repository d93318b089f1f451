"""Duplicates dropped in three ways: for ever, within the watermark by event time, and within the watermark of an id."""

import os

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("deduplication", checkpoint=strobe.CheckpointConfig(interval=1))


@pipeline.stage("events")
def events(spark):
    return spark.readStream.schema("id STRING, at TIMESTAMP, amount DECIMAL(10,2)").csv(f"{IN}/events")


@pipeline.stage("forever", reads="events", to=strobe.DeltaSink("forever"))
def forever(events):
    return events.dropDuplicates(["id"]).select("id")


@pipeline.stage("by_time", reads="events", to=strobe.DeltaSink("by_time"))
def by_time(events):
    return events.withWatermark("at", "1 hour").dropDuplicates(["id", "at"])


@pipeline.stage("within", reads="events", to=strobe.DeltaSink("within"))
def within(events):
    return events.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"]).select("id", "at")


@pipeline.stage("distinct", reads="events", to=strobe.DeltaSink("distinct"))
def distinct(events):
    return events.select("amount").distinct()


SOURCES = {"events": "csv"}
STEPS = [
    (
        "events",
        [
            ("x", "2024-05-01T12:00:00Z", "1.10"),
            ("y", "2024-05-01T12:10:00Z", "2.20"),
            ("x", "2024-05-01T12:00:00Z", "1.10"),
        ],
    ),
    ("events", [("x", "2024-05-01T12:30:00Z", "1.10"), ("z", "2024-05-01T14:30:00Z", "3.30")]),
    ("events", [("y", "2024-05-01T12:10:00Z", "2.20"), ("x", "2024-05-01T14:00:00Z", "4.40")]),
    ("events", [("x", "2024-05-01T14:10:00Z", "1.10"), ("z", "2024-05-01T14:30:00Z", "3.30")]),
]
