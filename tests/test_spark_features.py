"""The page about Spark's features is true: each row names what shows it, and that uses what the row is about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import strobe
from strobe.model.errors import Misuse

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/reference/spark-features.md"
ENTRIES = ROOT / "tests/corpus/entries"
CODE = re.compile(r"`([^`]+)`")


def rows(page: str) -> Iterator[list[str]]:
    """The cells of each row of each table, without the tables' heads."""
    for line, after in zip(page.splitlines(), [*page.splitlines()[1:], ""], strict=True):
        if line.startswith("| ") and not after.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split(" | ")]


def wrong_in(cells: list[str]) -> list[str]:
    """What a row names and nobody has."""
    shown = CODE.findall(cells[-1])
    if not shown:
        return [f"nothing shows {cells[0]!r}"]
    texts, wrong = [], []
    for name in shown:
        path, _, test = name.partition("::")
        file = ROOT / path if test else ENTRIES / f"{path}.py"
        text = file.read_text() if file.is_file() else ""
        if not text or (test and f"def {test}(" not in text):
            wrong.append(f"there is no {name}")
        texts.append(text)
    if "::" not in cells[-1]:
        used = CODE.findall(cells[0])
        wrong += [f"{' and '.join(shown)} does not use {word}" for word in used if not any(word in t for t in texts)]
    return wrong


def test_every_row_names_an_entry_or_a_test_that_shows_it() -> None:
    found = list(rows(PAGE.read_text()))
    assert len(found) > 30
    assert [wrong for cells in found for wrong in wrong_in(cells)] == []


def test_every_entry_is_named_on_the_page() -> None:
    named = {name for cells in rows(PAGE.read_text()) for name in CODE.findall(cells[-1])}
    assert {path.stem for path in ENTRIES.glob("*.py")} <= named


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("| `dropDuplicates` | yes | | `no_such_entry` |", "there is no no_such_entry"),
        ("| `sendToMars` | yes | | `windows` |", "windows does not use sendToMars"),
        ("| sockets | refused | | `tests/test_repo.py::test_x` |", "there is no tests/test_repo.py::test_x"),
        ("| sockets | refused | | |", "nothing shows 'sockets'"),
    ],
)  # fmt: skip
def test_a_row_that_is_not_true_is_caught(row: str, wrong: str) -> None:
    (cells,) = rows(row)
    assert wrong in wrong_in(cells)


@pytest.mark.parametrize("trigger", [{"once": True}, {"continuous": "1 second"}, {"realTime": "5 minutes"}])
def test_triggers_that_are_not_supported_are_refused(trigger: dict[str, Any]) -> None:
    with pytest.raises(Misuse, match="trigger"):
        strobe.Pipeline("p").stage("stage", trigger=trigger)


@pytest.mark.parametrize("bounded", [True, False])
def test_a_stage_cannot_end_behind_one_that_never_does(bounded: bool) -> None:
    pipeline = strobe.Pipeline("p")
    now: dict[str, Any] = {"availableNow": True}
    pipeline.stage("ends", trigger=now)(lambda spark: spark)
    pipeline.stage("source", trigger=now if bounded else None)(lambda spark: spark)
    pipeline.stage("between", reads="source")(lambda source: source)
    pipeline.stage("last", reads=["ends", "between"], trigger=now, to=strobe.MemorySink())(lambda **both: both["ends"])
    refused = "'last' has the trigger availableNow, but it reads 'between', which never ends"
    with nullcontext() if bounded else pytest.raises(Misuse, match=refused):
        pipeline.check()
