"""Any predicate: walk through the lattice of consistent cuts, level by level (Cooper and Marzullo 1991).

Theory
------
A level holds the cuts with the same number of steps. Adding a step leads from one level to the next, so only two levels
are ever in memory. `possibly` looks at every cut of every level until one satisfies the predicate. `definitely` goes
on only from cuts that do *not* satisfy it: if that walk reaches the last cut, the way that it took is an order of the
run that avoids the predicate; if it runs out of cuts before, every order meets it.

Most cuts can be reached from several of the level below. `possibly` must look at all cuts, and reaches each in one way
only: number the steps in one order that the run allows; a cut is made from the cut without its highest step, and from
no other. (The highest step of a cut has no step of the cut after it, so without it the rest is a consistent cut.) So a
step is added only if its number is above all in the cut, and nothing is ever made twice or looked up.

There can be exponentially many cuts in the number of nodes, so both take bounds, on the cuts that they look at and on
the cuts that they hold, and say "not decided" beyond them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from strobe.predicates.computation import Computation, Positions

__all__ = ["DEFAULT_BOUNDS", "Bounds", "Walk", "cuts", "definitely", "possibly"]


@dataclass(frozen=True, slots=True)
class Bounds:
    cuts: int  # to look at, in all
    width: int  # to hold at a time


DEFAULT_BOUNDS: Final = Bounds(cuts=20_000_000, width=2_000_000)


@dataclass(frozen=True, slots=True)
class Walk:
    """What came of a walk. `holds` is None if a bound ended it. `witness`: for `possibly` the first cut that satisfies
    the predicate; for `definitely` nothing. `around`: an order of the run, as its cuts, that avoids the predicate."""

    holds: bool | None
    cuts: int
    widest: int
    witness: Positions | None = None
    around: tuple[Positions, ...] = ()


def cuts(run: Computation) -> Iterator[Positions]:
    """Every consistent cut once, smaller ones first."""
    walk = _Once(run)
    while walk.level:
        yield from walk.level
        walk.advance()


def possibly(run: Computation, predicate: Callable[[Positions], bool], bounds: Bounds = DEFAULT_BOUNDS) -> Walk:
    seen = widest = 0
    walk = _Once(run)
    while walk.level:
        level = walk.level
        widest = max(widest, len(level))
        if len(level) > bounds.width or seen + len(level) > bounds.cuts:
            return Walk(None, seen, widest)
        found = [cut for cut in level if predicate(cut)]
        if found:
            return Walk(True, seen + len(level), widest, witness=min(found))
        seen += len(level)
        walk.advance()
    return Walk(False, seen, widest)


def definitely(run: Computation, predicate: Callable[[Positions], bool], bounds: Bounds = DEFAULT_BOUNDS) -> Walk:
    seen = widest = 0
    level = {run.first}
    last = run.last
    while level:
        widest = max(widest, len(level))
        if len(level) > bounds.width or seen + len(level) > bounds.cuts:
            return Walk(None, seen, widest)
        seen += len(level)
        avoiding = {cut for cut in level if not predicate(cut)}
        if last in avoiding:
            return Walk(False, seen, widest, around=_way_around(run, predicate))
        level = _next(run, avoiding)
    return Walk(True, seen, widest)


class _Once:
    """Level after level, each cut made once. `level` holds the cuts, `_highest` the number of each one's highest step.
    `advance` is kept flat: it is what a walk spends its time in."""

    def __init__(self, run: Computation) -> None:
        self.level: list[Positions] = [run.first]
        self._highest = [-1]
        numbers: list[list[int]] = [[] for _ in run.nodes]
        for number, node in enumerate(run.order()):
            numbers[node].append(number)
        # By node: its index, the number of each step (and of none, at the end, which is above nothing), and which step
        # of which node each needs; one that needs none needs no step of its own node.
        self._nodes = [
            (
                node,
                [*numbers[node], -1],
                [node if need is None else need[0] for need in run.needs[node]],
                [0 if need is None else need[1] for need in run.needs[node]],
            )
            for node, length in enumerate(run.lengths)
            if length
        ]

    def advance(self) -> None:
        level: list[Positions] = []
        highest: list[int] = []
        add, add_highest = level.append, highest.append
        nodes = self._nodes
        for cut, top in zip(self.level, self._highest, strict=True):
            for node, numbers, senders, sent in nodes:
                count = cut[node]
                number = numbers[count]
                if number > top and cut[senders[count]] >= sent[count]:
                    add((*cut[:node], count + 1, *cut[node + 1 :]))
                    add_highest(number)
        self.level, self._highest = level, highest


def _next(run: Computation, level: set[Positions]) -> set[Positions]:
    """The cuts that have one step more than some cut of the level, which need not be all of its size."""
    found: set[Positions] = set()
    add = found.add
    nodes = [(node, run.needs[node], length) for node, length in enumerate(run.lengths) if length]
    for cut in level:
        for node, needs, length in nodes:
            count = cut[node]
            if count < length:
                need = needs[count]
                if need is None or cut[need[0]] >= need[1]:
                    add((*cut[:node], count + 1, *cut[node + 1 :]))
    return found


def _way_around(run: Computation, predicate: Callable[[Positions], bool]) -> tuple[Positions, ...]:
    """One path of cuts from first to last without the predicate; the caller knows that there is one. Depth first, and
    no cut twice: a cut from which the last one cannot be reached is not tried again."""
    path = [run.first]
    rest = [run.enabled(run.first)]
    dead: set[Positions] = set()
    while path[-1] != run.last:
        cut = path[-1]
        for node in rest[-1]:
            further = (*cut[:node], cut[node] + 1, *cut[node + 1 :])
            if further not in dead and not predicate(further):
                path.append(further)
                rest.append(run.enabled(further))
                break
        else:
            dead.add(path.pop())
            rest.pop()
    return tuple(path)
