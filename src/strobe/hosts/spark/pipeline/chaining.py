"""Which stages may become part of the query that reads them, by what is declared, and what that query then is.

A stage that is chained has no query and no channel. It computes the same rows, in the query of its only reader. A stage
is not chained if somebody could notice that its channel is missing, or if the two queries have settings that differ.
What the plans of the queries say is checked in `stage.chaining`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from strobe.hosts.spark.pipeline.pipeline import Pipeline, StageSpec
from strobe.hosts.spark.pipeline.stage_options import FAIL, SNAPSHOT
from strobe.model.cut import Json
from strobe.model.ids import NodeId
from strobe.store.chained import CHAINED

__all__ = ["asks_for_chaining", "chained_into", "keeps_channel", "merged", "noted", "noted_chains"]


def asks_for_chaining(pipeline: Pipeline) -> bool:
    return any(_wanted(pipeline, spec) for spec in pipeline.stages.values())


def _wanted(pipeline: Pipeline, spec: StageSpec) -> bool:
    return pipeline.chain if spec.chain is None else spec.chain


def keeps_channel(
    pipeline: Pipeline, uid: NodeId, specs: Mapping[NodeId, StageSpec], asked_for: Collection[str] | None
) -> str | None:
    """Why the stage keeps its query and its channel; None if nothing that is declared prevents chaining.

    `specs` are the stages of the pipeline with those merged that are upstream. `asked_for` are the channels that
    invariants look at, in lower case; None: any of them may be.
    """
    spec, readers = specs[uid], pipeline.readers(uid)
    if not _wanted(pipeline, spec):
        return f"chain=False is said of {'its pipeline' if spec.chain is None else 'it'}"
    if len(readers) != 1:
        return f"it has {len(readers)} readers" if readers else "no stage reads it"
    reader = specs[readers[0]]
    alone = pipeline.stages[reader.uid].inputs == (uid,)
    reasons: tuple[tuple[Callable[[], bool], str], ...] = (
        (lambda: bool(spec.sinks), "it has a sink"),
        (lambda: bool(spec.feedback or reader.feedback), "it is beside a feedback"),
        (lambda: spec.replaces is not None, f"it replaces {str(spec.replaces)!r}"),
        (lambda: asked_for is None, "an invariant is a function, which may look at any channel"),
        (lambda: uid.lower() in (asked_for or ()), "an invariant looks at its channel"),
        (lambda: (spec.bad_files, reader.bad_files) != (FAIL, FAIL), "bad files are set aside"),
        (lambda: spec.conf != reader.conf, f"its conf is another one than that of {reader.uid!r}"),
        (
            lambda: spec.trigger != reader.trigger and not (alone and not reader.trigger),
            f"its trigger is another one than that of {reader.uid!r}",
        ),
        (
            lambda: spec.partitions not in (None, reader.partitions),
            f"it has other partitions than {reader.uid!r}",
        ),
        (
            lambda: _limited(reader) or (_limited(spec) and not alone),
            f"the batches of {reader.uid!r} are limited by commits of its channel",
        ),
        (
            lambda: reader.start != SNAPSHOT or (spec.start != SNAPSHOT and not alone),
            f"it is said where {reader.uid!r} begins on it",
        ),
    )
    return next((words for speaks_against, words in reasons if speaks_against()), None)


def _limited(spec: StageSpec) -> bool:
    return spec.max_rows_per_batch is not None or spec.max_bytes_per_batch is not None


def merged(stage: StageSpec, reader: StageSpec, *, alone: bool) -> StageSpec:
    """The stage whose query computes both. `alone`: the reader reads nothing else."""
    reads = tuple(dict.fromkeys((*(r for r in reader.reads if r != stage.uid), *stage.reads)))
    chained = {**reader.chained, **stage.chained, stage.uid: reader.uid}
    both = replace(reader, reads=reads, chained=chained)
    if not alone:
        return both
    return replace(
        both,
        trigger=stage.trigger,
        max_rows_per_batch=stage.max_rows_per_batch,
        max_bytes_per_batch=stage.max_bytes_per_batch,
        start=stage.start,
    )


def chained_into(pipeline: Pipeline) -> dict[NodeId, NodeId]:
    """The chained stages of a pipeline as it runs, and whose query computes each."""
    return {uid: spec.uid for spec in pipeline.stages.values() for uid in spec.chained}


def noted_chains(pipeline: Pipeline) -> dict[NodeId, Json]:
    """For the record of a job that has just been restored: which queries its stages are, until it has started."""
    if not asks_for_chaining(pipeline) and not chained_into(pipeline):
        return {}
    return {uid: {CHAINED: noted(spec)} for uid, spec in pipeline.stages.items()}


def noted(spec: StageSpec) -> dict[str, Json]:
    return {str(stage): str(reader) for stage, reader in spec.chained.items()}
