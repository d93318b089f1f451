"""Conditions on a node's state, such as `node.balance < 0`, read from text and safe to evaluate.

A condition speaks of one node: `node` is any node of the system, and a node's own name is that node (in brackets where
it is no Python name: `node["branch-7"].balance`). It may use the fields of the process, their fields and entries,
numbers, text, comparisons, `in`, arithmetic on numbers, `and`, `or`, `not`, and `len`. There is nothing else: the text
is read into a tree, each part of which is one of these or is refused, and no code is made of it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from strobe.model.errors import Misuse
from strobe.model.ids import NodeId

__all__ = ["Condition", "Unevaluable", "read_condition"]

Value: TypeAlias = Callable[[Any], Any]

_LONGEST: Final = 1000
_DEEPEST: Final = 40
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGN: Final[dict[type[ast.unaryop], Callable[[Any], Any]]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}


class Unevaluable(Exception):
    """The condition makes no sense for this state."""


@dataclass(frozen=True)
class Condition:
    text: str
    node: NodeId | None  # None: any node
    fields: frozenset[str]  # what the process must have
    _value: Value

    def check(self, process: Any) -> None:
        for field in sorted(self.fields):
            if not hasattr(process, field):
                own = (name for name, value in vars(process).items() if not (name.startswith("_") or callable(value)))
                has = ", ".join(sorted(own)) or "none"
                raise Unevaluable(f"{type(process).__name__} has no field {field!r}; it has: {has}")

    def holds(self, process: Any) -> bool:
        try:
            return bool(self._value(process))
        except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise Unevaluable(f"{type(error).__name__}: {error}") from None


def read_condition(text: str, nodes: Iterable[NodeId]) -> Condition:
    """The condition, or Misuse that says what is wrong with the text."""
    reader = _Reader(text, tuple(nodes))
    try:
        if len(text) > _LONGEST:
            raise reader.wrong(f"it is longer than {_LONGEST} characters")
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise reader.wrong(getattr(error, "msg", None) or str(error)) from None
    value = reader.value(tree.body, 0)
    if not reader.fields:
        raise reader.wrong("it names no field of a node")
    return Condition(text.strip(), reader.node, frozenset(reader.fields), value)


class _Reader:
    def __init__(self, text: str, nodes: tuple[NodeId, ...]) -> None:
        self.text = text
        self.nodes = nodes
        self.node: NodeId | None = None
        self.fields: set[str] = set()
        self._subject: str | None = None

    def wrong(self, why: str) -> Misuse:
        return Misuse(
            f"{self.text[:80]!r} is no condition: {why}.",
            untouched="No breakpoint was set.",
            next="Write it like node.balance < 0, or branch_a.balance < 0 and len(branch_a.queue) > 10.",
        )

    def value(self, part: ast.expr, depth: int) -> Value:
        if depth > _DEEPEST:
            raise self.wrong("it is nested too deeply")
        deeper = depth + 1
        if isinstance(part, ast.Constant) and isinstance(part.value, int | float | str | None):
            constant = part.value
            return lambda process: constant
        if isinstance(part, ast.BoolOp):
            values = [self.value(each, deeper) for each in part.values]
            if isinstance(part.op, ast.And):
                return lambda process: all(value(process) for value in values)
            return lambda process: any(value(process) for value in values)
        if isinstance(part, ast.UnaryOp):
            operand = self.value(part.operand, deeper)
            if isinstance(part.op, ast.Not):
                return lambda process: not operand(process)
            if type(part.op) in _SIGN:
                sign = _SIGN[type(part.op)]
                return lambda process: sign(_number(operand(process)))
        if isinstance(part, ast.BinOp) and type(part.op) in _ARITHMETIC:
            do, left, right = _ARITHMETIC[type(part.op)], self.value(part.left, deeper), self.value(part.right, deeper)
            return lambda process: do(_number(left(process)), _number(right(process)))
        if isinstance(part, ast.Compare):
            return self._compare(part, deeper)
        if isinstance(part, ast.Call):
            return self._call(part, deeper)
        if isinstance(part, ast.List | ast.Tuple):
            parts = [self.value(each, deeper) for each in part.elts]
            return lambda process: [value(process) for value in parts]
        if isinstance(part, ast.Attribute):
            return self._field(part, deeper)
        if isinstance(part, ast.Subscript):
            whole, key = self.value(part.value, deeper), self.value(part.slice, deeper)
            return lambda process: whole(process)[key(process)]
        if isinstance(part, ast.Name):
            raise self.wrong(f"{part.id!r} stands alone, without a field")
        raise self.wrong(f"{ast.unparse(part)[:40]!r} is not allowed in one")

    def _compare(self, part: ast.Compare, depth: int) -> Value:
        values = [self.value(each, depth) for each in (part.left, *part.comparators)]
        tests = [_COMPARE[type(op)] for op in part.ops]

        def compare(process: Any) -> bool:
            left = values[0](process)
            for test, value in zip(tests, values[1:], strict=True):
                right = value(process)
                if not test(left, right):
                    return False
                left = right
            return True

        return compare

    def _call(self, part: ast.Call, depth: int) -> Value:
        if not (
            isinstance(part.func, ast.Name) and part.func.id == "len" and len(part.args) == 1 and not part.keywords
        ):
            raise self.wrong(f"{ast.unparse(part)[:40]!r} is not allowed in one; only len(…) can be called")
        argument = self.value(part.args[0], depth)
        return lambda process: len(argument(process))

    def _field(self, part: ast.Attribute, depth: int) -> Value:
        name = part.attr
        if name.startswith("_"):
            raise self.wrong(f"{name!r} is not a field that can be seen")
        subject = self._subject_of(part.value)
        if subject is None:
            whole = self.value(part.value, depth)
            return lambda process: getattr(whole(process), name)
        if self._subject not in (None, subject):
            raise self.wrong(f"it speaks of {self._subject} and of {subject}, and a condition is judged at one node")
        self._subject = subject
        if subject in self.nodes:
            self.node = NodeId(subject)
        elif subject != "node":
            raise self.wrong(f"there is no node {subject!r}; the nodes are: {', '.join(self.nodes)}")
        self.fields.add(name)
        return operator.attrgetter(name)

    def _subject_of(self, part: ast.expr) -> str | None:
        """The node that is spoken of, if this names one."""
        if isinstance(part, ast.Name):
            return part.id
        if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and part.value.id == "node":
            key = part.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                if key.value not in self.nodes:
                    raise self.wrong(f"there is no node {key.value!r}; the nodes are: {', '.join(self.nodes)}")
                return key.value
        return None


def _number(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise TypeError(f"{type(value).__name__} is no number")
    return value
