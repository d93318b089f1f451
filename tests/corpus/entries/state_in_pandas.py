"""transformWithStateInPandas: a value, a list and a map as state, timers of event time, and a state to begin with."""

import os

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("state_in_pandas", checkpoint=strobe.CheckpointConfig(interval=1))
OUT = "meter STRING, kind STRING, total DOUBLE, detail STRING"


class Meter(StatefulProcessor):
    """Adds up a meter's readings, keeps them, counts them by quality, and says so when a meter has been silent."""

    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "sum DOUBLE")
        self.readings = handle.getListState("readings", "value DOUBLE")
        self.qualities = handle.getMapState("qualities", "quality STRING", "n INT")
        self.wakes = handle.getValueState("wakes", "at BIGINT")

    def handleInputRows(self, key, rows, timerValues):
        total = self.total.get()[0] if self.total.exists() else 0.0
        newest = timerValues.getCurrentWatermarkInMs()
        for frame in rows:
            for row in frame.itertuples():
                total += row.value
                self.readings.appendValue((row.value,))
                seen = self.qualities.getValue((row.quality,))[0] if self.qualities.containsKey((row.quality,)) else 0
                self.qualities.updateValue((row.quality,), (seen + 1,))
                newest = max(newest, int(row.at.timestamp() * 1000))
        self.total.update((total,))
        if self.wakes.exists():
            self.handle.deleteTimer(self.wakes.get()[0])
        self.handle.registerTimer(newest + 600_000)
        self.wakes.update((newest + 600_000,))
        yield pd.DataFrame({"meter": [key[0]], "kind": ["reading"], "total": [total], "detail": [self._detail()]})

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        total = self.total.get()[0]
        yield pd.DataFrame({"meter": [key[0]], "kind": ["silent"], "total": [total], "detail": [self._detail()]})
        self.total.clear()
        self.readings.clear()
        self.wakes.clear()

    def handleInitialState(self, key, initialState, timerValues):
        self.total.update((float(initialState.at[0, "carried"]),))

    def _detail(self):
        qualities = sorted((k[0], v[0]) for k, v in self.qualities.iterator())
        return f"{sorted(value for (value,) in self.readings.get())} {qualities}"

    def close(self):
        pass


@pipeline.stage("readings")
def readings(spark):
    schema = "meter STRING, at TIMESTAMP, value DOUBLE, quality STRING"
    return spark.readStream.schema(schema).json(f"{IN}/readings")


@pipeline.stage("meters", reads="readings", output_mode="update", to=strobe.DeltaSink("meters"))
def meters(readings, spark):
    carried = spark.createDataFrame([("m1", 100.0), ("m9", 900.0)], "meter STRING, carried DOUBLE").groupBy("meter")
    grouped = readings.withWatermark("at", "1 minute").groupBy("meter")
    return grouped.transformWithStateInPandas(Meter(), OUT, "Update", "EventTime", initialState=carried)


def reading(meter, minute, value, quality="good"):
    return {"meter": meter, "at": f"2024-05-01T12:{minute:02}:00Z", "value": value, "quality": quality}


SOURCES = {"readings": "json"}
STEPS = [
    ("readings", [reading("m1", 1, 1.0), reading("m2", 1, 2.0), reading("m2", 2, 3.0, "poor")]),
    ("readings", [reading("m1", 9, 4.0)]),
    ("readings", [reading("m3", 16, 5.0)]),
    ("readings", [reading("m1", 17, 6.0), reading("m2", 18, 7.0, "poor")]),
    ("readings", [reading("m4", 55, 8.0)]),
]
