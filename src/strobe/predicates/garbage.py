"""Garbage: objects that no process can ever use again, though others may still refer to them.

Theory
------
Processes keep objects, objects refer to objects, and references travel in messages. An object is in use if some process
holds a root that leads to it, or if a message in flight does: whoever receives it will hold that reference. Everything
else is garbage, cycles across processes included, and stays so: a reference can only be copied by somebody who has it
(Chandy and Lamport 1985 name garbage collection among the stable properties). A cut that forgets a message in flight
would call an object garbage whose only reference is under way.

>>> heap = {"x": ("y",), "y": ("x",), "z": (), "w": ()}
>>> sorted(garbage(heap, roots=["z"], in_flight=["w"]).objects)
['x', 'y']
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Garbage", "garbage"]

Ref = TypeVar("Ref", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Garbage(Generic[Ref]):
    """`objects` can go. `dangling` are references in use to objects that nobody keeps: something went too early."""

    objects: frozenset[Ref]
    dangling: frozenset[Ref]


def garbage(objects: Mapping[Ref, Iterable[Ref]], roots: Iterable[Ref], in_flight: Iterable[Ref] = ()) -> Garbage[Ref]:
    """`objects` has, for every object that some process of the cut keeps, the objects that it refers to."""
    used: set[Ref] = set()
    todo = deque((*roots, *in_flight))
    while todo:
        one = todo.popleft()
        if one not in used:
            used.add(one)
            todo.extend(objects.get(one, ()))
    return Garbage(frozenset(o for o in objects if o not in used), frozenset(u for u in used if u not in objects))
