"""Sums over nodes: the smallest value that a sum of one number per node takes in any consistent cut.

Theory
------
`a.x + b.y + c.z < k` possibly holds exactly if the smallest such sum is below k (Chase and Garg 1998). Every step
changes the sum by what it does to its own node's number, so the sum in a cut is the first sum plus the changes of the
steps that the cut has. Which steps may be in a cut together is a matter of closure: a step comes with the step before
it and with the step that sent what it received. The lightest closed set is a minimum cut in a network (Picard 1976):
the source feeds each step that lowers the sum, each step that raises it drains into the sink, and a step leads to what
it needs by an edge that no flow can fill. What the source still reaches when the flow is largest is the cut.

The largest flow is found by Dinic's algorithm (1970), in exact numbers: a sum that misses its bound by a rounding error
would be a false alarm.

>>> from strobe.predicates.computation import Computation
>>> run = Computation.of({"a": 1, "b": 1}, {("b", 1): ("a", 1)})  # a gives 5 to b
>>> smallest_sum(run, {0: [10, 5], 1: [0, 5]})
Smallest(total=5, cut=(1, 0))
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

from strobe.predicates.computation import Computation, Positions

__all__ = ["Number", "Smallest", "smallest_sum"]

Number: TypeAlias = int | Fraction


@dataclass(frozen=True, slots=True)
class Smallest:
    total: Number
    cut: Positions


def smallest_sum(run: Computation, values: Mapping[int, Sequence[Number]]) -> Smallest:
    """`values` gives for some nodes, by index, the number in each of their states."""
    cut = _Network(run, values).lightest()
    return Smallest(sum(numbers[cut[node]] for node, numbers in values.items()), cut)


class _Network:
    """Vertices are the steps, node by node, then the source and the sink. An edge and its reverse stand side by side,
    so that `edge ^ 1` is the other of the two; `room` is what can still flow along it."""

    def __init__(self, run: Computation, values: Mapping[int, Sequence[Number]]) -> None:
        self._lengths = run.lengths
        self._base: list[int] = []
        count = 0
        for length in run.lengths:
            self._base.append(count)
            count += length
        self._source, self._sink = count, count + 1
        self._to: list[int] = []
        self._room: list[Number] = []
        self._edges: list[list[int]] = [[] for _ in range(count + 2)]
        endless: Number = 1
        for numbers in values.values():
            for before, after in pairwise(numbers):
                endless += max(after - before, before - after)
        for node, needs in enumerate(run.needs):
            own = values.get(node)
            for step, need in enumerate(needs):
                vertex = self._base[node] + step
                if step:
                    self._join(vertex, vertex - 1, endless)
                if need is not None:
                    self._join(vertex, self._base[need[0]] + need[1] - 1, endless)
                change = own[step + 1] - own[step] if own is not None else 0
                if change < 0:
                    self._join(self._source, vertex, -change)
                elif change > 0:
                    self._join(vertex, self._sink, change)

    def _join(self, a: int, b: int, room: Number) -> None:
        self._edges[a].append(len(self._to))
        self._edges[b].append(len(self._to) + 1)
        self._to += (b, a)
        self._room += (room, 0)

    def lightest(self) -> Positions:
        while (level := self._levels())[self._sink] >= 0:
            self._fill(level)
        return tuple(
            sum(level[base + step] >= 0 for step in range(length))
            for base, length in zip(self._base, self._lengths, strict=True)
        )

    def _levels(self) -> list[int]:
        """How far each vertex is from the source along edges with room; -1 if it cannot be reached."""
        level = [-1] * len(self._edges)
        level[self._source] = 0
        todo = deque([self._source])
        while todo:
            vertex = todo.popleft()
            for edge in self._edges[vertex]:
                other = self._to[edge]
                if level[other] < 0 and self._room[edge] > 0:
                    level[other] = level[vertex] + 1
                    todo.append(other)
        return level

    def _fill(self, level: list[int]) -> None:
        """Send as much as the levels allow, one path after the other. `tried` counts each vertex's used-up edges."""
        tried = [0] * len(self._edges)
        path: list[int] = []
        vertex = self._source
        while True:
            if vertex == self._sink:
                flow = min(self._room[edge] for edge in path)
                for edge in path:
                    self._room[edge] -= flow
                    self._room[edge ^ 1] += flow
                full = next(i for i, edge in enumerate(path) if not self._room[edge])
                vertex = self._to[path[full] ^ 1]
                del path[full:]
            edges = self._edges[vertex]
            while tried[vertex] < len(edges):
                edge = edges[tried[vertex]]
                if self._room[edge] > 0 and level[self._to[edge]] == level[vertex] + 1:
                    path.append(edge)
                    vertex = self._to[edge]
                    break
                tried[vertex] += 1
            else:
                if not path:
                    return
                vertex = self._to[path.pop() ^ 1]
                tried[vertex] += 1
