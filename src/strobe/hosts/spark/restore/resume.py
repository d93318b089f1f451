"""From plans to stages that can start: restored if that was asked for, else resumed where they were left.

A file may have changed since the job last ran. What that means for state, channels and positions is found out here,
before anything is touched, from what the job record says of the last start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from strobe.hosts.spark.channel.columns import Columns, evolve
from strobe.hosts.spark.channel.log import LOG, ChannelLog
from strobe.hosts.spark.channel.schema import channel_schema
from strobe.hosts.spark.channel.writer import table_columns
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.source_files import rewrite_source_logs, source_logs
from strobe.hosts.spark.checkpoint.stage_files import (
    adopt_checkpoints,
    note_starts,
    relocate_state,
    stage_checkpoint,
    start_positions,
)
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.home.moved import Homes, find_moved
from strobe.hosts.spark.pipeline.chaining import chained_into
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.plans.changes import uncompared
from strobe.hosts.spark.restore.beginning import begin_sources, check_starts
from strobe.hosts.spark.restore.channels import restore_channel
from strobe.hosts.spark.restore.coming_again import begins_somewhere, source_places
from strobe.hosts.spark.restore.context import RestoreContext
from strobe.hosts.spark.restore.evolve import changed_state, compare_stages, rearranged, said
from strobe.hosts.spark.restore.former import Former
from strobe.hosts.spark.restore.left_behind import (
    channels_left,
    dropped_with,
    refusal_to_leave,
    waiting_at_a_resume,
)
from strobe.hosts.spark.restore.own_sources import check_own_sources
from strobe.hosts.spark.restore.parting import Parting, as_parted, part_stages, plan_parting
from strobe.hosts.spark.restore.plan import ChannelAction, ChannelPlan, RestoreOptions
from strobe.hosts.spark.restore.replacing import replacements
from strobe.hosts.spark.restore.rescale import first_partitions, rescale_stages
from strobe.hosts.spark.restore.restore import restore_job, sweep_leftovers
from strobe.hosts.spark.restore.sink_places import changed_keys, changed_sinks, sink_keys, sink_places
from strobe.hosts.spark.stage.assemble import AssembledStage, DraftStage, open_stages, sink_contexts
from strobe.hosts.spark.stage.bad_files import check_set_aside
from strobe.hosts.spark.stage.chaining import describe_draft
from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import ChannelId, NodeId

__all__ = ["Ready", "ResumePlan", "bring_up", "check_asked", "plan_resume", "with_newest"]

_log = logging.getLogger("strobe.job")
_Say = Callable[[NodeId, str], None]  # what a person should know of a stage


@dataclass(frozen=True)
class Ready:
    """Stages that can start, and what they keep as state, by uid."""

    stages: Sequence[AssembledStage]
    descriptions: Mapping[NodeId, Mapping[str, Json]]


@dataclass(frozen=True)
class ResumePlan:
    """What a plain run would do, and every reason why it cannot. `stages`: where each goes on, in words."""

    job: str
    home: str
    stages: tuple[tuple[NodeId, str], ...] = ()
    warnings: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    problems: tuple[StrobeError, ...] = ()

    @property
    def exit_code(self) -> int:
        return max((p.exit_code for p in self.problems), default=0)

    def as_json(self) -> dict[str, Json]:
        return {
            "job": self.job,
            "home": self.home,
            "stages": [{"uid": uid, "does": does} for uid, does in self.stages],
            "warnings": list(self.warnings),
            "unchecked": list(self.unchecked),
            "problems": [{"what": p.what, "untouched": p.untouched, "next": p.next} for p in self.problems],
            "succeeds": not self.problems,
        }


def plan_resume(
    pipeline: Pipeline, drafts: Sequence[DraftStage], home: JobHome, base: Path, options: RestoreOptions
) -> ResumePlan:
    """Plan to resume the job where it was left. Touches nothing."""
    warnings: list[str] = []
    unchecked: list[str] = []
    problems: list[StrobeError] = []
    descriptions = _descriptions(drafts, base)
    partings: dict[NodeId, Parting] = {}

    def warn(uid: NodeId, sentence: str) -> None:
        warnings.append(f"{uid}: {sentence}")

    def note(uid: NodeId, sentence: str) -> None:
        unchecked.append(f"{uid}: {sentence}")

    for check in (
        lambda: check_starts(drafts, descriptions),
        lambda: check_set_aside(drafts, descriptions),
        lambda: check_own_sources(drafts, descriptions, base),
        lambda: partings.update(plan_parting(drafts, home, descriptions)),
        lambda: _check_file(pipeline, drafts, home, descriptions, partings, options, warn, note),
        lambda: warnings.extend(_moved(pipeline, home, descriptions, partings)[1]),
        lambda: _look_at_sinks(pipeline, home, descriptions, warn),
        lambda: _check_sinks(pipeline, drafts, home, base, warn),
    ):
        try:
            check()
        except StrobeError as error:
            problems.append(error)
    warnings += [sentence for _, sentence in _new_sources(pipeline, drafts, home, partings)]
    chained = ((uid, f"chained, with {host}") for uid, host in chained_into(pipeline).items())
    stages = (*chained, *((uid, _place_of(home, uid, partings.get(uid))) for uid in pipeline.order()))
    return ResumePlan(home.job, str(home.home), stages, tuple(warnings), tuple(unchecked), tuple(problems))


def _place_of(home: JobHome, uid: NodeId, parting: Parting | None) -> str:
    checkpoint = stage_checkpoint(home, uid if parting is None else parting.host)
    logged, committed = spark_checkpoint.last_logged(checkpoint), spark_checkpoint.last_committed(checkpoint)
    if logged is None:
        return "has not begun" if uid in home.record.stages else "new"
    again = "" if logged == committed or parting is not None else f", and runs batch {logged} again"
    if parting is not None and not parting.division.whole:
        again = f", with a query of its own: it was chained into {parting.host}"
    return f"goes on {'at its start' if committed is None else f'behind batch {committed}'}{again}"


def _descriptions(drafts: Sequence[DraftStage], base: Path) -> dict[NodeId, dict[str, Json]]:
    return {
        d.spec.uid: {**describe_draft(d), "writes": sink_places(d.spec, base), "keys": sink_keys(d.spec)}
        for d in drafts
    }


def _warn(uid: NodeId, sentence: str) -> None:
    _log.warning("%s: %s", uid, sentence)


def _note(uid: NodeId, sentence: str) -> None:
    _log.info("%s: %s", uid, sentence)


def bring_up(
    pipeline: Pipeline,
    drafts: Sequence[DraftStage],
    home: JobHome,
    base: Path,
    spark: SparkSession,
    options: RestoreOptions,
) -> Ready:
    check_asked(home, options)
    sweep_leftovers(home)
    descriptions = _descriptions(drafts, base)
    check_starts(drafts, descriptions)
    check_set_aside(drafts, descriptions)
    check_own_sources(drafts, descriptions, base)
    sources: dict[NodeId, tuple[NodeId, ...]] = {}
    moved: dict[NodeId, dict[str, str]] = {}
    partings: dict[NodeId, Parting] = {}
    options = with_newest(pipeline, home, options)
    if options.snapshot is not None or home.record.restoring is not None:
        restore_job(RestoreContext(pipeline, drafts, descriptions, home, base, options), spark)
    else:
        partings = plan_parting(drafts, home, descriptions)
        sources = _check_file(pipeline, drafts, home, descriptions, partings, options, _warn, _note)
        moved, warnings = _moved(pipeline, home, descriptions, partings)
        for warning in warnings:
            _log.warning("%s", warning)
        _look_at_sinks(pipeline, home, descriptions, _warn)
        _check_sinks(pipeline, drafts, home, base, _warn)
        _add_stages(pipeline, drafts, home, partings)
    stages = open_stages(pipeline, drafts, home, base)
    adopt_checkpoints(home, tuple(pipeline.stages))  # after the fences that `open_stages` has put up
    for uid, roots in moved.items():
        rewrite_source_logs(stage_checkpoint(home, uid), roots)
    for uid in pipeline.stages:
        relocate_state(stage_checkpoint(home, uid))
    part_stages(pipeline, stages, home, partings, descriptions)
    rescale_stages(pipeline, stages, home, spark, options, descriptions, sources)
    begin_sources(drafts, home, {d.spec.uid: first_partitions(pipeline, d.spec, options) for d in drafts})
    columns = {s.spec.uid: {"columns": s.output.columns.json} for s in stages if s.output is not None}
    noted = {uid: {**about, **columns.get(uid, {})} for uid, about in descriptions.items()}
    home.remember(stages=noted, home=str(home.home))
    return Ready(stages, descriptions)


def check_asked(home: JobHome, options: RestoreOptions) -> None:
    """Refuse a plain run of a job that was told to begin from a snapshot and never did."""
    asked = home.record.asked
    if asked and options.snapshot is None:
        raise Misuse(
            f"Job {home.job!r} was to begin from the snapshot {asked}, and that run ended before the restore began: "
            "without -s it would begin at its sources.",
            untouched="Nothing was started: the job has read nothing and written nothing.",
            next=f"Run it with -s {asked}. To begin at the sources, choose another --name, or delete "
            f"{home.path(home.layout.root)} first.",
        )


def _former(pipeline: Pipeline, drafts: Sequence[DraftStage], home: JobHome, warn: _Say) -> Former:
    """The columns of channels at the last start. Refuses changes of columns that are impossible. The channel itself may
    have the new columns already, if an earlier start was killed right after that."""
    held: dict[NodeId, Columns] = {}
    before: dict[NodeId, Columns] = {}
    for draft in drafts:
        uid = draft.spec.uid
        path, noted = home.path(home.layout.channel(uid)), home.record.stages.get(uid)
        if pipeline.readers(uid) and noted is not None and (path / LOG).is_dir():
            held[uid] = table_columns(path)
            known = Columns.from_json(noted.get("columns")) if isinstance(noted, Mapping) else None
            before[uid] = known or held[uid]
            changes = evolve(held[uid], channel_schema(draft.schema, uid), draft.spec.renamed, uid).changes
            for sentence in changes:
                warn(uid, sentence)
    return Former.of(drafts, held, before)


def _removed(pipeline: Pipeline, home: JobHome) -> list[NodeId]:
    """Stages that have run on this timeline and are no longer in the file."""
    known = (uid for uid in home.record.stages if uid not in pipeline.stages)
    return [uid for uid in known if spark_checkpoint.last_logged(stage_checkpoint(home, uid)) is not None]


def with_newest(pipeline: Pipeline, home: JobHome, options: RestoreOptions) -> RestoreOptions:
    """Dropping a stage begins a new line of history, at the newest checkpoint."""
    removed = _removed(pipeline, home)
    replaced = replacements(pipeline, removed)
    if options.snapshot is not None or home.record.restoring is not None or not removed:
        return options
    dropped = [uid for uid in removed if uid not in replaced]
    if dropped and not options.allow_non_restored_state:
        raise Misuse(
            f"Stage {dropped[0]!r} of job {home.job!r} is no longer in the file; its state would be dropped.",
            untouched="Nothing was changed.",
            next="Put it back under the same uid; or let the stage that takes its place go on where it was, with "
            f"replaces={str(dropped[0])!r}; or drop it for good with --allow-non-restored-state. In both cases the job "
            "goes on from its newest checkpoint.",
        )
    return replace(options, snapshot=home.job)


def _check_file(
    pipeline: Pipeline,
    drafts: Sequence[DraftStage],
    home: JobHome,
    descriptions: Mapping[NodeId, Json],
    partings: Mapping[NodeId, Parting],
    options: RestoreOptions,
    warn: _Say,
    note: _Say,
) -> dict[NodeId, tuple[NodeId, ...]]:
    """Refuse what cannot go on. Returns the stages whose channels are in another order now."""
    found: dict[NodeId, tuple[NodeId, ...]] = {}
    former = _former(pipeline, drafts, home, warn)
    then = {**descriptions, **{d.spec.uid: former.now(d) for d in drafts if former.concerns(d)}}
    known = as_parted(home, partings, descriptions)
    for uid in pipeline.stages:
        before = known.get(uid)
        if before is None:
            continue
        waiting = waiting_at_a_resume(home, uid, channels_left(before, descriptions[uid]))
        if waiting and not options.allow_non_restored_state:
            raise refusal_to_leave(uid, waiting, home.job)
        if waiting:
            warn(uid, f"{dropped_with(waiting)}, and are dropped")
        if spark_checkpoint.last_logged(stage_checkpoint(home, uid)) is None:
            continue
        differences = compare_stages(former.without_casts(before), former.without_casts(then[uid]))
        problem = changed_state(uid, differences, allowed=uid in options.allow_changed_state)
        if problem is not None:
            raise problem
        for sentence in said(differences):
            warn(uid, sentence)
        for sentence in uncompared(before, descriptions[uid]):
            note(uid, sentence)
        sources = rearranged(before, descriptions[uid])
        if sources is not None:
            found[uid] = sources
    return found


def _moved(
    pipeline: Pipeline,
    home: JobHome,
    descriptions: Mapping[NodeId, Mapping[str, Json]],
    partings: Mapping[NodeId, Parting],
) -> tuple[dict[NodeId, dict[str, str]], list[str]]:
    """The stages whose checkpoints name files by old paths: of directories that they read and that have moved, by old
    and new path; and of the home itself, if it has moved. Also returns warnings for the user."""
    homes = Homes.of(home.record.home, home.home)
    found: dict[NodeId, dict[str, str]] = {}
    warnings: list[str] = []
    known = as_parted(home, partings, descriptions)
    for uid in pipeline.stages:
        before, checkpoint = known.get(uid), stage_checkpoint(home, uid)
        if not isinstance(before, Mapping) or spark_checkpoint.last_logged(checkpoint) is None:
            continue
        files, now = before.get("directories"), descriptions[uid].get("directories")
        moved, problem = find_moved(uid, files, now, homes, partial(source_logs, checkpoint), warnings=warnings)
        if problem is not None:
            raise problem
        if moved or homes.moved:
            found[uid] = moved
    return found, warnings


def _look_at_sinks(
    pipeline: Pipeline, home: JobHome, descriptions: Mapping[NodeId, Mapping[str, Json]], warn: _Say
) -> None:
    homes = Homes.of(home.record.home, home.home)
    for uid in pipeline.stages:
        before = home.record.stages.get(uid)
        if isinstance(before, Mapping) and spark_checkpoint.last_logged(stage_checkpoint(home, uid)) is not None:
            said = descriptions[uid]
            for sentence in changed_sinks(before.get("writes"), said["writes"], homes):
                warn(uid, sentence)
            for sentence in changed_keys(before.get("keys"), said["keys"]):
                warn(uid, sentence)


def _check_sinks(pipeline: Pipeline, drafts: Sequence[DraftStage], home: JobHome, base: Path, warn: _Say) -> None:
    for draft in drafts:
        for sink, context in zip(draft.spec.sinks, sink_contexts(pipeline.name, draft, home, base), strict=True):
            changes = sink.check_columns(context)
            if changes:
                warn(draft.spec.uid, changes)


def _add_stages(
    pipeline: Pipeline, drafts: Sequence[DraftStage], home: JobHome, partings: Mapping[NodeId, Parting]
) -> None:
    """Stages that the job did not have when it last started. Where they begin is settled once."""
    for _, sentence in _new_sources(pipeline, drafts, home, partings):
        _log.warning("%s", sentence)
    for draft in drafts:
        uid, checkpoint = draft.spec.uid, stage_checkpoint(home, draft.spec.uid)
        if not _is_added(uid, home):
            continue
        if (home.path(home.layout.channel(uid)) / LOG).is_dir() and pipeline.readers(uid):
            # An earlier stage with this uid wrote it: what it holds has nothing to do with the new one.
            restore_channel(ChannelPlan(ChannelId(uid), ChannelAction.EMPTIED), draft, home)
        if uid in partings:
            continue  # it goes on where the query that computed it was
        logs = {read: home.path(home.layout.channel(read)) for read in draft.spec.inputs}
        channels = {read: ChannelLog(path) for read, path in logs.items() if (path / LOG).is_dir()}
        earliest = draft.spec.start == "earliest"
        starts = {read: max(log.trimmed, 0) if earliest else log.end for read, log in channels.items()}
        if starts:
            note_starts(checkpoint, starts)


def _is_added(uid: NodeId, home: JobHome) -> bool:
    known = home.record.stages
    return bool(known) and uid not in known and not start_positions(stage_checkpoint(home, uid))


def _new_sources(
    pipeline: Pipeline, drafts: Sequence[DraftStage], home: JobHome, partings: Mapping[NodeId, Parting]
) -> list[tuple[NodeId, str]]:
    """Stages that the job did not have and that read a source, with what that means."""
    added = [d for d in drafts if d.spec.uid not in partings and _is_added(d.spec.uid, home)]
    places = {d.spec.uid: source_places(d.result) for d in added}
    known = set(home.record.stages)
    return [(uid, begins_somewhere(pipeline, uid, at, (), known)) for uid, at in places.items() if at]
