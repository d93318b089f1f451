"""One stage for each kind of source: lines, JSON, CSV, Parquet, Delta through Python, and rates."""

import os
from dataclasses import dataclass

from deltalake import DeltaTable
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import strobe

IN = os.environ["CORPUS_IN"]
pipeline = strobe.Pipeline("sources", checkpoint=strobe.CheckpointConfig(interval=1))


@dataclass
class Version(InputPartition):
    number: int


class TableReader(DataSourceStreamReader):
    """A Delta table, one version after the other."""

    def __init__(self, path):
        self.path = path

    def initialOffset(self):
        return {"version": -1}

    def latestOffset(self):
        there = DeltaTable.is_deltatable(self.path)
        return {"version": DeltaTable(self.path).version() if there else -1}

    def partitions(self, start, end):
        return [Version(number) for number in range(start["version"] + 1, end["version"] + 1)]

    def read(self, partition):
        def files(version):
            return set(DeltaTable(self.path, version=version).file_uris()) if version >= 0 else set()

        import pyarrow.parquet as pq

        for file in sorted(files(partition.number) - files(partition.number - 1)):
            yield from pq.read_table(file).to_batches()


class Table(DataSource):
    @classmethod
    def name(cls):
        return "delta_versions"

    def schema(self):
        return "kind STRING, n BIGINT"

    def streamReader(self, schema):
        return TableReader(self.options["path"])


@pipeline.stage("lines", to=strobe.DeltaSink("lines"))
def lines(spark):
    text = spark.readStream.option("wholetext", True).text(f"{IN}/lines")
    return text.select(F.lit("text").alias("kind"), F.length("value").cast("long").alias("n"))


@pipeline.stage("all", to=strobe.DeltaSink("all"))
def everything(spark):
    spark.dataSource.register(Table)
    read = spark.readStream.schema("kind STRING, n BIGINT")
    found = read.json(f"{IN}/objects")
    found = found.union(read.option("header", False).csv(f"{IN}/values"))
    found = found.union(read.option("maxFilesPerTrigger", 1).parquet(f"{IN}/columns"))
    return found.union(spark.readStream.format("delta_versions").option("path", f"{IN}/table").load())


@pipeline.stage("rate", trigger={"processingTime": "1 second"}, to=strobe.DeltaSink("rate"))
def rate(spark):
    steady = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 5)
        .option("startTimestamp", 1_700_000_000_000)
    )
    return (
        steady.option("advanceMillisPerBatch", 1000)
        .load()
        .select("timestamp", (F.col("value") % 7).alias("seven"), "value")
    )


SOURCES = {"lines": "text", "objects": "json", "values": "csv", "columns": "parquet", "table": "delta"}
STEPS = [
    ("lines", ["one", "two"]),
    ("objects", [{"kind": "json", "n": 1}, {"kind": "json", "n": None}]),
    ("table", [{"kind": "delta", "n": 1}]),
    ("values", [("csv", 1), ("csv", 2)]),
    ("columns", [{"kind": "parquet", "n": 1}]),
    ("table", [{"kind": "delta", "n": 2}, {"kind": "delta", "n": 3}]),
]
COUNTS = {"rate": lambda row: row["value"] < 20}
ENDLESS = {"rate": [5, 10, 15, 20, 20, 20]}  # there is always more
