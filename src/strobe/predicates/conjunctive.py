"""Conjunctive predicates: one condition for each of some nodes, all at once.

Theory
------
*Weak* (Garg and Waldecker 1994): is there a consistent cut in which all conditions hold? Begin with the first state of
each node in which its condition holds. A cut that has these states must have every step before them and, if one of
those received a message, the step that sent it. Where that leads a node past its state, the state and all cuts with it
are out, and the node moves on to its next state that will do. Nothing is ever taken back, so each step is looked at
once: the time is linear in the steps. What is left when nobody has to move is the smallest such cut.

*Strong* (Garg and Waldecker 1996): does every order of the run pass through such a cut? Each node offers *intervals*,
stretches of states in which its condition holds. If for every pair the beginning of one happens before the end of the
other, then, however the run is ordered, there is a moment when all intervals have begun and none has ended. If some
interval of j can end before one of i begins, it is of no use to this or any later interval of i, and is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strobe.predicates.computation import Computation, Positions

__all__ = ["Interval", "definitely_all", "intervals", "possibly_all"]


@dataclass(frozen=True, slots=True)
class Interval:
    """The condition holds in these states and in neither neighbour."""

    first: int
    last: int


def intervals(holds: Sequence[bool]) -> list[Interval]:
    """The stretches of states in which the condition holds."""
    found: list[Interval] = []
    start: int | None = None
    for state, true in enumerate(holds):
        if true and start is None:
            start = state
        elif not true and start is not None:
            found.append(Interval(start, state - 1))
            start = None
    if start is not None:
        found.append(Interval(start, len(holds) - 1))
    return found


def possibly_all(run: Computation, holds: Mapping[int, Sequence[bool]]) -> Positions | None:
    """The smallest consistent cut in which every condition holds; None if there is none. `holds` says for some nodes,
    by index, in which of their states the condition is true."""
    following = {node: _following(true) for node, true in holds.items()}
    goal = [following[node][0] if node in following else 0 for node in range(len(run.nodes))]
    if any(state > length for state, length in zip(goal, run.lengths, strict=True)):
        return None
    cut = list(run.first)
    behind = [node for node, state in enumerate(goal) if state]
    while behind:
        node = behind.pop()
        needs = run.needs[node]
        for step in range(cut[node], goal[node]):
            need = needs[step]
            if need is not None and goal[need[0]] < need[1]:
                sender, sent = need
                goal[sender] = following[sender][sent] if sender in following else sent
                if goal[sender] > run.lengths[sender]:
                    return None
                behind.append(sender)
        cut[node] = max(cut[node], goal[node])
    return tuple(cut)


def definitely_all(run: Computation, holds: Mapping[int, Sequence[bool]]) -> dict[int, Interval] | None:
    """An interval for each node such that no order of the run avoids a moment inside all of them; None if some order
    does."""
    nodes = list(holds)
    offers = {node: deque(intervals(holds[node])) for node in nodes}
    if not all(offers.values()):
        return None
    changed = deque(nodes)
    queued = set(nodes)
    while changed:
        node = changed.popleft()
        queued.discard(node)
        for other in nodes:
            for early, late in ((node, other), (other, node)):
                if early != late and _can_end_before(run, early, offers[early][0], late, offers[late][0]):
                    offers[early].popleft()
                    if not offers[early]:
                        return None
                    if early not in queued:
                        changed.append(early)
                        queued.add(early)
                    break
            else:
                continue
            if node in queued:
                break
    return {node: offers[node][0] for node in nodes}


def _can_end_before(run: Computation, early: int, ending: Interval, late: int, beginning: Interval) -> bool:
    """Whether some order of the run ends the interval `ending` of node `early` before `beginning` begins."""
    if ending.last == run.lengths[early]:
        return False  # it lasts to the end of the run
    return run.clocks(early)[ending.last + 1][late] < beginning.first


def _following(holds: Sequence[bool]) -> list[int]:
    """For each state the first from there on in which the condition holds; the number of states if there is none."""
    following = [len(holds)] * (len(holds) + 1)
    for state in range(len(holds) - 1, -1, -1):
        following[state] = state if holds[state] else following[state + 1]
    return following
