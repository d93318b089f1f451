"""Conditions on the states of nodes, such as `a.balance + b.balance < 100`, read from text and safe to evaluate.

A condition speaks of nodes by their names (in brackets where a name is no Python name: `node["branch-7"].balance`);
`node` alone is any node of the system. It may use the fields of a state, their fields and entries, numbers, text,
comparisons, `in`, arithmetic on numbers, `and`, `or`, `not`, `len` and `abs`. There is nothing else: the text is read
into a tree, each part of which is one of these or is refused, and no code is made of it.

A part of the tree that speaks of one node only is a function of that node's state. `Condition.parts` are the largest
of these: over a run each is worked out once for each state of its node, however many cuts have that state.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from strobe.model.errors import Misuse
from strobe.model.ids import NodeId

__all__ = ["ANY", "Condition", "SumBelow", "Term", "Unevaluable", "read_condition"]

ANY: Final = NodeId("node")  # in a condition: whichever node it is asked about

States: TypeAlias = Mapping[NodeId, Any]

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
_FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {"len": len, "abs": abs}
_FAULTS: Final = (AttributeError, TypeError, ValueError, LookupError, ArithmeticError)


class Unevaluable(Exception):
    """The condition makes no sense for this state."""


@dataclass(frozen=True)
class Term:
    """What a condition asks of one node's state."""

    node: NodeId
    text: str
    value: Callable[[Any], Any]

    def of(self, state: Any) -> Any:
        try:
            return self.value(state)
        except _FAULTS as error:
            raise Unevaluable(f"{self.text} at {self.node}: {_say(error)}") from None


@dataclass(frozen=True)
class SumBelow:
    """`factor * part`, summed up, is less than `bound` (or, if not `strict`, at most that)."""

    terms: tuple[tuple[int | float, Term], ...]
    bound: int | float
    strict: bool


@dataclass(frozen=True)
class Condition:
    """`parts` and `combine` are one way to evaluate it, `holds` is another. `conjuncts` is set if the condition is the
    conjunction of one part for each of some nodes, `sum_below` if it compares a sum over nodes with a number."""

    text: str
    fields: Mapping[NodeId, frozenset[str]]  # by node, what its state must have; ANY for any node
    parts: tuple[Term, ...]
    combine: Callable[[Sequence[Any]], Any]
    conjuncts: tuple[Term, ...] | None
    sum_below: SumBelow | None

    @property
    def nodes(self) -> frozenset[NodeId]:
        return frozenset(self.fields)

    def holds(self, states: States) -> bool:
        values = [part.of(states[part.node]) for part in self.parts]
        try:
            return bool(self.combine(values))
        except _FAULTS as error:
            raise Unevaluable(_say(error)) from None

    def check(self, states: States) -> None:
        """That each state has the fields that the condition asks for."""
        for node, wanted in self.fields.items():
            state = states[node]
            for field in sorted(wanted):
                if not _has(state, field):
                    raise Unevaluable(
                        f"{_kind(state, node)} has no field {field!r}; it has: {', '.join(_fields_of(state)) or 'none'}"
                    )


def read_condition(text: str, nodes: Iterable[NodeId]) -> Condition:
    """The condition, or Misuse that says what is wrong with the text."""
    reader = _Reader(text, tuple(nodes))
    try:
        if len(text) > _LONGEST:
            raise reader.wrong(f"it is longer than {_LONGEST} characters")
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise reader.wrong(getattr(error, "msg", None) or str(error)) from None
    whole = reader.read(tree, 0)
    if not reader.fields:
        raise reader.wrong("it names no field of a node")
    if len(whole.nodes) > 1 and ANY in whole.nodes:
        raise reader.wrong("it speaks of any node and of a certain one")
    parts: list[Term] = []
    combine = whole.over_parts(parts)
    fields = {node: frozenset(names) for node, names in reader.fields.items()}
    return Condition(text.strip(), fields, tuple(parts), combine, _conjuncts(tree, reader), _sum_below(tree, reader))


@dataclass(frozen=True)
class _Expression:
    """A part of the tree: the nodes that it speaks of, and how to make its function from those of its children."""

    text: str
    nodes: frozenset[NodeId]
    make: Callable[[tuple[Callable[[Any], Any], ...]], Callable[[Any], Any]]
    children: tuple[_Expression, ...] = ()

    def over_state(self) -> Callable[[Any], Any]:
        """As a function of the state of the one node that it speaks of."""
        return self.make(tuple(child.over_state() for child in self.children))

    def over_parts(self, parts: list[Term]) -> Callable[[Any], Any]:
        """As a function of the values of `parts`, to which the ones that it needs are added."""
        if len(self.nodes) == 1:
            (node,) = self.nodes
            index = len(parts)
            parts.append(Term(node, self.text, self.over_state()))
            return operator.itemgetter(index)
        return self.make(tuple(child.over_parts(parts) for child in self.children))


class _Reader:
    def __init__(self, text: str, nodes: tuple[NodeId, ...]) -> None:
        self.text = text
        self.nodes = nodes
        self.fields: dict[NodeId, set[str]] = {}

    def wrong(self, why: str) -> Misuse:
        return Misuse(
            f"{self.text[:80]!r} is not a condition: {why}.",
            untouched="Nothing was changed.",
            next="Write it like node.balance < 0, or branch_a.balance < 0 and len(branch_b.queue) > 10.",
        )

    def read(self, part: ast.expr, depth: int) -> _Expression:
        if depth > _DEEPEST:
            raise self.wrong("it is nested too deeply")
        deeper = depth + 1
        if isinstance(part, ast.Constant) and isinstance(part.value, int | float | str | None):
            constant = part.value
            return _Expression(ast.unparse(part), frozenset(), lambda _: lambda given: constant)
        if isinstance(part, ast.BoolOp):
            return self._of(part, part.values, _all_of if isinstance(part.op, ast.And) else _any_of, deeper)
        if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
            return self._of(part, [part.operand], lambda f: lambda given: not f[0](given), deeper)
        if isinstance(part, ast.UnaryOp) and type(part.op) in _SIGN:
            sign = _SIGN[type(part.op)]
            return self._of(part, [part.operand], lambda f: lambda given: sign(_number(f[0](given))), deeper)
        if isinstance(part, ast.BinOp) and type(part.op) in _ARITHMETIC:
            do = _ARITHMETIC[type(part.op)]
            return self._of(
                part, [part.left, part.right],
                lambda f: lambda given: do(_number(f[0](given)), _number(f[1](given))), deeper,
            )  # fmt: skip
        if isinstance(part, ast.Compare):
            tests = [_COMPARE[type(op)] for op in part.ops]
            return self._of(part, [part.left, *part.comparators], lambda f: _compare(tests, f), deeper)
        if isinstance(part, ast.Call):
            return self._call(part, deeper)
        if isinstance(part, ast.List | ast.Tuple):
            return self._of(part, part.elts, lambda f: lambda given: [value(given) for value in f], deeper)
        if isinstance(part, ast.Attribute):
            return self._field(part, deeper)
        if isinstance(part, ast.Subscript):
            return self._of(part, [part.value, part.slice], lambda f: lambda given: f[0](given)[f[1](given)], deeper)
        if isinstance(part, ast.Name):
            raise self.wrong(f"{part.id!r} stands alone, without a field")
        raise self.wrong(f"{ast.unparse(part)[:40]!r} is not allowed in one")

    def _of(
        self,
        whole: ast.expr,
        parts: Sequence[ast.expr],
        make: Callable[[tuple[Callable[[Any], Any], ...]], Callable[[Any], Any]],
        depth: int,
    ) -> _Expression:
        children = tuple(self.read(part, depth) for part in parts)
        nodes = frozenset[NodeId]().union(*(child.nodes for child in children))
        return _Expression(ast.unparse(whole), nodes, make, children)

    def _call(self, part: ast.Call, depth: int) -> _Expression:
        function = _FUNCTIONS.get(part.func.id) if isinstance(part.func, ast.Name) else None
        if function is None or len(part.args) != 1 or part.keywords:
            raise self.wrong(f"{ast.unparse(part)[:40]!r} is not allowed in one; only len(…) and abs(…) can be called")
        return self._of(part, part.args, lambda f: lambda given: function(f[0](given)), depth)

    def _field(self, part: ast.Attribute, depth: int) -> _Expression:
        name = part.attr
        if name.startswith("_"):
            raise self.wrong(f"{name!r} is not a field that can be seen")
        subject = self._subject_of(part.value)
        if subject is None:
            return self._of(part, [part.value], lambda f: lambda given: _field(f[0](given), name), depth)
        if subject not in (*self.nodes, ANY):
            raise self.wrong(f"there is no node {subject!r}; the nodes are: {', '.join(self.nodes)}")
        node = NodeId(subject)
        self.fields.setdefault(node, set()).add(name)
        return _Expression(ast.unparse(part), frozenset({node}), lambda _: lambda state: _field(state, name))

    def _subject_of(self, part: ast.expr) -> str | None:
        """The node that is spoken of, if this names one."""
        if isinstance(part, ast.Name):
            return part.id
        if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name) and part.value.id == ANY:
            key = part.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                if key.value not in self.nodes:
                    raise self.wrong(f"there is no node {key.value!r}; the nodes are: {', '.join(self.nodes)}")
                return key.value
        return None


# ── special forms ───────────────────────────────────────────────────────────────────────────────────────────────────


def _conjuncts(tree: ast.expr, reader: _Reader) -> tuple[Term, ...] | None:
    """One part per node, if the condition is a conjunction of such."""
    terms = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
    by_node: dict[NodeId, list[_Expression]] = {}
    for term in terms:
        expression = reader.read(term, 0)
        if len(expression.nodes) != 1 or ANY in expression.nodes:
            return None
        by_node.setdefault(next(iter(expression.nodes)), []).append(expression)
    return tuple(
        Term(node, _joined([e.text for e in found]), _all_of(tuple(e.over_state() for e in found)))
        for node, found in by_node.items()
    )


def _joined(texts: list[str]) -> str:
    """One text that reads as the conjunction of these."""
    return texts[0] if len(texts) == 1 else " and ".join(f"({text})" for text in texts)


def _sum_below(tree: ast.expr, reader: _Reader) -> SumBelow | None:
    if not (isinstance(tree, ast.Compare) and len(tree.ops) == 1):
        return None
    operation = tree.ops[0]
    if not isinstance(operation, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return None
    sign = 1 if isinstance(operation, ast.Lt | ast.LtE) else -1
    terms: list[tuple[int | float, Term]] = []
    left, right = _linear(tree.left, sign, reader, terms), _linear(tree.comparators[0], -sign, reader, terms)
    if left is None or right is None or len({part.node for _, part in terms}) < 2:
        return None
    return SumBelow(tuple(terms), -(left + right), isinstance(operation, ast.Lt | ast.Gt))


def _linear(
    part: ast.expr, factor: int | float, reader: _Reader, terms: list[tuple[int | float, Term]]
) -> int | float | None:
    """Adds `factor` times what the part says of nodes to `terms` and returns its constant. None if it is not a sum."""
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add | ast.Sub):
        left = _linear(part.left, factor, reader, terms)
        right = _linear(part.right, factor if isinstance(part.op, ast.Add) else -factor, reader, terms)
        return None if left is None or right is None else left + right
    if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub):
        return _linear(part.operand, -factor, reader, terms)
    if isinstance(part, ast.Constant) and isinstance(part.value, int | float) and not isinstance(part.value, bool):
        return factor * part.value
    expression = reader.read(part, 0)
    if len(expression.nodes) != 1 or ANY in expression.nodes:
        return None
    terms.append((factor, Term(next(iter(expression.nodes)), expression.text, expression.over_state())))
    return 0


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _all_of(functions: tuple[Callable[[Any], Any], ...]) -> Callable[[Any], Any]:
    return lambda given: all(function(given) for function in functions)


def _any_of(functions: tuple[Callable[[Any], Any], ...]) -> Callable[[Any], Any]:
    return lambda given: any(function(given) for function in functions)


def _compare(
    tests: Sequence[Callable[[Any, Any], Any]], functions: tuple[Callable[[Any], Any], ...]
) -> Callable[[Any], Any]:
    if len(tests) == 1:
        test, left, right = tests[0], *functions
        return lambda given: test(left(given), right(given))

    def compare(given: Any) -> bool:
        before = functions[0](given)
        for test, function in zip(tests, functions[1:], strict=True):
            value = function(given)
            if not test(before, value):
                return False
            before = value
        return True

    return compare


def _number(value: Any) -> Any:
    if not isinstance(value, int | float):
        raise TypeError(f"{type(value).__name__} is not a number")
    return value


def _field(state: Any, name: str) -> Any:
    return state[name] if isinstance(state, Mapping) else getattr(state, name)


def _has(state: Any, name: str) -> bool:
    return name in state if isinstance(state, Mapping) else hasattr(state, name)


def _fields_of(state: Any) -> list[str]:
    own = state if isinstance(state, Mapping) else getattr(state, "__dict__", {})
    return sorted(str(name) for name, value in own.items() if not (str(name).startswith("_") or callable(value)))


def _kind(state: Any, node: NodeId) -> str:
    return f"The state of {node}" if isinstance(state, Mapping) else type(state).__name__


def _say(error: Exception) -> str:
    return f"no {error}" if isinstance(error, LookupError) else f"{type(error).__name__}: {error}"
