"""SIGKILL at every step of a sink's two-phase commit: no row lost, none twice, none visible before its snapshot.

One job lives through all of it. After each death every visible row must belong to a complete snapshot (the one whose
part it is in, or a later one), and no row may be there twice; at the end all rows are there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.hosts.spark.crash_points import POINTS
from tests.spark.two_phase import add_file, visible

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PIPELINE = Path(__file__).parent / "pipelines" / "parts_job.py"
CASES = {
    "sinks": [p for p in POINTS if p.startswith(("sink.", "commit."))],
    "settle": [p for p in POINTS if p.startswith("settle.")],
}


def _world(root: Path) -> dict[str, str]:
    return {"NUMBERS_IN": str(root / "in"), "NUMBERS_OUT": str(root / "out"), "PYTHONPATH": str(ROOT)}


def strobe_run(root: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", "run", str(PIPELINE), "--home", str(root / "home"), *options],
        env={**os.environ, **_world(root), **env},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def check_visible(root: Path) -> None:
    ids = [row["id"] for row in visible(root / "out")]
    assert len(ids) == len(set(ids)), "a row is visible twice"


def test_a_job_killed_at_every_step_of_a_commit_loses_and_repeats_nothing(tmp_path: Path) -> None:
    files = 0
    for point in CASES["sinks"]:
        add_file(tmp_path / "in", files)
        files += 1
        run = strobe_run(tmp_path, STROBE_CRASH_AT=point)
        assert run.returncode == -signal.SIGKILL, (
            f"{point} was never reached:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
        )
        check_visible(tmp_path)
    add_file(tmp_path / "in", files)
    run = strobe_run(tmp_path, BOUNDED="1")
    assert run.returncode == 0, run.stderr
    check_visible(tmp_path)
    assert sorted(int(str(row["id"])) for row in visible(tmp_path / "out")) == list(range((files + 1) * 5))


def killed(root: Path, point: str, *options: str, **env: str) -> None:
    run = strobe_run(root, *options, STROBE_CRASH_AT=point, **env)
    assert run.returncode == -signal.SIGKILL, f"{point} was never reached:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}"


def test_a_restore_killed_while_it_settles_a_sink_is_finished_by_the_next_start(tmp_path: Path) -> None:
    add_file(tmp_path / "in", 0)
    killed(tmp_path, "commit.begun")  # the first part is decided, and in doubt
    newest = max(int(p.name[4:]) for p in (tmp_path / "home/jobs/numbers/snapshots").iterdir())
    killed(tmp_path, "settle.part-committed", "-s", f"numbers/{newest}")
    add_file(tmp_path / "in", 1)
    killed(tmp_path, "sink.vote-durable")  # finishes the restore; its second part is prepared, and named by nothing
    killed(tmp_path, "settle.part-aborted", "-s", f"numbers/{newest}")
    run = strobe_run(tmp_path, BOUNDED="1")
    assert run.returncode == 0, run.stderr
    assert sorted(int(str(row["id"])) for row in visible(tmp_path / "out")) == list(range(10))
