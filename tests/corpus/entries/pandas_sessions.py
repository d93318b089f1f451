"""Sessions by hand: events of a user belong together until there is none for ten minutes; then the session is told."""

import os

import pandas as pd
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("pandas_sessions", checkpoint=strobe.CheckpointConfig(interval=1))
GAP_MS = 10 * 60 * 1000


def sessions(key, frames, state: GroupState):
    if state.hasTimedOut:
        count, first, last = state.get
        state.remove()
        yield pd.DataFrame({"user": [key[0]], "events": [count], "seconds": [(last - first) // 1000]})
        return
    count, first, last = state.get if state.exists else (0, None, None)
    for frame in frames:
        times = frame["at"].astype("datetime64[ms]").astype("int64")
        count += len(frame)
        first = int(times.min()) if first is None else min(first, int(times.min()))
        last = int(times.max()) if last is None else max(last, int(times.max()))
    state.update((count, first, last))
    state.setTimeoutTimestamp(last + GAP_MS)


@pipeline.stage("events")
def events(spark):
    return spark.readStream.schema("user STRING, at TIMESTAMP").json(f"{IN}/events")


@pipeline.stage("sessions", reads="events", to=strobe.DeltaSink("sessions"))
def told(events):
    grouped = events.withWatermark("at", "5 minutes").groupBy("user")
    return grouped.applyInPandasWithState(
        sessions,
        "user STRING, events BIGINT, seconds BIGINT",
        "count BIGINT, first BIGINT, last BIGINT",
        "append",
        GroupStateTimeout.EventTimeTimeout,
    )


def event(user, minute):
    return {"user": user, "at": f"2024-05-01T{12 + minute // 60:02}:{minute % 60:02}:00Z"}


SOURCES = {"events": "json"}
FIXED = ["sessions"]
STEPS = [
    ("events", [event("ann", 0), event("ann", 3), event("bob", 1)]),
    ("events", [event("ann", 9), event("bob", 14)]),
    ("events", [event("cat", 40), event("bob", 2)]),
    ("events", [event("bob", 45)]),
    ("events", [event("eve", 100)]),
]
