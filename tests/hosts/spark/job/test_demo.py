"""`strobe demo`, small: killed in the middle of a checkpoint, resumed, and row for row what DuckDB computes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

STROBE = (sys.executable, "-m", "strobe.cli.main")


def strobe(root: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*STROBE, *args], cwd=root, capture_output=True, text=True, check=False, timeout=600)


def test_nothing_is_lost_and_nothing_is_there_twice(tmp_path: Path) -> None:
    done = strobe(tmp_path, "demo", "--dir", "demo", "--files", "8", "--rows", "200", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert (answer["transfers"], answer["lost"], answer["duplicated"]) == (1600, 0, 0)
    assert answer["checkpoints_verified"] >= 1
    assert answer["tables"]["postings"]["rows"] == 3200
    assert sorted(answer["tables"]) == ["balances", "flagged", "postings"]
    assert answer["invariant"]["name"] == "no money is made"
    assert (answer["invariant"]["asked"] >= 1, answer["invariant"]["violated"]) == (True, 0)
    assert (answer["last_cut"]["accounts"], answer["last_cut"]["total"]) == (answer["tables"]["balances"]["rows"], 0)
    # Where it says to look next, there is something to see.
    home = str(tmp_path / "demo" / ".strobe")
    assert strobe(tmp_path, "verify", "demo", "--home", home).returncode == 0
    assert "timeline 1, incarnation 2" in strobe(tmp_path, "inspect", "demo", "--home", home).stdout


def test_a_directory_that_is_no_demo_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    done = strobe(tmp_path, "demo", "--dir", "mine")
    assert done.returncode == 2
    assert "exists already, and is not a demo of Strobe's." in done.stderr
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"
