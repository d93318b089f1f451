"""How long a message takes from one Kafka topic to the next, through a job of two stages that writes exactly once.

    python bench/kafka_latency.py               on batch and on snapshot, checkpoints every 1 s and 10 s, a minute each
    python bench/kafka_latency.py --quick       on batch and on snapshot, every second, ten seconds each

Fifty messages a second carry the time at which they were sent. A consumer that reads committed messages notes when it
sees them. The first seconds of a run, in which Spark warms up, do not count.
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
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka import Consumer, Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from bench._kafka import broker
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import spark_session
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


def measure(spark: SparkSession, root: Path, servers: str, delivery: str, interval: float, seconds: float) -> None:
    source, target = new_topic(servers, "in"), new_topic(servers, "out")
    job = start_job(
        pipeline(servers, source, target, delivery, interval), home=str(root / target), base=root, spark=spark
    )
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
    generator.start()
    found: list[float] = []
    began = None
    try:
        while began is None or time.time() - began < WARM + interval + seconds:
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
        job.stop()
    found.sort()
    print(
        f"{delivery:12} checkpoints every {interval:4.0f} s: median {statistics.median(found):6.2f} s   "
        f"95% {found[int(len(found) * 0.95)]:6.2f} s   longest {found[-1]:6.2f} s   of {len(found)} messages",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    intervals, seconds = ([1.0], 10.0) if given.quick else ([1.0, 10.0], given.seconds)
    os.environ["JAVA_HOME"] = str(find_java())
    root = Path(tempfile.mkdtemp(prefix="strobe-bench-"))
    spark = spark_session("bench", "local[2]")
    try:
        with broker(root) as servers:
            for interval in intervals:
                for delivery in ("on_batch", "on_snapshot"):
                    measure(spark, root, servers, delivery, interval, seconds)
    finally:
        spark.stop()
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
