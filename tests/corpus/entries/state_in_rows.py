"""transformWithState over rows: the last three places of each device, and an alarm if it comes back to one of them."""

import os

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("state_in_rows", checkpoint=strobe.CheckpointConfig(interval=1), partitions=3)


class Places(StatefulProcessor):
    def init(self, handle):
        self.last = handle.getListState("last", "place STRING, n BIGINT")
        self.visits = handle.getMapState("visits", "place STRING", "n BIGINT", ttlDurationMs=3_600_000)

    def handleInputRows(self, key, rows, timerValues):
        for row in sorted(rows, key=lambda r: r["n"]):
            last = list(self.last.get()) if self.last.exists() else []
            seen = self.visits.getValue((row["place"],))[0] if self.visits.containsKey((row["place"],)) else 0
            self.visits.updateValue((row["place"],), (seen + 1,))
            if any(place == row["place"] for place, _ in last):
                yield Row(device=key[0], place=row["place"], n=row["n"], visits=seen + 1)
            self.last.put([*last, (row["place"], row["n"])][-3:])

    def close(self):
        pass


@pipeline.stage("moves", to=strobe.FileSink("moves"))
def moves(spark):
    return spark.readStream.option("header", True).schema("device INT, place STRING, n BIGINT").csv(f"{IN}/moves")


@pipeline.stage(
    "returns",
    trigger={"processingTime": "500 milliseconds"},
    reads="moves",
    output_mode="append",
    to=strobe.DeltaSink("returns"),
)
def returns(moves):
    out = "device INT, place STRING, n BIGINT, visits BIGINT"
    return moves.groupBy("device").transformWithState(Places(), out, "Append", "ProcessingTime")


HEAD = ("device", "place", "n")
SOURCES = {"moves": "csv"}
STEPS = [
    ("moves", [HEAD, (1, "home", 1), (1, "shop", 2), (2, "home", 3)]),
    ("moves", [HEAD, (1, "home", 4), (2, "work", 5)]),
    ("moves", [HEAD, (1, "pier", 6), (1, "park", 7), (1, "shop", 8), (2, "home", 9), (2, "home", 10)]),
    ("moves", [HEAD, (1, "park", 11), (3, "home", 12)]),
]
ENDLESS = {"returns": [0, 1, 3, 4]}  # a state that ends by the clock: Spark runs one batch after the other
