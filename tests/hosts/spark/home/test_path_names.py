"""A home below a path that would be written otherwise in a URL: a space, a percent sign, a plus, letters beyond ASCII.

Spark takes some paths literally and decodes others. State with schemas of its own (transformWithState) has paths in its
files, which change with every unclean end, restore and rescale.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strobe
from tests.corpus.jobs import dying_at
from tests.hosts.spark.checkpoint.test_avro_state import counts_of, pipeline
from tests.support.spark.jobs import PATIENCE, finish
from tests.support.spark.ledger_data import write_transfers
from tests.support.spark.restoring import start

SCHEMA = "n BIGINT, total BIGINT"


@pytest.mark.spark
@pytest.mark.parametrize("name", ["my jobs & co", "größe 100%", "a+b"])
def test_state_is_killed_rescaled_and_restored_below_any_path(spark: SparkSession, tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    data = write_transfers(root / "in", files=1, rows=30, accounts=4)

    def made() -> strobe.Pipeline:
        return pipeline(data, SCHEMA, "unsaferow")

    def counted() -> int:
        return sum(n for n, _ in counts_of(root).values())

    finish(start(made(), root, spark))
    assert counted() == 30

    write_transfers(data, files=2, rows=30, accounts=4)
    with dying_at("batch.in-sink", 1) as died:
        job = start(made(), root, spark)
        try:
            assert job.wait(PATIENCE)
        finally:
            job.stop()
    assert died == ["batch.in-sink of counts"]
    finish(start(made(), root, spark))
    assert counted() == 60

    write_transfers(data, files=3, rows=30, accounts=4)
    finish(start(made(), root, spark, partitions=3))
    assert counted() == 90

    finish(start(made(), root, spark, snapshot="counted/1"))
    assert counted() == 90
