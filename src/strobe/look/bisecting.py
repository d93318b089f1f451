"""The snapshot at which an invariant broke, found by asking few of them.

It is assumed that what is broken stays broken: then of two snapshots, an earlier one where it holds and a later one
where it is violated, the one in the middle says in which half it happened. A snapshot that gives no answer is passed
over for the nearest one that does; if only such ones are left, they are reported as lying between the two that are
found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strobe.model.ids import SnapshotId
from strobe.model.invariants import Outcome, Verdict

__all__ = ["Break", "find_break"]


@dataclass(frozen=True, slots=True)
class Break:
    """`good` is the last one where it holds, `bad` the first one where it is violated; None if there is none. `unknown`
    are the snapshots between the two that gave no answer; or those at the end of the range, if there is no answer
    there."""

    good: Verdict | None
    bad: Verdict | None
    unknown: tuple[Verdict, ...] = ()


def find_break(snapshots: Sequence[SnapshotId], ask: Callable[[SnapshotId], Verdict]) -> Break:
    """`snapshots` from the oldest, which should be good, to the newest, which should be bad. None is asked twice."""
    last = ask(snapshots[-1])
    if last.outcome is Outcome.HOLDS:
        return Break(last, None)
    if last.outcome is not Outcome.VIOLATED:
        return Break(None, None, (last,))
    low, first, skipped = _first_answer(snapshots[:-1], ask)
    if first is None:
        return Break(None, last, skipped)
    if first.outcome is Outcome.VIOLATED:
        return Break(None, first, skipped)
    if first.outcome is Outcome.FAILED:
        return Break(None, None, (first,))
    high, good, bad = len(snapshots) - 1, first, last
    unknown: dict[int, Verdict] = {}
    while (middle := _nearest_to_middle(low, high, unknown)) is not None:
        verdict = ask(snapshots[middle])
        if verdict.outcome is Outcome.HOLDS:
            low, good = middle, verdict
        elif verdict.outcome is Outcome.VIOLATED:
            high, bad = middle, verdict
        else:
            unknown[middle] = verdict
    return Break(good, bad, tuple(unknown[n] for n in sorted(unknown) if low < n < high))


def _first_answer(
    snapshots: Sequence[SnapshotId], ask: Callable[[SnapshotId], Verdict]
) -> tuple[int, Verdict | None, tuple[Verdict, ...]]:
    """The oldest whose stages had run, with its place, and those before it."""
    skipped: list[Verdict] = []
    for index, snapshot in enumerate(snapshots):
        verdict = ask(snapshot)
        if verdict.outcome is not Outcome.SKIPPED:
            return index, verdict, tuple(skipped)
        skipped.append(verdict)
    return len(snapshots), None, tuple(skipped)


def _nearest_to_middle(low: int, high: int, unknown: dict[int, Verdict]) -> int | None:
    left = [n for n in range(low + 1, high) if n not in unknown]
    return min(left, key=lambda n: abs(2 * n - low - high), default=None)
