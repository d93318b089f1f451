"""Law 3 over rows: what went into the sources against what came out of the sinks.

Rows are compared by whatever identifies them, and counted: a source may hold the same id twice, and then a sink must
hold it twice. Both checkers take any iterables, once each, and name the first offenders in the order of appearance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

__all__ = ["Offender", "RowCheck", "no_duplicate", "no_loss"]


@dataclass(frozen=True, slots=True)
class Offender:
    """A row that is in the sources `expected` times and in the sinks `found` times."""

    id: Hashable
    expected: int
    found: int


@dataclass(frozen=True)
class RowCheck:
    ok: bool
    sentence: str
    sources: int  # rows
    sinks: int
    wrong: int  # rows too few, or too many
    offenders: tuple[Offender, ...]  # the first of them


def no_loss(sources: Iterable[Hashable], sinks: Iterable[Hashable], *, name: int = 5) -> RowCheck:
    """Every row of the sources is in the sinks, as often as in the sources."""
    return _check(Counter(sources), Counter(sinks), name, lost=True)


def no_duplicate(sources: Iterable[Hashable], sinks: Iterable[Hashable], *, name: int = 5) -> RowCheck:
    """No row is in the sinks more often than in the sources; one that no source has is one too many."""
    return _check(Counter(sources), Counter(sinks), name, lost=False)


def _check(sources: Counter[Hashable], sinks: Counter[Hashable], name: int, *, lost: bool) -> RowCheck:
    more, fewer = (sources, sinks) if lost else (sinks, sources)
    wrong = 0
    offenders: list[Offender] = []
    for row, count in more.items():
        excess = count - fewer[row]
        if excess > 0:
            wrong += excess
            if len(offenders) < name:
                offenders.append(Offender(row, sources[row], sinks[row]))
    rows_in, rows_out = sources.total(), sinks.total()
    if not wrong:
        what = "None is lost." if lost else "None is there too often."
    else:
        first = ", ".join(f"{o.id!r} (sent {_times(o.expected)}, arrived {_times(o.found)})" for o in offenders)
        fate = "lost" if lost else "there too often"
        what = f"{_rows(wrong)} {'is' if wrong == 1 else 'are'} {fate}; the first: {first}."
    sentence = f"{_rows(rows_in)} in the sources, {_rows(rows_out)} in the sinks. {what}"
    return RowCheck(not wrong, sentence, rows_in, rows_out, wrong, tuple(offenders))


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
