"""Every file in examples/ runs, and what it promises holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.job.job import Job, JobState, start_job
from strobe.hosts.spark.pipeline.loading import load_pipeline
from strobe.store.consistency import check_manifest
from tests.support.spark.jobs import PATIENCE, eventually
from tests.support.spark.ledger_data import delta_rows

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[4] / "examples"


def ledger(job: Job, root: Path) -> None:
    """It never ends: checkpointed while it works, then canceled. All money is still there."""

    def counted() -> bool:
        table = root / "out/balances"
        return (table / "_delta_log").is_dir() and delta_rows(table, "select count(*) from t") > [(0,)]

    eventually(counted, "balances", job)
    job.checkpoint(PATIENCE)
    job.cancel()
    assert job.state is JobState.CANCELED
    (balances, postings), *_ = delta_rows(root / "out/balances", "select sum(balance), sum(postings) from t")
    assert balances == 0
    assert postings > 0


CHECKS: dict[str, Callable[[Job, Path], None]] = {"ledger": ledger}


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_does_what_it_says(spark: SparkSession, tmp_path: Path, file: Path) -> None:
    pipeline = load_pipeline(str(file))
    assert pipeline.name == file.stem
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    try:
        CHECKS[file.stem](job, tmp_path)
    finally:
        job.stop()
    manifests = [job.store.load(snapshot) for snapshot in job.store.list()]
    assert manifests
    for manifest in manifests:
        assert check_manifest(manifest) == ()
        assert job.store.verify(manifest.snapshot) == ()
