"""Strobe takes consistent pictures of systems that never stop moving, and brings them back to life."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strobe.hosts.spark.connectors.base import (
        Delivery,
        Part,
        Sink,
        SinkContext,
        SinkFate,
        SinkOutlook,
        TransactionalSink,
        steady,
    )
    from strobe.hosts.spark.connectors.dead_letters import DeadLetters, Letters, Rejected
    from strobe.hosts.spark.connectors.delta.sink import DeltaSink
    from strobe.hosts.spark.connectors.files.sink import FileSink
    from strobe.hosts.spark.connectors.kafka.sink import KafkaSink
    from strobe.hosts.spark.connectors.kafka.source import read_kafka
    from strobe.hosts.spark.connectors.postgres.sink import PostgresSink
    from strobe.hosts.spark.connectors.postgres.source import read_postgres
    from strobe.hosts.spark.connectors.simple import BatchInfo, ConsoleSink, ForeachBatchSink, MemorySink
    from strobe.hosts.spark.connectors.staging import Staging
    from strobe.hosts.spark.job.job import Job, JobState
    from strobe.hosts.spark.job.pipeline import Pipeline
    from strobe.hosts.spark.pipeline.config import CheckpointConfig, RestartPolicy
    from strobe.hosts.spark.pipeline.deterministic import stable_random
    from strobe.hosts.spark.pipeline.pipeline import feedback
    from strobe.look.cut import Cut, open_snapshot
    from strobe.model.errors import Damaged, Failed, Misuse, StrobeError

__version__ = "0.1.0"

__all__ = [
    "BatchInfo", "CheckpointConfig", "ConsoleSink", "Cut", "Damaged", "DeadLetters", "Delivery", "DeltaSink", "Failed",
    "FileSink", "ForeachBatchSink", "Job", "JobState", "KafkaSink", "Letters", "MemorySink", "Misuse", "Part",
    "Pipeline", "PostgresSink", "Rejected", "RestartPolicy", "Sink", "SinkContext", "SinkFate", "SinkOutlook",
    "Staging", "StrobeError", "TransactionalSink", "feedback", "open_snapshot", "read_kafka", "read_postgres",
    "stable_random", "steady",
]  # fmt: skip

# Looked up when first used: the protocols, the simulator and the command line need no Spark.
_HOMES = {
    "CheckpointConfig": "pipeline.config",
    "RestartPolicy": "pipeline.config",
    "Delivery": "connectors.base",
    "Part": "connectors.base",
    "Sink": "connectors.base",
    "SinkContext": "connectors.base",
    "SinkFate": "connectors.base",
    "SinkOutlook": "connectors.base",
    "TransactionalSink": "connectors.base",
    "steady": "connectors.base",
    "DeadLetters": "connectors.dead_letters",
    "Letters": "connectors.dead_letters",
    "Rejected": "connectors.dead_letters",
    "DeltaSink": "connectors.delta.sink",
    "KafkaSink": "connectors.kafka.sink",
    "read_kafka": "connectors.kafka.source",
    "PostgresSink": "connectors.postgres.sink",
    "read_postgres": "connectors.postgres.source",
    "FileSink": "connectors.files.sink",
    "BatchInfo": "connectors.simple",
    "ConsoleSink": "connectors.simple",
    "ForeachBatchSink": "connectors.simple",
    "MemorySink": "connectors.simple",
    "Staging": "connectors.staging",
    "stable_random": "pipeline.deterministic",
    "Job": "job.job",
    "JobState": "job.job",
    "Pipeline": "job.pipeline",
    "feedback": "pipeline.pipeline",
}
_LOOK = frozenset({"Cut", "open_snapshot"})  # these need no Spark either
_ERRORS = frozenset({"Damaged", "Failed", "Misuse", "StrobeError"})


def __getattr__(name: str) -> Any:
    if name in _ERRORS:
        return getattr(import_module("strobe.model.errors"), name)
    if name not in _HOMES and name not in _LOOK:
        raise AttributeError(f"module 'strobe' has no attribute {name!r}")
    try:
        if name in _LOOK:
            return getattr(import_module("strobe.look.cut"), name)
        return getattr(import_module(f"strobe.hosts.spark.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        from strobe.model.extras import missing_extra

        raise missing_extra(error, "sql" if name in _LOOK else None) or error from error
