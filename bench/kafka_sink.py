"""How fast the Kafka sink writes, exactly once, against a plain producer of the same rows, at least once.

    python bench/kafka_sink.py                  1 million rows in five batches, five rounds
    python bench/kafka_sink.py --quick          20,000 rows in two batches, one round

Both get the same DataFrames, read from Parquet files, and send the same messages: the row as JSON with a key, some 110
bytes, lz4, to a topic of four partitions, acknowledged by all replicas. *Plain* is the usual code in foreachBatch:
take the batch's messages from Spark as Arrow, hand each to librdkafka's producer (idempotent, no transactions), flush.
*Strobe* stages each batch, prepares all of them as one part and commits it. The two take turns; the ratio is of rows
per second.

`commit alone` is the part of Strobe's time in which rows are read back and sent, shown beside `producer alone`: the
same loop over rows that are already in memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from bench._kafka import broker
from strobe.hosts.spark.connectors.base import Part, SinkContext
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import spark_session
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from tests.support.spark.kafka_world import new_topic


def batches(spark: SparkSession, root: Path, rows: int, number: int) -> list[DataFrame]:
    found = []
    for batch in range(number):
        each = rows // number
        frame = spark.range(batch * each, (batch + 1) * each, 1, 2).select(
            F.col("id"), (F.col("id") * 7919 % 100_000).alias("account"), (F.col("id") * 31 % 1000).alias("amount"),
            F.lit("a transfer between two accounts").alias("note"), F.current_timestamp().alias("time"),
        )  # fmt: skip
        path = root / f"source-{batch}"
        frame.write.parquet(str(path))
        found.append(spark.read.parquet(str(path)))
    return found


def plain(sink: strobe.KafkaSink, servers: str, topic: str, frames: list[DataFrame]) -> tuple[float, float]:
    """Seconds in all, and only of handing rows in memory to the producer."""
    producer = Producer({
        "bootstrap.servers": servers, "acks": "all", "enable.idempotence": True, "linger.ms": 20,
        "compression.type": "lz4", "partitioner": "murmur2_random", "queue.buffering.max.messages": 500_000,
    })  # fmt: skip
    began, alone = time.monotonic(), 0.0
    for frame in frames:
        messages = sink.messages.project(frame).toArrow()
        keys, values = messages.column("key").to_pylist(), messages.column("value").to_pylist()
        handed = time.monotonic()
        for key, value in zip(keys, values, strict=True):
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.01)
        assert producer.flush(120) == 0
        alone += time.monotonic() - handed
    return time.monotonic() - began, alone


def exactly_once(sink: strobe.KafkaSink, frames: list[DataFrame], first: int) -> tuple[float, float]:
    """Seconds in all, and only of the commit."""
    began = time.monotonic()
    for number, frame in enumerate(frames):
        sink.write(frame, first + number)
    part = Part(f"bench/{first}", SnapshotId(first + 1), Timeline(1), first - 1, first + len(frames) - 1)
    prepared = sink.prepare(part)
    committing = time.monotonic()
    sink.commit(part, prepared)
    return time.monotonic() - began, time.monotonic() - committing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    rows, number, rounds = (20_000, 2, 1) if given.quick else (given.rows, given.batches, given.rounds)
    os.environ["JAVA_HOME"] = str(find_java())
    root = Path(tempfile.mkdtemp(prefix="strobe-bench-"))
    spark = spark_session("bench", "local[2]")
    try:
        with broker(root) as servers:
            frames = batches(spark, root, rows, number)
            topic = new_topic(servers, "bench", partitions=4)
            sink = strobe.KafkaSink(servers, topic, key="account", compression="lz4")
            sink.open(
                SinkContext(
                    job="bench", stage=NodeId("s"), name="s/0", timeline=Timeline(1), incarnation=Incarnation(1),
                    schema=frames[0].schema, output_mode="append", base=root, staging=root / "sinks" / "t1",
                )
            )  # fmt: skip
            plain(sink, servers, topic, frames[:1])  # both sides warm
            exactly_once(sink, frames[:1], 0)
            found = []
            for n in range(rounds):
                a, alone = plain(sink, servers, topic, frames)
                b, commit = exactly_once(sink, frames, 1 + n * number)
                found.append((a, alone, b, commit))
                print(
                    f"round {n + 1}: plain {rows / a:10,.0f} rows/s (producer alone {rows / alone:10,.0f})   "
                    f"Strobe {rows / b:10,.0f} rows/s (commit alone {rows / commit:10,.0f})   ratio {a / b:.2f}",
                    flush=True,
                )
            ratio = statistics.median(a / b for a, _, b, _ in found)
            alone = statistics.median(a / c for _, a, _, c in found)
            print(f"{rows:,} rows: ratio {ratio:.2f} (median), commit alone to producer alone {alone:.2f}")
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
