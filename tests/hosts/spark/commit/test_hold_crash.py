"""SIGKILL between a verdict and what follows from it, and between a release and what follows: nothing that is held, or
was not judged, is visible; what was released becomes visible once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.store.releases import read_releases
from tests.support.spark.two_phase import add_file, visible

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[4]
PIPELINE = Path(__file__).parents[3] / "support" / "spark" / "pipelines" / "held_job.py"
CASES = {"hold": ["verdict.noted", "release.noted"]}


def strobe(root: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    world = {"NUMBERS_IN": str(root / "in"), "NUMBERS_OUT": str(root / "out"), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", *words, "--home", str(root / "home")],
        env={**os.environ, **world, **env}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip


def ids(root: Path) -> list[int]:
    return sorted(int(str(row["id"])) for row in visible(root / "out"))


def test_killed_between_verdict_release_and_commit_a_job_shows_nothing_too_early_and_loses_nothing(
    tmp_path: Path,
) -> None:
    add_file(tmp_path / "in", 0)
    run = strobe(tmp_path, "run", str(PIPELINE), STROBE_CRASH_AT="verdict.noted")
    assert run.returncode == -signal.SIGKILL, run.stderr
    assert ids(tmp_path) == [], "the verdict was that it holds, but nothing had followed"
    run = strobe(tmp_path, "run", str(PIPELINE), BOUNDED="1", WRONG="1")  # asked again, and it is another answer
    assert run.returncode == 1, run.stderr
    assert "strobe release numbers" in run.stderr
    assert ids(tmp_path) == []
    newest = max(int(p.name[4:]) for p in (tmp_path / "home/jobs/numbers/snapshots").iterdir())
    said = strobe(tmp_path, "release", "numbers", str(newest), STROBE_CRASH_AT="release.noted")
    assert said.returncode == -signal.SIGKILL, said.stderr
    assert [r.snapshot for r in read_releases(tmp_path / "home", "numbers")] == [newest]
    assert ids(tmp_path) == []
    run = strobe(tmp_path, "run", str(PIPELINE), BOUNDED="1", WRONG="1")
    assert run.returncode == 0, run.stderr
    assert ids(tmp_path) == list(range(5))
