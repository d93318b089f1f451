"""Conditions of breakpoints: those of `strobe.predicates.condition` that speak of one node, judged at that node.

What judges them is the node's own process, after each of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.predicates import condition
from strobe.predicates.condition import ANY, Unevaluable

__all__ = ["Condition", "Unevaluable", "read_condition"]


@dataclass(frozen=True)
class Condition:
    text: str
    node: NodeId | None  # None: any node
    _condition: condition.Condition

    def check(self, process: Any) -> None:
        """Check that the process has the fields that the condition asks for; else Unevaluable."""
        self._condition.check({self._subject: process})

    def holds(self, process: Any) -> bool:
        return self._condition.holds({self._subject: process})

    @property
    def _subject(self) -> NodeId:
        return ANY if self.node is None else self.node


def read_condition(text: str, nodes: Iterable[NodeId]) -> Condition:
    """The condition, or Misuse that says what is wrong with the text."""
    read = condition.read_condition(text, nodes)
    first, *others = sorted(read.nodes)
    if others:
        raise Misuse(
            f"{text[:80]!r} speaks of {first} and of {others[0]}, and a breakpoint is judged at one node.",
            untouched="No breakpoint was set.",
            next="Write one condition for each node; `strobe predicate` takes conditions over several, on a journal.",
        )
    return Condition(read.text, None if first == ANY else first, read)
