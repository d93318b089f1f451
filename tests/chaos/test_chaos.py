"""A short run of chaos, always the same: what `make chaos` does for as long as one likes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.services("kafka", "postgres")]

ROOT = Path(__file__).parents[2]
SEED = 21654  # Postgres silent; executor, workers, broker, Postgres and driver killed; a death right after a commit


def test_a_ledger_survives_faults_of_every_kind_with_nothing_lost_and_nothing_twice(tmp_path: Path) -> None:
    command = ["-m", "chaos", "--seed", str(SEED), "--faults", "6", "--closing", "1", "--work", str(tmp_path / "work")]
    run = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=3600, check=False,
    )  # fmt: skip
    said = f"\n{run.stdout}\n{run.stderr}"
    assert run.returncode == 0, said
    closing = re.fullmatch(r"lost 0, duplicated 0, kills (\d+)", run.stdout.splitlines()[-1])
    assert closing is not None, said
    assert int(closing[1]) >= 5, said
    audited = re.search(r"checkpoints held against the truth: (\d+)", run.stdout)
    assert audited is not None, said
    assert int(audited[1]) > 0, said
