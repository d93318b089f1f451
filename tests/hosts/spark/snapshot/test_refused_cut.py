"""A cut that is refused: the snapshot fails and says why, and nothing else comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.snapshot import manifests
from strobe.model.errors import Failed
from strobe.store.consistency import check_manifest
from strobe.store.manifest import Manifest
from strobe.verify.violation import Rule, Violation
from tests.support.spark.jobs import check_checkpoints, eventually, stage
from tests.support.spark.ledger_data import read_transfers, write_transfers

pytestmark = pytest.mark.spark


def test_a_refused_cut_ends_no_job_and_leaves_earlier_snapshots_and_what_is_due_to_sinks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=20)
    pipeline = strobe.Pipeline("refused", checkpoint=strobe.CheckpointConfig(interval=None, tolerable_failures=0))

    @pipeline.stage(uid="only", to=strobe.DeltaSink("out", delivery="on_snapshot"))
    def only(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    refusing = False

    def check(manifest: Manifest, previous: Manifest | None = None) -> tuple[Violation, ...]:
        found = check_manifest(manifest, previous)
        return (*found, Violation(Rule.EFFECT_WITHOUT_CAUSE, "An effect without its cause.")) if refusing else found

    def visible() -> int:
        return int(DeltaTable(str(tmp_path / "out")).to_pyarrow_table().num_rows)

    monkeypatch.setattr(manifests, "check_manifest", check)
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        first = job.checkpoint(120)
        eventually(lambda: stage(job, "only").batch == 0, "the rows", job)
        before = visible()
        refusing = True
        for failures in (1, 2):
            with pytest.raises(Failed, match="the cut is not consistent: An effect without its cause"):
                job.checkpoint(120)
            status = job.status()
            assert (status.state, status.failed, status.failures_in_a_row) == ("running", failures, failures)
            assert "An effect without its cause" in status.checkpoints[-1].reason
        assert job.store.list() == (first,)
        assert job.store.verify(first) == ()
        assert visible() == before, "nothing of a refused snapshot is visible"

        refusing = False
        assert job.checkpoint(120) == first + 3
        assert job.status().failures_in_a_row == 0
        eventually(lambda: visible() == 20, "what the refused snapshots would have delivered", job)
        check_checkpoints(job)
    finally:
        job.stop()
