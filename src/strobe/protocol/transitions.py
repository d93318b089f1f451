"""Phases as a literal table: what follows a phase, and on which event. A machine moves by its table alone.

The table has every move that is legal. A machine that asks for another one has a fault of its own, not of its caller:
each step checks what came from outside before it moves. The same table draws the diagram in the docs, and the test of a
machine takes every move of its table, so that none stands there for nothing.

>>> class Door(Enum):
...     OPEN = "open"
...     SHUT = "shut"
>>> DOOR = Transitions(Door.OPEN, {(Door.OPEN, "push"): Door.SHUT, (Door.SHUT, "pull"): Door.OPEN})
>>> DOOR.after(Door.OPEN, "push")
<Door.SHUT: 'shut'>
>>> DOOR.after(Door.SHUT, "push")
Traceback (most recent call last):
    ...
strobe.model.errors.HostFault: Nothing leads on from 'shut' by 'push'. It goes on by: pull.
>>> print(DOOR.drawing())
stateDiagram-v2
    [*] --> open
    open --> shut: push
    shut --> open: pull
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from strobe.model.errors import HostFault

__all__ = ["Transitions"]

P = TypeVar("P", bound=Enum)


class Transitions(Generic[P]):
    """The moves of one machine. A phase that no move leaves is an end."""

    def __init__(self, first: P, moves: Mapping[tuple[P, str], P]) -> None:
        self.first = first
        self.moves = dict(moves)

    def after(self, phase: P, event: str) -> P:
        following = self.moves.get((phase, event))
        if following is None:
            events = ", ".join(sorted(e for p, e in self.moves if p is phase)) or "nothing, it is an end"
            raise HostFault(f"Nothing leads on from {phase.value!r} by {event!r}. It goes on by: {events}.")
        return following

    def drawing(self) -> str:
        """As a state diagram in the language of Mermaid. Events between the same two phases share an arrow."""
        arrows: dict[tuple[P, P], list[str]] = {}
        for (phase, event), following in self.moves.items():
            arrows.setdefault((phase, following), []).append(event)
        lines = [f"    {a.value} --> {b.value}: {', '.join(events)}" for (a, b), events in arrows.items()]
        ends = {phase for phase in self.moves.values() if all(p is not phase for p, _ in self.moves)}
        lines += [f"    {phase.value} --> [*]" for phase in type(self.first) if phase in ends]
        return "\n".join(["stateDiagram-v2", f"    [*] --> {self.first.value}", *lines])
