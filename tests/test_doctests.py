"""The examples in docstrings are run: a theory with an example that has gone wrong is worse than none."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in (SOURCE / "strobe").rglob("*.py")
    if "\n>>> " in path.read_text(encoding="utf-8") or "\n    >>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_a_module_give_what_they_say(module: str) -> None:
    results = doctest.testmod(import_module(module), raise_on_error=False)
    assert results.attempted > 0
    assert results.failed == 0
