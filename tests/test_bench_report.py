"""The table at the end of `make bench`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CALLS = """
from bench._report import figure
figure("live.py", "messages", 0.93, at_least=0.9, unit=" ×")
figure("idle.py", "cores", 0.04, at_most=0.02)
figure("sql.py", "memory", 1024, at_most=2048, unit=" MB")
"""


def python(*words: str, report: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "STROBE_BENCH_REPORT"}
    if report is not None:
        environment["STROBE_BENCH_REPORT"] = str(report)
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_every_figure_stands_in_the_table_with_its_target_and_whether_it_is_met(tmp_path: Path) -> None:
    assert python("-c", CALLS, report=tmp_path / "report").returncode == 0
    lines = python("bench/_report.py", str(tmp_path / "report")).stdout.splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["live.py", "messages", "0.93", "×", "≥", "0.9", "×", "1.03", "met"],
        ["idle.py", "cores", "0.04", "≤", "0.02", "0.50", "missed"],
        ["sql.py", "memory", "1,024", "MB", "≤", "2,048", "MB", "2.00", "met"],
    ]


def test_without_a_report_nothing_is_written() -> None:
    assert python("-c", CALLS).returncode == 0


def test_a_figure_has_one_target() -> None:
    for targets in ("", ", at_least=1, at_most=2"):
        done = python("-c", f"from bench._report import figure\nfigure('a.py', 'what', 1.0{targets})")
        assert "ValueError: what: a figure has one target" in done.stderr


def test_a_report_without_figures_is_a_table_without_rows(tmp_path: Path) -> None:
    (tmp_path / "report").touch()
    assert len(python("bench/_report.py", str(tmp_path / "report")).stdout.splitlines()) == 2
