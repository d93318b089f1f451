"""Each scenario is a test: its file must be exactly what playing it gives. Only `--rewrite` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.harness import judge
from tests.scenarios.worlds import WORLDS

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    if problem := judge(path, WORLDS, rewrite=request.config.getoption("--rewrite")):
        pytest.fail(problem, pytrace=False)
