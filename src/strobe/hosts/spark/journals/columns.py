"""Conditions of nodes as expressions of Spark, where both mean the same.

`strobe.predicates.condition` defines what a condition means: what it means in Python. Spark agrees on comparisons of
numbers with numbers and text with text, on sums and differences, `and`, `or`, `not`, `abs`, `len` of text, and on
membership in a list of constants. It does not on division, remainders, truth of numbers, and values of different kinds:
for these the answer is None, and the condition is evaluated in Python.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Literal, TypeAlias

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

__all__ = ["truth"]

ValueKind: TypeAlias = Literal["whole", "real", "text", "truth"]

_WHOLE: Final = T.DecimalType(21, 0)  # holds the sum of any two longs
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Column, Column], Column]]] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
}


@dataclass(frozen=True)
class _Typed:
    column: Column
    kind: ValueKind


class _Differs(Exception):
    """Spark would say something else than Python, or nothing."""


def truth(text: str, state: T.DataType) -> Column | None:
    """Whether the condition, which speaks of one node, holds in the column `state`; null where a field is null."""
    try:
        found = _value(ast.parse(text, mode="eval").body, state)
    except (_Differs, SyntaxError):
        return None
    return found.column if found.kind == "truth" else None


def _value(part: ast.expr, state: T.DataType) -> _Typed:
    match part:
        case ast.Constant(value=bool(value)):
            return _Typed(F.lit(value), "truth")
        case ast.Constant(value=int(value)) if abs(value) < 2**63:
            return _Typed(F.lit(value), "whole")
        case ast.Constant(value=float(value)):
            return _Typed(F.lit(value), "real")
        case ast.Constant(value=str(value)):
            return _Typed(F.lit(value), "text")
        case ast.Attribute():
            return _field(part, state)
        case ast.BoolOp(op=op, values=values):
            truths = [_of_kind(value, state, "truth") for value in values]
            return _Typed(reduce(lambda a, b: a & b if isinstance(op, ast.And) else a | b, truths), "truth")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _Typed(~_of_kind(operand, state, "truth"), "truth")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _sum(_Typed(F.lit(0), "whole"), _value(operand, state), minus=True)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            return _sum(_value(left, state), _value(right, state), minus=isinstance(op, ast.Sub))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            return _comparison([left, *comparators], ops, state)
        case ast.Call(func=ast.Name(id="abs"), args=[operand], keywords=[]):
            found = _value(operand, state)
            return _Typed(F.abs(_wide(found)), _number(found))
        case ast.Call(func=ast.Name(id="len"), args=[operand], keywords=[]):
            return _Typed(F.length(_of_kind(operand, state, "text")), "whole")
    raise _Differs


def _field(part: ast.expr, state: T.DataType) -> _Typed:
    """`n1.balance`, `node["branch-7"].of.x`: the column below `state`, and its kind."""
    names: list[str] = []
    while isinstance(part, ast.Attribute):
        names.append(part.attr)
        part = part.value
    found, type_ = F.col("state"), state
    for name in reversed(names):
        if not isinstance(type_, T.StructType) or name not in type_.names:
            raise _Differs
        found, type_ = found.getField(name), type_[name].dataType
    if isinstance(type_, T.ByteType | T.ShortType | T.IntegerType | T.LongType):
        return _Typed(found, "whole")
    if isinstance(type_, T.DoubleType):
        return _Typed(found, "real")
    if isinstance(type_, T.StringType):
        return _Typed(found, "text")
    if isinstance(type_, T.BooleanType):
        return _Typed(found, "truth")
    raise _Differs


def _of_kind(part: ast.expr, state: T.DataType, kind: ValueKind) -> Column:
    found = _value(part, state)
    if found.kind != kind:
        raise _Differs
    return found.column


def _number(found: _Typed) -> ValueKind:
    if found.kind not in ("whole", "real"):
        raise _Differs
    return found.kind


def _wide(found: _Typed) -> Column:
    return found.column.cast(_WHOLE) if _number(found) == "whole" else found.column


def _sum(left: _Typed, right: _Typed, *, minus: bool) -> _Typed:
    kind: ValueKind = "whole" if _number(left) == _number(right) == "whole" else "real"
    a, b = (_wide(side) if kind == "whole" else side.column.cast("double") for side in (left, right))
    return _Typed(a - b if minus else a + b, kind)


def _comparison(parts: list[ast.expr], ops: list[ast.cmpop], state: T.DataType) -> _Typed:
    if len(ops) == 1 and isinstance(ops[0], ast.In | ast.NotIn):
        among = _among(_value(parts[0], state), parts[1])
        return _Typed(among if isinstance(ops[0], ast.In) else ~among, "truth")
    values = [_value(part, state) for part in parts]
    found = [_compared(a, op, b) for a, op, b in zip(values, ops, values[1:], strict=False)]
    return _Typed(reduce(lambda a, b: a & b, found), "truth")


def _compared(left: _Typed, op: ast.cmpop, right: _Typed) -> Column:
    numbers = {left.kind, right.kind} <= {"whole", "real"}
    if type(op) not in _COMPARE or not (numbers or left.kind == right.kind):
        raise _Differs
    found = _COMPARE[type(op)](left.column, right.column)
    # For Spark, NaN equals itself and is larger than any number.
    strange = [F.isnan(side.column) for side in (left, right) if side.kind == "real"]
    if not strange:
        return found
    nan = reduce(lambda a, b: a | b, strange)
    return found | nan if isinstance(op, ast.NotEq) else found & ~nan


def _among(value: _Typed, several: ast.expr) -> Column:
    if not isinstance(several, ast.List | ast.Tuple | ast.Set) or value.kind not in ("whole", "text"):
        raise _Differs
    wanted: list[Any] = []
    for one in several.elts:
        if not isinstance(one, ast.Constant) or type(one.value) is not (int if value.kind == "whole" else str):
            raise _Differs
        wanted.append(one.value)
    return value.column.isin(wanted)
