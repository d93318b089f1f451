"""SIGKILL at every named step between "batch computed" and "snapshot complete": nothing lost, nothing twice.

One job lives through all of it: each run is killed at the next point, in the middle of its work, and the next run
resumes it. After each death every complete checkpoint must be sound; at the end the tables must be what DuckDB says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.hosts.spark.crash_points import POINTS
from strobe.store.consistency import check_manifest
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.snapshots import SnapshotStore
from tests.spark.ledger_data import delta_rows, expected_balances, write_transfers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = Path(__file__).parent / "pipelines" / "ledger_job.py"
# In the order in which a run passes them, so that a job that resumes reaches the next one soon.
WORK = [p for p in POINTS if p.startswith(("batch.", "snapshot.", "channel."))]
STORE = [p for p in POINTS if p.startswith("store.")]
CASES = {"work": WORK, "store": STORE}


def strobe_run(root: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", "run", str(PIPELINE), "--home", str(root / "home")],
        env={**os.environ, "LEDGER_DATA": str(root / "in"), "LEDGER_OUT": str(root / "out"), **env},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def check_store(root: Path) -> int:
    """Every complete checkpoint is sound: its bytes, and its cut."""
    store = SnapshotStore(FilesystemStore(root / "home"), JobLayout("ledger"), "ledger")
    for snapshot in store.list():
        assert [p for p in store.verify(snapshot) if p.harmful] == []
        assert check_manifest(store.load(snapshot)) == ()
    return len(store.list())


def check_tables(root: Path, rows: int) -> None:
    counted = delta_rows(root / "out/postings", "select count(*), count(distinct id) from t")
    assert counted == [(2 * rows, rows)], f"postings: {counted[0][0]} rows, {counted[0][1]} transfers, of {rows}"
    balances = delta_rows(root / "out/balances", "select account, balance::BIGINT from t order by 1")
    assert balances == expected_balances(root / "in")


@pytest.mark.parametrize(
    ("points", "mode"), [(CASES["work"], "aligned"), (CASES["store"], "unaligned")], ids=["work", "store"]
)
def test_a_job_killed_at_every_point_loses_and_repeats_nothing(tmp_path: Path, points: list[str], mode: str) -> None:
    files = 0
    for point in points:
        files += 3
        write_transfers(tmp_path / "in", files=files, rows=100)
        run = strobe_run(tmp_path, STROBE_CRASH_AT=point, LEDGER_MODE=mode)
        assert run.returncode == -signal.SIGKILL, (
            f"{point} was never reached:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
        )
        check_store(tmp_path)
    run = strobe_run(tmp_path, BOUNDED="1", LEDGER_MODE=mode)
    assert run.returncode == 0, run.stderr
    assert check_store(tmp_path) == 1
    check_tables(tmp_path, files * 100)
