"""Deadlock, from what the processes of a cut wait for.

Theory
------
A process either can act or waits: for `need` of the processes in `of`. All of them is the AND model (resources), one of
them the OR model (messages), anything in between the k-of-n model, which contains both (Knapp 1987). A grant that is on
its way to a waiting process counts as given: the process that sent it is no longer waited for.

*Reduction* decides: a process that can act may finish and give all that others wait for; a process whose need is met by
such processes can act too. What is left when nobody more can act waits for ever, because only processes of the same
kind could help. Deadlock is stable, so a consistent cut that shows one proves that there is one now. A cut that is not
consistent can miss a grant in flight, or count an old wait beside a new one, and show a phantom.

>>> found = deadlock({"a": all_of("b"), "b": all_of("a"), "c": any_of("a", "d"), "d": None})
>>> found.processes, found.core
(('a', 'b'), ('a', 'b'))
>>> deadlock({"a": all_of("b"), "b": all_of("a")}, grants={("b", "a")}) is None
True
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from strobe.model.errors import Misuse

__all__ = ["Deadlock", "Wait", "all_of", "any_of", "at_least", "deadlock"]


@dataclass(frozen=True, slots=True)
class Wait:
    """What a process waits for: `need` of the processes in `of`. `what` says it in words, for people."""

    need: int
    of: tuple[str, ...]
    what: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.need <= len(self.of) or len(set(self.of)) < len(self.of):
            raise Misuse(
                f"A process cannot wait for {self.need} of {', '.join(self.of) or 'nobody'}.",
                next="Name each process once, and need at least 0 and at most all of them.",
            )

    def __str__(self) -> str:
        names = ", ".join(self.of)
        if self.need == len(self.of):
            text = names if len(self.of) == 1 else f"all of {names}"
        else:
            text = f"any of {names}" if self.need == 1 else f"{self.need} of {names}"
        return f"{text} ({self.what})" if self.what else text


def all_of(*processes: str, what: str = "") -> Wait:
    return Wait(len(processes), processes, what)


def any_of(*processes: str, what: str = "") -> Wait:
    return Wait(1, processes, what)


def at_least(need: int, *processes: str, what: str = "") -> Wait:
    return Wait(need, processes, what)


@dataclass(frozen=True, slots=True)
class Deadlock:
    """`processes` wait for ever. `core` are those among them that wait for each other, a cycle or a knot; the others
    wait for these. Both in the order of the cut."""

    processes: tuple[str, ...]
    core: tuple[str, ...]
    waits: Mapping[str, Wait]

    def __str__(self) -> str:
        return "Deadlock: " + "; ".join(f"{p} waits for {self.waits[p]}" for p in self.core) + "."


def deadlock(waits: Mapping[str, Wait | None], grants: Collection[tuple[str, str]] = ()) -> Deadlock | None:
    """`waits` has every process of the cut: None if it can act. `grants` are pairs (from, to) with a message in flight
    that gives what the receiver waits for. A process that is waited for and not in the cut never gives anything."""
    missing: dict[str, int] = {}
    waiters: dict[str, list[str]] = {}
    granted = set(grants)
    ready: deque[str] = deque()
    for process, wait in waits.items():
        missing[process] = 0
        if wait is not None:
            missing[process] = wait.need - sum((giver, process) in granted for giver in wait.of)
            for giver in wait.of:
                if (giver, process) not in granted:
                    waiters.setdefault(giver, []).append(process)
        if missing[process] <= 0:
            ready.append(process)
    while ready:
        for process in waiters.get(ready.popleft(), ()):
            missing[process] -= 1
            if missing[process] == 0:
                ready.append(process)
    stuck = tuple(process for process in waits if missing[process] > 0)
    if not stuck:
        return None
    held = {process: wait for process in stuck if (wait := waits[process]) is not None}
    return Deadlock(stuck, _core(stuck, held, granted), held)


def _core(stuck: tuple[str, ...], waits: Mapping[str, Wait], granted: set[tuple[str, str]]) -> tuple[str, ...]:
    """The processes that can reach themselves and from which nothing else leads on: a smallest component that waits
    only for itself. One that waits for somebody who is not there is a component of its own."""
    edges = {
        process: tuple(giver for giver in waits[process].of if giver in waits and (giver, process) not in granted)
        for process in stuck
    }
    components = _components(edges)
    number = {process: i for i, component in enumerate(components) for process in component}
    last: list[list[str]] = [
        component
        for i, component in enumerate(components)
        if all(number[giver] == i for process in component for giver in edges[process])
    ]
    smallest = min(last, key=len)
    core = set(smallest)
    return tuple(process for process in stuck if process in core)


def _components(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Strongly connected components (Tarjan 1972), without recursion: a chain of waits may be long."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root in edges:
        if root in index:
            continue
        path = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while path:
            node, rest = path[-1]
            for other in rest:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    path.append((other, iter(edges[other])))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[str] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    found.append(component)
    return found
