"""The contract of a sink, run against Postgres tables: append and upsert, on batch and on snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.connectors.postgres.sink import PostgresSink
from strobe.testing.contract import SinkContract
from tests.support.spark.postgres_world import Database

pytestmark = [pytest.mark.spark, pytest.mark.services("postgres")]


class PostgresContract(SinkContract):
    fenced = True
    delivery = "on_batch"
    points = 3

    @pytest.fixture(autouse=True)
    def _servers(self, spark: SparkSession, postgres: str) -> Iterable[None]:
        self._spark, self._databases = spark, dict[Path, Database]()
        self._database = Database(postgres)
        yield
        self._database.drop()

    def spark(self) -> SparkSession:
        return self._spark

    def database(self, where: Path) -> Database:
        if where not in self._databases:
            found = self._databases[where] = Database(self._database.dsn, self._database)
            key = ", PRIMARY KEY (k)" if self.key else ""
            found.run(f"CREATE TABLE target (k bigint, v text{key})")
        return self._databases[where]

    def make_sink(self, where: Path) -> PostgresSink:
        return PostgresSink(self.database(where).dsn, "target", key=self.key, delivery=self.delivery)

    def visible(self, where: Path) -> Iterable[tuple[Any, ...]]:
        return self.database(where).rows("SELECT k, v FROM target")


class TestAppendOnBatch(PostgresContract):
    pass


class TestAppendOnSnapshot(PostgresContract):
    delivery = "on_snapshot"


class TestUpsertOnSnapshot(PostgresContract):
    delivery = "on_snapshot"
    key: Sequence[str] = ("k",)
    output_mode = "update"
