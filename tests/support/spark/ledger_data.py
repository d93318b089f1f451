"""A small ledger: seeded transfers in Parquet files, and what must come of them, computed by DuckDB."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

DDL = "id BIGINT, src INT, dst INT, amount BIGINT, ts TIMESTAMP"


def write_transfers(directory: Path, *, files: int = 6, rows: int = 200, accounts: int = 20, seed: int = 1) -> Path:
    """`files` files of `rows` transfers each; event time moves on by 10 s per file."""
    rng = random.Random(seed)
    directory.mkdir(parents=True, exist_ok=True)
    number = 0
    last = max((file.stat().st_mtime_ns for file in directory.glob("*.parquet")), default=0)
    for index in range(files):
        columns: dict[str, list[int]] = {"id": [], "src": [], "dst": [], "amount": [], "ts": []}
        for _ in range(rows):
            columns["id"].append(number)
            columns["src"].append(rng.randrange(accounts))
            columns["dst"].append(rng.randrange(accounts))
            columns["amount"].append(rng.randrange(1, 100))
            columns["ts"].append((1_700_000_000 + index * 10) * 1_000_000 + rng.randrange(10_000_000))
            number += 1
        table = pa.table(
            {
                "id": pa.array(columns["id"], pa.int64()),
                "src": pa.array(columns["src"], pa.int32()),
                "dst": pa.array(columns["dst"], pa.int32()),
                "amount": pa.array(columns["amount"], pa.int64()),
                "ts": pa.array(columns["ts"], pa.timestamp("us", tz="UTC")),
            }
        )
        if (directory / f"{index:05d}.parquet").exists():
            continue  # the same seed gives the same rows: only what is new is written
        temporary = directory / f".{index}.tmp"
        pq.write_table(table, temporary)
        # Spark reads files in the order of their times, which it knows to the millisecond.
        last = max(time.time_ns(), last + 2_000_000)
        os.utime(temporary, ns=(last, last))
        temporary.rename(directory / f"{index:05d}.parquet")
    return directory


def read_transfers(spark: SparkSession, directory: Path, files_per_batch: int = 1) -> DataFrame:
    return spark.readStream.schema(DDL).option("maxFilesPerTrigger", files_per_batch).parquet(str(directory))


def expected_balances(directory: Path) -> list[tuple[Any, ...]]:
    return _fetch(
        f"""select account, sum(delta)::BIGINT from (
              select src as account, -amount as delta from '{directory}/*.parquet'
              union all select dst, amount from '{directory}/*.parquet') group by 1 order by 1"""
    )


def delta_rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    """`query` over the Delta table, as `t`, read without Spark."""
    return _fetch(query, t=DeltaTable(str(path)).to_pyarrow_table())


def _fetch(query: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        rows: list[tuple[Any, ...]] = connection.execute(query).fetchall()
        return rows
