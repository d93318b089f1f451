"""State in Avro whose values get another field: what Spark can read, Strobe lets through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import strobe
from strobe.model.errors import Misuse
from tests.support.spark.jobs import finish
from tests.support.spark.ledger_data import delta_rows, read_transfers, write_transfers
from tests.support.spark.restoring import BOUNDED, start

pytestmark = pytest.mark.spark


def counting(schema: str) -> StatefulProcessor:
    class Counting(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self._seen = handle.getValueState("seen", schema)

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
            frames = list(rows)
            before = self._seen.get() or (0,)
            count = before[0] + sum(len(f) for f in frames)
            total = (before[1] if len(before) > 1 and before[1] is not None else 0) + sum(
                int(f["amount"].sum()) for f in frames
            )
            self._seen.update((count, total) if "total" in schema else (count,))
            yield pd.DataFrame({"src": [key[0]], "n": [count], "total": [total]})

        def close(self) -> None:
            pass

    return Counting()


def pipeline(data: Path, schema: str, encoding: str) -> strobe.Pipeline:
    found = strobe.Pipeline("counted", checkpoint=strobe.CheckpointConfig(interval=None, retained=10))

    @found.stage(
        uid="counts", trigger=BOUNDED, output_mode="update", to=strobe.DeltaSink("counts", key="src"),
        conf={"spark.sql.streaming.stateStore.encodingFormat": encoding},
    )  # fmt: skip
    def counts(spark: SparkSession) -> DataFrame:
        by = read_transfers(spark, data).groupBy("src")
        return by.transformWithStateInPandas(counting(schema), "src INT, n BIGINT, total BIGINT", "Update", "None")

    return found


def counts_of(root: Path) -> dict[int, tuple[int, int]]:
    return {r[0]: (r[1], r[2]) for r in delta_rows(root / "counts", "select src, n, total from t")}


def test_a_value_in_avro_gets_another_field(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=30, accounts=4)
    finish(start(pipeline(data, "n INT", "avro"), tmp_path, spark))
    write_transfers(data, files=2, rows=30, accounts=4)
    wider = "n BIGINT, total BIGINT"
    with pytest.raises(Misuse, match="'seen'"):
        start(pipeline(data, "n STRING", "avro"), tmp_path, spark)
    rows = [(r.id, r.src, r.amount) for r in spark.read.parquet(str(data)).select("id", "src", "amount").collect()]
    expected = {
        s: (sum(1 for _, src, _ in rows if src == s), sum(a for i, src, a in rows if src == s and i >= 30))
        for s in {src for _, src, _ in rows}
    }
    for options in ({}, {"snapshot": "counted/1"}):
        finish(start(pipeline(data, wider, "avro"), tmp_path, spark, **options))
        assert {s: c for s, c in counts_of(tmp_path).items() if expected[s][1]} == {
            s: c for s, c in expected.items() if c[1]
        }


def test_without_avro_it_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=5, accounts=2)
    finish(start(pipeline(data, "n INT", "unsaferow"), tmp_path, spark))
    with pytest.raises(Misuse, match="'seen'"):
        start(pipeline(data, "n INT, total BIGINT", "unsaferow"), tmp_path, spark)
