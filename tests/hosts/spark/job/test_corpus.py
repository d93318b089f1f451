"""Pipelines as other people write them give the tables of plain Spark, whatever is done to them.

A seeded few in each run, each in one way; `python -m tests.corpus` runs all that there are, in every way.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.corpus.jobs import HOWS, run_job
from tests.corpus.plain import run_plain

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = int(os.environ.get("STROBE_CORPUS_SEED", "0"))
FEW = 6
ENTRIES = (
    "channel_and_source", "deduplication", "functions", "ledger_changes", "own_join", "sql",
    "static_join", "triggers", "types", "watermarks", "windows", "word_count",
)  # fmt: skip
DICE = random.Random(SEED)
CASES = [(name, HOWS[i % len(HOWS)]) for i, name in enumerate(DICE.sample(ENTRIES, FEW))]


@pytest.mark.parametrize(("name", "how"), CASES, ids=[f"{name}-{how}" for name, how in CASES])
def test_a_job_gives_what_plain_spark_gives(spark: SparkSession, tmp_path: Path, name: str, how: str) -> None:
    expected = run_plain(name, spark, tmp_path / "expected")
    assert any(expected.values()), "an entry without a result tells nothing"
    assert run_job(name, how, SEED, spark, tmp_path / how) == expected, f"STROBE_CORPUS_SEED={SEED}"
