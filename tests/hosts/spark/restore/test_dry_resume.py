"""`strobe run --dry-run FILE`: whether the job can go on with this file, and what would change. Nothing is touched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.rehearse import dry_resume
from strobe.hosts.spark.restore.plan import RestoreOptions, RestorePlan
from strobe.hosts.spark.restore.resume import ResumePlan
from strobe.model.errors import Misuse
from tests.hosts.spark.restore.test_replacing import tally
from tests.support.spark.jobs import finish
from tests.support.spark.ledger_data import read_transfers, write_transfers
from tests.support.spark.restoring import start

pytestmark = pytest.mark.spark


def look(pipeline: strobe.Pipeline, root: Path, spark: SparkSession, **options: Any) -> ResumePlan | RestorePlan:
    return dry_resume(pipeline, restore=RestoreOptions(**options), home=str(root / "home"), base=root, spark=spark)


def everything(root: Path) -> dict[str, int]:
    found = (os.path.join(place, name) for place, _, names in os.walk(root) for name in names)
    return {name: os.stat(name).st_mtime_ns for name in found}


def test_a_plan_of_a_resume_says_where_stages_go_on_and_what_speaks_against_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=30)
    fresh = look(tally(data), tmp_path, spark)
    assert isinstance(fresh, ResumePlan)
    assert fresh.stages == (("sums", "new"),)
    assert not (tmp_path / "home").exists()

    finish(start(tally(data), tmp_path, spark))
    before = everything(tmp_path)
    same = look(tally(data), tmp_path, spark)
    assert isinstance(same, ResumePlan)
    assert same.stages == (("sums", "goes on behind batch 1"),)
    assert (same.exit_code, same.warnings, same.problems) == (0, (), ())

    changed = look(tally(data, value=lambda: F.max("amount")), tmp_path, spark)
    (problem,) = changed.problems
    assert changed.exit_code == 2
    assert "sums" in problem.what

    more = tally(data)
    more.stage("audit", to=strobe.DeltaSink("audit"))(lambda spark: read_transfers(spark, data))
    grown = look(more, tmp_path, spark)
    assert isinstance(grown, ResumePlan)
    assert dict(grown.stages)["audit"] == "new"  # type: ignore[index]
    assert any("come again" in w for w in grown.warnings)
    assert grown.as_json()["succeeds"] is True

    with pytest.raises(Misuse, match="is no longer in the file"):
        look(tally(data, uid="other"), tmp_path, spark)
    replaced = look(tally(data, uid="other", replaces="sums"), tmp_path, spark, allow_non_restored_state=True)
    assert isinstance(replaced, RestorePlan), "it would go on from the newest checkpoint"
    assert everything(tmp_path) == before
