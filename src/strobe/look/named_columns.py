"""Which columns a query can need, from its syntax tree: those whose names occur in it.

A query can also mean columns that it does not name: by a star, by a row as a whole, by their places, by a natural join.
Then it needs all of them, and so it does if the tree has anything that is not known here. What is left out is named
nowhere in the query, so it cannot change what any name in it means.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

__all__ = ["named_columns"]

_EXPRESSIONS: Final = frozenset(
    {
        "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION",
        "LAMBDA", "OPERATOR", "SUBQUERY", "WINDOW",
    }
)  # fmt: skip
_OTHERS: Final = frozenset(
    {
        "BASE_TABLE", "DISTINCT_MODIFIER", "EMPTY", "JOIN", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER",
        "ORDER_DEFAULT", "ORDER_MODIFIER", "ASCENDING", "DESCENDING", "SELECT_NODE", "SET_OPERATION_NODE", "SUBQUERY",
    }
)  # fmt: skip


def named_columns(tree: Any) -> frozenset[str] | None:
    """The words of a query, in lower case: a column with another name is not needed. None if all may be."""
    words: set[str] = set()
    tables: set[str] = set()
    last: set[str] = set()
    for node in _nodes(tree):
        kind, expression = node.get("type"), node.get("class")
        if expression is not None:
            if expression not in _EXPRESSIONS:
                return None
        elif isinstance(kind, str) and kind not in _OTHERS and not kind.endswith("_TYPE_INFO"):
            return None
        if node.get("ref_type") == "NATURAL" or (kind == "BASE_TABLE" and node.get("column_name_alias")):
            return None
        if kind == "BASE_TABLE":
            tables |= {str(node.get("table_name")).lower(), str(node.get("alias")).lower()}
        if expression == "COLUMN_REF":
            names = node.get("column_names")
            if not isinstance(names, list) or not names:
                return None
            last.add(str(names[-1]).lower())
        words.update(each.lower() for each in _texts(node))
    return None if tables & last else frozenset(words)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    todo = [tree]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            yield value
            todo += value.values()
        elif isinstance(value, list):
            todo += value


def _texts(node: dict[str, Any]) -> Iterator[str]:
    for value in node.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (each for each in value if isinstance(each, str))
