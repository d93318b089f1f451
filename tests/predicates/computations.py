"""Random small runs, and what brute force over all their cuts says."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

from hypothesis import strategies as st

from strobe.predicates.computation import Computation, Positions

__all__ = ["all_cuts", "computations", "holds_definitely", "labels"]


@st.composite
def computations(draw: st.DrawFn, nodes: int = 4, steps: int = 5) -> Computation:
    """Built along an order of its steps, so that causes come before effects."""
    names = [f"n{i}" for i in range(draw(st.integers(1, nodes)))]
    counts = dict.fromkeys(names, 0)
    messages: dict[tuple[str, int], tuple[str, int]] = {}
    for _ in range(draw(st.integers(0, steps * len(names)))):
        node = draw(st.sampled_from(names))
        if counts[node] == steps:
            continue
        counts[node] += 1
        senders = [n for n in names if n != node and counts[n]]
        sender = draw(st.sampled_from([*senders, None]))
        if sender is not None:
            messages[node, counts[node]] = (sender, draw(st.integers(1, counts[sender])))
    return Computation.of(counts, messages)


def labels(run: Computation, values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[list[Any]]]:
    """A value for each state of each node."""
    return st.tuples(*(st.lists(values, min_size=n + 1, max_size=n + 1) for n in run.lengths)).map(list)


def all_cuts(run: Computation) -> list[Positions]:
    return [cut for cut in product(*(range(n + 1) for n in run.lengths)) if run.is_consistent(cut)]


def holds_definitely(run: Computation, predicate: Callable[[Positions], bool]) -> bool:
    """By its definition: no order of the steps avoids the predicate."""
    avoiding = {cut for cut in all_cuts(run) if not predicate(cut)}
    reached = {run.first} & avoiding
    todo = list(reached)
    while todo:
        cut = todo.pop()
        for node in range(len(cut)):
            further = (*cut[:node], cut[node] + 1, *cut[node + 1 :])
            if further in avoiding and further not in reached:
                reached.add(further)
                todo.append(further)
    return run.last not in reached
