"""`strobe inspect --export`: every kind of state, and the rows in flight, as Parquet that DuckDB reads."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.snapshot.export import CONTENTS, export_snapshot
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId
from strobe.model.kind import Kind
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import SavepointLayout
from strobe.store.locate import locate
from strobe.store.manifest import NodeRecord
from strobe.store.snapshots import SnapshotStore
from tests.hosts.spark.pipeline.test_operators import Total
from tests.hosts.spark.snapshot.test_savepoint import World, in_background, under_way, world
from tests.store.snapshot_samples import BALANCES, JOB, POSTINGS, manifest
from tests.support.spark.jobs import all_read, eventually, stage
from tests.support.spark.ledger_data import read_transfers, write_transfers

pytestmark = pytest.mark.spark
__all__ = ["world"]


def read(directory: Path, query: str, path: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as db:
        return db.execute(query.format(f"'{directory / path}'")).fetchall()


def contents(directory: Path) -> dict[str, Any]:
    value = json.loads((directory / CONTENTS).read_text())
    assert (directory / "README.md").exists()
    return {each["path"]: each for each in value["contents"]}


def test_every_kind_of_state_is_exported_with_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=40)
    pipeline = strobe.Pipeline("stateful", checkpoint=strobe.CheckpointConfig(interval=None))

    @pipeline.stage(uid="transfers")
    def transfers(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(uid="sums", reads="transfers", output_mode="update", to=strobe.DeltaSink("sums", key="src"))
    def sums(transfers: DataFrame) -> DataFrame:
        return transfers.groupBy("src").agg(F.sum("amount").alias("total"), F.sum("id").alias("ids"))

    @pipeline.stage(uid="joined", reads="transfers", to=strobe.DeltaSink("joined"))
    def joined(transfers: DataFrame) -> DataFrame:
        left = transfers.select(F.col("id").alias("a"), "src")
        return left.join(transfers.select(F.col("id").alias("b"), "dst"), F.expr("a = b"))

    @pipeline.stage(uid="totals", reads="transfers", output_mode="update", to=strobe.DeltaSink("totals", key="key"))
    def totals(transfers: DataFrame) -> DataFrame:
        keyed = transfers.select(F.col("src").alias("key"), "amount")
        return keyed.groupBy("key").transformWithStateInPandas(
            Total(), "key INT, n BIGINT, amount BIGINT, largest STRING", "Update", "None"
        )

    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        eventually(lambda: stage(job, "transfers").batch == 1 and all_read(job), "everything is read", job)
        job.checkpoint()
    finally:
        job.stop()
    there = tmp_path / "there"
    found = locate("stateful", tmp_path / "home")
    written = export_snapshot(found, there, tmp_path / "home", spark)
    assert [e.error for e in written if e.error] == []
    named = contents(there)
    assert set(named) == {e.path for e in written}
    sums_of = "select src, sum(amount)::BIGINT, sum(id)::BIGINT from {} group by 1 order by 1"
    truth = read(data, sums_of, "*.parquet")
    (path,) = (p for p in named if p.startswith("state/sums/"))
    assert read(there, "select key_src, value_sum::BIGINT, value_sum_2::BIGINT from {} order by 1", path) == truth
    for side in ("left", "right"):
        (path,) = (p for p in named if p.startswith("state/joined/") and f"-{side}/" in p)
        assert named[path]["rows"] == 80
        assert read(there, "select count(*) from {}", path) == [(80,)]
    (path,) = (p for p in named if p.startswith("state/totals/") and "-total/" in p)
    assert read(there, "select count(*) from {}", path) == [(len(truth),)]
    assert any("-largest/" in p for p in named)
    with pytest.raises(Misuse, match="not an empty directory"):
        export_snapshot(found, there, tmp_path / "home", spark)


@pytest.mark.parametrize("savepoint", [True, False], ids=["savepoint", "checkpoint"])
def test_rows_in_flight_are_exported_and_say_who_had_yet_to_read_them(
    world: World, tmp_path: Path, spark: SparkSession, savepoint: bool
) -> None:
    job = world.job
    world.hold_rows()
    asking, got = in_background(job.savepoint if savepoint else job.checkpoint)
    eventually(lambda: under_way(job), "it has begun", job)
    world.door.passes.release()
    asking.join()
    found = locate(str(got[0]) if savepoint else "saved", tmp_path / "home")
    export_snapshot(found, tmp_path / "there", tmp_path / "home", spark)
    flying = [each for each in contents(tmp_path / "there").values() if each["kind"] == "in flight"]
    assert [(each["of"], each["to"]) for each in flying] == [("transfers", ["behind"])] * len(flying)
    assert sum(each["rows"] for each in flying) == 20
    ids = read(tmp_path / "there", "select id from {} order by 1", "in-flight/transfers/*.parquet")
    assert ids == [(n,) for n in range(40, 60)]
    assert not (tmp_path / "there/.rows").exists()


def test_what_spark_cannot_read_of_a_crafted_state_is_said_and_nothing_else_is_lost(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark's reader of metadata fails for one stage, and its reader of state for another."""
    operator = b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"stateStoreSave"},"stateStoreInfo":[{"storeName":'
    state = {
        "metadata": b'{"id":"0d2b1f3c-0000-0000-0000-000000000001"}',
        "offsets/0": b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"spark.sql.shuffle.partitions":"1"}}\n-',
        "commits/0": b'v1\n{"nextBatchWatermarkMs":0}',
        "state/0/_metadata/metadata": operator + b'"default","numColsPrefixKey":0,"numPartitions":1}]}',
        "state/0/0/_metadata/schema": b"\0\2v2" + 2 * _java_text(StructType([StructField("a", LongType())]).json()),
        "state/0/0/1.changelog": b"no changes",
    }
    store = SnapshotStore(FilesystemStore(tmp_path / "sav"), SavepointLayout("", SnapshotId(7)), JOB)
    with store.begin(SnapshotId(7)) as session:
        nodes = {
            POSTINGS: NodeRecord(files=session.put_files({**state, "commits/0": b"v1\n" + b"[" * 9999}).files, batch=0),
            BALANCES: NodeRecord(files=session.put_files(dict(state)).files, batch=0),
        }
        session.complete(manifest(7, {}, kind=Kind.SAVEPOINT, nodes=nodes, channels={}, sinks={}))
    second, first = export_snapshot(locate(str(tmp_path / "sav"), tmp_path), tmp_path / "there", tmp_path, spark)
    assert (first.of, first.path, first.rows) == ("postings", "state/postings", 0)
    assert "nesting depth" in first.error
    assert (second.of, second.path, second.rows) == ("balances", "state/balances/0-stateStoreSave", 0)
    assert second.error
    assert "error occurred while calling" not in second.error
    assert not (tmp_path / "there" / second.path).exists()


def _java_text(text: str) -> bytes:
    return struct.pack(">iH", 1, len(text)) + text.encode()
