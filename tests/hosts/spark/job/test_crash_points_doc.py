"""docs/reference/crash-points.md is the table in the code, and every point in it is one that a test dies at."""

from __future__ import annotations

import ast
import importlib
import re

from strobe.hosts.spark.crash_points import POINTS
from tests.support.documents import ROOT


def rows() -> list[tuple[str, str, str]]:
    """(point, what has happened, case of the test), as the document lists them."""
    text = (ROOT / "docs/reference/crash-points.md").read_text(encoding="utf-8")
    return [(m[1], m[2], m[3]) for m in re.finditer(r"^\| `([\w.-]+)` \| (.+?) \| `(\w+)` \|$", text, re.M)]


def test_the_document_lists_exactly_the_points_with_their_meaning_in_their_order() -> None:
    assert [(point, meaning) for point, meaning, _ in rows()] == list(POINTS.items())


def cases() -> dict[str, set[str]]:
    """The points at which each case dies, from the CASES of every crash test."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests/hosts/spark").rglob("test_*crash.py")):
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for name, points in module.CASES.items():
            assert name not in found, f"two tests have a case {name!r}"
            found[name] = set(points)
    return found


def test_every_point_is_in_the_case_of_a_crash_test_that_the_document_names() -> None:
    killed_at = cases()
    for point, _, case in rows():
        assert point in killed_at[case], f"{point} is not in the case {case!r} of any crash test"
    assert set().union(*killed_at.values()) == set(POINTS)


def calls() -> dict[str, set[str]]:
    """Which modules call which point by name."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "src/strobe").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in ("point", "on_point", "_on_point"):
                    found.setdefault(str(node.args[0].value), set()).add(path.name)
    return found


def test_the_code_passes_exactly_the_points_of_the_table() -> None:
    assert set(calls()) == set(POINTS)
