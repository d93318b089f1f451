"""Timers of the clock: a basket that is not touched for a moment is closed, with what is in it."""

import os

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("clock_timers", checkpoint=strobe.CheckpointConfig(interval=1))


class Basket(StatefulProcessor):
    def init(self, handle):
        self.handle = handle
        self.items = handle.getListState("items", "item STRING")

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            self.items.appendList([(item,) for item in frame["item"]])
        if not list(self.handle.listTimers()):
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 300)
        yield from ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        items = sorted(item for (item,) in self.items.get())
        self.items.clear()
        yield pd.DataFrame({"who": [key[0]], "n": [len(items)], "items": [" ".join(items)]})

    def close(self):
        pass


@pipeline.stage("added")
def added(spark):
    return spark.readStream.schema("who STRING, item STRING").json(f"{IN}/added")


@pipeline.stage("closed", trigger={"processingTime": "500 milliseconds"}, reads="added", to=strobe.DeltaSink("closed"))
def closed(added):
    grouped = added.groupBy("who")
    return grouped.transformWithStateInPandas(Basket(), "who STRING, n INT, items STRING", "Append", "ProcessingTime")


SOURCES = {"added": "json"}
STEPS = [
    ("added", [{"who": "ann", "item": "tea"}, {"who": "bob", "item": "ink"}, {"who": "ann", "item": "jam"}]),
    ("added", [{"who": "ann", "item": "nut"}]),
    ("added", [{"who": "cat", "item": "fig"}, {"who": "bob", "item": "pen"}]),
]
ENDLESS = {"closed": [2, 3, 5]}
