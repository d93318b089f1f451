"""A place for each label, where it covers nothing that matters.

Solid things are never covered: points, other labels, the nodes' lines. Arrows and cuts are known as spots along their
way; a label may be put over some of them, at a cost, when it matters more than they do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from strobe.verify.diagram.svg import Box, Spot

__all__ = ["Labels"]

_CELL = 32
"""Spots are kept by cells of so many pixels, so that a label looks only at those near it."""


@dataclass
class Labels:
    solid: list[Box] = field(default_factory=list)
    _thin: dict[tuple[int, int], list[Spot]] = field(default_factory=dict)

    def add_line(self, spots: Iterable[Spot]) -> None:
        for spot in spots:
            self._thin.setdefault((int(spot.x // _CELL), int(spot.y // _CELL)), []).append(spot)

    def cost(self, box: Box) -> float:
        if any(box.hits(other) for other in self.solid):
            return math.inf
        covered = 0
        for column in range(int(box.left // _CELL), int(box.right // _CELL) + 1):
            for row in range(int(box.top // _CELL), int(box.bottom // _CELL) + 1):
                covered += sum(box.holds(spot) for spot in self._thin.get((column, row), ()))
        return covered

    def place(self, centres: Iterable[Spot], width: float, height: float, most: float) -> Spot | None:
        """The first of `centres` with the least cost, unless even that is more than `most`."""
        best: tuple[float, Spot, Box] | None = None
        for centre in centres:
            box = Box(centre.x - width / 2, centre.y - height / 2, centre.x + width / 2, centre.y + height / 2)
            cost = self.cost(box)
            if best is None or cost < best[0]:
                best = cost, centre, box
            if cost == 0:
                break
        if best is None or best[0] > most:
            return None
        self.solid.append(best[2])
        return best[1]
