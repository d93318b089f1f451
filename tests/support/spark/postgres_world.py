"""What tests of Postgres share: a database of their own on the server of all tests, and a look at what is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import strobe
from strobe.hosts.spark.connectors.base import SinkContext
from strobe.model.ids import Incarnation, NodeId, Timeline


class Database:
    """A database of its own on a server, or a schema of its own in `within`, which is faster to make."""

    def __init__(self, server: str, within: Database | None = None) -> None:
        self.name = f"t{os.urandom(6).hex()}"
        self.dsn: str
        self._server = server
        self._schema = within is not None
        if within is None:
            self.dsn = f"{server.rpartition('/')[0]}/{self.name}"
            with psycopg.connect(server, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {self.name}".encode())
        else:
            self.dsn = f"{within.dsn}?options=-csearch_path%3D{self.name}"
            self.run(f"CREATE SCHEMA {self.name}")

    def run(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query.encode()).fetchall()

    def prepared(self) -> list[str]:
        query = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared"
        return [gid for (gid,) in self.rows(query)]

    def drop(self) -> None:
        if self._schema:
            self.run(f"DROP SCHEMA IF EXISTS {self.name} CASCADE")
            return
        for gid in self.prepared():
            self.run(f"ROLLBACK PREPARED '{gid}'")
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {self.name} WITH (FORCE)".encode())


def context_of(base: Path, schema: StructType, *, incarnation: int = 1, mode: str = "update") -> SinkContext:
    return SinkContext(
        job="ledger",
        stage=NodeId("balances"),
        name="balances/0",
        timeline=Timeline(1),
        incarnation=Incarnation(incarnation),
        schema=schema,
        output_mode=mode,
        base=base,
        staging=base / "sinks" / "balances" / "0" / "t1",
    )


def numbers(
    dsn: str,
    *,
    bounded: bool = True,
    sink: strobe.Sink | None = None,
    attempts: int = 5,
    evolved: bool = False,
    **checkpoint: Any,
) -> strobe.Pipeline:
    """From table `numbers` to table `target`, five rows at a time, by default on snapshot. The two stages are
    two queries: the tests ask about each of them. `evolved`: with one column more than in earlier runs."""
    config = strobe.CheckpointConfig(**{"interval": None, **checkpoint})
    restart = strobe.RestartPolicy(attempts=attempts, longest_pause=1.0)
    pipeline = strobe.Pipeline("numbers", checkpoint=config, restart=restart, chain=False)

    @pipeline.stage(uid="source", trigger={"availableNow": True} if bounded else {"processingTime": "0 seconds"})
    def read(spark: SparkSession) -> DataFrame:
        return strobe.read_postgres(spark, dsn, "numbers", column="id", max_rows_per_batch=5)

    @pipeline.stage(uid="gold", reads="source", to=sink or strobe.PostgresSink(dsn, "target", delivery="on_snapshot"))
    def gold(source: DataFrame) -> DataFrame:
        rows = source.withColumn("twice", source.id * 2)
        return rows.withColumn("thrice", source.id * 3) if evolved else rows

    return pipeline


def set_up_numbers(database: Database, rows: int, target: str = "id bigint, twice bigint") -> None:
    database.run("CREATE TABLE numbers (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY)")
    database.run(f"CREATE TABLE target ({target})")
    add_numbers(database, rows)


def add_numbers(database: Database, rows: int) -> None:
    """The next ids."""
    for _ in range(rows):
        database.run("INSERT INTO numbers DEFAULT VALUES")


def delivered(database: Database) -> list[int]:
    """The ids that are visible, in order; one that is there twice is there twice."""
    rows = database.rows("SELECT id, twice FROM target ORDER BY id")
    assert all(twice == 2 * id for id, twice in rows)
    return [id for id, _ in rows]
