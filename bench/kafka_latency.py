"""How long a message takes from one Kafka topic to the next, through a job of two stages that writes exactly once.

    python bench/kafka_latency.py               on batch and on snapshot, checkpoints every 1 s and 10 s, a minute each
    python bench/kafka_latency.py --rounds 4    four times, by turns, every second time in reverse
    python bench/kafka_latency.py --quick       on batch and on snapshot, every second, ten seconds each

Fifty messages a second carry the time at which they were sent. A consumer that reads committed messages notes when it
sees them. The first seconds of a run, in which Spark warms up, do not count.

`by hand` are two plain queries in the same session, with a Kafka topic between them and Spark's own sink, which writes
at least once: nothing waits for a transaction there. The session has Strobe's file manager, and for these queries
Spark's own polling delay.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka import Consumer, Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from bench._kafka import broker
from bench._report import figure
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import POLLING_DELAY, passing_settings, spark_session
from tests.support.spark.kafka_world import new_topic

WARM = 10.0  # seconds


def pipeline(servers: str, source: str, target: str, delivery: str, interval: float) -> strobe.Pipeline:
    made = strobe.Pipeline("latency", checkpoint=strobe.CheckpointConfig(interval=interval, tolerable_failures=100))

    @made.stage(uid="read")
    def read(spark: SparkSession) -> DataFrame:
        return strobe.read_kafka(spark, servers, source).select(F.col("value").cast("string").alias("sent"))

    @made.stage(uid="write", reads="read", to=strobe.KafkaSink(servers, target, value="sent", delivery=delivery))
    def write(read: DataFrame) -> DataFrame:
        return read

    return made


@contextmanager
def strobe_job(
    spark: SparkSession, root: Path, servers: str, source: str, target: str, delivery: str, interval: float
) -> Iterator[None]:
    made = pipeline(servers, source, target, delivery, interval)
    job = start_job(made, home=str(root / target), base=root, spark=spark)
    try:
        yield
    finally:
        job.stop()
        job.wait()


@contextmanager
def by_hand(spark: SparkSession, root: Path, servers: str, source: str, target: str) -> Iterator[None]:
    between = new_topic(servers, "between")
    queries = []
    with passing_settings(spark, {POLLING_DELAY: "10ms"}):
        for number, (here, there) in enumerate(pairwise((source, between, target))):
            rows = strobe.read_kafka(spark, servers, here).select(F.col("value").cast("string").alias("value"))
            queries.append(
                rows.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", there)
                .option("checkpointLocation", str(root / f"{target}-{number}")).start()
            )  # fmt: skip
    try:
        yield
    finally:
        for query in queries:
            query.stop()


def measure(
    running: AbstractContextManager[None], servers: str, source: str, target: str, seconds: float
) -> list[float]:
    """How long the messages took, in order of their time."""
    over = threading.Event()

    def generate() -> None:
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
        while not over.wait(0.02):
            producer.produce(source, repr(time.time()))
            producer.poll(0)
        producer.flush()

    generator = threading.Thread(target=generate)
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": target, "auto.offset.reset": "earliest",
        "isolation.level": "read_committed", "fetch.wait.max.ms": 10,
    })  # fmt: skip
    consumer.subscribe([target])
    found: list[float] = []
    began = None
    with running:
        generator.start()
        try:
            while began is None or time.time() - began < WARM + seconds:
                message = consumer.poll(0.1)
                if message is None or message.error() is not None:
                    continue
                began = began or time.time()
                sent = float(message.value() or b"0")
                if sent > began + WARM:
                    found.append(time.time() - sent)
        finally:
            over.set()
            generator.join()
            consumer.close()
    return sorted(found)


def report(name: str, found: list[float]) -> float:
    median = statistics.median(found)
    print(
        f"{name:38} median {median:6.2f} s   95% {found[int(len(found) * 0.95)]:6.2f} s   "
        f"longest {found[-1]:6.2f} s   of {len(found)} messages",
        flush=True,
    )
    return median


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--intervals", default="1,10", help="between checkpoints, in seconds")
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    intervals = [1.0] if given.quick else [float(text) for text in given.intervals.split(",")]
    seconds = 10.0 if given.quick else given.seconds
    os.environ["JAVA_HOME"] = str(find_java())
    root = Path(tempfile.mkdtemp(prefix="strobe-bench-"))
    spark = spark_session("bench", "local[2]")
    medians: dict[str, list[float]] = {}
    try:
        with broker(root) as servers:
            sides = [(d, i) for i in intervals for d in ("on_batch", "on_snapshot")] + [("by hand", 0.0)]
            for round_ in range(given.rounds):
                # The side that runs later has a warmer JVM.
                for delivery, interval in sides if round_ % 2 == 0 else reversed(sides):
                    source, target = new_topic(servers, "in"), new_topic(servers, "out")
                    if delivery == "by hand":
                        name, running = delivery, by_hand(spark, root, servers, source, target)
                    else:
                        name = f"{delivery}, checkpoints every {interval:.0f} s"
                        running = strobe_job(spark, root, servers, source, target, delivery, interval)
                    took = measure(running, servers, source, target, seconds + interval)
                    medians.setdefault(name, []).append(report(name, took))
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)
    plain = statistics.median(medians.pop("by hand"))
    for name, found in medians.items():
        ratio = statistics.median(found) / plain
        print(f"{name} / by hand: {ratio:.2f}")
        if name.startswith("on_batch"):
            figure("kafka_latency.py", f"topic to topic, {name} / by hand", ratio, at_most=0.8)


if __name__ == "__main__":
    main()
