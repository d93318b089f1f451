"""The batch at which an invariant breaks: go on from a good snapshot, a batch at a time, and ask after each.

The snapshot is forked into a scratch home. Sinks discard; the job, its channels and its tables are only read. No query
runs by itself: one stage after the other runs one batch (`stage.stepping`), then a snapshot is taken and the invariant
is asked. Barriers overtake rows, so nothing has to be drained for a snapshot, and each is a consistent cut with what is
in flight.

Rows go as far down as they can before a source gives the next ones. So what breaks the invariant came from the last
batch of a source, unless it was in flight already. Of several sources comes first which came first in the job.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from strobe.hosts.spark.checkpoint.stage_files import stage_checkpoint
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.job.batch_inputs import BatchInput, HeldInput, InputCatcher, check_readable_again
from strobe.hosts.spark.job.job import DEFAULT_MASTER, Job
from strobe.hosts.spark.job.rehearse import in_session
from strobe.hosts.spark.pipeline.config import CheckpointConfig, RestartPolicy
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.stage.assemble import AssembledStage
from strobe.hosts.spark.stage.stepping import Original, SteppedRunner
from strobe.look.cut import open_snapshot
from strobe.look.judging import judge
from strobe.model.errors import Failed
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.invariants import Invariant, Outcome, Verdict
from strobe.protocol.barriers import BarrierMode
from strobe.store.chained import chained_in
from strobe.store.leases import take_lease
from strobe.store.locate import locate

__all__ = ["Question", "Replayed", "ReplayedBatch", "replay"]

_RETAINED = 100  # snapshots of the fork: what they need of channels, and so what the last batches read, stays
_UNTOUCHED = "The job, its channels and its tables are as they were."


@dataclass(frozen=True)
class Question:
    """What is asked after each batch, and how much it may use."""

    invariant: Invariant
    memory: str = "1GB"
    timeout: float | None = None


@dataclass(frozen=True, eq=False)
class ReplayedBatch:
    """One batch of one stage. `reads`: the positions (after, through] of each channel. `wrote`: the position of its
    output, if it has one. `from_job`: it read what the job's batch of this number had read."""

    stage: NodeId
    batch: int
    reads: Mapping[NodeId, tuple[int, int]]
    wrote: int | None
    from_job: bool
    held: tuple[HeldInput, ...] = ()


@dataclass(frozen=True)
class Replayed:
    """`verdict` is the last one. `culprit` is the batch behind which it is violated, None if none was; `inputs` are the
    rows that it read, and that the batches read from which its rows came, the source's first. `home` is where the fork
    is, if it was kept."""

    batches: int
    verdict: Verdict
    culprit: ReplayedBatch | None
    inputs: tuple[tuple[ReplayedBatch, tuple[BatchInput, ...]], ...]
    home: Path | None


def replay(
    pipeline: Pipeline,
    good: str,
    question: Question,
    *,
    home: Path,
    upto: Mapping[NodeId, int],
    told: Callable[[ReplayedBatch, Verdict], None] = lambda batch, verdict: None,
    most: int = 1000,
    rows: int = 20,
    keep: bool = False,
    master: str | None = None,
    spark: SparkSession | None = None,
    allow_changed_state: tuple[str, ...] = (),
    signed_by: str | None = None,
) -> Replayed:
    """From the snapshot `good` of the job in `home`, at most `most` batches. `upto` are the batches at which the
    invariant is known to be violated, by stage. `told` is called behind each batch. `signed_by` is the key that the
    snapshot must be signed by; without it the environment's, as for every restore."""
    options = RestoreOptions(allow_changed_state=allow_changed_state, signed_by=signed_by)
    found = locate(good, home, signed_by=options.signer())
    lease = take_lease(home, pipeline.name, found.snapshot)  # the job may be running, and retire its checkpoints
    found.load()
    scratch = Path(tempfile.mkdtemp(prefix=".replay-", dir=home)).absolute()
    kept = False
    try:
        with in_session(pipeline, master, spark) as session:
            options = replace(options, snapshot=found.where, root=found.root)  # what was checked, and nothing else
            fork = _Fork(
                _for_replay(pipeline, chained_in(found.load())), scratch, DEFAULT_MASTER, scratch, session, options
            )
            fork.start()
            try:
                done = _Replay(fork, _originals(home, pipeline, upto), question, told).run(most, session, rows)
            finally:
                fork.stop()
                fork.wait()
        kept = keep
        return replace(done, home=scratch if keep else None)
    finally:
        if lease is not None:
            lease.release()
        if not kept:
            shutil.rmtree(scratch, ignore_errors=True)


class _Fork(Job):
    """A job whose stages do nothing by themselves."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._runner = SteppedRunner

    def _add(self, stage: AssembledStage, *, has_source: bool) -> None:
        check_readable_again(stage.spec.uid, stage.result)
        for sink in stage.spec.sinks:
            assert isinstance(sink, InputCatcher)
            sink.session = stage.result.sparkSession
        super()._add(stage, has_source=has_source)

    def stepped(self, uid: NodeId) -> SteppedRunner:
        runner = self.runners[uid]
        assert isinstance(runner, SteppedRunner)
        return runner


class _Replay:
    def __init__(
        self,
        fork: _Fork,
        originals: Mapping[NodeId, Original],
        question: Question,
        told: Callable[[ReplayedBatch, Verdict], None],
    ) -> None:
        self._fork, self._question, self._told = fork, question, told
        self._order = tuple(fork.runners)  # upstream first
        self._done: list[ReplayedBatch] = []
        self._sources = [uid for uid in self._order if not fork.runners[uid].spec.inputs]
        for uid in self._sources:
            self._stage(uid).original = originals.get(uid)
            if not self._stage(uid).follows_job():
                self._stage(uid).original = None

    def run(self, most: int, spark: SparkSession, rows: int) -> Replayed:
        verdict = self._ask()
        if verdict.outcome is Outcome.VIOLATED:
            raise Failed(
                f"The fork does not answer as the snapshot did: before its first batch, {verdict.sentence}",
                untouched=_UNTOUCHED,
                next="A query over channel.STAGE sees fewer rows in a fork; ask about state and in_flight.",
            )
        while len(self._done) < most:
            if verdict.outcome is Outcome.FAILED:
                raise Failed(
                    f"In the fork, {verdict.sentence}",
                    untouched=_UNTOUCHED,
                    next="Sinks discard in a fork, so sink.STAGE is not there; ask about state and in_flight.",
                )
            batch = self._step()
            if batch is None:
                break
            self._done.append(batch)
            verdict = self._ask()
            self._told(batch, verdict)
            if verdict.outcome is Outcome.VIOLATED:
                return self._found(batch, verdict, spark, rows)
        return Replayed(len(self._done), verdict, None, (), None)

    def _found(self, culprit: ReplayedBatch, verdict: Verdict, spark: SparkSession, rows: int) -> Replayed:
        chain = [(batch, tuple(h.read(spark, rows) for h in batch.held)) for batch in self._leading_to(culprit)]
        return Replayed(len(self._done), verdict, culprit, tuple(chain), None)

    def _ask(self) -> Verdict:
        snapshot: SnapshotId = self._fork.checkpoint()
        where, question = f"{self._fork.name}/{snapshot}", self._question
        with open_snapshot(where, self._fork.home.home, memory=question.memory, timeout=question.timeout) as cut:
            return judge(cut, question.invariant)

    # ── one batch ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self) -> ReplayedBatch | None:
        """None if nothing is left to do."""
        for uid in reversed(self._order):
            runner = self._stage(uid)
            owes = runner.owes_batch()
            reads = {} if owes else runner.waiting_commit()
            if owes or reads:
                return self._run(uid, reads)
        for uid in sorted(self._sources, key=self._when):
            runner = self._stage(uid)
            if runner.original is not None:
                if runner.follows_job():
                    runner.original.give(runner.agent.checkpoint, runner.batch + 1)
                    return self._run(uid, {}, from_job=True)
            elif runner.plan_source():
                return self._run(uid, {})
        return next((self._run(uid, {}) for uid in self._mixed() if self._stage(uid).plan_source()), None)

    def _when(self, uid: NodeId) -> int:
        """When the job planned the source's next batch."""
        runner = self._stage(uid)
        return runner.original.at_ms(runner.batch + 1) if runner.follows_job() and runner.original is not None else 0

    def _mixed(self) -> Iterator[NodeId]:
        """Stages that read a source beside their channels."""
        return (uid for uid in self._order if self._stage(uid).spec.inputs and self._stage(uid).has_source)

    def _run(self, uid: NodeId, reads: Mapping[NodeId, int], *, from_job: bool = False) -> ReplayedBatch:
        runner = self._stage(uid)
        before = runner.positions()
        batch = runner.step(reads)
        after = runner.positions()
        catcher = runner.spec.sinks[0]
        assert isinstance(catcher, InputCatcher)
        return ReplayedBatch(
            uid, batch, {p: (before[p], after[p]) for p in after if after[p] > before[p]},
            None if runner.output is None else _written(runner, batch), from_job, catcher.held,
        )  # fmt: skip

    def _leading_to(self, culprit: ReplayedBatch) -> Iterator[ReplayedBatch]:
        """The batches from which the rows of `culprit` came, the oldest first, and itself."""
        wanted = {culprit}
        for batch in reversed(self._done):
            fed = (other for other in tuple(wanted) if batch.stage in other.reads)
            for other in fed:
                after, through = other.reads[batch.stage]
                if batch.wrote is not None and after < batch.wrote <= through:
                    wanted.add(batch)
        return (batch for batch in self._done if batch in wanted)

    def _stage(self, uid: NodeId) -> SteppedRunner:
        return self._fork.stepped(uid)


def _written(runner: SteppedRunner, batch: int) -> int | None:
    assert runner.output is not None
    log = runner.output.log
    log.refresh()
    return next((c.version for c in reversed(log.commits(max(log.trimmed, 0))) if c.batch == batch and c.files), None)


def _originals(home: Path, pipeline: Pipeline, upto: Mapping[NodeId, int]) -> dict[NodeId, Original]:
    job = JobHome(home, pipeline.name)
    job.peek()
    return {uid: Original(stage_checkpoint(job, uid), last) for uid, last in upto.items() if uid in pipeline.stages}


def _for_replay(pipeline: Pipeline, chained: Collection[NodeId]) -> Pipeline:
    """Nothing of it is seen outside; a snapshot is taken when it is asked for, and needs nothing to be drained. What is
    chained stays so: a sink would give it a channel."""
    read = {uid for spec in pipeline.stages.values() for uid in spec.inputs}
    config = CheckpointConfig(interval=None, mode=BarrierMode.UNALIGNED.value, retained=_RETAINED)
    return pipeline.varied(
        checkpoint=config,
        restart=RestartPolicy(attempts=0),
        stages={
            uid: replace(spec, sinks=() if uid in chained else (InputCatcher(uid, runs=uid not in read),), trigger={})
            for uid, spec in pipeline.stages.items()
        },
    )
