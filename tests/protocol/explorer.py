"""Every schedule of a small system, breadth first, each distinct state once.

A system is a `State`: it lists its moves, and says what is wrong with it. The first violation found is at the end of a
shortest schedule, which the error prints move by move.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeVar

from strobe.model.errors import ProtocolError

__all__ = ["Explored", "State", "Violation", "explore"]


class Violation(AssertionError):
    """A rule is broken. `schedule` is a shortest way there."""

    def __init__(self, rule: str, schedule: tuple[str, ...] = ()) -> None:
        self.rule = rule
        self.schedule = schedule
        super().__init__("\n  ".join((rule, *schedule)))


S = TypeVar("S", bound="State")


class State(Protocol):
    def key(self) -> Hashable:
        """Equal keys have equal futures."""
        ...

    def moves(self: S) -> Iterable[tuple[object, Callable[[], S]]]:
        """What can happen next: a label, made text only for a schedule that is shown, and the move. A move returns a
        new state, and raises `Violation` when it breaks a rule."""
        ...

    def check_rest(self) -> None:
        """Raise `Violation` if nothing more will happen by itself, but something is still to be done."""
        ...


class Explored(NamedTuple):
    states: int
    moves: int
    at_rest: int


def explore(start: S, *, limit: int = 2_000_000) -> Explored:
    with _uncollected():
        return _explore(start, limit)


@contextmanager
def _uncollected() -> Iterator[None]:
    """States are kept and have no cycles: looking through all of them again and again finds nothing to free."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _explore(start: S, limit: int) -> Explored:
    first = start.key()
    came: dict[Hashable, tuple[Hashable, object] | None] = {first: None}
    todo = deque([(first, start)])
    taken = 0
    at_rest = 0

    def schedule(key: Hashable, *more: object) -> tuple[str, ...]:
        labels = [*more]
        step = came[key]
        while step is not None:
            key, label = step
            labels.insert(0, label)
            step = came[key]
        return tuple(map(str, labels))

    while todo:
        key, state = todo.popleft()
        try:
            state.check_rest()
        except Violation as violation:
            raise Violation(violation.rule, schedule(key)) from None
        moved = False
        for label, move in state.moves():
            taken += 1
            moved = True
            try:
                following = move()
            except (Violation, ProtocolError) as fault:
                rule = fault.rule if isinstance(fault, Violation) else f"{type(fault).__name__}: {fault}"
                raise Violation(rule, schedule(key, label)) from None
            new = following.key()
            if new not in came:
                came[new] = (key, label)
                todo.append((new, following))
        at_rest += not moved
        assert len(came) <= limit, f"more than {limit} states: make the system smaller"
    return Explored(len(came), taken, at_rest)
