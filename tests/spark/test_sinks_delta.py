"""The Delta sink keeps the contract of sinks, in every mode; what others see of it, and which rows it takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from strobe.hosts.spark.connectors import delta, delta_table
from strobe.hosts.spark.connectors.base import Sink
from strobe.hosts.spark.connectors.delta import DeltaSink
from strobe.testing import SinkContract

pytestmark = pytest.mark.spark


class DeltaContract(SinkContract):
    options: ClassVar[dict[str, Any]] = {}
    fenced = True
    points = 4

    @pytest.fixture(autouse=True)
    def _session(self, spark: SparkSession) -> None:
        self.session = spark

    def spark(self) -> SparkSession:
        return self.session

    def make_sink(self, where: Path) -> Sink:
        return DeltaSink("out", **self.options)

    def visible(self, where: Path) -> Iterable[tuple[Any, ...]]:
        if not DeltaTable.is_deltatable(str(where / "out")):
            return []
        rows = DeltaTable(str(where / "out")).to_pyarrow_table()
        return list(zip(*(rows[name].to_pylist() for name in ("k", "v")), strict=True))

    def sources(self, sink: Sink) -> set[str]:
        return {str(delta.__file__), str(delta_table.__file__)}


class TestAppendOnBatch(DeltaContract):
    """Rows are appended, visible after each batch."""


class TestAppendOnSnapshot(DeltaContract):
    options: ClassVar[dict[str, Any]] = {"delivery": "on_snapshot"}


class TestUpsertOnBatch(DeltaContract):
    options: ClassVar[dict[str, Any]] = {"key": "k"}
    key = ("k",)
    output_mode = "update"


class TestUpsertOnSnapshot(DeltaContract):
    options: ClassVar[dict[str, Any]] = {"key": "k", "delivery": "on_snapshot"}
    key = ("k",)
    output_mode = "update"


class TestPartitionedOnSnapshot(DeltaContract):
    options: ClassVar[dict[str, Any]] = {"partition_by": "v", "delivery": "on_snapshot"}
