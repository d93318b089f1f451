"""Which functions of a plan make it non-deterministic, as Spark sees it.

Spark knows it of its own functions. Of Python code it believes what it is told: a UDF is deterministic unless
`asNondeterministic()` was called, a UDTF only if `asDeterministic()` was. The name of the file that a row is from
counts as random there, but a batch that is run again reads the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import is_instance_of
from pyspark import SparkContext

__all__ = ["Culprit", "nondeterministic_functions"]

_SAME_AGAIN = ("input_file_name",)
_SUBQUERY = "org.apache.spark.sql.catalyst.expressions.PlanExpression"
_UDTF = ("PythonUDTF", "UnresolvedPolymorphicPythonUDTF")
_PYTHON = (*_UDTF, "PythonUDF", "PythonUDAF")


@dataclass(frozen=True, order=True, slots=True)
class Culprit:
    name: str
    table_function: bool


def nondeterministic_functions(plan: Any) -> list[Culprit]:
    """The names of the non-deterministic functions in an analysed plan in the JVM, each once."""
    return sorted(set(_in_plan(plan)))


def _in_plan(plan: Any) -> Iterator[Culprit]:
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if not node.deterministic():
            for expression in _each(node.expressions()):
                yield from _in_expression(expression)
            waiting += _each(node.children())


def _in_expression(expression: Any) -> Iterator[Culprit]:
    """The functions that are random themselves, not those that are given their results."""
    if expression.deterministic():
        return
    inner = [child for child in _each(expression.children()) if not child.deterministic()]
    for child in inner:
        yield from _in_expression(child)
    gateway = SparkContext._gateway
    if gateway is not None and is_instance_of(gateway, expression, _SUBQUERY):
        yield from _in_plan(expression.plan())
    elif not inner:
        kind = expression.getClass().getSimpleName()
        name = expression.name() if kind in _PYTHON else expression.prettyName()
        if name not in _SAME_AGAIN:
            yield Culprit(str(name), kind in _UDTF)


def _each(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]
