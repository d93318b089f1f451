"""A job: a pipeline that runs. Starts it, keeps it going, takes its snapshots, ends it.

Starting is resuming. Every stage has its own Spark checkpoint and every channel is durable, so a run after a clean end,
a failure or a SIGKILL at any moment does the same things: claim the job (incarnation + 1), fence the channels, sweep
what nobody names, start every stage where its checkpoint is. Snapshots that were under way are gone, and their ids are
not used again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from strobe.hosts.shared.clock import SYSTEM, Clock, utc_now
from strobe.hosts.shared.loopback import LoopbackServer
from strobe.hosts.spark.channel.admission import Limits
from strobe.hosts.spark.channel.gate import Gate
from strobe.hosts.spark.channel.pace import Pace
from strobe.hosts.spark.checkpoint.stage_files import stage_checkpoint
from strobe.hosts.spark.commit.commits import Commits
from strobe.hosts.spark.commit.holding import open_commits, release
from strobe.hosts.spark.commit.start import explain_doubt, sink_works
from strobe.hosts.spark.home.job_home import JobHome, host_name
from strobe.hosts.spark.home.job_state import JobState
from strobe.hosts.spark.job.api import actions
from strobe.hosts.spark.job.channel_answers import ChannelAnswers
from strobe.hosts.spark.job.control import control_server
from strobe.hosts.spark.job.drain import Drain
from strobe.hosts.spark.job.end_watch import close_stages, stop_stages, watch_for_end
from strobe.hosts.spark.job.fenced import end_at_once
from strobe.hosts.spark.job.invariants import InvariantChecks, check_invariants
from strobe.hosts.spark.job.observer import JobObserver
from strobe.hosts.spark.job.orders import Orders
from strobe.hosts.spark.jvm.java import find_java
from strobe.hosts.spark.jvm.session import DEFAULT_MASTER, SparkEnded, check_settings, job_session
from strobe.hosts.spark.jvm.web_page import ui_address
from strobe.hosts.spark.pipeline.config import RetentionOnCancel
from strobe.hosts.spark.pipeline.cut_mode import with_mode
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.pipeline.settings import settings_of
from strobe.hosts.spark.plans.description import reads_source
from strobe.hosts.spark.restore.chains import lay_chains
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.restore.rescale import check_options, first_partitions
from strobe.hosts.spark.restore.resume import bring_up
from strobe.hosts.spark.snapshot.checkpoints import open_checkpoints
from strobe.hosts.spark.snapshot.coordinator import CoordinatorHost
from strobe.hosts.spark.snapshot.manifests import ManifestWriter
from strobe.hosts.spark.snapshot.messages import ToAgent
from strobe.hosts.spark.snapshot.metrics import JobStatus, SupervisorStatus
from strobe.hosts.spark.snapshot.savepoints import SnapshotStores
from strobe.hosts.spark.snapshot.uploads import PartUploads
from strobe.hosts.spark.stage.agent import StageAgent, StageContext
from strobe.hosts.spark.stage.asking import hold_of
from strobe.hosts.spark.stage.assemble import AssembledStage, draft_stages
from strobe.hosts.spark.stage.runner import StageRunner, StageState
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.model.redaction import redact
from strobe.store.locate import locate

__all__ = ["DEFAULT_MASTER", "Job", "JobState", "default_home", "start_job"]

_log = logging.getLogger("strobe.job")
SETTLE_PATIENCE = float(os.environ.get("STROBE_SETTLE_PATIENCE", "60"))  # seconds for sinks to commit at the end
_GOODBYE = 2.0  # seconds for the last answers of the control API


def default_home() -> str:
    return os.environ.get("STROBE_HOME") or ".strobe"


def start_job(
    pipeline: Pipeline,
    *,
    home: str | None = None,
    master: str | None = None,
    base: str | Path | None = None,
    spark: SparkSession | None = None,
    restore: RestoreOptions | None = None,
) -> Job:
    """Start `pipeline`, resume it, or restore it from a snapshot. On return every stage runs; on an exception nothing
    does.

    `base` is where relative paths of sinks begin. `spark` is a session from `spark_session` to run in; it is left
    running. Without it the job takes the one that this process has, or starts one, which ends with its last job.
    """
    place = Path(base or "").absolute()
    pipeline.check(place)
    check_invariants(pipeline)
    check_settings(pipeline.conf, f"Pipeline {pipeline.name!r}")
    for uid, stage in pipeline.stages.items():
        check_settings(stage.conf, f"Stage {uid!r}")
    options = restore or RestoreOptions()
    check_options(pipeline, options)
    if options.snapshot is not None:
        found = locate(options.snapshot, Path(home or default_home()), options.root, options.signer())
        found.load()  # nothing is claimed for what is not there
    job = Job(pipeline, Path(home or default_home()), master or DEFAULT_MASTER, place, spark, options)
    job.start()
    return job


class Job:
    def __init__(
        self,
        pipeline: Pipeline,
        home: Path,
        master: str,
        base: Path,
        spark: SparkSession | None = None,
        options: RestoreOptions = RestoreOptions(),  # noqa: B008  (it never changes)
        clock: Clock = SYSTEM,
    ) -> None:
        self._clock = clock
        self.pipeline = pipeline
        self.name = pipeline.name
        self.home = JobHome(home, pipeline.name)
        self.master = master
        self.base, self.options = base, options
        self.state, self.error = JobState.STARTING, ""
        self.started = utc_now()
        self._began = self._clock.monotonic()
        self._over, self._ending = threading.Event(), threading.Lock()
        self._given = spark
        self._spark: SparkSession | None = None
        self._control: LoopbackServer | None = None
        self._deletes = False  # whether its checkpoints go with it
        self._parts = ExitStack()  # what was started, and how it ends: the newest first
        self._runner: type[StageRunner] = StageRunner
        self._runners: dict[NodeId, StageRunner] = {}
        self._agents: dict[NodeId, StageAgent] = {}
        self.observer = JobObserver()
        self._invariants = InvariantChecks(pipeline, home, self._fail, self.observer.judged)
        self.supervisor: SupervisorStatus | None = None

    def __repr__(self) -> str:
        state, why = self.state.shown(ended=self._over.is_set()), f" ({self.error})" if self.error else ""
        return f"<Job {self.name!r}: {state}{why}, {len(self.pipeline.stages)} stages, home {self.home.home}>"

    # ── start ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        if self._given is None:  # a session that is given has its Java
            os.environ["JAVA_HOME"] = str(find_java())
        fresh = not self.home.path(self.home.layout.root).exists()
        self.home.claim(end_at_once, self.options.snapshot)
        try:
            self._start()
        except BaseException as error:
            why = error.what if isinstance(error, StrobeError) else f"{type(error).__name__}: {error}"
            self._finish(JobState.FAILED, f"it did not start: {why}", said=True)
            if fresh and self.options.snapshot is not None and isinstance(error, Misuse):
                self.home.forget()  # a fork that was refused never was
            if isinstance(error, OSError) and error.strerror:
                raise self.home.could_not_start(error) from error
            raise

    def _start(self) -> None:
        home, record = self.home, self.home.record
        pipeline = self.pipeline = with_mode(self.pipeline)
        log = home.path(home.layout.spark_log)
        log.parent.mkdir(parents=True, exist_ok=True)
        home.publish(
            job=self.name, state=self.state.value, pid=os.getpid(), host=host_name(), started=self.started,
            incarnation=record.incarnation, timeline=record.timeline, master=self.master, settings=settings_of(pipeline)
        )  # fmt: skip
        self.store = open_checkpoints(home, pipeline.checkpoint)
        self._parts.callback(self._close_store)
        _log.info("Spark starts")
        own = job_session(self.name, self.master, extra=pipeline.conf, log=log)
        self._spark = self._given or self._parts.enter_context(own)
        gate = self._parts.enter_context(Gate(ChannelAnswers(self._agents)))
        pipeline, drafts = lay_chains(pipeline, draft_stages(pipeline, self._spark, gate, home), home, self.options)
        stages = (ready := bring_up(pipeline, drafts, home, self.base, self._spark, self.options)).stages
        self._parts.callback(close_stages, self._runners)
        self._stores = SnapshotStores(self.store, home)
        self._invariants.start()
        self._parts.callback(self._close_invariants)
        state_rows = lambda uid: self._runners[uid].state_rows()  # noqa: E731
        self._uploads = PartUploads(self._stores.session, state_rows, ready.descriptions, clock=self._clock)
        judge = self._invariants.judging(self._stores.name)
        self._commits = Commits(home.record.incarnation, lambda s: self._coordinator.settled(s), self._clock, judge)  # noqa: PLW0108
        self._invariants.decide = self._commits.judged
        for end in (self._close_commits, self._stores.settle, self._uploads.shutdown, self.observer.stop):
            self._parts.callback(end)
        drop = self.options.allow_non_restored_state
        self._sinks = sink_works(stages, home, self._commits, self._fail, drop=drop, clock=self._clock)
        self._writer = ManifestWriter(
            pipeline, home, self._stores,
            {s.spec.uid: s.output for s in stages if s.output is not None},
            lambda: self._commits.needed,
            self._invariants.completed,
        )  # fmt: skip
        self._coordinator = CoordinatorHost(
            {uid: spec.reads for uid, spec in pipeline.stages.items()},
            pipeline.checkpoint.coordinator(),
            next_snapshot=max(home.record.snapshot, *self._writer.retained, 0) + 1,
            retained=tuple(s for s in self._writer.retained if s not in home.record.pinned),
            writer=self.observer.noting(self._writer),
            on_progress=self.observer.progressed,
            tell=self._tell,
            fail_job=self._fail,
            decisions=self._commits,
            clock=self._clock,
        )
        self._parts.callback(stop_stages, self._runners)
        self._parts.callback(self._coordinator.stop)
        self._drain = Drain(pipeline.order(), self._runners, self._over_as, self._clock)
        self.orders = Orders(
            self.name, self._coordinator, self._stores,
            over=self._over_as, end=lambda: self._finish(JobState.STOPPED), drain=self._drain,
            release=partial(release, self._commits, home, self.observer.released),
        )  # fmt: skip
        for stage in stages:
            self._add(stage, has_source=reads_source(ready.descriptions[stage.spec.uid]))
        for runner in self._runners.values():
            runner.check()
        self._commits.before = self._writer.before
        works = [work for each in self._sinks.values() for work in each]
        open_commits(self._commits, works, self._writer.manifests(), home, self.observer.released)
        self._coordinator.start()
        self.observer.start(self._runners, {s.spec.uid: s.result for s in stages})
        self._start_stages()
        with self._ending:
            failed = [r for r in self._runners.values() if r.state is StageState.FAILED]
            if failed:
                raise failed[0].failure or Failed(f"Stage {failed[0].spec.uid!r} failed for good: {failed[0].error}")
            if self.state.over:
                raise Failed(self.error)
            control = self._control = control_server(home.path(home.layout.token), actions(self))
            self.state = JobState.RUNNING
            home.publish(state=self.state.value, port=control.port, timeline=home.record.timeline)
        watch_for_end(self._runners, self._drain, self._over, self._take_last_checkpoint)

    def _start_stages(self) -> None:
        """Upstream first."""
        for i, runner in enumerate(self._runners.values(), 1):
            _log.info("stage %s starts (%d of %d)", runner.spec.uid, i, len(self._runners))
            runner.start()
            runner.await_running()

    def _add(self, stage: AssembledStage, *, has_source: bool) -> None:
        spec, config = stage.spec, self.pipeline.checkpoint
        context = StageContext(
            spec.uid,
            checkpoint=stage_checkpoint(self.home, spec.uid),
            inputs=stage.inputs,
            output=stage.output,
            feedback=frozenset(spec.feedback),
            mode=config.barrier_mode,
            alignment_timeout=config.alignment_timeout,
            limits=Limits(spec.max_rows_per_batch, spec.max_bytes_per_batch),
            uploads=self._uploads,
            post=self._coordinator.post,
            sinks=self._sinks.get(spec.uid, ()),
            sink_positions=stage.sink_positions,
            steady=all(sink.has_steady_position for sink in stage.spec.sinks),
            clock=self._clock,
            hold=hold_of(spec, has_source=has_source),
            never_rests=stage.never_rests,
            pace=None if config.batch_seconds is None else Pace(config.batch_seconds),
        )
        agent = StageAgent(context)
        self._agents |= dict.fromkeys((spec.uid, *spec.chained), agent)  # readers name the stage whose plan they are in
        self._runners[spec.uid] = self._runner(
            spec,
            stage.result,
            agent,
            stage.output,
            partitions=first_partitions(self.pipeline, spec, self.options),
            restart=self.pipeline.restart,
            post=self._coordinator.post,
            on_failed=self._stage_failed,
            on_fenced=end_at_once,
            has_batch=lambda sink, n: any(w.sink is sink and n <= w.boundary for w in self._sinks.get(spec.uid, ())),
            has_source=has_source,
        )

    # ── what people ask ─────────────────────────────────────────────────────────────────────────────────────────────

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the job is over. False if it still runs when the time is up."""
        if not self._over.wait(timeout):
            return False
        if self._control is not None:
            self._control.drain(_GOODBYE)
        return True

    def checkpoint(self, timeout: float | None = None) -> SnapshotId:
        """Take a checkpoint now; returns its id when it is complete."""
        self._check_running()
        return self._coordinator.snapshot(Kind.CHECKPOINT, timeout)

    def savepoint(self, place: str | Path | None = None) -> str:
        """Copy everything that the job is, rows in flight included, to a new directory or to `s3://bucket/prefix`,
        while it runs on. Returns that place, by default a directory below the job's home, when it is complete."""
        return self.orders.savepoint(place).path

    def stop_with_savepoint(self, place: str | Path | None = None, *, drain: bool = False) -> str:
        """Take a savepoint after which no stage does anything more, then end the job. If it fails the job goes on.
        With `drain` the sources end first, everything that they brought runs through, and event time ends."""
        return self.orders.stop(place, drain=drain).path

    def cancel(self, retention: str | None = None) -> None:
        """End the job. What it has done stays; its checkpoints are kept ("retain") or not ("delete"), by default as the
        pipeline's `retention_on_cancel` says. Savepoints always stay."""
        keep = RetentionOnCancel.of(retention or self.pipeline.checkpoint.retention_on_cancel)
        if self._over.is_set() or not self.state.over:
            self._check_running()
            self._finish(JobState.CANCELED, delete=keep is RetentionOnCancel.DELETE)
            return
        self._over.wait()  # somebody else has ended it
        if retention == RetentionOnCancel.DELETE.value and self.store.list():
            raise Failed(
                f"Job {self.name!r} was {self.state.value} already, before its checkpoints were to be deleted.",
                untouched="They are still there.",
                next=f"`strobe dispose {self.name}/ID` deletes one.",
            )

    def stop(self) -> None:
        """End the job between batches, keeping everything; the same run resumes it."""
        if not self.state.over:
            self._finish(JobState.STOPPED)

    @property
    def runners(self) -> Mapping[NodeId, StageRunner]:
        return self._runners

    def status(self) -> JobStatus:
        return JobStatus(
            job=self.name,
            state=self.state.shown(ended=self._over.is_set()),
            pid=os.getpid(),
            incarnation=self.home.record.incarnation,
            timeline=self.home.record.timeline,
            started=self.started,
            seconds=round(self._clock.monotonic() - self._began, 3),
            stages=self.observer.stages(self._runners.values()),
            completed=self._coordinator.completed,
            failed=self._coordinator.failed,
            failures_in_a_row=self._coordinator.failures_in_a_row,
            checkpoints=self._coordinator.history,
            error=self.error,
            sinks=self.observer.sinks(self._commits.status()),
            next_checkpoint_s=None if self.state.over else self._coordinator.next_in,
            spark_ui=ui_address(self._spark),
            supervisor=self.supervisor,
            channels=self.observer.channels(),
            barriers=self.observer.barriers(self._coordinator),
            invariants=self._invariants.status(),
            held=self._commits.held(),
        )

    def _over_as(self) -> str | None:
        return self.state.value if self.state.over else None

    def _check_running(self) -> None:
        if self.state.over:
            raise Failed(f"Job {self.name!r} is {self.state.value}.", next="Start it again with `strobe run`.")

    # ── what its parts say ──────────────────────────────────────────────────────────────────────────────────────────

    def _tell(self, node: NodeId, message: ToAgent) -> None:
        self._agents[node].tell(message)

    def _fail(self, reason: str, *, started: bool = False) -> None:
        # Not in the caller's thread: it may be one that must be joined.
        threading.Thread(
            target=self._finish, args=(JobState.FAILED, reason), kwargs={"started": started}, name="fail", daemon=True
        ).start()

    def _stage_failed(self, runner: StageRunner, why: str) -> None:
        ended = runner.failure if isinstance(runner.failure, SparkEnded) else None  # not the stage's fault
        self._fail(
            ended.what if ended is not None else f"stage {runner.spec.uid!r} failed for good: {why}", started=True
        )

    def _take_last_checkpoint(self) -> bool:
        """The sources have ended and nothing is left to do. False if the checkpoint failed: it is tried again."""
        try:
            self._coordinator.snapshot(Kind.CHECKPOINT)
        except StrobeError as error:
            # Whether that is one failure too many is for the coordinator to say; until then, once more.
            _log.warning("the last checkpoint failed: %s", error.what)
            return False
        violated = self._invariants.settle()
        if violated is not None:
            self._finish(JobState.FAILED, violated)
        elif self._commits.settle(SETTLE_PATIENCE):
            self._finish(JobState.FINISHED)
        else:
            self._finish(JobState.FAILED, explain_doubt(self.name, self._commits))
        return True

    # ── end ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(
        self, state: JobState, reason: str = "", *, said: bool = False, started: bool = False, delete: bool = False
    ) -> None:
        """`said`: the caller reports the error. `started`: only if the job has started; else `start` handles it.
        Returns when the job is over, by this call or by another."""
        with self._ending:
            if self.state.over or (started and self.state is JobState.STARTING):
                return
            self.state = state
            self.error = reason = redact(reason)
            if reason and not said:
                _log.error("job %s failed: %s", self.name, reason)
            try:
                self._publish(state=state.shown(ended=False))
                self._deletes = delete
                self._parts.close()
            finally:
                self._end(state, reason)

    def _close_store(self) -> None:
        for snapshot in self.store.list() if self._deletes else ():
            if snapshot not in self._commits.unsettled:
                self.store.dispose(snapshot)
        self.store.close()

    def _close_commits(self) -> None:
        if self._commits.close(0 if self.state is JobState.FAILED else SETTLE_PATIENCE):
            _log.warning("%s", explain_doubt(self.name, self._commits))

    def _close_invariants(self) -> None:
        self._invariants.stop(wait=self.state in (JobState.FINISHED, JobState.STOPPED))

    def _publish(self, **facts: Any) -> None:
        try:
            self.home.publish(**facts)
        except Failed as error:
            _log.warning("how job %s ends could not be noted: %s", self.name, error)

    def _end(self, state: JobState, reason: str) -> None:
        self._publish(state=state.value, error=reason, ended=utc_now(), port=None)
        self.home.release()
        self._over.set()
        if self._control is not None:
            self._control.stop()
