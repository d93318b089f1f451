"""What a stage's state means, from its plan.

Spark finds state again by the place of an operator and of a column, and looks at types only. So the same state can be
read by code that means something else: windows of another length, a sum of another column. Here each operator with
state is described by what decides its content: by which values it groups, what it aggregates, what it joins on. Values
are written as what they are made of, down to the columns of the stage's sources (`postings::amount`), so names and
steps in between make no difference, nor does anything beside the values that are used.

Below a union a value has several origins, one for each branch; all are noted. What Python code does is not known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from strobe.hosts.spark.plans.text import (
    Environment,
    Writer,
    column,
    expression_id,
    opaque,
    quoted,
    references,
    resolve,
)
from strobe.hosts.spark.plans.tree import Node
from strobe.model.cut import Json

__all__ = ["VERSION", "Facts", "FormerNames", "describe_operators"]

VERSION = 1
_MOST_PATHS = 32
_ONE_SIDED = frozenset({"LeftSemi", "LeftAnti"})
_DEDUPLICATE = {"Deduplicate": "distinct", "DeduplicateWithinWatermark": "distinct within watermark"}
_WANTS_ALSO = frozenset({"Filter", "Sort", "RepartitionByExpression", "RebalancePartitions", "EventTimeWatermark"})
_HANDS_ON = frozenset({"SubqueryAlias", "View", "ResolvedHint", "Repartition", "LocalLimit", "GlobalLimit", "Sample"})

Operator: TypeAlias = dict[str, Json]
FormerNames: TypeAlias = Mapping[str, Mapping[str, str]]  # by channel and present name
Wanted: TypeAlias = frozenset[int] | None  # ids of columns; None: all


@dataclass(frozen=True)
class Facts:
    """What only the JVM knows: by the place of a node, names of sources and delays of watermarks; and the time zone of
    the session. `former`: by source, columns that are to be called by the name that they had, so that what was written
    down of a state then can be compared."""

    sources: Mapping[int, str] = field(default_factory=dict)
    delays: Mapping[int, str] = field(default_factory=dict)
    zone: str = "UTC"
    former: FormerNames = field(default_factory=dict)


@dataclass(frozen=True)
class _Seen:
    """A node's output columns in order, and what they are made of, on each path through the unions below."""

    outputs: tuple[int, ...]
    paths: tuple[Environment, ...]
    streaming: bool


def describe_operators(plan: Node, facts: Facts, optimized: tuple[Node, Facts] | None = None) -> dict[str, Json]:
    """`operators` with state and `watermarks`, each in the plan's order; `functions` that could not be looked into.

    Which columns a join keeps, and by which keys, is for the optimizer to decide: joins are taken from `optimized`.
    """
    walk = _Walk(plan, facts)
    operators = [o for o in map(walk.operator, plan.walk()) if o is not None]
    joins = [i for i, o in enumerate(operators) if o["kind"] == "join"]
    if joins and optimized is not None:
        inner = _Walk(*optimized)
        found = [o for o in map(inner.operator, optimized[0].walk()) if o is not None and o["kind"] == "join"]
        if len(found) == len(joins):
            for i, join in zip(joins, found, strict=True):
                operators[i] = join
            walk.writer.functions |= inner.writer.functions
    watermarks = [w for w in map(walk.watermark, plan.walk()) if w is not None]
    return {
        "version": VERSION,
        "operators": list(operators),
        "watermarks": list(watermarks),
        "functions": sorted(walk.writer.functions),
    }


class _Walk:
    def __init__(self, plan: Node, facts: Facts) -> None:
        self.writer = Writer(facts.zone)
        self._facts = facts
        self._wanted: dict[int, Wanted] = {id(plan): None}
        self._seen: dict[int, _Seen] = {}
        nodes = list(plan.walk())
        for node in reversed(nodes):
            if id(node) not in self._seen:
                self._seen[id(node)] = self._look(node)
        for node in nodes:
            self._want(node)

    # ── operators ───────────────────────────────────────────────────────────────────────────────────────────────────

    def operator(self, node: Node) -> Operator | None:
        kind = node.kind
        if not self._seen[id(node)].streaming or not node.children:
            return None
        if kind == "Aggregate":
            return {
                "kind": "aggregate",
                "keys": self._columns(node, node.trees("groupingExpressions")),
                "functions": self._functions(node),
            }
        if kind in _DEDUPLICATE:
            return {"kind": _DEDUPLICATE[kind], "keys": self._columns(node, node.trees("keys"))}
        if kind == "Distinct":
            return {"kind": "aggregate", "keys": self._outputs(node.children[0]), "functions": []}
        if kind == "Join" and all(self._seen[id(c)].streaming for c in node.children):
            return self._join(node)
        if kind == "FlatMapGroupsInPandasWithState":
            self._note_function(node)
            keys = self._columns(node, node.trees("groupingAttributes"))
            timeout, mode = (_name(node.fields.get(n)) for n in ("timeout", "outputMode"))
            return {"kind": "applyInPandasWithState", "keys": keys, "timeout": timeout, "output mode": mode}
        if kind == "TransformWithStateInPySpark":
            self._note_function(node)
            count = int(node.fields.get("groupingAttributesLen") or 0)
            mode, time = (_name(node.fields.get(n)) for n in ("outputMode", "timeMode"))
            keys = self._outputs(node.children[0], count)
            return {"kind": "transformWithState", "keys": keys, "time mode": time, "output mode": mode}
        if kind == "GlobalLimit":
            return {"kind": "limit", "rows": self._columns(node, node.trees("limitExpr"))}
        return None

    def watermark(self, node: Node) -> Operator | None:
        if node.kind != "EventTimeWatermark":
            return None
        return {
            "kind": "watermark",
            "column": self._columns(node, node.trees("eventTime")),
            "delay": self._facts.delays.get(node.place, ""),
        }

    def _functions(self, node: Node) -> list[Json]:
        """Each function has a place in the state, once, if anybody wants its result."""
        wanted = self._wanted.get(id(node))
        results = (e for e in node.trees("aggregateExpressions") if wanted is None or expression_id(e) in wanted)
        functions = [n for e in results for n in e.walk() if n.kind == "AggregateExpression"]
        return list({str(text): text for text in self._columns(node, functions)}.values())

    def _join(self, node: Node) -> Operator:
        left, right = (self._seen[id(child)] for child in node.children)
        keys: list[Node] = []
        others: list[Node] = []
        for condition in node.trees("condition"):
            for part in _conjuncts(condition):
                sides = [references(operand) for operand in part.children]
                crosses = len(sides) == 2 and any(
                    a and b and a <= set(left.outputs) and b <= set(right.outputs) for a, b in (sides, sides[::-1])
                )
                (keys if crosses and part.kind in ("EqualTo", "EqualNullSafe") else others).append(part)
        return {
            "kind": "join",
            "type": _name(node.fields.get("joinType")),
            "keys": self._columns(node, keys),
            "condition": sorted(self._columns(node, others), key=str),
            "left": self._outputs(node.children[0]),
            "right": self._outputs(node.children[1]),
        }

    def _columns(self, node: Node, expressions: Sequence[Node]) -> list[Json]:
        """For each expression over the node's inputs, the texts of its origins."""
        paths = self._inputs(node)
        return [sorted({self.writer.text(resolve(e, path)) for path in paths}) for e in expressions]

    def _outputs(self, node: Node, count: int | None = None) -> list[Json]:
        seen, wanted = self._seen[id(node)], self._wanted.get(id(node))
        ids = [i for i in seen.outputs[:count] if count is not None or wanted is None or i in wanted]
        return [sorted({self.writer.text(path[i]) for path in seen.paths}) for i in ids]

    def _note_function(self, node: Node) -> None:
        self.writer.functions.add(_function_of(node))

    # ── what columns are made of ────────────────────────────────────────────────────────────────────────────────────

    def _inputs(self, node: Node) -> tuple[Environment, ...]:
        """What the node's expressions may use: the columns of all its children."""
        seen = [self._seen[id(child)] for child in node.children]
        if node.kind == "Join" and all(s.streaming for s in seen):
            seen = [_on_side(s, side) for s, side in zip(seen, ("left", "right"), strict=True)]
        paths = [s.paths for s in seen]
        if math.prod(map(len, paths)) > _MOST_PATHS:
            paths = [self._bounded(p, most=1) for p in paths]
        return tuple({k: v for env in choice for k, v in env.items()} for choice in itertools.product(*paths))

    def _look(self, node: Node) -> _Seen:
        children = [self._seen[id(child)] for child in node.children]
        streaming = any(c.streaming for c in children) or (node.place in self._facts.sources and not children)
        make = _MAKERS.get(node.kind)
        if not children:
            source = self._facts.sources.get(node.place, "static")
            attributes = node.trees("output")
            ids = tuple(map(expression_id, attributes))
            former = self._facts.former.get(source, {})
            env = {i: column(f"{source}::{_name_of(a, former)}") for i, a in zip(ids, attributes, strict=True)}
            return _Seen(ids, (env,), streaming)
        if node.kind == "Union":
            outputs = children[0].outputs
            paths = [
                {new: env[old] for new, old in zip(outputs, child.outputs, strict=True)}
                for child in children
                for env in child.paths
            ]
            return _Seen(outputs, self._bounded(paths), streaming)
        inputs = self._inputs(node)
        if make is not None:
            made = [make(node, env, self.writer) for env in inputs]
            kept = [i for child in children for i in child.outputs] if node.kind in _ADD else []
            outputs = tuple(dict.fromkeys((*kept, *(i for i in made[0] if i not in inputs[0] or not kept))))
            return _Seen(outputs, self._bounded(made), streaming)
        if node.kind == "CTE":
            ids = tuple(map(expression_id, node.trees("output")))
            paths = [dict(zip(ids, (env[i] for i in children[0].outputs), strict=True)) for env in inputs]
            return _Seen(ids, tuple(paths), streaming)
        sides = children[:1] if _name(node.fields.get("joinType")) in _ONE_SIDED else children
        outputs = tuple(i for child in sides for i in child.outputs)
        declared = node.trees("outputAttrs") or node.trees("output")
        if not declared:
            return _Seen(outputs, inputs, streaming)
        ids = tuple(map(expression_id, declared))
        return _Seen(ids, tuple(_through_python(node, declared, env) for env in inputs), streaming)

    def _bounded(self, paths: Sequence[Environment], most: int = _MOST_PATHS) -> tuple[Environment, ...]:
        """One path for each combination of branches, up to a number; beyond, all origins of a column are one."""
        if len(paths) <= most:
            return tuple(paths)
        return ({i: _one_of([env[i] for env in paths], self.writer) for i in paths[0]},)

    # ── which columns anybody wants ─────────────────────────────────────────────────────────────────────────────────

    def _want(self, node: Node) -> None:
        """Spark keeps nothing for results that nobody uses."""
        wanted = self._wanted.get(id(node))
        for child in node.children:
            passed = self._passed_on(node, child, wanted)
            before = self._wanted.get(id(child), frozenset())
            self._wanted[id(child)] = None if passed is None or before is None else passed | before

    def _passed_on(self, node: Node, child: Node, wanted: Wanted) -> Wanted:
        kind = node.kind
        if kind in ("Project", "Aggregate"):
            results = node.trees("projectList") or node.trees("aggregateExpressions")
            used = [e for e in results if wanted is None or expression_id(e) in wanted]
            return _all_references((*used, *node.trees("groupingExpressions")))
        if wanted is None:
            return None
        if kind in _HANDS_ON:
            return wanted
        if kind in _WANTS_ALSO or kind == "Join":
            return wanted | _all_references([t for name in node.fields for t in node.trees(name)])
        if kind == "Union":
            outputs, inner = self._seen[id(node)].outputs, self._seen[id(child)].outputs
            return frozenset(old for new, old in zip(outputs, inner, strict=True) if new in wanted)
        return None


# ── nodes that make columns ─────────────────────────────────────────────────────────────────────────────────────────

Maker: TypeAlias = Callable[[Node, Environment, Writer], Environment]


def _project(node: Node, env: Environment, writer: Writer) -> Environment:
    made = (*node.trees("projectList"), *node.trees("aggregateExpressions"))
    return {expression_id(e): resolve(e, env) for e in made}


def _window(node: Node, env: Environment, writer: Writer) -> Environment:
    return {**env, **{expression_id(e): resolve(e, env) for e in node.trees("windowExpressions")}}


def _generate(node: Node, env: Environment, writer: Writer) -> Environment:
    (generator,) = (resolve(g, env) for g in node.trees("generator"))
    ids = [expression_id(a) for a in node.trees("generatorOutput")]
    if len(ids) == 1:
        return {**env, ids[0]: generator}
    return {**env, **{i: Node("GetStructField", {"ordinal": n}, (generator,)) for n, i in enumerate(ids)}}


def _expand(node: Node, env: Environment, writer: Writer) -> Environment:
    outputs = [expression_id(a) for a in node.trees("output")]
    rows = [replace(node, fields={"row": row}).trees("row") for row in node.fields["projections"]]
    return {i: _one_of([resolve(row[n], env) for row in rows], writer) for n, i in enumerate(outputs)}


def _python(node: Node, env: Environment, writer: Writer) -> Environment:
    ids = (expression_id(a) for a in node.trees("resultAttrs"))
    return {**env, **dict(zip(ids, (resolve(f, env) for f in node.trees("udfs")), strict=False))}


_ADD = frozenset({"Window", "Generate", "BatchEvalPython", "ArrowEvalPython"})  # the others hand on what they list
_MAKERS: Mapping[str, Maker] = {
    "Project": _project, "Aggregate": _project, "Window": _window, "Generate": _generate, "Expand": _expand,
    "BatchEvalPython": _python, "ArrowEvalPython": _python,
}  # fmt: skip


def _through_python(node: Node, outputs: Sequence[Node], env: Environment) -> Environment:
    """Rows go in and come out; a column is taken for the one that went in under its name."""
    given = {str(a.fields.get("name")): a for f in node.trees("functionExpr") for a in f.children}
    function = _function_of(node)
    return {
        expression_id(a): env.get(expression_id(a))
        or opaque(
            resolve(given[name], env) if (name := str(a.fields.get("name"))) in given else column(quoted(name)),
            function,
        )
        for a in outputs
    }


def _one_of(origins: Sequence[Node], writer: Writer) -> Node:
    different = {writer.text(origin): origin for origin in origins}
    return origins[0] if len(different) == 1 else Node("OneOf", {}, tuple(different[t] for t in sorted(different)))


def _on_side(seen: _Seen, side: str) -> _Seen:
    paths = ({i: Node("Side", {"text": side}, (origin,)) for i, origin in env.items()} for env in seen.paths)
    return replace(seen, paths=tuple(paths))


def _conjuncts(condition: Node) -> list[Node]:
    if condition.kind != "And":
        return [condition]
    return [part for child in condition.children for part in _conjuncts(child)]


def _all_references(expressions: Sequence[Node]) -> frozenset[int]:
    return frozenset(i for e in expressions for i in references(e))


def _function_of(node: Node) -> str:
    called = [str(t.fields.get("name")) for f in ("functionExpr", "func") for t in node.trees(f) if "name" in t.fields]
    return called[0] if called else "a function"


def _name_of(attribute: Node, former: Mapping[str, str]) -> str:
    name = str(attribute.fields.get("name"))
    return quoted(former.get(name, name))


def _name(value: object) -> str:
    """The name of one of Spark's constants: `…$Update$` is Update."""
    text = str(value.get("object", "")) if isinstance(value, dict) else str(value or "")
    return text.rstrip("$").rpartition(".")[2].rpartition("$")[2]
