"""What a person reads of an error that came through Spark, and which errors are outages."""

from __future__ import annotations

import pytest

from strobe.hosts.spark.connectors.base import Unreachable
from strobe.hosts.spark.stage.failures import is_outage, permanent, reason
from strobe.model.errors import Damaged, Failed
from strobe.model.ids import NodeId

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
CUSTOM = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: An exception was thrown
Traceback (most recent call last):
  File "/lib/python/site-packages/pyspark/worker.py", line 9, in main
  File "/mine/pipe.py", line 7, in check
    return parse(row)
           ^^^^^^^^^^
  File "/executor/app-1/0/strobe-code-0123456789abcdef/0/rows/parse.py", line 3, in parse
    raise BadRow("row 7")
strobe_user_pipeline.BadRow: row 7
more of it
 SQLSTATE: 38000
=== Streaming Query ===
Logical Plan:
:  +- Project [EventError: 1]
"""
CRASHED = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: the worker is gone SQLSTATE: XXKST
=== Streaming Query ===
Logical Plan:
:  +- Relation
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
        (USERS, False, "ValueError: org.apache.kafka is not an account (mine.py, line 1)"),
        (CUSTOM, False, "BadRow: row 7 (rows/parse.py, line 3, called from /mine/pipe.py, line 7)"),
        (CRASHED, False, "Exception: the worker is gone"),
    ],
)
def test_what_spark_passes_on(text: str, outage: bool, read: str) -> None:
    error = Exception(text)
    assert is_outage(error) is outage
    assert read in reason(error)
    assert "strobe_user_pipeline" not in reason(error)
    assert "\n" not in reason(error)


def test_what_spark_waited_for_in_vain_is_told_by_what_is_inside() -> None:
    """As pyspark has it: each error with the one inside, none with its stack."""
    outer, middle = (
        Exception(f"{name}Exception thrown in awaitResult: ") for name in ("", "org.apache.SparkException: ")
    )
    outer._cause, middle._cause = middle, Exception("[NOT_ALL] Not all was committed.\nExpected 2.")  # type: ignore[attr-defined]
    assert reason(outer) == "Exception: [NOT_ALL] Not all was committed."


def test_errors_of_our_own_speak_for_themselves() -> None:
    away = Unreachable("Postgres at h:1 does not answer.", untouched="Nothing is lost.")
    assert is_outage(away)
    assert reason(away) == "Postgres at h:1 does not answer. Nothing is lost."
    # What the text of another error says is somebody else's outage.
    assert not is_outage(Failed("it said org.apache.kafka.common.errors.TimeoutException"))


@pytest.mark.parametrize(
    ("line", "hopeless"),
    [
        ("ModuleNotFoundError: No module named 'helper'", True),
        ("ImportError: cannot import name 'f' from 'helper'", True),
        ("_pickle.PicklingError: Could not serialize object", True),
        ("AttributeError: Can't get attribute 'f' on <module 'helper'>", True),
        ("SyntaxError: invalid syntax", True),
        ("NameError: name 'x' is not defined", True),
        ("pyspark.errors.exceptions.base.PySparkRuntimeError: [SESSION_OR_CONTEXT_NOT_EXISTS] none", True),
        ("AttributeError: 'NoneType' object has no attribute 'x'", False),
        ("ValueError: ImportError: is what the row says", False),
        ("OSError: [Errno 28] No space left on device", False),
    ],
)
def test_code_that_cannot_be_imported_or_sent_is_not_tried_again(line: str, hopeless: bool) -> None:
    error = Exception(f'Traceback (most recent call last):\n  File "mine.py", line 1, in f\n{line}\n')
    ending = permanent(NodeId("s"), error)
    assert (ending is not None) is hopeless
    if ending is not None:
        assert ending.what.startswith(f"Stage 's': {line} (mine.py, line 1)")


def test_damage_is_not_tried_again_and_an_outage_is() -> None:
    damaged = Damaged("a byte is wrong")
    assert permanent(NodeId("s"), damaged) is damaged
    assert permanent(NodeId("s"), Unreachable("away")) is None
