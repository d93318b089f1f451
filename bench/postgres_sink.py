"""How fast the Postgres sink writes, exactly once, against plain COPY of the same rows, at least once.

    python bench/postgres_sink.py                  1 million rows in five batches, five rounds
    python bench/postgres_sink.py --quick          20,000 rows in two batches, one round

All get the same DataFrames, read from Parquet files, and write the same rows to tables without indexes. *Plain* is the
usual code in foreachBatch: each Spark partition copies its rows to the table over a connection of its own, as CSV that
Arrow writes, and commits. *On batch* is the sink with a transaction and a mark per batch. *On snapshot* stages each
batch, prepares all of them as one part and commits it. They take turns; a ratio compares rows per second with plain.
With --key there is a primary key, the sink upserts, and plain still copies: the difference is the merge.

The server is one of the benchmark's own, with Postgres's own settings for durability (fsync on).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import psycopg
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.connectors.base import Delivery, Part, SinkContext
from strobe.hosts.spark.connectors.postgres.connect import table_of
from strobe.hosts.spark.connectors.postgres.types import to_csv
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import spark_session
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from tests.services import Server

DURABLE = "-c fsync=on -c synchronous_commit=on -c full_page_writes=on"
COLUMNS = "id bigint, account bigint, amount numeric(18,2), note text, time timestamptz"


def batches(spark: SparkSession, root: Path, rows: int, number: int) -> list[DataFrame]:
    found = []
    for batch in range(number):
        each = rows // number
        frame = spark.range(batch * each, (batch + 1) * each, 1, 2).select(
            F.col("id"), (F.col("id") * 7919 % 100_000).alias("account"),
            (F.col("id") * 31 % 1000).cast("decimal(18,2)").alias("amount"),
            F.lit("a transfer between two accounts").alias("note"), F.current_timestamp().alias("time"),
        )  # fmt: skip
        path = root / f"source-{batch}"
        frame.write.parquet(str(path))
        found.append(spark.read.parquet(str(path)))
    return found


def plain(dsn: str, table: str, frames: list[DataFrame]) -> None:
    with psycopg.connect(dsn) as connection:
        found = table_of(connection, table)
    assert found is not None
    columns = found.columns

    def copy(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        statement = f"COPY {table} FROM STDIN (FORMAT csv)".encode()
        with psycopg.connect(dsn) as own, own.cursor() as cursor, cursor.copy(statement) as out:
            for part in parts:
                out.write(to_csv(part, columns))
                rows += part.num_rows
        yield pa.RecordBatch.from_pydict({"rows": [rows]})

    for frame in frames:
        frame.mapInArrow(copy, "rows bigint").collect()


def make_sink(dsn: str, table: str, delivery: Delivery, key: str, schema: object, root: Path) -> strobe.PostgresSink:
    sink = strobe.PostgresSink(dsn, table, key=key or (), delivery=delivery)
    name = f"s/{delivery.value}"
    sink.open(
        SinkContext(
            job="bench", stage=NodeId("s"), name=name, timeline=Timeline(1), incarnation=Incarnation(1),
            schema=schema, output_mode="append", base=root, staging=root / "sinks" / name / "t1",  # type: ignore[arg-type]
        )
    )  # fmt: skip
    return sink


def on_batch(sink: strobe.PostgresSink, frames: list[DataFrame], first: int) -> None:
    for number, frame in enumerate(frames):
        sink.write(frame, first + number)


def on_snapshot(sink: strobe.PostgresSink, frames: list[DataFrame], first: int) -> None:
    on_batch(sink, frames, first)
    part = Part(f"bench/{first}", SnapshotId(first + 1), Timeline(1), first - 1, first + len(frames) - 1)
    sink.commit(part, sink.prepare(part))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--key", action="store_true")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    rows, number, rounds = (20_000, 2, 1) if given.quick else (given.rows, given.batches, given.rounds)
    os.environ["JAVA_HOME"] = str(find_java())
    root = Path(tempfile.mkdtemp(prefix="strobe-bench-"))
    spark = spark_session("bench", "local[2]")
    try:
        with Server("postgres", root, {"STROBE_POSTGRES_OPTIONS": DURABLE}) as server:
            dsn, frames, key = server.address, batches(spark, root, rows, number), "id" if given.key else ""
            tables = ("plain", "batched", "staged")
            with psycopg.connect(dsn) as connection:
                for table in tables:
                    connection.execute(
                        f"CREATE TABLE {table} ({COLUMNS}{', PRIMARY KEY (id)' if key else ''})".encode()
                    )
            batched = make_sink(dsn, "batched", Delivery.ON_BATCH, key, frames[0].schema, root)
            staged = make_sink(dsn, "staged", Delivery.ON_SNAPSHOT, key, frames[0].schema, root)
            ways: dict[str, Callable[[list[DataFrame], int], None]] = {
                "plain": lambda frames, first: plain(dsn, "plain", frames),
                "on batch": lambda frames, first: on_batch(batched, frames, first),
                "on snapshot": lambda frames, first: on_snapshot(staged, frames, first),
            }
            for way in ways.values():  # all sides warm
                way(frames[:1], 0)
            ratios: dict[str, list[float]] = {"on batch": [], "on snapshot": []}
            for n in range(rounds):
                seconds = {}
                for name, way in ways.items():
                    with psycopg.connect(dsn, autocommit=True) as connection:
                        connection.execute(f"TRUNCATE {', '.join(tables)}".encode())
                        connection.execute("CHECKPOINT")
                    began = time.monotonic()
                    way(frames, 1 + n * number)
                    seconds[name] = time.monotonic() - began
                for name, found in ratios.items():
                    found.append(seconds["plain"] / seconds[name])
                speeds = "   ".join(f"{name} {rows / took:9,.0f} rows/s" for name, took in seconds.items())
                print(f"round {n + 1}: {speeds}", flush=True)
            told = ", ".join(f"{name} {statistics.median(found):.2f}" for name, found in ratios.items())
            print(f"{rows:,} rows{' by key' if key else ''}: ratio to plain COPY (median): {told}")
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
