"""What tests of Postgres share: a schema of their own in the server that all tests use, and a look at what is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from strobe.hosts.spark.connectors.base import SinkContext
from strobe.model.ids import Incarnation, NodeId, Timeline


class Database:
    """A schema with a name of its own; `dsn` leads there, so that tables need no schema."""

    def __init__(self, server: str, name: str = "") -> None:
        self.server = server
        self.schema = name or f"t{os.urandom(6).hex()}"
        self.dsn = f"{server}?options=-csearch_path%3D{self.schema}"
        self.run(f"CREATE SCHEMA IF NOT EXISTS {self.schema}")

    def run(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def prepared(self) -> list[str]:
        return [gid for (gid,) in self.rows("SELECT gid FROM pg_prepared_xacts ORDER BY prepared")]

    def drop(self) -> None:
        self.run(f"DROP SCHEMA IF EXISTS {self.schema} CASCADE")


def context_of(
    spark: SparkSession, base: Path, ddl: str, *, incarnation: int = 1, timeline: int = 1, mode: str = "update"
) -> SinkContext:
    return SinkContext(
        job="ledger",
        stage=NodeId("balances"),
        name="balances/0",
        timeline=Timeline(timeline),
        incarnation=Incarnation(incarnation),
        schema=spark.createDataFrame([], ddl).schema,
        output_mode=mode,
        base=base,
        staging=base / "sinks" / "balances" / "0" / f"t{timeline}",
    )
