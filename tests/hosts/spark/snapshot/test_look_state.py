"""State decoded without Spark is what Spark's own reader says: every operator, every type, each kind of file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.spark.look_world import QUERIES, compared, run, sorted_rows, spark_says, write_rows

pytestmark = pytest.mark.spark

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PLAIN = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_CHANGES = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
FEW = {"spark.sql.shuffle.partitions": "2"}
CHANGES = {**FEW, _PROVIDER: ROCKS, _CHANGES: "true"}
COPIES = {**FEW, _PROVIDER: ROCKS, _CHANGES: "false"}
OWN = {**FEW, _PROVIDER: PLAIN}
TABLES = {"joined": 2, "processor": 6, "twice": 2}

CASES: list[tuple[str, str, Mapping[str, str]]] = [
    *((name, "changes", CHANGES) for name in QUERIES),
    *((name, "copies", COPIES) for name in ("types", "joined", "processor", "sessions")),
    *((name, "own", OWN) for name in ("types", "joined", "sessions", "groups")),
    ("types", "zstd", {**CHANGES, "spark.sql.streaming.stateStore.compression.codec": "zstd"}),
    ("joined", "three", {**CHANGES, "spark.sql.streaming.join.stateFormatVersion": "3"}),
    ("joined", "four", {**CHANGES, "spark.sql.streaming.join.stateFormatVersion": "4"}),
    ("sums", "one", {**CHANGES, "spark.sql.streaming.aggregation.stateFormatVersion": "1"}),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("look") / "in")


@pytest.mark.parametrize(("name", "kind", "conf"), CASES, ids=[f"{name}-{kind}" for name, kind, _ in CASES])
def test_state_is_what_sparks_reader_says(
    spark: SparkSession, data: Path, tmp_path: Path, name: str, kind: str, conf: Mapping[str, str]
) -> None:
    checkpoint = run(spark, name, data, tmp_path / "checkpoint", conf)
    tables = checkpoint.tables(name)
    assert [table.problem for table in tables if table.problem] == []
    assert len(tables) == TABLES.get(name, 1)
    total = 0
    for table in tables:
        rows = checkpoint.rows(table)
        rows.validate(full=True)
        columns = [rows.column(c.name).combine_chunks() for c in compared(table)]
        assert sorted_rows(columns) == spark_says(spark, checkpoint, table), table.name
        total += rows.num_rows
    assert total > 0


def test_columns_are_called_what_the_code_calls_them(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    def columns(name: str) -> dict[str, list[str]]:
        checkpoint = run(spark, name, data, tmp_path / name, CHANGES)
        return {table.name: table.schema.names for table in checkpoint.tables(name)}

    assert columns("sums") == {"sums": ["account", "balance", "mean", "n", "big"]}
    assert columns("sessions") == {"sessions": ["session_window", "account", "total"]}
    assert columns("windows") == {"windows": ["window", "account", "count"]}
    assert columns("twice") == {"twice": ["window", "top"], "twice__1": ["window", "w"]}
    assert columns("processor") == {
        "processor__latest": ["account", "id", "s"],
        "processor__recent": ["account", "position", "id", "amount"],
        "processor__by_day": ["account", "day", "n", "total"],
        "processor__short": ["account", "id", "ttlExpirationMs"],
        "processor__gone": ["account", "id"],
        "processor__timers": ["account", "expiryTimestampMs"],
    }
