"""Chaining: the plan of a stage takes the place of its channel in the plan of the stage that reads it.

A stage is chained only if nobody can tell, from results, that there is no channel any more:

- its plan has no state and no watermark, so that its rows do not depend on how they are cut into batches, and what its
  reader's operators do about late rows does not change;
- it is deterministic: a channel keeps rows as they were computed once, a query that runs a batch again computes them
  again;
- its reader uses it in one place, or it has no functions of the user's own: Spark computes it once for each place, and
  takes it on trust that such a function gives the same again.

The reader sees the columns as a channel would give them: all may be null, and none has metadata. So what it keeps as
state has the same shape and the same meaning with a channel and without.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.classic.column import _to_seq
from pyspark.sql.types import StructType

from strobe.hosts.spark.channel.schema import channel_schema
from strobe.hosts.spark.pipeline.chaining import asks_for_chaining, keeps_channel, merged, noted
from strobe.hosts.spark.pipeline.pipeline import Pipeline, StageSpec
from strobe.hosts.spark.plans.description import describe_stage
from strobe.hosts.spark.plans.meaning import FormerNames
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.hosts.spark.stage.due_batch import plan_nodes
from strobe.model.cut import Json
from strobe.model.ids import NodeId
from strobe.store.chained import CHAINED

__all__ = ["chain_stages", "describe_draft"]

_log = logging.getLogger("strobe.job")
# Operators that make each row from one row, or from a table that is not a stream.
_STATELESS = frozenset(
    {
        "Project", "Filter", "Generate", "Expand", "Union", "SubqueryAlias", "View", "ResolvedHint", "Repartition",
        "RepartitionByExpression", "RebalancePartitions", "MapInPandas", "MapInArrow", "PythonMapInArrow",
        "StreamingRelation", "StreamingRelationV2",
    }
)  # fmt: skip


def chain_stages(
    pipeline: Pipeline, drafts: Sequence[DraftStage], bound: Callable[[NodeId, NodeId], str | None]
) -> tuple[Pipeline, list[DraftStage]]:
    """The pipeline as it runs: without the stages that are chained, with the others that compute them.

    `bound(stage, reader)`: why the stage cannot be chained into its reader, by where the job was left.
    """
    if not asks_for_chaining(pipeline):
        return pipeline, list(drafts)
    asked_for = _asked_for(pipeline)
    now = {draft.spec.uid: draft for draft in drafts}
    for uid in pipeline.order():
        specs = {other: draft.spec for other, draft in now.items()}
        why = keeps_channel(pipeline, uid, specs, asked_for)
        if why is None:
            (reader,) = pipeline.readers(uid)
            why = _why_not_by_plan(now[uid].result)
            if why is None and (why := bound(uid, reader)) is not None:
                now[uid] = replace(now[uid], spec=replace(now[uid].spec, kept=why))
            if why is None:
                both = _in_place_of_channel(now[uid], now[reader])
                if isinstance(both, DataFrame):
                    now[reader] = _chained(now[uid], now[reader], both, pipeline)
                    del now[uid]
                    _log.info("%s is chained: the query of %s computes it", uid, reader)
                    continue
                why = both
        if pipeline.readers(uid):
            level = logging.WARNING if pipeline.stages[uid].chain else logging.INFO
            _log.log(level, "%s keeps its channel: %s", uid, why)
    return pipeline.with_stages({uid: draft.spec for uid, draft in now.items()}), list(now.values())


def _chained(stage: DraftStage, reader: DraftStage, both: DataFrame, pipeline: Pipeline) -> DraftStage:
    alone = pipeline.stages[reader.spec.uid].inputs == (stage.spec.uid,)
    spec: StageSpec = merged(stage.spec, reader.spec, alone=alone)
    parts = {**reader.parts, **stage.parts, stage.spec.uid: stage.own}
    return replace(reader, spec=spec, result=both, returned=reader.own, parts=parts)


def _asked_for(pipeline: Pipeline) -> set[str] | None:
    if not pipeline.invariants:
        return set()
    from strobe.look.judging import channels_asked_for

    return channels_asked_for(pipeline.invariants)


def describe_draft(draft: DraftStage, former: FormerNames | None = None) -> dict[str, Json]:
    """What the stage keeps, in terms of the channels that it reads as declared; what its query reads, as it runs."""
    spec = draft.spec
    own = describe_stage(draft.own, spec.output_mode, former, spec.conf)
    if not spec.chained:
        return own
    runs = describe_stage(draft.result, spec.output_mode, former, spec.conf)
    reads: dict[str, Json] = {name: what for name, what in runs.items() if name in ("sources", "directories")}
    return {**own, **reads, CHAINED: noted(spec)}


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _why_not_by_plan(result: DataFrame) -> str | None:
    plan: Any = result._jdf.queryExecution().analyzed()
    for node in plan_nodes(plan):
        kind = str(node.getClass().getSimpleName())
        if not node.isStreaming() or kind in _STATELESS:
            continue
        if kind == "Join" and not all(node.children().apply(i).isStreaming() for i in range(node.children().size())):
            continue
        return "it has a watermark" if kind == "EventTimeWatermark" else f"its plan has an operator {kind}"
    return None if plan.deterministic() else "it may give other rows when a batch is run again"


def _in_place_of_channel(stage: DraftStage, reader: DraftStage) -> DataFrame | str:
    """What the reader computes, with the plan of `stage` where it reads its channel; or why that cannot be."""
    plan: Any = reader.result._jdf.queryExecution().analyzed()
    places = sum(_reads(node, stage.spec.uid) for node in plan_nodes(plan))
    if not places:
        return f"{reader.spec.uid!r} does not use it"
    session: Any = reader.result.sparkSession
    try:
        if places > 1 and _has_functions(stage.result):
            return f"{reader.spec.uid!r} uses it in {places} places, and it has functions that would run in each"
        typed = _with_types(stage.result, channel_schema(stage.schema, stage.spec.uid))
        whole = _replaced(plan, stage.spec.uid, typed)
        return DataFrame(
            session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, whole), session
        )
    except Exception as error:  # whatever the JVM says of a plan that nobody here has seen
        _log.debug("the plans of %s and %s", stage.spec.uid, reader.spec.uid, exc_info=error)
        return f"Spark cannot put its plan into that of {reader.spec.uid!r}"


def _has_functions(result: DataFrame) -> bool:
    plan: Any = result._jdf.queryExecution().analyzed()
    return any(kind in str(plan.toJSON()) for kind in ("PythonUDF", "ScalaUDF", "HiveSimpleUDF", "HiveGenericUDF"))


def _reads(node: Any, uid: NodeId) -> bool:
    if node.getClass().getSimpleName() != "StreamingRelationV2":
        return False
    options = node.extraOptions()
    return options.get("stage") is not None and options.get("channel") == uid


def _with_types(result: DataFrame, schema: StructType) -> DataFrame:
    """Values inside of columns may be null, too."""
    if all(a.dataType == b.dataType for a, b in zip(result.schema.fields, schema.fields, strict=True)):
        return result
    quoted = {field.name: field.name.replace("`", "``") for field in schema.fields}
    return result.select(*(F.col(f"`{quoted[f.name]}`").cast(f.dataType).alias(f.name) for f in schema.fields))


def _as_channel(result: DataFrame, channel: Any) -> Any:
    """The plan of `result` with the columns of `channel`, a leaf of another plan, by their ids."""
    session: Any = result.sparkSession
    catalyst, scala = session._jvm.org.apache.spark.sql.catalyst, session._jvm.scala
    plain = scala.Some(session._jvm.org.apache.spark.sql.types.Metadata.empty())
    plan: Any = result._jdf.queryExecution().analyzed()
    columns = []
    for i in range(channel.output().size()):
        wanted, given = channel.output().apply(i), plan.output().apply(i)
        value = catalyst.expressions.KnownNullable(given)
        columns.append(
            catalyst.expressions.Alias(
                value, wanted.name(), wanted.exprId(), wanted.qualifier(), plain, _to_seq(session._sc, [])
            )
        )
    return catalyst.plans.logical.Project(_to_seq(session._sc, columns), plan)


def _replaced(node: Any, uid: NodeId, result: DataFrame) -> Any:
    if _reads(node, uid):
        return _as_channel(result, node)
    children = [node.children().apply(i) for i in range(node.children().size())]
    changed = [_replaced(child, uid, result) for child in children]
    if all(new is old for new, old in zip(changed, children, strict=True)):
        return node
    return node.withNewChildren(_to_seq(result.sparkSession._sc, changed))
