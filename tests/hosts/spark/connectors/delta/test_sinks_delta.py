"""The Delta sink keeps the contract of sinks, in every mode; what others see of it, and which rows it takes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from strobe.hosts.spark.connectors.base import Part, Sink, SinkContext, SinkFate
from strobe.hosts.spark.connectors.delta import sink as delta
from strobe.hosts.spark.connectors.delta import table as delta_table
from strobe.hosts.spark.connectors.delta.sink import DeltaSink
from strobe.hosts.spark.stage.local_frame import local_frame
from strobe.model.errors import Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
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


def opened(root: Path, sink: DeltaSink, spark: SparkSession) -> DeltaSink:
    schema = local_frame(spark, [], "k BIGINT, v STRING").schema
    life = Incarnation(1)
    sink.open(SinkContext("j", NodeId("s"), "s/0", Timeline(1), life, schema, "append", root, root / "home/t1"))
    return sink


def test_the_table_has_the_partitions_and_properties_that_were_asked_for(tmp_path: Path, spark: SparkSession) -> None:
    sink = DeltaSink("out", partition_by="v", properties={"delta.dataSkippingNumIndexedCols": "1"})
    opened(tmp_path, sink, spark).write(local_frame(spark, [(1, "a"), (2, "b")], "k BIGINT, v STRING"), 0)
    table = DeltaTable(str(tmp_path / "out"))
    assert table.metadata().partition_columns == ["v"]
    assert table.metadata().configuration["delta.dataSkippingNumIndexedCols"] == "1"
    assert sorted(Path(uri).parent.name for uri in table.file_uris()) == ["v=a", "v=b"]


def test_properties_are_set_on_a_table_that_exists(tmp_path: Path, spark: SparkSession) -> None:
    opened(tmp_path, DeltaSink("out"), spark)
    sink = opened(tmp_path, DeltaSink("out", properties={"delta.dataSkippingNumIndexedCols": "1"}), spark)
    sink.write(local_frame(spark, [(1, "a")], "k BIGINT, v STRING"), 0)
    table = DeltaTable(str(tmp_path / "out"))
    assert table.metadata().configuration["delta.dataSkippingNumIndexedCols"] == "1"
    assert table.to_pyarrow_table().num_rows == 1


def test_other_partitions_than_the_table_has_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    opened(tmp_path, DeltaSink("out", partition_by="v"), spark)
    with pytest.raises(Misuse, match="is to be partitioned by k, but the table is partitioned by v"):
        opened(tmp_path, DeltaSink("out", partition_by="k"), spark)


@pytest.mark.parametrize(
    "options", [{"delivery": "later"}, {"properties": {"delta.appendOnly": True}}, {"key": "x"}, {"partition_by": "x"}]
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, spark: SparkSession, options: dict[str, Any]) -> None:
    with pytest.raises(Misuse):
        opened(tmp_path, DeltaSink("out", **options), spark)
    assert not (tmp_path / "out").exists()


def test_a_fork_is_refused_until_what_its_snapshot_names_is_visible(tmp_path: Path, spark: SparkSession) -> None:
    sink = opened(tmp_path, DeltaSink("out", delivery="on_snapshot"), spark)
    sink.write(local_frame(spark, [(1, "a")], "k BIGINT, v STRING"), 0)
    position = sink.position(SnapshotId(1))
    part = Part("j/s/0/1/1", SnapshotId(1), Timeline(1), -1, 0)
    said = sink.prepare(part)
    schema = local_frame(spark, [], "k BIGINT, v STRING").schema
    (tmp_path / "fork").mkdir()
    other = SinkContext(
        "f", NodeId("s"), "s/0", Timeline(2), Incarnation(1), schema, "append", tmp_path / "fork", tmp_path / "home/t2"
    )
    copy = DeltaSink("out", delivery="on_snapshot")
    early = copy.outlook(position, other, fork=True, again=False)
    assert early.problem is not None
    assert "not visible there yet" in early.problem.what
    sink.commit(part, said)
    later = copy.outlook(position, other, fork=True, again=False)
    assert later.problem is None
    assert later.fate is SinkFate.COPIED
