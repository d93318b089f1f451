"""Bringing up the sinks that deliver on snapshot: one ledger and one participant each, before any stage starts.

A sink with rows that are not visible yet must not vanish from the file unnoticed, nor become another kind of sink: they
are staged or prepared, and nobody else can make them visible. One that
vanishes with nothing left has its ledger closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from strobe.hosts.shared.clock import SYSTEM, Clock, utc_now
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.checkpoint.stage_files import stage_checkpoint
from strobe.hosts.spark.commit.commits import Commits
from strobe.hosts.spark.commit.holding import explain_held
from strobe.hosts.spark.commit.ledger import Ledger, SinkLedger, read_ledgers
from strobe.hosts.spark.commit.work import SinkWork
from strobe.hosts.spark.connectors.base import Delivery, Sink, TransactionalSink
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.stage.assemble import AssembledStage
from strobe.model.errors import Misuse
from strobe.model.ids import NodeId
from strobe.store.manifest import NOTHING

__all__ = ["explain_doubt", "sink_works", "transactional"]

_log = logging.getLogger("strobe.sinks")


def transactional(sink: Sink) -> TransactionalSink | None:
    """The sink, if it delivers on snapshot."""
    return sink if isinstance(sink, TransactionalSink) and sink.delivery is Delivery.ON_SNAPSHOT else None


def sink_works(
    stages: Sequence[AssembledStage],
    home: JobHome,
    commits: Commits,
    broken: Callable[[str], None],
    *,
    drop: bool = False,
    clock: Clock = SYSTEM,
) -> dict[NodeId, tuple[SinkWork, ...]]:
    """The work of each stage's sinks, not yet open. Misuse if parts of a sink are in doubt that the file does not have
    any more; with `drop` they are left as they are."""
    works: dict[NodeId, tuple[SinkWork, ...]] = {}
    for stage in stages:
        found = []
        for each, context in zip(stage.spec.sinks, stage.contexts, strict=True):
            sink = transactional(each)
            if sink is not None:
                ledger = SinkLedger(home, context.name, utc_now)
                _check_kind(sink, context.name, ledger)
                checkpoint = stage_checkpoint(home, stage.spec.uid)
                last = spark_checkpoint.last_committed(checkpoint)
                committed = NOTHING if last is None else last
                ledger.open(type(sink).__name__, context.timeline, committed, context.staging)
                for batch in _never_written(sink, ledger.ledger.boundary, checkpoint, committed):
                    sink.write(stage.result.sparkSession.createDataFrame([], context.schema), batch)
                found.append(
                    SinkWork(
                        sink, context, ledger,
                        guard=home.check_owner, post=commits.post, wanted=commits.wanted, broken=broken, clock=clock,
                    )
                )  # fmt: skip
        if found:
            works[stage.spec.uid] = tuple(found)
    _check_gone(home, {work.name for each in works.values() for work in each}, drop=drop)
    return works


def _never_written(sink: TransactionalSink, boundary: int, checkpoint: Path, committed: int) -> Iterator[int]:
    """Batches of the stage that no query has run. A rescale is such a batch: without rows, with another number of
    partitions. The sink gets them as empty ones, or its next part would miss a batch."""
    written = sink.last_batch()
    for batch in range(max(boundary, NOTHING if written is None else written) + 1, committed + 1):
        before = spark_checkpoint.read_offsets(checkpoint, batch - 1) if batch > 0 else None
        if before is not None and before.partitions != spark_checkpoint.read_offsets(checkpoint, batch).partitions:
            yield batch


def explain_doubt(job: str, commits: Commits) -> str:
    """A sentence for the end of a job that leaves something in doubt, or held."""
    held = commits.held()
    if held is not None and held.snapshot is not None:
        return explain_held(job, held)
    entries = commits.in_doubt()
    if not entries:
        return (
            f"{len(commits.unsettled)} checkpoint(s) wait for what the invariants say of them. Nothing is lost: the "
            "next `strobe run` goes on from there; give the checkpoints a longer interval than the invariants need."
        )
    sinks = ", ".join(dict.fromkeys(e.handle.rpartition("/")[0].rpartition("/")[0].partition("/")[2] for e in entries))
    return (
        f"{len(entries)} part(s) of {sinks} are prepared and not yet known to be visible. Nothing is lost: the next "
        f"`strobe run` makes them visible; `strobe transactions {job}` shows them, and what can be done by hand."
    )


def _check_kind(sink: Sink, name: str, ledger: SinkLedger) -> None:
    if ledger.is_new or not ledger.entries:
        return
    was, now = ledger.ledger.kind, type(sink).__name__
    if was != now:
        raise Misuse(
            f"Sink {name!r} was a {was} and is a {now} now, but parts of it are still in doubt: "
            f"{', '.join(e.handle for e in ledger.entries)}.",
            untouched="Nothing was started.",
            next="Run the file as it was until they are settled. If the order in to=[…] has changed, give each sink a "
            'uid: DeltaSink(…).named("gold").',
        )
    where = sink.describe()
    for entry in ledger.entries:
        if entry.where != where:
            _log.warning("%s: %s was prepared for %s; it will go to %s", name, entry.handle, entry.where, where)


def _check_gone(home: JobHome, present: set[str], *, drop: bool) -> None:
    for name, ledger in read_ledgers(home.home, home.job).items():
        if name in present or ledger.closed:
            continue
        left = [e.handle for e in ledger.entries]
        staged = _staged_since(home, name, ledger)
        if staged:
            left.append(f"what was staged since, of batch{'es' if len(staged) > 1 else ''} {_span(staged)}")
        if left and not drop:
            raise Misuse(
                f"Sink {name!r} of job {home.job!r} is no longer in the file, or no longer delivers on "
                f"snapshot, but not all of its rows are visible yet: {', '.join(left)}.",
                untouched="Nothing was started, and its rows are staged as they were.",
                next="Put it back, and end the job with `strobe stop`, which makes them visible; or leave them for "
                f"good with --allow-non-restored-state. `strobe transactions {home.job}` shows them.",
            )
        if left:
            _log.warning("sink %s is no longer in the file; left as they are: %s", name, ", ".join(left))
        if not ledger.entries:
            SinkLedger(home, name, utc_now).close()


def _staged_since(home: JobHome, name: str, ledger: Ledger) -> range:
    """The batches that the stage has committed and no part of the sink contains."""
    if ledger.timeline != home.record.timeline:
        return range(0)  # the restore has settled what was there
    committed = spark_checkpoint.last_committed(stage_checkpoint(home, NodeId(name.partition("/")[0])))
    return range(ledger.boundary + 1, (NOTHING if committed is None else committed) + 1)


def _span(batches: range) -> str:
    return str(batches[0]) if len(batches) == 1 else f"{batches[0]}–{batches[-1]}"
