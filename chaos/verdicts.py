"""What is in a system, compared with what must be there: which rows are lost, which are there twice, which are wrong.

A row is known by its key. A key of the truth that is not found is lost; each further row with it is a duplicate; a row
that is not as the truth has it, or whose key the truth does not know, is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Verdict", "compare"]

Key = TypeVar("Key", bound=Hashable)
Row = TypeVar("Row")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """`samples` describe a few of the faults."""

    what: str
    expected: int
    found: int
    lost: int = 0
    duplicated: int = 0
    wrong: int = 0
    samples: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        return not (self.lost or self.duplicated or self.wrong)


def compare(what: str, expected: Mapping[Key, Row], found: Iterable[Row], key: Callable[[Row], Key]) -> Verdict:
    """`expected` is the truth by key."""
    seen: dict[Key, int] = {}
    rows = duplicated = wrong = 0
    samples: list[str] = []
    for row in found:
        rows += 1
        name = key(row)
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            duplicated += 1
            samples.append(f"twice: {row}")
        elif name not in expected:
            wrong += 1
            samples.append(f"unknown: {row}")
        elif expected[name] != row:
            wrong += 1
            samples.append(f"wrong: {row}, should be {expected[name]}")
        if len(samples) > 4 * _SHOWN:
            del samples[_SHOWN:]
    missing = [name for name in expected if name not in seen]
    samples = [*samples[:_SHOWN], *(f"lost: {expected[name]}" for name in missing[:_SHOWN])]
    return Verdict(what, len(expected), rows, len(missing), duplicated, wrong, tuple(samples))
