"""SIGKILL while tables and files are committed and taken back: each row is in each of them once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts.spark.connectors.test_sinks_jobs import seen, shows
from tests.support.spark.two_phase import add_file

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = Path(__file__).parents[3] / "support" / "spark" / "pipelines" / "sinks_job.py"


def strobe_run(root: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", "run", str(PIPELINE), "--home", "home", *options],
        cwd=root,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def killed(root: Path, point: str, *options: str) -> None:
    run = strobe_run(root, *options, STROBE_CRASH_AT=point)
    assert run.returncode == -signal.SIGKILL, f"{point} was never reached:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"


def test_a_job_killed_in_a_commit_and_in_a_restore_has_each_row_once(tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0)
    killed(tmp_path, "commit.visible")  # of one sink; the others' parts are in doubt, or not yet begun
    add_file(tmp_path / "in", 1)
    killed(tmp_path, "commit.begun")
    snapshots = sorted(int(p.name[4:]) for p in (tmp_path / "home/jobs/numbers/snapshots").iterdir())
    killed(tmp_path, "restore.sink-back", "-s", f"numbers/{snapshots[0]}")
    run = strobe_run(tmp_path, BOUNDED="1")
    assert run.returncode == 0, run.stderr
    assert shows(tmp_path, 10), seen(tmp_path)


def test_a_delivery_is_not_changed_in_the_middle_of_a_batch(tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0)
    run = strobe_run(tmp_path, DELIVERY="on_batch", STROBE_CRASH_AT="batch.in-sink")
    assert run.returncode == -signal.SIGKILL, run.stderr
    for _ in range(2):  # it was not tried and half begun
        run = strobe_run(tmp_path, BOUNDED="1")
        assert run.returncode == 2, run.stderr
        assert "has delivered on batch until now, and has batch 0" in run.stderr
        assert "Run the file as it was" in run.stderr
    run = strobe_run(tmp_path, DELIVERY="on_batch", BOUNDED="1")
    assert run.returncode == 0, run.stderr
    add_file(tmp_path / "in", 1)
    run = strobe_run(tmp_path, BOUNDED="1")
    assert run.returncode == 0, run.stderr
    assert shows(tmp_path, 10), seen(tmp_path)
