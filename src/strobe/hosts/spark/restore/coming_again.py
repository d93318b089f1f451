"""Rows that come again, in words: which stage reads them once more, from where, and whom they reach.

A stage that is new to a job has no position. A source stage then begins where its source does; whatever the job has
read there before comes again, and states and tables that keep what they had count it twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.pipeline.stage_options import EARLIEST, LATEST, SNAPSHOT
from strobe.hosts.spark.restore.plan import StageAction, StagePlan
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.model.errors import StrobeError
from strobe.model.ids import NodeId

__all__ = ["begins_somewhere", "rows_again", "source_places"]

_TELLING = (
    "path", "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingVersion", "startTimestamp", "modifiedAfter", "table",
)  # fmt: skip


def rows_again(
    pipeline: Pipeline, drafts: Sequence[DraftStage], home: JobHome, stages: Sequence[StagePlan], *, rollback: bool
) -> Iterator[str]:
    """Every stage of a plan that reads rows once more which the job has read before."""
    kept = {s.uid for s in stages if s.action is StageAction.RESTORED and s.record is not None and s.record.state_rows}
    gone = [s.uid for s in stages if s.action is StageAction.DROPPED and s.record is not None and not s.record.inputs]
    results = {d.spec.uid: d.result for d in drafts}
    for stage in stages:
        if stage.action is not StageAction.NEW:
            continue
        places = source_places(results[stage.uid])
        if places:
            yield begins_somewhere(pipeline, stage.uid, places, gone, kept)
        if stage.earliest and stage.starts:
            rows = _rows_kept(stage, home) if rollback else None
            if rows != 0:
                yield _from_earliest(pipeline, stage.uid, rows, kept)


def _rows_kept(stage: StagePlan, home: JobHome) -> int | None:
    """How many rows its channels hold up to the snapshot, if they are there."""
    try:
        logs = {read: ChannelLog(home.path(home.layout.channel(read))) for read in stage.starts}
        commits = [c for read, at in stage.starts.items() for c in logs[read].history(logs[read].trimmed_at(at), at)]
        return sum(file.rows for commit in commits for file in commit.files)
    except (StrobeError, OSError):
        return None  # the plan of the channel says why


def source_places(result: DataFrame) -> list[str]:
    """The streams that a stage reads besides channels, and where its options say that they begin. Options that may be
    secret are left out."""
    plan: Any = result._jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    places = []
    for leaf in (leaves.apply(i) for i in range(leaves.size())):
        kind = leaf.getClass().getSimpleName()
        if kind == "StreamingRelationV2":
            options = leaf.extraOptions()
            if options.get("channel") is not None and options.get("stage") is not None:
                continue
            told = [f"{name}={value}" for name in _TELLING if (value := options.get(name)) is not None]
            places.append(f"{leaf.sourceName()}{f' ({chr(44).join(told)})' if told else ''}")
        elif kind == "StreamingRelation":
            places.append(str(leaf.sourceName()))
    return list(dict.fromkeys(places))


def begins_somewhere(
    pipeline: Pipeline, uid: NodeId, places: Sequence[str], gone: Sequence[NodeId], kept: set[NodeId]
) -> str:
    """Where a new source stage begins, in words. `gone` are source stages that are no longer in the file, `kept` the
    stages that keep their state."""
    start = pipeline.stages[uid].start
    if start in (SNAPSHOT, EARLIEST):
        return _from_start(pipeline, uid, places, gone, kept)
    read = ", ".join(places)
    if start == LATEST:
        return f"{uid} is a new source stage and begins with what comes to {read} from now on; it reads nothing else."
    return (
        f"{uid} is a new source stage and begins with files of {read} as of {start}; what the job has read of them "
        f"before comes again{_reach(pipeline, uid, kept)}."
    )


def _from_start(
    pipeline: Pipeline, uid: NodeId, places: Sequence[str], gone: Sequence[NodeId], kept: set[NodeId]
) -> str:
    whose = f", by {_names(gone)} for one," if gone else ""
    advice = (
        f"replaces={str(gone[0])!r} lets it go on where {gone[0]!r} was"
        if gone
        else "start='latest' lets it begin with what comes from now on, and its source's options may know other places"
    )
    return (
        f"{uid} is a new source stage and begins where its source does: {', '.join(places)}. Rows from "
        f"there that the job has read before{whose} come again{_reach(pipeline, uid, kept)}; {advice}."
    )


def _from_earliest(pipeline: Pipeline, uid: NodeId, rows: int | None, kept: set[NodeId]) -> str:
    """The sentence for a new stage that begins at the earliest row that its channels keep."""
    count = "all rows" if rows is None else f"{rows:,} rows"
    inputs = _names(pipeline.stages[uid].inputs)
    return f"{uid} is new and begins at the earliest row: {count} of {inputs} come again{_reach(pipeline, uid, kept)}."


def _reach(pipeline: Pipeline, uid: NodeId, kept: set[NodeId]) -> str:
    """Whom the rows of a stage reach: states that are kept, and sinks."""
    reached: dict[NodeId, None] = {}
    waiting = [uid]
    while waiting:
        stage = waiting.pop(0)
        if stage not in reached:
            reached[stage] = None
            waiting += pipeline.readers(stage)
    states = [stage for stage in reached if stage in kept]
    sinks = [f"{sink.describe()} of {stage}" for stage in reached for sink in pipeline.stages[stage].sinks]
    parts = [*([f"the state of {_names(states)}"] if states else []), *sinks]
    return f", and reach {', '.join(parts)}" if parts else ""


def _names(uids: Iterable[NodeId]) -> str:
    return ", ".join(map(repr, map(str, uids)))
