"""What a stage keeps as state, described from the plan of its query.

Spark finds state again by the order of its operators in the plan, and their rows by position, not by name. So a
description of each stage's operators is kept with every snapshot; `restore.evolve` compares it with that of the file
that is to run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from strobe.hosts.spark.home.moved import file_sources
from strobe.hosts.spark.jvm.python_source import without_numbers
from strobe.hosts.spark.plans.meaning import Facts, FormerNames, describe_operators
from strobe.hosts.spark.plans.tree import parse_plan
from strobe.model.cut import Json

__all__ = [
    "CHANNEL",
    "crashed_processor",
    "describe_stage",
    "entries_of",
    "operator_kinds",
    "reads_source",
    "source_nodes",
]

_log = logging.getLogger("strobe.plans")
CHANNEL = "channel "
_ENCODING = "spark.sql.streaming.stateStore.encodingFormat"
_SOURCES = ("StreamingRelation", "StreamingRelationV2")
_REPLACEABLE = "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceableAggregate"
_DEDUPLICATE = {"Deduplicate": "distinct", "DeduplicateWithinWatermark": "distinct within watermark"}


def describe_stage(
    result: DataFrame, output_mode: str, former: FormerNames | None = None, conf: Mapping[str, str] | None = None
) -> dict[str, Json]:
    """`operators` with what they keep, in the plan's order; `sources` in the order in which Spark numbers them; the
    `schema` of the output; the `meaning` of the state; and the `directories` that it reads files from. `former`: names
    that columns of channels had, for a comparison with an earlier description. `conf` are the stage's own settings."""
    plan: Any = result._jdf.queryExecution().analyzed()
    operators: list[Json] = []
    sources: list[Json] = []
    nodes = _nodes(plan)
    optimized = _optimized(result, nodes)
    joins = _join_sides(optimized)
    for node in nodes:
        kind = node.getClass().getSimpleName()
        if kind in _SOURCES:
            sources.append(_source(node, kind))
        elif node.isStreaming():
            operator = _operator(node, kind, joins)
            if operator is not None:
                operators.append(operator)
    session: Any = result.sparkSession
    zone = str(session.conf.get("spark.sql.session.timeZone"))
    encoding = str((conf or {}).get(_ENCODING) or session.conf.get(_ENCODING, "unsaferow"))
    files = file_sources(nodes, session._jvm, session._jsc.hadoopConfiguration())
    return {
        "operators": operators,
        "sources": sources,
        "schema": result.schema.simpleString(),
        "meaning": _meaning(plan, nodes, optimized, output_mode, zone, former or {}),
        **({"directories": files} if files else {}),
        **({"encoding": encoding} if any(o["kind"] == "transformWithState" for o in operators) else {}),
    }


def operator_kinds(description: Json) -> list[str]:
    operators = description.get("operators", []) if isinstance(description, dict) else []
    return [str(o["kind"]) for o in operators if isinstance(o, dict)] if isinstance(operators, list) else []


def entries_of(description: Mapping[str, Json], name: str) -> list[Any]:
    value = description.get(name)
    return value if isinstance(value, list) else []


def reads_source(description: Json) -> bool:
    """Whether the stage reads something else than channels, as a stream."""
    return isinstance(description, Mapping) and not all(
        str(source).startswith(CHANNEL) for source in entries_of(description, "sources")
    )


def source_nodes(result: DataFrame) -> list[tuple[Any, str]]:
    """The places in a plan that read a stream, in its order, and what each is called in a description."""
    found = []
    for node in _nodes(result._jdf.queryExecution().analyzed()):
        kind = node.getClass().getSimpleName()
        if kind in _SOURCES:
            found.append((node, str(_source(node, kind))))
    return found


def _nodes(plan: Any) -> list[Any]:
    found = [plan]
    for child in _items(plan.children()):
        found += _nodes(child)
    return found


def _items(seq: Any) -> list[Any]:
    return [seq.apply(i) for i in range(seq.size())]


def _operator(node: Any, kind: str, joins: list[Json]) -> Json:
    if kind == "Aggregate":
        return {
            "kind": "aggregate",
            "keys": [_column(e) for e in _items(node.groupingExpressions())],
            "values": [f for e in _items(node.aggregateExpressions()) for f in _functions(e)],
            "names": _names(node),
        }
    if kind in _DEDUPLICATE:
        return {"kind": _DEDUPLICATE[kind], "keys": [_column(e) for e in _items(node.keys())]}
    if kind == "Join" and all(c.isStreaming() for c in _items(node.children())):
        condition = node.condition()
        text = condition.get().sql() if condition.isDefined() else ""
        sides = joins.pop(0) if joins else None
        return {"kind": "join", "type": node.joinType().sql(), "condition": text, "sides": sides}
    if kind == "TransformWithStateInPySpark":
        return {"kind": "transformWithState", **_processor(node)}
    if kind == "FlatMapGroupsInPandasWithState":
        return {
            "kind": "applyInPandasWithState",
            "keys": [_column(e) for e in _items(node.groupingAttributes())],
            "values": [{"name": "state", "type": node.stateType().sql()}],
        }
    if kind == "GlobalLimit":
        return {"kind": "limit"}
    if kind == "EventTimeWatermark":
        return {"kind": "watermark", "column": node.eventTime().sql(), "delay": str(node.delay())}
    return None


def _column(expression: Any) -> Json:
    return {"name": expression.sql(), "type": expression.dataType().sql()}


def _names(node: Any) -> Json:
    """What the user's code calls keys and results of an aggregate, by how they are computed. The state has no names."""
    found: dict[str, Json] = {}
    for expression in _items(node.aggregateExpressions()):
        if expression.getClass().getSimpleName() == "Alias":
            found.setdefault(str(expression.child().sql()), str(expression.name()))
    return found


def _functions(expression: Any) -> list[Json]:
    """The aggregate functions inside an expression: each has a place in the state."""
    if expression.getClass().getSimpleName() == "AggregateExpression":
        function = expression.aggregateFunction()
        arguments = [e.dataType().sql() for e in _items(function.children())]
        kind = f"{function.prettyName()}({', '.join(arguments)})"
        keeps = f"{function.prettyName()} as {_buffer(function)}"
        return [{"name": expression.sql(), "type": kind, "keeps": keeps}]
    return [f for e in _items(expression.children()) for f in _functions(e)]


def _buffer(function: Any) -> str:
    """What an aggregate keeps. Some stand for others that the optimizer puts in their place, as `count_if` does."""
    while True:
        try:
            return str(function.aggBufferSchema().sql())
        except Py4JJavaError:
            if not is_instance_of(SparkContext._gateway, function, _REPLACEABLE):
                raise
            function = function.replacement()


def _optimized(result: DataFrame, analyzed: list[Any]) -> list[Any]:
    """The nodes of the optimized plan, if there is a join: that keeps the columns that the optimizer leaves."""
    if not any(n.getClass().getSimpleName() == "Join" for n in analyzed):
        return []
    try:
        session: Any = result.sparkSession._jsparkSession
        return _nodes(session.sessionState().optimizer().execute(analyzed[0]))
    except Exception as error:  # an error inside Spark: the operator and its condition are compared all the same
        _log.debug("the columns that a join keeps are not known: %s", error)
        return []


def _join_sides(optimized: list[Any]) -> list[Json]:
    return [
        [[_column(a) for a in _items(side.output())] for side in _items(node.children())]
        for node in optimized
        if node.getClass().getSimpleName() == "Join" and all(c.isStreaming() for c in _items(node.children()))
    ]


def _meaning(
    plan: Any, nodes: list[Any], optimized: list[Any], output_mode: str, zone: str, former: FormerNames
) -> Json:
    """None if Spark cannot say what its plan is."""
    names: dict[str, str] = {}
    try:
        told = (parse_plan(str(optimized[0].toJSON())), _facts(optimized, names, zone, former)) if optimized else None
        found = describe_operators(parse_plan(str(plan.toJSON())), _facts(nodes, names, zone, former), told)
        return {**found, "output_mode": output_mode}
    except Exception as error:  # types are compared all the same, and that the rest is not is said
        _log.debug("what the state means is not known", exc_info=error)
        return None


def _facts(nodes: list[Any], names: dict[str, str], zone: str, former: FormerNames) -> Facts:
    """`names` are those of sources by what tells them apart; one that is read in two places is one source."""
    sources: dict[int, str] = {}
    delays: dict[int, str] = {}
    for place, node in enumerate(nodes):
        kind = node.getClass().getSimpleName()
        if kind in _SOURCES:
            name = str(_source(node, kind)).removeprefix(CHANNEL)
            key = f"{name} {node.output()}"
            count = sum(known == name or known.startswith(f"{name}#") for known in names.values())
            channel = str(_source(node, kind)).startswith(CHANNEL)
            sources[place] = names.setdefault(key, name if channel or not count else f"{name}#{count + 1}")
        elif kind == "EventTimeWatermark":
            delays[place] = str(node.delay())
    return Facts(sources, delays, zone, former)


def _source(node: Any, kind: str) -> Json:
    name = without_numbers(str(node.sourceName()).partition("[")[0])  # where it reads may change, how it counts may not
    if kind == "StreamingRelationV2":
        channel = node.extraOptions().get("channel")
        if channel is not None and node.extraOptions().get("stage") is not None:
            return f"{CHANNEL}{channel}"
    return name


def _processor(node: Any) -> dict[str, Json]:
    described: dict[str, Json] = {"keys": [_column(e) for e in _items(node.leftAttributes())]}
    try:
        described["values"] = sorted(_variables(node), key=str)
    except Exception as error:  # `init` is user code, and may raise anything
        _log.debug("the state of a processor is not known: %s", error)
    return described


def _variables(node: Any) -> list[Json]:
    function = CloudPickleSerializer().loads(bytes(_bytes(node.functionExpr().func().command())))[0]  # type: ignore[no-untyped-call]
    variables = _Variables()
    function.__self__._stateful_processor.init(variables)
    return variables.found


def crashed_processor(error: BaseException, result: DataFrame) -> BaseException | None:
    """Spark does not tell what a processor's `init` has raised, only that it has: then it is called here once more."""
    if "TransformWithStateInPySpark driver worker exited unexpectedly" not in str(error):
        return None
    plan: Any = result._jdf.queryExecution().analyzed()
    for node in _nodes(plan):
        if node.getClass().getSimpleName() == "TransformWithStateInPySpark":
            try:
                _variables(node)
            except Exception as raised:
                return raised
    return None


def _bytes(command: Any) -> Any:
    return command if isinstance(command, bytes | bytearray) else command.unsafeArray()


class _Variables:
    """Stands in for Spark's handle while a processor says which state it has."""

    def __init__(self) -> None:
        self.found: list[Json] = []

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> _Unused:
        return self._note(stateName, "value", schema, ttlDurationMs)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> _Unused:
        return self._note(stateName, "list", schema, ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> _Unused:
        return self._note(stateName, f"map by {_ddl(userKeySchema)}", valueSchema, ttlDurationMs)

    def _note(self, name: str, kind: str, schema: Any, ttl: int | None) -> _Unused:
        lives = " with a time to live" if ttl else ""
        about = {"kind": f"{kind}{lives}", "schema": _struct(schema).jsonValue()}
        self.found.append({"name": name, "type": f"{kind} of {_ddl(schema)}{lives}", "ttl_ms": ttl, **about})
        return _Unused()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: _Unused()


class _Unused:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _struct(schema: Any) -> Any:
    return schema if isinstance(schema, StructType) else StructType.fromDDL(schema)


def _ddl(schema: Any) -> str:
    return str(_struct(schema).simpleString())
