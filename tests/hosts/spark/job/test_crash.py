"""A death at every named step between "batch computed" and "snapshot complete": nothing lost, nothing twice.

One job runs through all of it, with an image kept at each point, in the middle of its work. Every image is resumed: its
complete checkpoints must be sound, and in the end the tables must be what DuckDB says. At the last point the driver is
really killed, and resumed by another one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.crash_points import POINTS
from strobe.hosts.spark.pipeline.loading import load_pipeline
from strobe.store.consistency import check_manifest
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.snapshots import SnapshotStore
from tests.support.spark.images import Images, WatchedDriver
from tests.support.spark.jobs import run_to_the_end
from tests.support.spark.ledger_data import delta_rows, expected_balances, write_transfers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = Path(__file__).parents[3] / "support" / "spark" / "pipelines" / "ledger_job.py"
# In the order in which a run passes them, so that a job that goes on reaches the next one soon.
WORK = [p for p in POINTS if p.startswith(("batch.", "snapshot.", "channel."))]
STORE = [p for p in POINTS if p.startswith("store.")]
CASES = {"work": WORK, "store": STORE}
ROWS = 50


def check_store(root: Path) -> int:
    """Every complete checkpoint is sound: its bytes, and its cut."""
    store = SnapshotStore(FilesystemStore(root / "home"), JobLayout("ledger"), "ledger")
    for snapshot in store.list():
        assert [p for p in store.verify(snapshot) if p.harmful] == []
        assert check_manifest(store.load(snapshot)) == ()
    return len(store.list())


def check_tables(root: Path) -> None:
    rows = ROWS * len(list((root / "in").glob("*.parquet")))
    counted = delta_rows(root / "out/postings", "select count(*), count(distinct id) from t")
    assert counted == [(2 * rows, rows)], f"postings: {counted[0][0]} rows, {counted[0][1]} transfers, of {rows}"
    balances = delta_rows(root / "out/balances", "select account, balance::BIGINT from t order by 1")
    assert balances == expected_balances(root / "in")


@pytest.mark.parametrize(
    ("points", "mode"), [(CASES["work"], "aligned"), (CASES["store"], "unaligned")], ids=["work", "store"]
)
def test_a_job_that_dies_at_any_point_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, points: list[str], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "job"
    env = {"LEDGER_DATA": str(root / "in"), "LEDGER_OUT": str(root / "out"), "LEDGER_MODE": mode}
    run = ["run", str(PIPELINE), "--home", str(root / "home")]
    write_transfers(root / "in", files=2, rows=ROWS)
    images = Images(root)
    one_more = lambda: write_transfers(root / "in", files=len(images.points) + 3, rows=ROWS)  # noqa: E731
    with WatchedDriver(root, *run, env=env) as driver:
        for point in points[:-1]:
            images.take(driver, point, one_more)
        driver.reach(points[-1], one_more)
        driver.kill()
    check_store(root)
    ended = subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", *run], env={**os.environ, **env, "BOUNDED": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert check_store(root) == 1
    check_tables(root)

    for name, value in {**env, "BOUNDED": "1"}.items():
        monkeypatch.setenv(name, value)
    for point in images.points:
        images.put_back(point, spark)
        check_store(root)
        run_to_the_end(load_pipeline(str(PIPELINE)), root / "home", spark)
        assert check_store(root) == 1, point
        check_tables(root)
