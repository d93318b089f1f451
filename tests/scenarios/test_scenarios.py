"""Each scenario is a test: its file must be exactly what playing it gives. Only `--rewrite` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.harness import difference, play
from tests.scenarios.worlds import WORLDS

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    expected = path.read_text(encoding="utf-8")
    played = play(expected, WORLDS)
    if request.config.getoption("--rewrite"):
        if played != expected:
            path.write_text(played, encoding="utf-8")
        return
    if problem := difference(path.name, expected, played):
        pytest.fail(problem, pytrace=False)
