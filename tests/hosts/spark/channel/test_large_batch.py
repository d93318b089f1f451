"""Batches of more than one page and more than one block of the codec: small ones hide what large ones break."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.channel.parquet import write_batch
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.model.ids import Incarnation, NodeId, Timeline

pytestmark = pytest.mark.spark


def test_a_batch_of_many_pages_is_read_back_by_arrow_as_spark_wrote_it(spark: SparkSession, tmp_path: Path) -> None:
    rows = 1_000_000
    # Numbers that compress a little: with Spark's "lz4" Arrow calls just these pages corrupt.
    batch = spark.range(rows).selectExpr(
        "id div 2 as id",
        "cast(pmod(xxhash64(id), 100000) as int) as account",
        "pmod(xxhash64(id + 7), 1000) - 500 as delta",
    )
    writer = ChannelWriter(
        tmp_path / "c", batch.schema, job="j", producer=NodeId("p"), timeline=Timeline(1), incarnation=Incarnation(1)
    )
    commit = write_batch(batch, 0, writer, max_files=1)
    assert commit is not None
    assert commit.rows == rows
    (file,) = commit.files
    with pq.ParquetFile(tmp_path / "c" / file.path) as parquet:  # in pieces, as the channel's source reads it
        table = pa.Table.from_batches(parquet.iter_batches(64 * 1024, use_threads=False))
    expected = batch.selectExpr("sum(id)", "sum(account)", "sum(delta)").first()
    assert expected is not None
    assert [pc.sum(table[name]).as_py() for name in ("id", "account", "delta")] == list(expected)
