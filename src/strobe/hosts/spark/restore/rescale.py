"""How many partitions a stage's state has, and how that changes.

Spark notes the number in a query's checkpoint and keeps to it, whatever the session says later. To change it, its
state is rewritten by Spark's own repartitioning, always in a copy that nothing uses yet: in the directories of a new
timeline (restore) or of a new generation (resume). One durable write of the job record then makes the job use it, so
a crash before it leaves the job as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import quote

from pyspark.sql import SparkSession

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint import final_batch
from strobe.hosts.spark.checkpoint.offsets import rearrange_offsets
from strobe.hosts.spark.checkpoint.stage_files import (
    adopt_checkpoints,
    link_checkpoint,
    relocate_state,
    rewritten_generation,
    stage_checkpoint,
    sync_tree,
)
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.pipeline.pipeline import Pipeline, StageSpec
from strobe.hosts.spark.plans.description import operator_kinds
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.stage.assemble import AssembledStage
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId
from strobe.model.suggest import did_you_mean

__all__ = [
    "DEFAULT_PARTITIONS", "check_options", "first_partitions", "refusal", "repartition", "rescale_stages",
    "wanted_partitions",
]  # fmt: skip

DEFAULT_PARTITIONS: Final = 2

_log = logging.getLogger("strobe.job")
_FIXED: Final = {
    "limit": "a limit counts in one place",
    "applyInPandasWithState": "Spark cannot repartition applyInPandasWithState; transformWithState it can",
}


def check_options(pipeline: Pipeline, options: RestoreOptions) -> None:
    """Check that the stages that the options name exist."""
    asked = [
        *((uid, f"-p {uid}={count}") for uid, count in options.stage_partitions.items()),
        *((uid, f"--allow-changed-state {uid}") for uid in options.allow_changed_state),
    ]
    for uid, option in asked:
        if uid not in pipeline.stages:
            raise Misuse(
                f"{option}: pipeline {pipeline.name!r} has no stage {uid!r}.",
                untouched="Nothing was started.",
                next=f"{did_you_mean(uid, pipeline.stages)}Its stages: {', '.join(pipeline.stages)}.",
            )


def wanted_partitions(pipeline: Pipeline, spec: StageSpec, options: RestoreOptions) -> int | None:
    """What the command line says, else what the file says; None: as many as it has."""
    return options.stage_partitions.get(spec.uid) or options.partitions or spec.partitions or pipeline.partitions


def first_partitions(pipeline: Pipeline, spec: StageSpec, options: RestoreOptions) -> int:
    """How many partitions a stage begins with."""
    return wanted_partitions(pipeline, spec, options) or DEFAULT_PARTITIONS


def refusal(uid: NodeId, description: Json, before: int, after: int) -> Misuse | None:
    """Why a stage with these operators cannot be repartitioned, if it is known beforehand."""
    why = next((_FIXED[kind] for kind in operator_kinds(description) if kind in _FIXED), None)
    if why is None and _is_global(description):
        why = "an aggregate without keys has one row in one place"
    return None if why is None else _cannot(uid, before, after, why)


def _is_global(description: Json) -> bool:
    operators = description.get("operators") if isinstance(description, dict) else None
    return isinstance(operators, list) and any(
        isinstance(o, dict) and o.get("kind") == "aggregate" and not o.get("keys") for o in operators
    )


def _cannot(uid: NodeId, before: int | None, after: int, why: str) -> Misuse:
    return Misuse(
        f"The state of stage {uid!r} cannot go from {before} to {after} partitions: {why}.",
        untouched="Nothing was changed.",
        next=f"Leave this stage at {before}: -p UID=N rescales single stages, and so does partitions= in the file.",
    )


@contextmanager
def _plainly_spelled(checkpoint: Path) -> Iterator[Path]:
    """A path to it without a space and the like: Spark encodes what it is given, and then finds no batch there."""
    if quote(str(checkpoint)) == str(checkpoint):
        yield checkpoint
        return
    with TemporaryDirectory(prefix="strobe-") as directory:
        link = Path(directory, "checkpoint")
        link.symlink_to(checkpoint.absolute(), target_is_directory=True)
        yield link


def repartition(spark: SparkSession, checkpoint: Path, uid: NodeId, before: int | None, after: int) -> None:
    """Rewrite the state in `checkpoint`, whose last batch is committed. This is a batch of its own, without rows."""
    _log.info("the state of %s is repartitioned to %d", uid, after)
    manager: Any = spark._streamingCheckpointManager
    try:
        with _plainly_spelled(checkpoint) as place:
            manager.repartition(str(place), after)
        relocate_state(checkpoint)
    except Exception as error:  # whatever the JVM says, in Java's words
        raise _cannot(uid, before, after, f"Spark says: {_first_words(error)}") from error


def _first_words(error: Exception) -> str:
    lines = [line.strip(" :") for line in str(error).splitlines() if line.strip()]
    java = [line for line in lines if "Exception: " in line or "Error: " in line]
    said = (java or lines or [type(error).__name__])[0]
    return said.rpartition("Error: ")[2].rpartition("Exception: ")[2].partition(" SQLSTATE")[0].rstrip(".")


def rescale_stages(
    pipeline: Pipeline,
    stages: Sequence[AssembledStage],
    home: JobHome,
    spark: SparkSession,
    options: RestoreOptions,
    descriptions: Mapping[NodeId, Json],
    sources: Mapping[NodeId, tuple[NodeId, ...]],
) -> None:
    """At a start, after the fences: give each stage with state as many partitions as are wanted. Put its offsets into
    the order of `sources`, if a changed file has changed that order."""
    changes: dict[NodeId, tuple[int, int]] = {}
    first: list[Path] = []  # checkpoints with one batch, which nobody has seen
    for stage in stages:
        spec, uid = stage.spec, stage.spec.uid
        wanted, checkpoint = wanted_partitions(pipeline, spec, options), stage_checkpoint(home, uid)
        batch, logged = spark_checkpoint.last_committed(checkpoint), spark_checkpoint.last_logged(checkpoint)
        if wanted is None or logged is None or not (checkpoint / "state").is_dir():
            continue
        has = spark_checkpoint.read_offsets(checkpoint, logged if batch is None else batch).partitions
        if has is None or has == wanted:
            continue
        problem = refusal(uid, descriptions.get(uid), has, wanted) if batch is not None else None
        if problem is not None:
            raise problem
        if logged != batch and not stage.is_unseen(logged):
            raise Misuse(
                f"Stage {uid!r} cannot be rescaled now: it ended in the middle of a batch.",
                untouched="Nothing was changed.",
                next="Run the job without -p until it has done that batch, stop it, and run it with -p then; or "
                "restore its newest checkpoint with -s and -p.",
            )
        if batch is None:
            first.append(checkpoint)
        else:
            changes[uid] = (has, wanted)
    for checkpoint in first:
        final_batch.drop_refused(checkpoint, written=-1)  # it begins again, with as many as are wanted
    if changes or sources:
        _rewrite(pipeline, home, spark, changes, sources)


def _rewrite(
    pipeline: Pipeline,
    home: JobHome,
    spark: SparkSession,
    changes: Mapping[NodeId, tuple[int, int]],
    sources: Mapping[NodeId, tuple[NodeId, ...]],
) -> None:
    generation = rewritten_generation(home)
    for uid in dict.fromkeys((*changes, *sources)):
        new = stage_checkpoint(home, uid, generation)
        try:
            home.discard(new.parent)
            link_checkpoint(stage_checkpoint(home, uid), new)
            relocate_state(new)
            crash_points.point("rescale.copied", uid)
            if uid in sources:
                rearrange_offsets(new, sources[uid], _starts(pipeline.stages[uid], home))
            if uid in changes:
                final_batch.drop_refused(new, written=-1)
                repartition(spark, new, uid, *changes[uid])
            sync_tree(new, home.home)
        except OSError as error:
            raise Failed(
                f"The state of stage {uid!r} could not be rewritten: {error.strerror or error}.",
                untouched="The old one is as it was.",
                next="Make room on that disk, and run again.",
            ) from error
    crash_points.point("rescale.repartitioned")
    home.remember(generation=generation)
    crash_points.point("rescale.done")
    adopt_checkpoints(home, tuple(pipeline.stages))


def _starts(spec: StageSpec, home: JobHome) -> dict[NodeId, int]:
    """Where the stage begins on an input that it did not have: where the job was left, or at the earliest row."""
    logs = {uid: ChannelLog(home.path(home.layout.channel(uid))) for uid in spec.inputs}
    return {uid: max(log.trimmed, 0) if spec.start == "earliest" else log.end for uid, log in logs.items()}
