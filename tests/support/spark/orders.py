"""What tests of orders to a job in a process of its own share: starting it, asking it, judging its windows."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest

from strobe.cli.main import main
from strobe.store.locate import locate
from tests.support.spark.ledger_data import delta_rows

PIPELINE = Path(__file__).parent / "pipelines" / "windows_job.py"
PATIENCE = 240.0


def windows(data: Path) -> list[tuple[int, int]]:
    """(start in seconds, rows) of each window of ten seconds, from the source."""
    starts = "epoch(time_bucket(interval 10 seconds, ts))::BIGINT"
    query = f"select {starts}, count(*) from '{data}/*.parquet' group by 1 order by 1"
    with duckdb.connect() as db:
        return [(int(start), int(rows)) for start, rows in db.execute(query).fetchall()]


def windows_in(table: Path) -> list[tuple[Any, ...]]:
    return delta_rows(table, "select epoch(start)::BIGINT, sum(rows)::BIGINT from t group by 1 order by 1")


@dataclass(frozen=True)
class Place:
    """A directory with a source, a home and a table."""

    root: Path

    def env(self, **more: str) -> dict[str, str]:
        return {**os.environ, "WINDOWS_DATA": str(self.root / "in"), "WINDOWS_OUT": str(self.root / "out"), **more}

    def command(self, *args: str) -> list[str]:
        """For a process of its own."""
        return [sys.executable, "-m", "strobe.cli.main", *args, "--home", str(self.root / "home")]

    def strobe(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """A command: in this process, unless it starts a job."""
        if args[0] != "run":
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
                main([*args, "--home", str(self.root / "home")])
            code = ended.value.code
            return subprocess.CompletedProcess(
                args, code if isinstance(code, int) else 0, out.getvalue(), err.getvalue()
            )
        return subprocess.run(
            self.command(*args),
            env=self.env(**env), capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip

    def run(self, **env: str) -> subprocess.Popen[bytes]:
        """`strobe run`, until it is told something else; its output is in `said`."""
        with (self.root / "said").open("ab") as said:
            return subprocess.Popen(
                self.command("run", str(PIPELINE)),
                env=self.env(**env), stdout=said, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def runtime(self, job: str = "windows") -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.root / "home/jobs" / job / "runtime.json").read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return value

    def said(self) -> str:
        return (self.root / "said").read_text()[-3000:]

    def sound(self, name: str) -> bool:
        found = locate(name, self.root / "home")
        return [p for p in found.store.verify(found.snapshot) if p.harmful] == []
