"""The names of the package: each is there, and the reference has it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import strobe
from strobe.model import errors

REFERENCE = Path(__file__).parents[1] / "docs" / "reference" / "pipeline.md"


def test_the_reference_lists_every_name_and_no_other() -> None:
    _, _, section = REFERENCE.read_text().partition("\n## The names of the package\n")
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert sorted(re.findall(r"`(\w+)`", "\n".join(rows[1:]))) == sorted(strobe.__all__)
    assert list(strobe.__all__) == sorted(strobe.__all__)


@pytest.mark.parametrize("name", strobe.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(strobe, name).__name__ == name


def test_what_goes_wrong_is_caught_by_one_name() -> None:
    raised = [getattr(errors, name) for name in errors.__all__]
    assert all(issubclass(each, strobe.StrobeError) for each in raised)
    with pytest.raises(strobe.Misuse, match="no snapshot"):
        strobe.open_snapshot("nope", "/nonexistent")


def test_errors_can_be_caught_without_spark_and_arrow() -> None:
    heavy = "{'pyspark', 'pyarrow', 'duckdb', 'numpy', 'pandas'}"
    code = f"import sys, strobe; strobe.StrobeError, strobe.Misuse; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
