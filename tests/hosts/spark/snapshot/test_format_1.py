"""A job whose checkpoint is of manifest format 1, kept as an older Strobe left it: read, asked and restored.

`format-1.tar.gz` has the project as it stood in `/tmp/shop` after one run to the end, without logs and Spark's own
files: orders in two files, `orders` writes them on snapshot to a directory, `revenue` sums them into a Delta table.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.commit.ledger import named_handles
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.restore.restorable import why_not_restorable
from strobe.look.meta import TABLES
from strobe.model.ids import SnapshotId
from strobe.store.codec import encode, root_of
from strobe.store.places import checkpoints_of
from tests.support.spark.jobs import finish
from tests.support.spark.ledger_data import delta_rows

KEPT = Path(__file__).parents[3] / "support" / "spark" / "format-1.tar.gz"
ROOT = "3fae329d148c9422aac4e29f1050281fce2f8b123cb2723a4cc6a0ffdd89cbdc"
HANDLE = "shop/orders/0/1/1"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    with tarfile.open(KEPT) as archive:
        archive.extractall(tmp_path / "shop", filter="data")
    return tmp_path / "shop"


def test_it_is_read_with_its_position_its_parts_and_its_root(project: Path) -> None:
    store = checkpoints_of(project / "home", "shop")
    manifest = store.load(SnapshotId(1))
    path = project / "home/jobs/shop/snapshots/chk-000001/manifest.json"
    assert json.loads(path.read_bytes())["format"] == manifest.format == 1
    assert encode(manifest) == path.read_bytes()
    assert root_of(manifest) == ROOT
    assert store.verify(SnapshotId(1), ROOT) == ()
    assert named_handles(manifest) == {"orders/0": (HANDLE,)}
    positions = {name: sink.position for name, sink in manifest.sinks.items()}
    assert positions["orders/0"] == {"path": "/tmp/shop/out/orders", "lineage": [[1, 0]]}
    assert positions["revenue/0"] == {
        "path": "/tmp/shop/out/revenue", "version": 2, "letters": {"timeline": 1, "batch": 1},
    }  # fmt: skip
    assert why_not_restorable(manifest, project / "home") is None
    assert TABLES["sinks"].of(manifest)["handle"].to_pylist() == [None, HANDLE, None]


def shop(project: Path) -> strobe.Pipeline:
    pipeline = strobe.Pipeline("shop", checkpoint=strobe.CheckpointConfig(interval=None))
    files = strobe.FileSink("out/orders", delivery="on_snapshot")

    @pipeline.stage(uid="orders", trigger={"availableNow": True}, to=files)
    def orders(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema("id BIGINT, cents BIGINT").json(str(project / "orders"))

    @pipeline.stage(
        uid="revenue", reads="orders", output_mode="update", to=strobe.DeltaSink("out/revenue", key="product")
    )
    def revenue(orders: DataFrame) -> DataFrame:
        return orders.groupBy((F.col("id") % 2).alias("product")).agg(F.sum("cents").alias("cents"))

    return pipeline


@pytest.mark.spark
def test_it_is_restored_and_the_next_checkpoint_is_of_the_newest_format(spark: SparkSession, project: Path) -> None:
    (project / "orders/2.json").write_text('{"id": 8, "cents": 1000}\n')
    restore = RestoreOptions(snapshot="shop/1", root=ROOT)
    job = start_job(shop(project), home=str(project / "home"), base=project, spark=spark, restore=restore)
    finish(job)
    assert delta_rows(project / "out/revenue", "select product, cents::BIGINT from t order by 1") == [
        (0, 0 + 20 + 40 + 60 + 1000),
        (1, 10 + 30 + 50 + 70),
    ]
    shown = sorted(
        row["id"]
        for file in (project / "out/orders").glob("batch=*/*.parquet")
        for row in pq.read_table(file).to_pylist()
    )
    assert shown == list(range(9))
    assert [job.store.load(snapshot).format for snapshot in job.store.list()] == [1, 2]
