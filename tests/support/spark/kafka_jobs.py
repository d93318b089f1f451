"""A job from topic to topic, and what its tests ask of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.model.ids import NodeId
from tests.support.spark.jobs import eventually
from tests.support.spark.kafka_world import json_rows, produce


def numbers(
    servers: str, source: str, target: str, *, bounded: bool = False, interval: float | None = None,
    name: str = "numbers", delivery: str = "on_snapshot", attempts: int = 5, **options: Any,
) -> strobe.Pipeline:  # fmt: skip
    """read (Kafka) → doubled (Kafka). A number n becomes {"n": n, "doubled": 2n}, its key n. With a channel between the
    two: the tests ask about each of them."""
    config = strobe.CheckpointConfig(interval=interval, retained=100, tolerable_failures=1000)
    restart = strobe.RestartPolicy(attempts=attempts, first_pause=0.2, longest_pause=1.0)
    pipeline = strobe.Pipeline(name, checkpoint=config, restart=restart, chain=False)

    @pipeline.stage(uid="read", trigger={"availableNow": True} if bounded else None)
    def read(spark: SparkSession) -> DataFrame:
        messages = strobe.read_kafka(spark, servers, source, max_rows_per_batch=200)
        return messages.select(F.col("value").cast("string").cast("bigint").alias("n"))

    @pipeline.stage(
        uid="doubled", reads="read", to=strobe.KafkaSink(servers, target, key="n", delivery=delivery, **options)
    )
    def doubled(read: DataFrame) -> DataFrame:
        return read.select("n", (F.col("n") * 2).alias("doubled"))

    return pipeline


def put_numbers(servers: str, topic: str, first: int, last: int) -> None:
    """The numbers from first to last, without the last, as messages."""
    produce(servers, topic, (str(n).encode() for n in range(first, last)))


def doubled_rows(servers: str, topic: str) -> Counter[int]:
    """How often each number is visible; every one must be doubled."""
    rows = json_rows(servers, topic)
    assert all(row["doubled"] == 2 * row["n"] for row in rows)
    return Counter(row["n"] for row in rows)


def once(first: int, last: int) -> Counter[int]:
    return Counter(range(first, last))


def await_batches(job: strobe.Job, rows: int) -> None:
    """Until so many rows have come through the whole graph, and nothing is under way."""
    eventually(
        lambda: (
            sum(stage.rows_out or 0 for stage in job.status().stages if stage.uid == "read") >= rows
            and job.runners[NodeId("doubled")].agent.lag() == (0, 0)
            and job.runners[NodeId("doubled")].agent.idle
        ),
        f"{rows} rows read",
        job,
    )


def await_settled(job: strobe.Job) -> None:
    """Until what complete snapshots name is visible."""
    eventually(lambda: not any(s.in_doubt or s.prepared for s in job.status().sinks), "all commits settled", job)


PIPELINE = Path(__file__).parent / "pipelines" / "kafka_job.py"
