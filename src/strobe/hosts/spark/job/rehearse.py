"""Trying a restore before it counts.

*Dry run*: make the plan that the restore, or the resume, would carry out, and touch nothing.

*Rehearsal*: carry it out, in a scratch home, as a fork whose sinks throw everything away, until each stage has done its
first batch or has nothing to do. What fails there would have failed in earnest; the job, its channels and its tables
are only read. Sources are read too: one that deletes what it has read is not for rehearsing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame, SparkSession

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.channel.gate import Gate, GateHandler
from strobe.hosts.spark.channel.parquet import run_only
from strobe.hosts.spark.connectors.base import Sink
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.job.job import DEFAULT_MASTER, Job, JobState, default_home, start_job
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import spark_session
from strobe.hosts.spark.pipeline.config import RestartPolicy
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.restore.chains import lay_chains
from strobe.hosts.spark.restore.context import RestoreContext
from strobe.hosts.spark.restore.plan import ClaimMode, RestoreOptions, RestorePlan
from strobe.hosts.spark.restore.planning import plan_restore
from strobe.hosts.spark.restore.rescale import check_options
from strobe.hosts.spark.restore.resume import ResumePlan, check_asked, plan_resume, with_newest
from strobe.hosts.spark.stage.assemble import draft_stages
from strobe.hosts.spark.stage.chaining import describe_draft
from strobe.hosts.spark.stage.runner import StageRunner, StageState
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.ids import NodeId
from strobe.store.holding import is_held
from strobe.store.locate import locate

__all__ = ["Rehearsal", "dry_resume", "dry_run", "in_session", "rehearse"]

_POLL = 0.1
_PATIENCE = 600.0


@dataclass(frozen=True)
class Rehearsal:
    """`stages`: what each one did, in words. `failure`: why the restore would not work."""

    plan: RestorePlan
    stages: tuple[tuple[NodeId, str], ...]
    seconds: float
    failure: StrobeError | None

    @property
    def exit_code(self) -> int:
        return self.plan.exit_code or (0 if self.failure is None else self.failure.exit_code)


class _Discard(Sink):
    """Runs the batch and keeps nothing of it."""

    def describe(self) -> str:
        return "nowhere (rehearsal)"

    def write(self, batch: DataFrame, batch_id: int) -> None:
        run_only(batch)


def dry_run(
    pipeline: Pipeline,
    *,
    restore: RestoreOptions,
    home: str | None = None,
    master: str | None = None,
    base: Path | None = None,
    spark: SparkSession | None = None,
) -> RestorePlan:
    """What `start_job` with the same arguments would do. Changes nothing; the job may be running."""
    place = Path(home or default_home())
    with in_session(pipeline, master, spark) as session:
        plan = _plan(pipeline, restore, place, (base or Path()).absolute(), session)
    return replace(plan, problems=(*plan.problems, *_running(place, pipeline.name)))


def _running(place: Path, job: str) -> tuple[StrobeError, ...]:
    if not is_held(place, job):
        return ()
    running = Misuse(
        f"Job {job!r} is running.",
        untouched="That run was left alone.",
        next=f"Stop it first: `strobe stop {job}`; or use another --name.",
    )
    return (running,)


def dry_resume(
    pipeline: Pipeline,
    *,
    restore: RestoreOptions,
    home: str | None = None,
    master: str | None = None,
    base: Path | None = None,
    spark: SparkSession | None = None,
) -> ResumePlan | RestorePlan:
    """What `start_job` would do without a snapshot. A job that loses a stage goes back to its newest checkpoint: then
    it is the plan of that restore. Changes nothing; the job may be running."""
    pipeline.check(base)
    check_options(pipeline, restore)
    place = Path(home or default_home())
    holder = JobHome(place, pipeline.name)
    holder.peek()
    if holder.record.restoring is not None:
        raise Misuse(
            f"Job {pipeline.name!r} was being restored from {holder.record.restoring.snapshot}, which was not "
            "finished: a run does that first.",
            untouched="Nothing was changed.",
            next="Run it without --dry-run, or restore another snapshot with -s.",
        )
    check_asked(holder, restore)
    options = with_newest(pipeline, holder, restore)
    if options.snapshot is not None:
        return dry_run(pipeline, restore=options, home=home, master=master, base=base, spark=spark)
    with in_session(pipeline, master, spark) as session, Gate(cast(GateHandler, None)) as gate:
        pipeline, drafts = lay_chains(pipeline, draft_stages(pipeline, session, gate, holder), holder, restore)
        plan = plan_resume(pipeline, drafts, holder, (base or Path()).absolute(), restore)
    return replace(plan, problems=(*plan.problems, *_running(place, pipeline.name)))


def rehearse(
    pipeline: Pipeline,
    *,
    restore: RestoreOptions,
    home: str | None = None,
    master: str | None = None,
    base: Path | None = None,
    spark: SparkSession | None = None,
) -> Rehearsal:
    """Restore into a scratch home, run the first batches, and clean up. The job itself may be running meanwhile."""
    place, began = Path(home or default_home()), SYSTEM.monotonic()
    with in_session(pipeline, master, spark) as session:
        plan = _plan(pipeline, restore, place, (base or Path()).absolute(), session)
        if plan.problems:
            return Rehearsal(plan, (), SYSTEM.monotonic() - began, None)
        place.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".rehearsal-", dir=place))
        try:
            options = replace(restore, snapshot=plan.where, claim_mode=ClaimMode.NO_CLAIM.value)
            stages, failure = _run(_without_effects(pipeline), scratch, session, options)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return Rehearsal(plan, stages, SYSTEM.monotonic() - began, failure)


def _plan(pipeline: Pipeline, restore: RestoreOptions, place: Path, base: Path, session: SparkSession) -> RestorePlan:
    if restore.snapshot is None:
        raise Misuse(
            "There is nothing to plan without a snapshot.",
            untouched="Nothing was changed.",
            next="Name the snapshot that would be restored: -s SNAPSHOT.",
        )
    check_options(pipeline, restore)
    found = locate(restore.snapshot, place, restore.root, restore.signer())
    found.load()
    holder = JobHome(place, pipeline.name)
    holder.peek()
    with Gate(cast(GateHandler, None)) as gate:  # nobody asks: only plans are made
        pipeline, drafts = lay_chains(pipeline, draft_stages(pipeline, session, gate, holder), holder, restore)
    descriptions = {d.spec.uid: describe_draft(d) for d in drafts}
    return plan_restore(RestoreContext(pipeline, drafts, descriptions, holder, base, restore), found)


@contextlib.contextmanager
def in_session(pipeline: Pipeline, master: str | None, given: SparkSession | None) -> Iterator[SparkSession]:
    """The session that was given, or one for this pipeline, which ends with the block."""
    os.environ["JAVA_HOME"] = str(find_java())
    session = given or spark_session(pipeline.name, master or DEFAULT_MASTER, extra=pipeline.conf)
    try:
        yield session
    finally:
        if given is None:
            session.stop()


def _without_effects(pipeline: Pipeline) -> Pipeline:
    return pipeline.varied(
        checkpoint=replace(pipeline.checkpoint, interval=None),
        restart=RestartPolicy(attempts=0),
        stages={uid: replace(spec, sinks=(_Discard(),) if spec.sinks else ()) for uid, spec in pipeline.stages.items()},
    )


def _run(
    pipeline: Pipeline, scratch: Path, session: SparkSession, options: RestoreOptions
) -> tuple[tuple[tuple[NodeId, str], ...], StrobeError | None]:
    job = None
    try:
        job = start_job(pipeline, home=str(scratch), base=scratch, spark=session, restore=options)
        first = {uid: runner.agent.batch for uid, runner in job.runners.items()}
        deadline = SYSTEM.monotonic() + _PATIENCE
        while SYSTEM.monotonic() < deadline and job.state is JobState.RUNNING:
            if all(_seen(runner, first[uid]) for uid, runner in job.runners.items()):
                break
            SYSTEM.sleep(_POLL)
        stages = tuple((uid, _words(runner, first[uid])) for uid, runner in job.runners.items())
        return stages, _failure(job)
    except StrobeError as error:
        return (), error
    finally:
        if job is not None:
            job.stop()
            job.wait()  # it may have been ending by itself: its home must not go before it has


def _seen(runner: StageRunner, first: int) -> bool:
    idle = runner.agent.idle if runner.spec.inputs else runner.waiting
    return runner.agent.batch > first or idle or runner.state is StageState.ENDED


def _words(runner: StageRunner, first: int) -> str:
    if runner.error:
        return f"failed: {runner.error}"
    batch = runner.agent.batch
    return f"ran batch {batch}" if batch > first else "has nothing to do"


def _failure(job: Job) -> StrobeError | None:
    failed = next((r for r in job.runners.values() if r.error), None)
    if failed is None and job.state is not JobState.FAILED:
        return None
    what = f"stage {failed.spec.uid!r} failed: {failed.error}" if failed is not None else job.error
    return Failed(
        f"The rehearsal failed: {what}",
        untouched="The job, its channels and its tables are as they were.",
        next="Fix the cause and rehearse again.",
    )
