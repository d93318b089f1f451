"""`possibly` and `definitely` for a run: chooses the fastest way that fits the predicate, and says what it did.

| predicate | possibly | definitely |
|---|---|---|
| one condition per node, all at once | linear in the steps | linear in the intervals |
| a sum over nodes, compared with a number | a largest flow | the lattice |
| any node: a condition on one | each state once | the lattice |
| anything else, and functions in Python | the lattice | the lattice |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from strobe.model.cut import Cut
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId
from strobe.predicates.computation import Positions
from strobe.predicates.condition import ANY, Condition, Term, Unevaluable
from strobe.predicates.conjunctive import Interval, definitely_all, possibly_all
from strobe.predicates.lattice import DEFAULT_BOUNDS, Bounds, Walk
from strobe.predicates.lattice import definitely as definitely_in_lattice
from strobe.predicates.lattice import possibly as possibly_in_lattice
from strobe.predicates.replay import Run
from strobe.predicates.sums import Number, smallest_sum

__all__ = ["Predicate", "Verdict", "definitely", "in_cuts", "possibly"]

Predicate = Condition | Callable[[Cut], Any]


@dataclass(frozen=True)
class Verdict:
    """`holds` is None if the bounds did not allow an answer. `cuts` is how many were looked at, 0 where the answer
    follows without looking at cuts."""

    question: str
    holds: bool | None
    method: str
    events: int
    cuts: int = 0
    widest: int = 0
    witness: Positions | None = None  # possibly: a cut in which it holds
    intervals: Mapping[NodeId, Interval] = field(default_factory=dict)  # definitely: inside all of these it holds
    around: tuple[Positions, ...] = ()  # not definitely: an order of the run that avoids it


def possibly(run: Run, predicate: Predicate, bounds: Bounds = DEFAULT_BOUNDS) -> Verdict:
    computation = run.computation
    if isinstance(predicate, Condition):
        if ANY in predicate.nodes:
            return _possibly_anywhere(run, predicate)
        if predicate.conjuncts is not None:
            witness = possibly_all(computation, _truths(run, predicate.conjuncts))
            return _verdict(run, "possibly", witness is not None, "conjunctive", witness=witness)
        if predicate.sum_below is not None:
            below = predicate.sum_below
            smallest = smallest_sum(computation, _numbers(run, below.terms))
            bound = Fraction(below.bound)
            holds = smallest.total < bound or (not below.strict and smallest.total == bound)
            return _verdict(run, "possibly", holds, "largest flow", witness=smallest.cut if holds else None)
    walk = possibly_in_lattice(computation, in_cuts(run, predicate), bounds)
    return _walked(run, "possibly", walk)


def definitely(run: Run, predicate: Predicate, bounds: Bounds = DEFAULT_BOUNDS) -> Verdict:
    computation = run.computation
    if isinstance(predicate, Condition) and predicate.conjuncts is not None:
        found = definitely_all(computation, _truths(run, predicate.conjuncts))
        named = {computation.nodes[i]: interval for i, interval in (found or {}).items()}
        return _verdict(run, "definitely", found is not None, "conjunctive", intervals=named)
    return _walked(run, "definitely", definitely_in_lattice(computation, in_cuts(run, predicate), bounds))


def _verdict(run: Run, question: str, holds: bool | None, method: str, **more: Any) -> Verdict:
    return Verdict(question, holds, method, run.computation.events, **more)


def _walked(run: Run, question: str, walk: Walk) -> Verdict:
    return _verdict(
        run, question, walk.holds, "lattice",
        cuts=walk.cuts, widest=walk.widest, witness=walk.witness, around=walk.around,
    )  # fmt: skip


def _possibly_anywhere(run: Run, condition: Condition) -> Verdict:
    """Every state of a node is in some consistent cut: its clock is the smallest one."""
    looked = 0
    for index, node in enumerate(run.computation.nodes):
        for number, state in enumerate(run.states(node)):
            looked += 1
            if _holds(run, condition, {ANY: state}, node, number):
                witness = run.computation.clocks(index)[number]
                return _verdict(run, "possibly", True, "each state", cuts=looked, witness=witness)
    return _verdict(run, "possibly", False, "each state", cuts=looked)


def _truths(run: Run, conjuncts: tuple[Term, ...]) -> dict[int, list[bool]]:
    index = {node: i for i, node in enumerate(run.computation.nodes)}
    return {index[part.node]: [bool(value) for value in _values(run, part)] for part in conjuncts}


def _numbers(run: Run, terms: tuple[tuple[int | float, Term], ...]) -> dict[int, list[Number]]:
    index = {node: i for i, node in enumerate(run.computation.nodes)}
    sums: dict[int, list[Number]] = {}
    for factor, part in terms:
        exact = factor if isinstance(factor, int) else Fraction(factor)
        numbers = []
        for number, value in enumerate(_values(run, part)):
            if not isinstance(value, int | float) or value != value or value in (float("inf"), float("-inf")):
                raise _unevaluable(run, part.node, number, f"{part.text} is {value!r}, and no number to add")
            numbers.append(exact * (value if isinstance(value, int) else Fraction(value)))
        known = sums.get(index[part.node])
        sums[index[part.node]] = [a + b for a, b in zip(known, numbers, strict=True)] if known else numbers
    return sums


def _values(run: Run, part: Term) -> list[Any]:
    values = []
    for number, state in enumerate(run.states(part.node)):
        try:
            values.append(part.of(state))
        except Unevaluable as error:
            raise _unevaluable(run, part.node, number, str(error)) from None
    return values


def in_cuts(run: Run, predicate: Predicate) -> Callable[[Positions], bool]:
    """Whether it holds at a consistent cut. States are worked out here, once; each answer is fast."""
    if not isinstance(predicate, Condition):
        return _called(run, predicate)
    if ANY in predicate.nodes:
        rows = [
            [_holds(run, predicate, {ANY: state}, node, number) for number, state in enumerate(run.states(node))]
            for node in run.computation.nodes
        ]
        return lambda cut: any(row[count] for row, count in zip(rows, cut, strict=True))
    index = {node: i for i, node in enumerate(run.computation.nodes)}
    tables = [(index[part.node], _values(run, part)) for part in predicate.parts]
    combine = predicate.combine

    def holds(cut: Positions) -> bool:
        try:
            return bool(combine([values[cut[node]] for node, values in tables]))
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise Failed(
                f"The condition cannot be evaluated at {_name(run, cut)}: {type(error).__name__}: {error}.",
                next="Compare values of one kind, and leave out states in which a field is missing.",
            ) from None

    return holds


def _called(run: Run, predicate: Callable[[Cut], Any]) -> Callable[[Positions], bool]:
    def holds(cut: Positions) -> bool:
        try:
            return bool(predicate(run.cut(cut)))
        except Exception as error:  # somebody else's code
            raise Failed(
                f"The predicate failed at {_name(run, cut)}: {type(error).__name__}: {error}.",
                untouched="Nothing was decided.",
                next="Fix the function; it gets a cut with `states` and `channels`.",
            ) from error

    return holds


def _holds(run: Run, condition: Condition, states: Mapping[NodeId, Any], node: NodeId, number: int) -> bool:
    try:
        return condition.holds(states)
    except Unevaluable as error:
        raise _unevaluable(run, node, number, str(error)) from None


def _unevaluable(run: Run, node: NodeId, number: int, why: str) -> Misuse:
    state = run.states(node)[number]
    fields = ", ".join(state) if isinstance(state, dict) else type(state).__name__
    return Misuse(
        f"The condition cannot be evaluated for {node} after step {run.step(node, number)}: {why}.",
        untouched="Nothing was decided.",
        next=f"The state of {node} has: {fields or 'no fields'}.",
    )


def _name(run: Run, cut: Positions) -> str:
    at = zip(run.computation.nodes, cut, strict=True)
    return "the cut after " + ", ".join(f"step {run.step(node, count)} of {node}" for node, count in at)
