"""A side of a comparison in a process of its own, so that none profits from a JVM that another has warmed up."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["percentile", "run_side"]


def run_side(file: str, side: str, work: Path, *arguments: object) -> dict[str, Any]:
    """What `file --side SIDE --work WORK …` prints in its last line, as JSON; in a fresh directory `work`."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    command = [sys.executable, str(Path(file).absolute()), "--side", side, "--work", str(work), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=work)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[math.ceil(share * len(values)) - 1]
