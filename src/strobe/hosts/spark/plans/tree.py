"""Spark's own description of a plan or an expression, as a tree.

Spark writes a tree as JSON: its nodes in pre-order, each with the number of its children and the arguments that it was
made with. An argument that is a child is written as that child's number; an expression that is an argument of a plan,
or of another expression without being its child, is a list of nodes again.

Common table expressions are put where they are used, so that nobody else has to know of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Node", "is_tree", "parse_plan", "parse_tree"]


@dataclass(frozen=True, slots=True)
class Node:
    """`place` is the node's number in pre-order, which is how it is found in the JVM; 0 in expressions."""

    kind: str
    fields: Mapping[str, Any]
    children: tuple[Node, ...]
    place: int = 0

    def walk(self) -> Iterator[Node]:
        """All nodes in pre-order. No recursion: plans are deep."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)

    def trees(self, field: str) -> tuple[Node, ...]:
        """The expressions that are this argument: one, or a list of them."""
        value = self.fields.get(field)
        if not isinstance(value, list):
            return ()
        return (parse_tree(value),) if is_tree(value) else tuple(parse_tree(v) for v in value if is_tree(v))


def parse_plan(text: str) -> Node:
    """ValueError, KeyError or TypeError if it is not a plan."""
    plan = _parse(json.loads(text), plan=True)
    return _inlined(plan) if any(node.kind == "WithCTE" for node in plan.walk()) else plan


def parse_tree(nodes: Sequence[Mapping[str, Any]]) -> Node:
    return _parse(nodes, plan=False)


def is_tree(value: object) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "class" in value[0]


def _parse(nodes: Sequence[Mapping[str, Any]], *, plan: bool) -> Node:
    # From the end: when a node is met, its children are the last ones that were built.
    built: list[Node] = []
    for place in reversed(range(len(nodes))):
        fields = nodes[place]
        count = int(fields["num-children"])
        children = tuple(built.pop() for _ in range(count))
        kind = str(fields["class"]).rpartition(".")[2].rpartition("$")[2]
        built.append(Node(kind, fields, children, place if plan else 0))
    (root,) = built
    return root


def _inlined(plan: Node) -> Node:
    bodies: dict[object, Node] = {}

    def inline(node: Node) -> Node:
        if node.kind == "CTERelationRef" and node.fields.get("cteId") in bodies:
            return replace(node, kind="CTE", children=(bodies[node.fields["cteId"]],))
        children = tuple(inline(child) for child in node.children)
        if node.kind == "CTERelationDef":
            bodies[node.fields.get("id")] = children[0]
        if node.kind == "WithCTE":
            return children[-1]  # the definitions stand before the plan that uses them
        return replace(node, children=children) if children != node.children else node

    return inline(plan)
