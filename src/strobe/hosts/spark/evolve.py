"""What a stage keeps as state, described so that two versions of a file can be compared before anything is touched.

Spark finds state again by the order of its operators in the plan, and their rows by position, not by name. A changed
key or aggregate is noticed late, in the first batch, or not at all. So a description of each stage's operators is kept
with every snapshot, and compared with the plan of the file that is to run.

What changes the *shape* of the state (operators, keys, types) is found here: such a state cannot be read. What its
content *means* is derived in `meaning` and compared in `meaning_changes`. Where that was not noted, names are all that
there is to go by: the state goes on, and whether that is what is meant is for its author to say.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from strobe.hosts.spark.meaning import Facts, describe_operators
from strobe.hosts.spark.meaning_changes import Difference, Weight, compare_meanings, meaning_of
from strobe.hosts.spark.moved import file_sources
from strobe.hosts.spark.plan_tree import parse_plan
from strobe.model.cut import Json
from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import NodeId

__all__ = [
    "changed_state",
    "compare_stages",
    "crashed_processor",
    "describe_stage",
    "operator_kinds",
    "reads_source",
    "rearranged",
    "said",
]

_log = logging.getLogger("strobe.evolve")
_CHANNEL = "channel "
_SOURCES = ("StreamingRelation", "StreamingRelationV2")
_DEDUPLICATE = {"Deduplicate": "distinct", "DeduplicateWithinWatermark": "distinct within watermark"}


# ── describing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def describe_stage(result: DataFrame, output_mode: str) -> dict[str, Json]:
    """`operators` with what they keep, in the plan's order; `sources` in the order in which Spark numbers them; the
    `schema` of the output; the `meaning` of the state; and the `directories` that it reads files from."""
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
    files = file_sources(nodes, session._jvm, session._jsc.hadoopConfiguration())
    return {
        "operators": operators,
        "sources": sources,
        "schema": result.schema.simpleString(),
        "meaning": _meaning(plan, nodes, optimized, output_mode),
        **({"directories": files} if files else {}),
    }


def operator_kinds(description: Json) -> list[str]:
    operators = description.get("operators", []) if isinstance(description, dict) else []
    return [str(o["kind"]) for o in operators if isinstance(o, dict)] if isinstance(operators, list) else []


def reads_source(description: Json) -> bool:
    """Whether the stage reads something else than channels, as a stream."""
    return isinstance(description, Mapping) and not all(
        str(source).startswith(_CHANNEL) for source in _list(description, "sources")
    )


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


def _functions(expression: Any) -> list[Json]:
    """The aggregate functions inside an expression: each has a place in the state."""
    if expression.getClass().getSimpleName() == "AggregateExpression":
        function = expression.aggregateFunction()
        arguments = [e.dataType().sql() for e in _items(function.children())]
        kind = f"{function.prettyName()}({', '.join(arguments)})"
        return [{"name": expression.sql(), "type": kind}]
    return [f for e in _items(expression.children()) for f in _functions(e)]


def _optimized(result: DataFrame, analyzed: list[Any]) -> list[Any]:
    """The nodes of the optimized plan, if there is a join: that keeps the columns that the optimizer leaves."""
    if not any(n.getClass().getSimpleName() == "Join" for n in analyzed):
        return []
    try:
        session: Any = result.sparkSession._jsparkSession
        return _nodes(session.sessionState().optimizer().execute(analyzed[0]))
    except Exception as error:  # Spark's own business: the operator and its condition are compared all the same
        _log.debug("the columns that a join keeps are not known: %s", error)
        return []


def _join_sides(optimized: list[Any]) -> list[Json]:
    return [
        [[_column(a) for a in _items(side.output())] for side in _items(node.children())]
        for node in optimized
        if node.getClass().getSimpleName() == "Join" and all(c.isStreaming() for c in _items(node.children()))
    ]


def _meaning(plan: Any, nodes: list[Any], optimized: list[Any], output_mode: str) -> Json:
    """None if Spark cannot say what its plan is."""
    names: dict[str, str] = {}
    try:
        told = (parse_plan(str(optimized[0].toJSON())), _facts(optimized, names)) if optimized else None
        found = describe_operators(parse_plan(str(plan.toJSON())), _facts(nodes, names), told)
        return {**found, "output_mode": output_mode}
    except Exception as error:  # types are compared all the same, and that the rest is not is said
        _log.debug("what the state means is not known", exc_info=error)
        return None


def _facts(nodes: list[Any], names: dict[str, str]) -> Facts:
    """`names` are those of sources by what tells them apart; one that is read in two places is one source."""
    sources: dict[int, str] = {}
    delays: dict[int, str] = {}
    for place, node in enumerate(nodes):
        kind = node.getClass().getSimpleName()
        if kind in _SOURCES:
            name = str(_source(node, kind)).removeprefix(_CHANNEL)
            key = f"{name} {node.output()}"
            count = sum(known == name or known.startswith(f"{name}#") for known in names.values())
            channel = str(_source(node, kind)).startswith(_CHANNEL)
            sources[place] = names.setdefault(key, name if channel or not count else f"{name}#{count + 1}")
        elif kind == "EventTimeWatermark":
            delays[place] = str(node.delay())
    return Facts(sources, delays)


def _source(node: Any, kind: str) -> Json:
    name = str(node.sourceName()).partition("[")[0]  # where it reads may change, how it counts may not
    if kind == "StreamingRelationV2":
        channel = node.extraOptions().get("channel")
        if channel is not None and node.extraOptions().get("stage") is not None:
            return f"{_CHANNEL}{channel}"
    return name


def _processor(node: Any) -> dict[str, Json]:
    described: dict[str, Json] = {"keys": [_column(e) for e in _items(node.leftAttributes())]}
    try:
        described["values"] = sorted(_variables(node), key=str)
    except Exception as error:  # what a processor does in `init` is its author's business
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
        self.found.append({"name": name, "type": f"{kind} of {_ddl(schema)}{lives}", "ttl_ms": ttl})
        return _Unused()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: _Unused()


class _Unused:
    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def _ddl(schema: Any) -> str:
    return (schema if isinstance(schema, StructType) else StructType.fromDDL(schema)).simpleString()


# ── comparing ───────────────────────────────────────────────────────────────────────────────────────────────────────


def compare_stages(before: Json, after: Json) -> list[Difference]:
    """What is not as it was when the state was written. Nothing if that was not described."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or "operators" not in before:
        return []
    known = meaning_of(before) is not None and meaning_of(after) is not None
    try:
        found = [
            *_compare_sources(_list(before, "sources"), _list(after, "sources")),
            *_compare_operators(_list(before, "operators"), _list(after, "operators"), names=not known),
        ]
        if any(d.weight is Weight.UNFIT for d in found):
            return found
        return [*found, *compare_meanings(before, after)]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise Damaged(
            f"The snapshot does not say what the stage kept: {type(error).__name__}: {error!s:.200}.",
            untouched="Nothing was changed.",
            next="Restore another snapshot.",
        ) from error


def changed_state(uid: NodeId, differences: Sequence[Difference], *, allowed: bool = False) -> Misuse | None:
    """Why the stage cannot go on with its state, and the ways out. `allowed`: results may mix."""
    unfit = [d.sentence for d in differences if d.weight is Weight.UNFIT]
    mixed = [d.sentence for d in differences if d.weight is Weight.MIXED]
    instead = (
        f"Keep the operator as it was; or give the stage a new uid and replaces={str(uid)!r}: it goes on where {uid!r} "
        "was, without its state; or stop the job with --drain first and start a new one"
    )
    if unfit:
        return Misuse(
            f"The state of stage {uid!r} does not fit its code any more: {'; '.join((*unfit, *mixed))}.",
            untouched="Nothing was changed.",
            next=f"{instead}.",
        )
    if mixed and not allowed:
        return Misuse(
            f"The state of stage {uid!r} does not mean what its code means now: {'; '.join(mixed)}. Results from "
            "before and after the change would mix.",
            untouched="Nothing was changed.",
            next=f"{instead}; or, if they may mix, go on with the state as it is: --allow-changed-state {uid}.",
        )
    return None


def said(differences: Sequence[Difference]) -> list[str]:
    """What to tell of the differences with which a stage may go on."""
    mixing = {Weight.MIXED: ", and results from before and after the change mix"}
    return [f"{d.sentence}; its state goes on as it is{mixing.get(d.weight, '')}" for d in differences]


def _list(description: Mapping[str, Json], name: str) -> list[Any]:
    value = description.get(name)
    return value if isinstance(value, list) else []


def rearranged(before: Json, after: Json) -> tuple[NodeId, ...] | None:
    """The channels that the new plan reads, in its order, if that is another one than before, and if all that it read
    and reads are channels. Their positions are known by name, so they can be found again in any order."""
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return None
    old, new = _list(before, "sources"), _list(after, "sources")
    if not old or old == new or not _are_channels(old) or not _are_channels(new):
        return None
    return tuple(NodeId(str(source).removeprefix(_CHANNEL)) for source in new)


def _are_channels(sources: list[Any]) -> bool:
    return bool(sources) and all(str(source).startswith(_CHANNEL) for source in sources)


def _compare_sources(before: list[Any], after: list[Any]) -> list[Difference]:
    if before == after or not before:
        return []
    if _are_channels(before) and _are_channels(after):
        if set(before) == set(after):
            return []
        return [Difference(f"it read {_listed(before)}, and now reads {_listed(after)}", Weight.HARMLESS)]
    return [Difference(f"it read {_listed(before)}, and now reads {_listed(after)}, in this order", Weight.UNFIT)]


def _listed(names: list[Any]) -> str:
    return ", ".join(map(str, names)) or "nothing"


def _compare_operators(before: list[Any], after: list[Any], *, names: bool) -> list[Difference]:
    """`names`: compare these too, since there is nothing better."""
    old, new = ([o for o in operators if o["kind"] != "watermark"] for operators in (before, after))
    if [o["kind"] for o in old] != [o["kind"] for o in new]:
        was, is_ = (", ".join(o["kind"] for o in operators) or "none" for operators in (old, new))
        return [Difference(f"its operators with state were: {was}; they are now: {is_}", Weight.UNFIT)]
    found = [d for was, is_ in zip(old, new, strict=True) for d in _compare_operator(was, is_, names=names)]
    marks = [
        [(o["column"], o["delay"]) for o in operators if o["kind"] == "watermark"] for operators in (before, after)
    ]
    if names and marks[0] != marks[1]:
        was, is_ = (", ".join(f"{c} by {d}" for c, d in mark) or "none" for mark in marks)
        found.append(Difference(f"its watermark was {was}, and is now {is_}", Weight.HARMLESS))
    return found


def _compare_operator(before: Mapping[str, Any], after: Mapping[str, Any], *, names: bool) -> list[Difference]:
    kind = before["kind"]
    found: list[Difference] = []
    if "keys" in before and "keys" in after:
        found += _compare_columns(f"keys of its {kind}", before["keys"], after["keys"], names=names)
    if "values" in before and "values" in after:
        what = f"values of its {kind}"
        if kind == "transformWithState":
            found += _compare_variables(what, before["values"], after["values"])
        else:
            found += _compare_columns(what, before["values"], after["values"], names=names)
    if kind == "join":
        for fact in ("type", "condition") if names else ():
            if before[fact] != after[fact]:
                words = f"its join had the {fact} {before[fact]}, and now has {after[fact]}"
                found.append(Difference(words, Weight.UNFIT))
        for side, was, is_ in zip(("left", "right"), before["sides"] or (), after["sides"] or (), strict=False):
            found += _compare_columns(f"rows on the {side} of its join", was, is_, names=names)
    return found


def _compare_variables(what: str, before: list[Any], after: list[Any]) -> list[Difference]:
    """State of a processor goes by name: a new variable starts empty, one that is not asked for lies idle."""
    old, new = ({v["name"]: v["type"] for v in variables} for variables in (before, after))
    found = [
        Difference(f"the state {name!r} was a {old[name]}, and is now a {new[name]}", Weight.UNFIT)
        for name in old
        if name in new and old[name] != new[name]
    ]
    ttl = [{v["name"]: v["ttl_ms"] for v in variables if v.get("ttl_ms")} for variables in (before, after)]
    for name in ttl[0].keys() & ttl[1].keys():
        if ttl[0][name] != ttl[1][name]:
            words = f"the state {name!r} lived for {ttl[0][name]} ms, and what is new lives for {ttl[1][name]} ms"
            found.append(Difference(words, Weight.HARMLESS))
    gone = sorted(old.keys() - new.keys())
    return [
        *found,
        *(Difference(f"the {what} had {name!r}, which is not asked for any more", Weight.HARMLESS) for name in gone),
    ]


def _compare_columns(what: str, before: list[Any], after: list[Any], *, names: bool) -> list[Difference]:
    before, after = (list({str(c): c for c in columns}.values()) for columns in (before, after))
    if before == after:
        return []
    was, is_ = (", ".join(f"{c['name']} {c['type']}" for c in columns) or "none" for columns in (before, after))
    sentence = f"the {what} were {was}, and are now {is_}"
    if [c["type"] for c in before] != [c["type"] for c in after]:
        return [Difference(sentence, Weight.UNFIT)]
    return [Difference(sentence, Weight.HARMLESS)] if names else []
