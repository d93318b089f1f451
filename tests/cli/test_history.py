"""`strobe checkpoints --all`: what was tried, whichever run tried it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.web.homes import put_history, put_runtime


def checkpoints(home: Path, *options: str) -> str:
    line = [sys.executable, "-m", "strobe.cli.main", "checkpoints", "ledger", *options, "--home", str(home)]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def test_all_shows_what_failed_and_what_is_gone(tmp_path: Path) -> None:
    put_history(tmp_path, "ledger", 5, fails=2)
    put_runtime(tmp_path, "ledger")
    said = checkpoints(tmp_path, "--all")
    assert [line.split()[0] for line in said.splitlines() if "run 1" in line] == ["1", "2", "3", "4", "5"]
    assert "stage 'balances' was lost: its query failed" in said
    history = json.loads(checkpoints(tmp_path, "--all", "--json"))["history"]
    assert [(p["snapshot"], p["status"]) for p in history][:2] == [(1, "complete"), (2, "failed")]
    assert "history" not in json.loads(checkpoints(tmp_path, "--json"))


def test_a_job_of_an_older_version_has_no_history(tmp_path: Path) -> None:
    put_runtime(tmp_path, "ledger")
    assert "all that were tried\n  none" in checkpoints(tmp_path, "--all")
