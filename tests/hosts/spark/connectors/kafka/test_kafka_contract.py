"""The contract of sinks, kept by the Kafka sink in both of its deliveries, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.hosts.spark.connectors.base import Sink
from strobe.testing import SinkContract
from tests.support.spark.kafka_world import committed, new_topic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.services("kafka")]


class KafkaContract(SinkContract):
    delivery = "on_snapshot"
    ordered = True
    fenced = True
    points = 3

    @pytest.fixture(autouse=True)
    def _world(self, spark: SparkSession, kafka: str) -> None:
        self._spark, self._servers = spark, kafka

    def spark(self) -> SparkSession:
        return self._spark

    def topic(self, where: Path) -> str:
        note = where / "topic"
        if not note.exists():
            where.mkdir(parents=True, exist_ok=True)
            note.write_text(new_topic(self._servers, "contract", partitions=1))
        return note.read_text()

    def make_sink(self, where: Path) -> Sink:
        return strobe.KafkaSink(self._servers, self.topic(where), key="k", delivery=self.delivery)

    def visible(self, where: Path) -> Iterable[tuple[object, ...]]:
        rows = [json.loads(m.value() or b"") for m in committed(self._servers, self.topic(where))]
        return [(row["k"], row["v"]) for row in rows]


class TestOnSnapshot(KafkaContract):
    pass


class TestOnBatch(KafkaContract):
    delivery = "on_batch"
