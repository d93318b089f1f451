"""A run as a partial order of steps, and its consistent cuts.

Theory
------
Node i takes `lengths[i]` steps and so passes through `lengths[i] + 1` states: state 0 is the first, state k the one
after step k. A *cut* names one state for each node, as a tuple of numbers. It is consistent if it has the sending step
of every message whose receiving step it has. The consistent cuts form a distributive lattice (Mattern 1989): each is
reached from the empty one by adding one step after the other, and any such path is an order in which the run could
have happened.

A step receives at most one message, so it needs at most one step of another node. In a *consistent* cut the next step
of a node may be added exactly if the cut has that one: the causes of the cause are there already. This is what makes
walking the lattice cheap: one comparison for each candidate, whatever the number of nodes.

>>> ping = Computation.of({"a": 1, "b": 2}, {("b", 2): ("a", 1)})  # b's second step receives what a's first one sent
>>> ping.is_consistent((0, 1)), ping.is_consistent((0, 2)), ping.is_consistent((1, 2))
(True, False, True)
>>> ping.clocks(1)  # what each state of b knows of a and of b
[(0, 0), (0, 1), (1, 2)]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from strobe.model.errors import Misuse
from strobe.model.ids import NodeId

__all__ = ["Computation", "Positions", "Step"]

Positions: TypeAlias = tuple[int, ...]  # of a cut: how many steps of each node it has
Step: TypeAlias = tuple[int, int]  # (index of the node, number of the step from 1)


@dataclass(frozen=True)
class Computation:
    nodes: tuple[NodeId, ...]
    lengths: Positions
    needs: tuple[tuple[Step | None, ...], ...]  # by node and step (from 0): the step whose message it receives

    @classmethod
    def of(cls, steps: Mapping[str, int], messages: Mapping[tuple[str, int], tuple[str, int]]) -> Computation:
        """From the number of steps of each node, and for each receiving step the step that sent."""
        index = {node: i for i, node in enumerate(steps)}
        needs: list[list[Step | None]] = [[None] * count for count in steps.values()]
        for (receiver, received), (sender, sent) in messages.items():
            for node, step in ((receiver, received), (sender, sent)):
                if node not in index or not 1 <= step <= steps[node]:
                    raise Misuse(f"There is no step {step} of {node!r} in this run.")
            needs[index[receiver]][received - 1] = (index[sender], sent)
        return cls(tuple(map(NodeId, steps)), tuple(steps.values()), tuple(map(tuple, needs)))

    @property
    def first(self) -> Positions:
        return (0,) * len(self.nodes)

    @property
    def last(self) -> Positions:
        return self.lengths

    @property
    def events(self) -> int:
        return sum(self.lengths)

    def is_consistent(self, cut: Sequence[int]) -> bool:
        for count, needs in zip(cut, self.needs, strict=True):
            for need in needs[:count]:
                if need is not None and cut[need[0]] < need[1]:
                    return False
        return True

    def enabled(self, cut: Positions) -> Iterator[int]:
        """The nodes whose next step can be added to this consistent cut."""
        for node, count in enumerate(cut):
            if count < self.lengths[node]:
                need = self.needs[node][count]
                if need is None or cut[need[0]] >= need[1]:
                    yield node

    def order(self) -> Iterator[int]:
        """The node of each step, in an order that puts causes before effects. Misuse if there is none."""
        cut = list(self.first)
        waiting: dict[Step, list[int]] = {}
        ready = list(range(len(self.nodes)))
        taken = 0
        while ready:
            node = ready.pop()
            needs, count, length = self.needs[node], cut[node], self.lengths[node]
            while count < length:
                need = needs[count]
                if need is not None and cut[need[0]] < need[1] and need[0] != node:
                    waiting.setdefault(need, []).append(node)
                    break
                count += 1
                cut[node] = count
                taken += 1
                yield node
                if (node, count) in waiting:
                    ready += waiting.pop((node, count))
        if taken < self.events:
            stuck = ", ".join(self.nodes[n] for n, count in enumerate(cut) if count < self.lengths[n])
            raise Misuse(f"The steps of {stuck} wait for each other: no order of this run is possible.")

    def clocks(self, node: int) -> list[Positions]:
        """For each state of the node, how many steps of every node happened before it: the smallest consistent cut
        that has this state."""
        return self._clocks[node]

    @cached_property
    def _clocks(self) -> list[list[Positions]]:
        clocks: list[list[Positions]] = [[self.first] for _ in self.nodes]
        for node in self.order():
            own = clocks[node]
            count = len(own)
            clock = list(own[-1])
            need = self.needs[node][count - 1]
            if need is not None:
                clock = [a if a > b else b for a, b in zip(clock, clocks[need[0]][need[1]], strict=True)]
            clock[node] = count
            own.append(tuple(clock))
        return clocks
