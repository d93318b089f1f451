"""What a person reads of an error that came through Spark, and which errors are outages."""

from __future__ import annotations

import pytest

from strobe.hosts.spark.connectors.base import Unreachable
from strobe.hosts.spark.failures import is_outage, reason
from strobe.model.errors import Failed

ADMIN = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. \
Call: describeTopics SQLSTATE: XXKST
=== Streaming Query ===
"""
FETCH = """An error occurred while calling o1.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
Caused by: java.util.concurrent.TimeoutException: Cannot fetch record for offset 40 in 30000 milliseconds
\tat org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer.fetchRecord(KafkaDataConsumer.scala:1)
"""
GONE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this topic-partition."""
READER = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Error in Python source
Traceback (most recent call last):
  File "postgres_source.py", line 1, in latestOffset
strobe.hosts.spark.connectors.base.Unreachable: Reading t: Postgres at h:1/d does not answer: refused.
 SQLSTATE: 38000
"""
MOVED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Error in Python source
strobe.model.errors.Failed: The stage's checkpoint has an offset of channel a where its plan now reads b.
"""
USERS = """An error occurred while calling o1.save.
Traceback (most recent call last):
  File "mine.py", line 1, in f
ValueError: org.apache.kafka is not an account
"""


@pytest.mark.parametrize(
    ("text", "outage", "read"),
    [
        (ADMIN, True, "Timed out waiting for a node assignment. Call: describeTopics"),
        (FETCH, True, "TimeoutException: Cannot fetch record for offset 40 in 30000 milliseconds"),
        (GONE, False, "This server does not host this topic-partition."),
        (READER, True, "Reading t: Postgres at h:1/d does not answer: refused."),
        (MOVED, False, "The stage's checkpoint has an offset of channel a where its plan now reads b."),
        (USERS, False, "ValueError: org.apache.kafka is not an account"),
    ],
)
def test_what_spark_passes_on(text: str, outage: bool, read: str) -> None:
    error = Exception(text)
    assert is_outage(error) is outage
    assert read in reason(error)
    assert "\n" not in reason(error)


def test_errors_of_our_own_speak_for_themselves() -> None:
    away = Unreachable("Postgres at h:1 does not answer.", untouched="Nothing is lost.")
    assert is_outage(away)
    assert reason(away) == "Postgres at h:1 does not answer. Nothing is lost."
    # What the text of another error says is somebody else's outage.
    assert not is_outage(Failed("it said org.apache.kafka.common.errors.TimeoutException"))
