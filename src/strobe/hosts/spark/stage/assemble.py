"""From declared stages to Spark plans, and from these to open channels and sinks.

In two steps. `draft_stages` calls each stage's function and checks what it returns; it touches nothing on disk, so a
restore can be planned, and refused, from what it gives. `open_stages` then opens channels and sinks, which puts up the
fences. Nothing runs yet when this is done, and whatever is wrong is said with the stage's name, before any query has
started.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from strobe.hosts.spark.channel.gate import Gate
from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.channel.schema import channel_schema
from strobe.hosts.spark.channel.source import read_channel
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.connectors.base import SinkContext
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.jvm.session import own_session
from strobe.hosts.spark.pipeline.pipeline import SESSION, Pipeline, StageSpec, argument_name, channel_of
from strobe.hosts.spark.pipeline.user_code import give_to_workers
from strobe.hosts.spark.pipeline.user_lines import declared_in
from strobe.hosts.spark.plans.nondeterminism import nondeterministic_functions
from strobe.hosts.spark.stage.due_batch import waits_of
from strobe.hosts.spark.stage.failures import reason
from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import NodeId, SnapshotId

__all__ = ["AssembledStage", "DraftStage", "draft_stages", "open_stages", "sink_contexts"]

_log = logging.getLogger("strobe.job")


@dataclass(frozen=True)
class DraftStage:
    """What a stage computes; nothing of it is open. `returned` is what its function gave, if other stages are chained
    into it: then `result` computes these, too. `parts` is what the functions of those gave."""

    spec: StageSpec
    result: DataFrame
    returned: DataFrame | None = None
    parts: Mapping[NodeId, DataFrame] = field(default_factory=dict)

    @property
    def own(self) -> DataFrame:
        """What its function gave, which reads channels as they were declared."""
        return self.result if self.returned is None else self.returned

    @property
    def schema(self) -> StructType:
        return self.result.schema


@dataclass(frozen=True)
class AssembledStage:
    spec: StageSpec
    result: DataFrame
    inputs: Mapping[NodeId, ChannelLog]
    output: ChannelWriter | None
    contexts: tuple[SinkContext, ...] = ()  # of its sinks

    @property
    def never_rests(self) -> bool:
        """Whether it waits for the clock, so that Spark runs one batch after the other."""
        return waits_of(self.result, self.spec.output_mode).clock

    def sink_positions(self, snapshot: SnapshotId) -> dict[str, Json]:
        return {_sink_name(self.spec, i): sink.position(snapshot) for i, sink in enumerate(self.spec.sinks)}

    def is_unseen(self, batch: int) -> bool:
        """Whether channel and sinks all say that they have nothing of `batch`. A sink without a place cannot tell."""
        written = self.output.log.last_batch(self.output.timeline) if self.output is not None else None
        held = [(sink.last_batch(), sink.place()) for sink in self.spec.sinks]
        return (written is None or written < batch) and all(
            place is not None if last is None else last < batch for last, place in held
        )


def draft_stages(pipeline: Pipeline, spark: SparkSession, gate: Gate, home: JobHome) -> list[DraftStage]:
    """Every stage, upstream first."""
    give_to_workers(pipeline, spark.sparkContext)
    schemas: dict[NodeId, StructType] = {}
    for spec in pipeline.stages.values():
        for uid, ddl in spec.feedback.items():
            schemas[uid] = _parse(ddl, spec)
    drafts = []
    for uid in pipeline.order():
        spec = pipeline.stages[uid]
        with own_session(spark, spec.conf, f"Stage {uid!r}") as session:
            frames = {read: _read(session, gate, home, uid, read, schemas[read]) for read in spec.inputs}
            result = _call(spec, session, frames)
        told = schemas.setdefault(uid, result.schema)
        if _bare(told) != _bare(result.schema):
            raise Misuse(
                f"Stage {uid!r} returns {result.schema.simpleString()}, but a stage that reads it by feedback says "
                f"{told.simpleString()}.",
                untouched="Nothing was started.",
                next="Make the schema in strobe.feedback(…) the same.",
            )
        schemas[uid] = result.schema
        drafts.append(DraftStage(spec, result))
    return drafts


def open_stages(pipeline: Pipeline, drafts: Sequence[DraftStage], home: JobHome, base: Path) -> list[AssembledStage]:
    """`base` is where relative paths of sinks begin."""
    writers = {d.spec.uid: _open_channel(pipeline, home, d) for d in drafts if pipeline.readers(d.spec.uid)}
    stages = []
    for draft in drafts:
        spec = draft.spec
        contexts = tuple(sink_contexts(pipeline.name, draft, home, base))
        for sink, context in zip(spec.sinks, contexts, strict=True):
            sink.open(context)
        inputs = {read: writers[read].log for read in spec.inputs}
        stages.append(AssembledStage(spec, draft.result, inputs, writers.get(spec.uid), contexts))
    return stages


def _read(
    spark: SparkSession, gate: Gate, home: JobHome, stage: NodeId, producer: NodeId, schema: StructType
) -> DataFrame:
    return read_channel(
        spark,
        path=_channel_path(home, producer),
        schema=channel_schema(schema, producer),
        stage=stage,
        channel=channel_of(producer),
        gate=gate.address,
    )


def _call(spec: StageSpec, spark: SparkSession, frames: Mapping[NodeId, DataFrame]) -> DataFrame:
    where = f"Stage {spec.uid!r}"
    try:
        if frames:
            named: dict[str, Any] = {argument_name(uid): frame for uid, frame in frames.items()}
            if spec.wants_session:
                named[SESSION] = spark
            result: Any = spec.function(**named)
        else:
            result = spec.function(spark)
    except StrobeError:
        raise
    except (Exception, SystemExit) as error:
        raise Misuse(
            f"{where}: its function raised {reason(error)}",
            untouched="Nothing was started.",
            next="Fix the function and run again.",
        ) from error
    if not isinstance(result, DataFrame):
        raise Misuse(
            f"{where} returned {'nothing' if result is None else type(result).__name__}, not a DataFrame"
            f"{declared_in(spec.function)}.",
            untouched="Nothing was started.",
            next="Return the streaming DataFrame that the stage computes.",
        )
    if not result.isStreaming:
        raise Misuse(
            f"{where} returned a batch DataFrame: it has no stream in it{declared_in(spec.function)}.",
            untouched="Nothing was started.",
            next="Start from spark.readStream in a source stage, or from the DataFrames that the stage is given.",
        )
    _warn(spec, result)
    return result


def _warn(spec: StageSpec, result: DataFrame) -> None:
    """What breaks exactly-once without being an error."""
    plan = result._jdf.queryExecution().analyzed()
    leaves = plan.collectLeaves()
    sources = [leaves.apply(i) for i in range(leaves.size())]
    if any(s.getClass().getSimpleName() == "StreamingRelationV2" and s.sourceName() == "socket" for s in sources):
        _log.warning(
            "%s reads from a socket, which cannot be read again: rows that were read and not committed are lost in a "
            "crash. Put a log (files, Kafka) in front of it.",
            spec.uid,
        )
    found = nondeterministic_functions(plan)
    untold = [f.name for f in found if f.table_function]
    if untold:
        _log.warning(
            "%s uses %s: Spark takes a table function of Python to give another result when a batch is run again. "
            "If it does not, say so: udtf(%s, …).asDeterministic().",
            spec.uid,
            ", ".join(untold),
            untold[0],
        )
    random = [f.name for f in found if not f.table_function]
    if random:
        _log.warning(
            "%s uses functions that give another result when a batch is run again (%s): after a crash its output may "
            "differ from what was seen before. strobe.stable_random and current_timestamp() do not.",
            spec.uid,
            ", ".join(random),
        )


def _open_channel(pipeline: Pipeline, home: JobHome, draft: DraftStage) -> ChannelWriter:
    return ChannelWriter(
        _channel_path(home, draft.spec.uid),
        draft.schema,
        job=pipeline.name,
        producer=draft.spec.uid,
        timeline=home.record.timeline,
        incarnation=home.record.incarnation,
        renamed=draft.spec.renamed,
    )


def sink_contexts(job: str, draft: DraftStage, home: JobHome, base: Path) -> list[SinkContext]:
    """For whom each sink of the stage writes, in the order in which they are declared."""
    return [
        SinkContext(
            job=job,
            stage=draft.spec.uid,
            name=_sink_name(draft.spec, i),
            timeline=home.record.timeline,
            incarnation=home.record.incarnation,
            schema=draft.schema,
            output_mode=draft.spec.output_mode,
            base=base,
            staging=home.path(home.layout.staging(_sink_name(draft.spec, i), home.record.timeline)),
            identity=home.path(home.layout.identity),
        )
        for i in range(len(draft.spec.sinks))
    ]


def _sink_name(spec: StageSpec, index: int) -> str:
    """By the sink's own uid if it has one, else by its place."""
    return f"{spec.uid}/{spec.sinks[index].uid or index}"


def _channel_path(home: JobHome, uid: NodeId) -> Path:
    return home.path(home.layout.channel(uid))


def _parse(ddl: str, spec: StageSpec) -> StructType:
    try:
        schema = StructType.fromDDL(ddl)
        if isinstance(schema, StructType):
            return schema
        raise ValueError("it is not a list of columns")
    except (ParseException, AnalysisException, ValueError) as error:
        raise Misuse(f"Stage {spec.uid!r}: feedback schema {ddl!r} cannot be read: {error}") from error


def _bare(schema: StructType) -> str:
    return schema.simpleString()
