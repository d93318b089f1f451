"""Bringing a job back to a snapshot. The order is what makes it safe to be killed at any step.

1. *Plan*: look at everything, touch nothing. Refused plans end here.
2. *Lay out*: each stage's Spark checkpoint goes, verified and durable, into the directory of a new timeline, and is
   repartitioned there; rows for channels are laid aside. Nothing uses any of it yet: a crash leaves garbage that the
   next start sweeps away, and the job is where it was.
3. *Begin*: one durable write of the job record starts the new timeline and notes the intent.
4. *Cut*: channels are cut back or filled, offsets renumbered, sinks taken back.
5. *Done*: one durable write clears the intent and notes what the stages need to start.

Between 3 and 5 the job belongs to the restore: any later start does it again from the snapshot that the intent names,
on a timeline of its own, before it does anything else. So nothing here has to be taken up in the middle.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.checkpoint.layout import lay_out_stage
from strobe.hosts.spark.checkpoint.offsets import mark_offsets, rearrange_offsets, rename_channels, renumber_offsets
from strobe.hosts.spark.checkpoint.source_files import rewrite_source_logs
from strobe.hosts.spark.checkpoint.stage_files import note_starts, sync_tree
from strobe.hosts.spark.commit.start import transactional
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.home.record import Intent
from strobe.hosts.spark.pipeline.chaining import noted_chains
from strobe.hosts.spark.restore.channels import Renumbering, lay_content_aside, restore_channel, sweep_aside
from strobe.hosts.spark.restore.context import RestoreContext
from strobe.hosts.spark.restore.plan import (
    ChannelAction,
    ClaimMode,
    How,
    RestorePlan,
    StageAction,
    StagePlan,
)
from strobe.hosts.spark.restore.planning import plan_restore
from strobe.hosts.spark.restore.replacing import begin_without_state, original, renamed, taking_over
from strobe.hosts.spark.restore.rescale import repartition, wanted_partitions
from strobe.hosts.spark.restore.sinks import named_parts, settle_parts, sweep_staging
from strobe.hosts.spark.restore.unchaining import take_part
from strobe.hosts.spark.stage.assemble import sink_contexts
from strobe.model.errors import Failed, StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.store.codec import root_of
from strobe.store.locate import Located, locate

__all__ = ["restore_job", "sweep_leftovers", "unfinished"]

_log = logging.getLogger("strobe.job")


def restore_job(job: RestoreContext, spark: SparkSession) -> None:
    """Restore what `options` ask for, or finish what an earlier start has begun. Returns with the job record and
    files as the stages need them to start; on an error from the plan nothing has changed."""
    home, options = job.home, job.options
    intent = home.record.restoring
    if options.snapshot is not None:
        found = locate(options.snapshot, home.home, options.root, options.signer())
    elif intent is not None:
        found = unfinished(intent, home)
        mode = ClaimMode.CLAIM if intent.claim else ClaimMode.NO_CLAIM
        options = replace(
            options, claim_mode=mode.value, allow_non_restored_state=intent.allow_non_restored_state,
            partitions=options.partitions or intent.partitions,
            stage_partitions={**intent.stage_partitions, **options.stage_partitions},
            sinks_from=(*intent.sinks_from, *options.sinks_from),
            allow_changed_state=(*intent.allow_changed_state, *options.allow_changed_state),
        )  # fmt: skip
        _log.warning("the restore of %s was not finished; it is done again", found.where)
    else:
        return
    found, job = taking_over(found, job.pipeline), replace(job, options=options)
    plan = plan_restore(job, found)
    plan.check()
    for warning in plan.warnings:
        _log.warning("%s", warning)
    _Restore(plan, job, spark, found).run()


def unfinished(intent: Intent, home: JobHome) -> Located:
    """The snapshot that an earlier start was restoring."""
    try:
        found = locate(intent.snapshot, home.home)
        if root_of(found.load()) == intent.root:
            return replace(found, root=intent.root)
        why = f"{found.where} is another snapshot now."
    except StrobeError as error:
        why = error.what
    raise Failed(
        f"Job {home.job!r} was being restored from {intent.snapshot}, which was not finished, and cannot be now: {why}",
        untouched="Nothing was started. Channels and tables may be half way back.",
        next=f"Put that snapshot back and run again, or restore another one: `strobe run -s SNAPSHOT …`; "
        f"`strobe checkpoints {home.job}` shows which there are.",
    )


class _Restore:
    def __init__(self, plan: RestorePlan, job: RestoreContext, spark: SparkSession, found: Located) -> None:
        self.plan = plan
        self.job = job
        self.options = job.options
        self.names = {s.replaces: s.uid for s in plan.stages if s.replaces is not None}
        self.home = job.home
        self.spark = spark
        self.found = found
        manifest = original(found)  # once: what was planned is what is done, whoever changes the file meanwhile
        self.manifest = renamed(manifest, self.names)
        if root_of(manifest) != plan.root:
            raise Failed(
                f"{plan.where} is another snapshot than it was a moment ago.",
                untouched="Nothing was changed.",
                next="Find out who writes there, and run again.",
            )

    def run(self) -> None:
        plan, home = self.plan, self.home
        crash_points.point("restore.planned")
        _log.info("%s %d is laid out", plan.kind, plan.snapshot)
        for stage in plan.stages:
            if stage.laid_out:
                self._lay_out(stage)
        for channel in plan.channels:
            if channel.action is ChannelAction.REFILLED:
                lay_content_aside(channel, home, self.found, self.manifest, plan.timeline)
        crash_points.point("restore.laid-out")
        home.remember(
            timeline=plan.timeline,
            asked="",
            snapshot=SnapshotId(max(home.record.snapshot, plan.snapshot)),
            restoring=Intent(
                str(self.found.where), plan.root, plan.how.value, plan.claim is ClaimMode.CLAIM,
                self.options.allow_non_restored_state, self.options.partitions, dict(self.options.stage_partitions),
                self.options.sinks_from,
                self.options.allow_changed_state,
            ),
        )  # fmt: skip
        crash_points.point("restore.begun")
        renumbered = self._channels()
        self._sinks()
        crash_points.point("restore.cut")
        self._note_starts(renumbered)
        home.remember(restoring=None, pinned=self._pinned(), stages=noted_chains(self.job.pipeline))
        crash_points.point("restore.done")
        _remove_other_timelines(home)
        sweep_staging(home)

    # ── stages ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _checkpoint(self, uid: NodeId) -> Path:
        home = self.home
        return home.path(home.layout.stage_checkpoint(uid, self.plan.timeline, home.record.generation))

    def _lay_out(self, stage: StagePlan) -> None:
        place = self._checkpoint(stage.uid)
        shutil.rmtree(place.parent, ignore_errors=True)
        lay_out_stage(self.found, self.manifest, stage.host or stage.uid, place)
        crash_points.point("restore.stage-copied", stage.uid)
        try:
            if self.plan.how is How.FORK:
                # Spark tells queries apart by this id, and stops one that starts under the id of another.
                (place / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
            if stage.division is not None:
                take_part(place, stage.division)
            rename_channels(place, self.names)
            if stage.sources is not None:
                rearrange_offsets(place, stage.sources, self._positions(stage))
            mark_offsets(place, self.names.values() if self.plan.how is How.ROLLBACK else None)
            rewrite_source_logs(place, stage.moved)
            _forget_later_schemas(place, stage)
            if stage.action is StageAction.REPLACING:
                self._begin(stage, place)
            if stage.partitions is not None:
                repartition(self.spark, place, stage.uid, *stage.partitions)
                crash_points.point("restore.repartitioned", stage.uid)
            sync_tree(place, self.home.home)
        except OSError as error:
            raise Failed(
                f"The checkpoint of stage {stage.uid!r} could not be laid out: {error.filename}: {error.strerror}.",
                untouched="The job and the snapshot are as they were.",
                next="Make room on that disk, and run again.",
            ) from error

    def _begin(self, stage: StagePlan, place: Path) -> None:
        """A stage that takes another one's place has its offsets, and a state of its own."""
        assert stage.record is not None
        draft = next(d for d in self.job.drafts if d.spec.uid == stage.uid)
        wanted = wanted_partitions(self.job.pipeline, draft.spec, self.options) or stage.record.partitions or 1
        begin_without_state(draft, place, self.job.descriptions[stage.uid], dict(stage.record.extra), wanted)

    def _positions(self, stage: StagePlan) -> dict[NodeId, int]:
        """Where a stage with a new input begins on it, in the snapshot's positions."""
        if not stage.earliest:
            return dict(stage.starts)
        logs = {p: self.home.path(self.home.layout.channel(p)) for p in stage.starts}
        rollback = self.plan.how is How.ROLLBACK
        if not rollback:
            return dict.fromkeys(stage.starts, 0)
        return {p: max(ChannelLog(logs[p], torn_after=at).trimmed_at(at), 0) for p, at in stage.starts.items()}

    # ── channels and sinks ──────────────────────────────────────────────────────────────────────────────────────────

    def _channels(self) -> dict[NodeId, Renumbering]:
        drafts = {d.spec.uid: d for d in self.job.drafts}
        renumbered: dict[NodeId, Renumbering] = {}
        for channel in self.plan.channels:
            producer = NodeId(channel.name)
            versions = restore_channel(channel, drafts[producer], self.home)
            if versions is not None:
                renumbered[producer] = versions
            crash_points.point("restore.channel-cut", producer)
        for stage in self.plan.stages:
            if stage.action in (StageAction.RESTORED, StageAction.UNCHAINED):
                renumber_offsets(self._checkpoint(stage.uid), {p: v.__getitem__ for p, v in renumbered.items()})
        return renumbered

    def _sinks(self) -> None:
        contexts = {
            context.name: context
            for draft in self.job.drafts
            for context in sink_contexts(self.job.pipeline.name, draft, self.home, self.job.base)
        }
        manifest = self.manifest
        for step in self.plan.sinks:
            context = replace(contexts[step.name], named=named_parts(manifest, step.name))
            sink = transactional(step.sink)
            if self.plan.how is not How.FORK and sink is not None:
                settle_parts(sink, context, manifest, self.home)
            step.sink.restore(step.position, context, step.fate)
            crash_points.point("restore.sink-back", step.stage)

    def _pinned(self) -> tuple[SnapshotId, ...]:
        pinned = set(self.home.record.pinned)
        if self.plan.how is How.ROLLBACK:
            pinned.discard(self.plan.snapshot)
            if self.plan.claim is ClaimMode.NO_CLAIM:
                pinned.add(self.plan.snapshot)
        return tuple(sorted(pinned))

    def _note_starts(self, renumbered: Mapping[NodeId, Renumbering]) -> None:
        for stage in self.plan.stages:
            unbegun = stage.action is StageAction.UNBEGUN  # it had started without rows, so `start=` no longer counts
            if (stage.starts and stage.action is not StageAction.RESTORED) or unbegun:
                starts = {p: self._start(stage, p, old, renumbered.get(p)) for p, old in stage.starts.items()}
                note_starts(self._checkpoint(stage.uid), starts)

    def _start(self, stage: StagePlan, producer: NodeId, old: int, versions: Renumbering | None) -> int:
        if stage.earliest:
            log = ChannelLog(self.home.path(self.home.layout.channel(producer)))
            return 0 if versions is not None else max(log.trimmed, 0)
        return old if versions is None else versions[old]


# ── the disk ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _forget_later_schemas(checkpoint: Path, stage: StagePlan) -> None:
    """Spark notes schemas of a transformWithState by batch number: delete what later batches have noted."""
    assert stage.record is not None
    for path in checkpoint.glob("state/*/_metadata/v2/*"):
        if path.name.isdecimal() and int(path.name) > (stage.record.batch or 0):
            path.unlink()


def sweep_leftovers(home: JobHome) -> None:
    """Delete what a restore had laid out if it was killed before the new timeline began."""
    record = home.record
    for path in home.path(home.layout.stages).glob("*/*"):
        line = home.layout.line_of(path.name)
        if line is not None and line > (record.timeline, record.generation):
            home.discard(path)  # a driver that was replaced cannot tell its successor's files from leftovers
    sweep_aside(home)


def _remove_other_timelines(home: JobHome) -> None:
    """Timelines that were left are needed no more: their snapshots have copies of their own."""
    for path in home.path(home.layout.stages).glob("*/*"):
        line = home.layout.line_of(path.name)
        timeline = home.layout.starts_of(path.name) if line is None else line[0]
        if timeline is not None and timeline != home.record.timeline:
            home.discard(path)
