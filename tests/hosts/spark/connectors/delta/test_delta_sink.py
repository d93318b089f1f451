"""A Delta table as a sink: what two drivers of one job can do to it. The one that was given up can do nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from strobe.hosts.spark.connectors.base import Part, SinkContext, SinkFate
from strobe.hosts.spark.connectors.delta import writing
from strobe.hosts.spark.connectors.delta.sink import DeltaSink
from strobe.model.errors import Fenced
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "plan_size", lambda _: 0)


SCHEMA = StructType([StructField("k", LongType()), StructField("v", LongType())])


class Rows:
    """A micro-batch of rows (k, v). `meanwhile` happens while Spark computes it."""

    def __init__(self, *rows: tuple[int, int], meanwhile: Any = None) -> None:
        self.rows = rows
        self.meanwhile = meanwhile

    def toArrow(self) -> pa.Table:
        if self.meanwhile is not None:
            self.meanwhile()
        return pa.table({"k": [k for k, _ in self.rows], "v": [v for _, v in self.rows]})


def upsert(root: Path, incarnation: int) -> DeltaSink:
    """The sink of a driver that has just started."""
    sink = DeltaSink("t", key="k")
    life = Incarnation(incarnation)
    sink.open(SinkContext("j", NodeId("s"), "s/0", Timeline(1), life, SCHEMA, "update", root, root / "staging"))
    return sink


def write(sink: DeltaSink, batch_id: int, rows: Rows) -> None:
    sink.write(cast(DataFrame, rows), batch_id)


def table(root: Path) -> dict[int, int]:
    rows = DeltaTable(str(root / "t")).to_pyarrow_table().to_pydict()
    return dict(zip(rows["k"], rows["v"], strict=True))


def test_a_batch_is_merged_once_whoever_brings_it(tmp_path: Path) -> None:
    first = upsert(tmp_path, 1)
    assert first.last_batch() is None
    write(first, 0, Rows((1, 1), (2, 2)))
    second = upsert(tmp_path, 2)
    assert second.last_batch() == 0
    write(second, 0, Rows((1, 100)))
    write(second, 1, Rows((2, 3)))
    assert table(tmp_path) == {1: 1, 2: 3}


def test_a_driver_that_was_given_up_merges_nothing(tmp_path: Path) -> None:
    old = upsert(tmp_path, 1)
    write(old, 0, Rows((1, 1)))
    upsert(tmp_path, 2)
    with pytest.raises(Fenced):
        write(old, 1, Rows((1, 100)))
    assert table(tmp_path) == {1: 1}


@pytest.mark.parametrize("batch", [0, 1])
def test_a_merge_that_was_begun_before_the_takeover_comes_to_nothing(tmp_path: Path, batch: int) -> None:
    old = upsert(tmp_path, 1)
    for earlier in range(batch):
        write(old, earlier, Rows((1, 1)))
    before = table(tmp_path)
    with pytest.raises(Fenced):
        write(old, batch, Rows((1, 100), meanwhile=lambda: upsert(tmp_path, 2)))
    assert table(tmp_path) == before


def test_a_batch_that_comes_while_the_fence_goes_up_is_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = upsert(tmp_path, 1)
    real = DeltaTable.create_write_transaction
    late = [lambda: write(old, 0, Rows((1, 1)))]

    def slow(self: DeltaTable, *args: Any, **kwargs: Any) -> None:
        while late:
            late.pop()()
        real(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", slow)
    new = upsert(tmp_path, 2)
    assert new.last_batch() == 0
    with pytest.raises(Fenced):
        write(old, 1, Rows((1, 100)))
    assert table(tmp_path) == {1: 1}


def test_a_restore_that_is_begun_again_finds_the_table_on_the_new_timeline(tmp_path: Path) -> None:
    """Parts are settled on the old timeline first; the table may have left it in an attempt before."""

    def at(timeline: int, incarnation: int) -> SinkContext:
        life, staging = Incarnation(incarnation), tmp_path / f"home/t{timeline}"
        return SinkContext("j", NodeId("s"), "s/0", Timeline(timeline), life, SCHEMA, "append", tmp_path, staging)

    first = DeltaSink("t", delivery="on_snapshot")
    first.open(at(1, 1))
    position = first.position(SnapshotId(1))
    for incarnation in (2, 3):
        settling = DeltaSink("t", delivery="on_snapshot")
        settling.open(at(1, incarnation))
        assert settling.last_batch() is None
        settling.abort(Part("h", SnapshotId(2), Timeline(1), -1, 0), None)
        settling.close()
        assert settling.outlook(position, at(2, incarnation), fork=False, again=True).fate is SinkFate.ROLLED_BACK
        settling.restore(position, at(2, incarnation), SinkFate.ROLLED_BACK)
    DeltaSink("t", delivery="on_snapshot").open(at(2, 3))
    with pytest.raises(Fenced):
        DeltaSink("t", delivery="on_snapshot").open(at(1, 1))
