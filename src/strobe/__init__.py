"""Strobe takes consistent pictures of systems that never stop moving, and brings them back to life."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strobe.hosts.spark.config import CheckpointConfig, RestartPolicy
    from strobe.hosts.spark.connectors.base import (
        Delivery,
        Part,
        Sink,
        SinkContext,
        SinkFate,
        SinkOutlook,
        TransactionalSink,
    )
    from strobe.hosts.spark.connectors.dead_letters import DeadLetters, Letters, Rejected
    from strobe.hosts.spark.connectors.delta import DeltaSink
    from strobe.hosts.spark.connectors.file import FileSink
    from strobe.hosts.spark.connectors.kafka import KafkaSink
    from strobe.hosts.spark.connectors.kafka_source import read_kafka
    from strobe.hosts.spark.connectors.postgres import PostgresSink
    from strobe.hosts.spark.connectors.postgres_source import read_postgres
    from strobe.hosts.spark.connectors.simple import BatchInfo, ConsoleSink, ForeachBatchSink, MemorySink
    from strobe.hosts.spark.connectors.staging import Staging
    from strobe.hosts.spark.deterministic import stable_random
    from strobe.hosts.spark.job import Job, JobState
    from strobe.hosts.spark.pipeline import Pipeline, feedback

__version__ = "0.1.0"

__all__ = [
    "BatchInfo", "CheckpointConfig", "ConsoleSink", "DeadLetters", "Delivery", "DeltaSink", "FileSink",
    "ForeachBatchSink", "Job", "JobState", "KafkaSink", "Letters", "MemorySink", "Part", "Pipeline", "PostgresSink",
    "Rejected", "RestartPolicy", "Sink", "SinkContext", "SinkFate", "SinkOutlook", "Staging", "TransactionalSink",
    "feedback", "read_kafka", "read_postgres", "stable_random",
]  # fmt: skip

# Looked up when first used: the protocols, the simulator and the command line need no Spark.
_HOMES = {
    "CheckpointConfig": "config",
    "RestartPolicy": "config",
    "Delivery": "connectors.base",
    "Part": "connectors.base",
    "Sink": "connectors.base",
    "SinkContext": "connectors.base",
    "SinkFate": "connectors.base",
    "SinkOutlook": "connectors.base",
    "TransactionalSink": "connectors.base",
    "DeadLetters": "connectors.dead_letters",
    "Letters": "connectors.dead_letters",
    "Rejected": "connectors.dead_letters",
    "DeltaSink": "connectors.delta",
    "KafkaSink": "connectors.kafka",
    "read_kafka": "connectors.kafka_source",
    "PostgresSink": "connectors.postgres",
    "read_postgres": "connectors.postgres_source",
    "FileSink": "connectors.file",
    "BatchInfo": "connectors.simple",
    "ConsoleSink": "connectors.simple",
    "ForeachBatchSink": "connectors.simple",
    "MemorySink": "connectors.simple",
    "Staging": "connectors.staging",
    "stable_random": "deterministic",
    "Job": "job",
    "JobState": "job",
    "Pipeline": "pipeline",
    "feedback": "pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'strobe' has no attribute {name!r}")
    try:
        return getattr(import_module(f"strobe.hosts.spark.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        from strobe.model.extras import missing_extra

        raise missing_extra(error) or error from error
