"""From declared stages to Spark plans: call each stage's function, check what it returns, open its channel and sinks.

Nothing runs yet when this is done, and whatever is wrong is said with the stage's name, before any query has started.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from strobe.hosts.spark.channel import ChannelWriter
from strobe.hosts.spark.channel_log import ChannelLog
from strobe.hosts.spark.channel_schema import channel_schema
from strobe.hosts.spark.connectors.base import SinkContext
from strobe.hosts.spark.gate import Gate
from strobe.hosts.spark.home import JobHome
from strobe.hosts.spark.pipeline import Pipeline, StageSpec, argument_name, channel_of
from strobe.hosts.spark.source import read_channel
from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import NodeId, SnapshotId

__all__ = ["AssembledStage", "assemble"]

_log = logging.getLogger("strobe.job")


@dataclass(frozen=True)
class AssembledStage:
    spec: StageSpec
    result: DataFrame
    inputs: Mapping[NodeId, ChannelLog]
    output: ChannelWriter | None

    def sink_positions(self, snapshot: SnapshotId) -> dict[str, Json]:
        return {_sink_name(self.spec, i): sink.position(snapshot) for i, sink in enumerate(self.spec.sinks)}


def assemble(pipeline: Pipeline, spark: SparkSession, gate: Gate, home: JobHome, base: Path) -> list[AssembledStage]:
    """Every stage, upstream first. `base` is where relative paths of sinks begin."""
    schemas: dict[NodeId, StructType] = {}
    for spec in pipeline.stages.values():
        for uid, ddl in spec.feedback.items():
            schemas[uid] = _parse(ddl, spec)
    results: dict[NodeId, DataFrame] = {}
    for uid in pipeline.order():
        spec = pipeline.stages[uid]
        frames = {read: _read(spark, gate, home, uid, read, schemas[read]) for read in spec.inputs}
        result = results[uid] = _call(spec, spark, frames)
        told = schemas.setdefault(uid, result.schema)
        if _bare(told) != _bare(result.schema):
            raise Misuse(
                f"Stage {uid!r} returns {result.schema.simpleString()}, but a stage that reads it by feedback says "
                f"{told.simpleString()}.",
                untouched="Nothing was started.",
                next="Make the schema in strobe.feedback(…) the same.",
            )
        schemas[uid] = result.schema
    writers = {uid: _open_channel(pipeline, home, uid, schemas[uid]) for uid in results if pipeline.readers(uid)}
    stages = []
    for uid, result in results.items():
        spec = pipeline.stages[uid]
        _open_sinks(pipeline, spec, home, result.schema, base)
        inputs = {read: writers[read].log for read in spec.inputs}
        stages.append(AssembledStage(spec, result, inputs, writers.get(uid)))
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
            result: Any = spec.function(**{argument_name(uid): frame for uid, frame in frames.items()})
        else:
            result = spec.function(spark)
    except StrobeError:
        raise
    except Exception as error:
        message = str(error).splitlines()[0] if str(error) else ""
        raise Misuse(
            f"{where}: its function raised {type(error).__name__}: {message}",
            untouched="Nothing was started.",
            next="Mend the function and run again.",
        ) from error
    if not isinstance(result, DataFrame):
        raise Misuse(
            f"{where} returned {'nothing' if result is None else type(result).__name__}, not a DataFrame.",
            untouched="Nothing was started.",
            next="Return the streaming DataFrame that the stage computes.",
        )
    if not result.isStreaming:
        raise Misuse(
            f"{where} returned a batch DataFrame: it has no stream in it.",
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
    if not plan.deterministic():
        _log.warning(
            "%s uses functions that give another result when a batch is run again (rand, uuid, …): after a crash its "
            "output may differ from what was seen before. strobe.stable_random and current_timestamp() do not.",
            spec.uid,
        )


def _open_channel(pipeline: Pipeline, home: JobHome, uid: NodeId, schema: StructType) -> ChannelWriter:
    return ChannelWriter(
        _channel_path(home, uid),
        schema,
        job=pipeline.name,
        producer=uid,
        timeline=home.memory.timeline,
        incarnation=home.memory.incarnation,
    )


def _open_sinks(pipeline: Pipeline, spec: StageSpec, home: JobHome, schema: StructType, base: Path) -> None:
    for i, sink in enumerate(spec.sinks):
        sink.open(
            SinkContext(
                job=pipeline.name,
                stage=spec.uid,
                name=_sink_name(spec, i),
                timeline=home.memory.timeline,
                incarnation=home.memory.incarnation,
                schema=schema,
                output_mode=spec.output_mode,
                base=base,
            )
        )


def _sink_name(spec: StageSpec, index: int) -> str:
    return f"{spec.uid}/{index}"


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
