"""Watches a job at work, for those who look at it: operators, metrics, traces. The job itself never waits for it.

One thread looks at each stage once a second. Batches are added up (`stage.meter`), sources are asked for what they
still have (`stage.backlog`). Subscribers are called with every batch and every snapshot that ends, with the parts of
its stages, in this thread; with every verdict on an invariant and every release of held rows, in the thread in which
it happens. They must not take long. What they raise is logged, and nothing else comes of it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from strobe.hosts.shared.clock import SYSTEM
from strobe.hosts.spark.connectors.base import Sink
from strobe.hosts.spark.snapshot.coordinator import CoordinatorHost
from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.hosts.spark.snapshot.metrics import Backlog, BarrierStatus, ChannelStatus, SinkStatus, StageStatus
from strobe.hosts.spark.snapshot.progress import Progress
from strobe.hosts.spark.snapshot.writing import SnapshotWriter
from strobe.hosts.spark.stage.backlog import FileBacklog, directories_of, offsets_behind
from strobe.hosts.spark.stage.meter import BatchReport, Rate, StageMeter
from strobe.hosts.spark.stage.runner import StageRunner
from strobe.hosts.spark.stage.status import barrier_statuses, channel_statuses, rows_out, stage_status, with_chained
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.invariants import Verdict
from strobe.model.kind import Kind
from strobe.store.manifest import NodeRecord
from strobe.store.releases import Release

__all__ = ["BatchDone", "Event", "InvariantJudged", "JobObserver", "RowsReleased", "SnapshotEnded"]

_log = logging.getLogger("strobe.job")
_EVERY: Final = 1.0  # seconds
_GOODBYE: Final = 2.0  # seconds for the last look
_KEPT: Final = 500  # events, for those who subscribe late


@dataclass(frozen=True, slots=True)
class BatchDone:
    stage: NodeId
    report: BatchReport


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """Complete, or failed. `parts` are those that had come."""

    progress: Progress
    parts: Mapping[NodeId, NodeRecord]


@dataclass(frozen=True, slots=True)
class InvariantJudged:
    """`holds_back`: the invariant is one for which rows wait."""

    verdict: Verdict
    holds_back: bool = False


@dataclass(frozen=True, slots=True)
class RowsReleased:
    release: Release


Event: TypeAlias = BatchDone | SnapshotEnded | InvariantJudged | RowsReleased


@dataclass(slots=True)
class _Stage:
    runner: StageRunner
    meter: StageMeter
    files: FileBacklog | None = None
    sinks: dict[str, Rate] = field(default_factory=dict)
    sources: tuple[Mapping[str, Any], ...] = ()
    reported: tuple[int, int] | None = None  # the newest batch that Spark has reported, by the stage's life


class JobObserver:
    def __init__(self) -> None:
        self._stages: dict[NodeId, _Stage] = {}
        self._parts: dict[SnapshotId, dict[NodeId, NodeRecord]] = {}
        self._ended: deque[SnapshotEnded] = deque()
        self._told: deque[Event] = deque(maxlen=_KEPT)
        self._listeners: list[Callable[[Event], None]] = []
        self._lock = threading.Lock()  # guards the meters, and who is told what
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def start(self, runners: Mapping[NodeId, StageRunner], results: Mapping[NodeId, DataFrame]) -> None:
        """`results` is what each stage computes, which says what it reads."""
        for uid, runner in runners.items():
            stage = _Stage(runner, StageMeter(SYSTEM.time()))
            try:
                directories = directories_of(results[uid]._jdf.queryExecution().analyzed())
            except Exception as error:  # the JVM's, of whatever class: then it is not known what the stage reads
                _log.debug("%s: which files it reads is not known: %s", uid, error)
                directories = None
            if directories is not None:
                stage.files = FileBacklog(directories, runner.agent.checkpoint)
            self._stages[uid] = stage
        self._thread.start()

    def stop(self) -> None:
        """After the last batch; it is still counted."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_GOODBYE)

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        """Get everything from now on, and what has just happened."""
        with self._lock:
            for event in self._told:
                self._hand(listener, event)
            self._listeners.append(listener)

    # ── what people see ─────────────────────────────────────────────────────────────────────────────────────────────

    def stages(self, runners: Iterable[StageRunner]) -> tuple[StageStatus, ...]:
        """Each stage of the pipeline; those that are chained before the one whose query computes them."""
        return tuple(s for runner in runners for s in with_chained(self._stage(runner), runner.spec))

    def _stage(self, runner: StageRunner) -> StageStatus:
        status = stage_status(runner)
        stage = self._stages.get(runner.spec.uid)
        if stage is None:
            return status
        with self._lock:
            meter = stage.meter
            last = meter.last
            return replace(
                status,
                watermark=None if last is None else last.watermark,
                busy=meter.busy(SYSTEM.time(), runner.busy_since),
                backlog=_backlog(stage),
                state_store=None if last is None else last.state,
                batches=meter.batches,
                rows_in_total=meter.rows,
                late_rows=meter.late_rows,
                rows_in_per_second=round(meter.rows_in.per_second or 0.0, 3),
                rows_out_per_second=_rounded(meter.rows_out.per_second),
            )

    def sinks(self, on_snapshot: tuple[SinkStatus, ...]) -> tuple[SinkStatus, ...]:
        """All sinks of the job; `on_snapshot` is what those say that wait for snapshots."""
        known = {status.sink: status for status in on_snapshot}
        found = []
        with self._lock:
            for uid, stage in self._stages.items():
                for index, sink in enumerate(stage.runner.spec.sinks):
                    name = f"{uid}/{sink.uid or index}"
                    rate = stage.sinks.get(name)
                    status = known.pop(name) if name in known else _plain(name, sink)
                    found.append(
                        replace(
                            status,
                            rows=sink.rows_taken,
                            rows_per_second=None if rate is None else _rounded(rate.per_second),
                            dead_letters=sink.rejected,
                        )
                    )
        return (*found, *known.values())

    def channels(self) -> tuple[ChannelStatus, ...]:
        return channel_statuses(stage.runner for stage in self._stages.values())

    def barriers(self, coordinator: CoordinatorHost) -> tuple[BarrierStatus, ...]:
        return barrier_statuses({uid: stage.runner for uid, stage in self._stages.items()}, coordinator)

    # ── what it is told ─────────────────────────────────────────────────────────────────────────────────────────────

    def progressed(self, progress: Progress) -> None:
        """By the coordinator, whose thread goes on at once."""
        if progress.status != "in progress":
            self._ended.append(SnapshotEnded(progress, self._parts.pop(progress.snapshot, {})))

    def judged(self, verdict: Verdict, *, holds_back: bool = False) -> None:
        """At once: the last verdicts come when the thread has ended."""
        self._tell(InvariantJudged(verdict, holds_back))

    def released(self, release: Release) -> None:
        self._tell(RowsReleased(release))

    def noting(self, writer: SnapshotWriter) -> SnapshotWriter:
        """`writer`, with the parts of what it writes noted here."""
        return _NotingWriter(writer, self._parts)

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._stop.wait(_EVERY):
            self._look()
        self._look()

    def _look(self) -> None:
        for uid, stage in self._stages.items():
            try:
                self._look_at(uid, stage)
            except Exception as error:  # the JVM may be going away; the next look may be luckier
                _log.debug("%s: its figures could not be read: %s", uid, error)
        while self._ended:
            self._tell(self._ended.popleft())

    def _look_at(self, uid: NodeId, stage: _Stage) -> None:
        ended = stage.runner.last_ended
        stage.runner.pause.look()
        # Asking Spark costs something, and an idle job should not. Of its own sources it has news without a batch, too.
        known = ended is not None and ended == stage.reported and not stage.runner.has_source
        reports = [] if known else _reports(stage.runner.query, stage.meter.last)
        now = SYSTEM.time()
        with self._lock:
            new = [report for progress in reports if (report := stage.meter.take(progress)) is not None]
            if ended is not None and any(report.batch == ended[1] for report in new):
                stage.reported = ended
            if reports:
                stage.sources = tuple(reports[-1].get("sources") or ())
            stage.meter.rows_in.sample(now, stage.meter.rows)
            out = rows_out(stage.runner)
            if out is not None:
                stage.meter.rows_out.sample(now, out)
            for index, sink in enumerate(stage.runner.spec.sinks):
                if sink.rows_taken is not None:
                    stage.sinks.setdefault(f"{uid}/{sink.uid or index}", Rate()).sample(now, sink.rows_taken)
        if stage.files is not None:
            stage.files.refresh(SYSTEM.monotonic(), last=self._stop.is_set())
        for report in new:
            self._tell(BatchDone(uid, report))

    def _tell(self, event: Event) -> None:
        with self._lock:
            self._told.append(event)
            for listener in self._listeners:
                self._hand(listener, event)

    def _hand(self, listener: Callable[[Event], None], event: Event) -> None:
        try:
            listener(event)
        except Exception:
            _log.warning("somebody who watches the job failed", exc_info=True)


def _reports(query: StreamingQuery | None, last: BatchReport | None) -> list[dict[str, Any]]:
    """What Spark has to say that is new, oldest first. Mostly that is one report, and nothing else is fetched."""
    newest = None if query is None else query._jsq.lastProgress()
    if query is None or newest is None:
        return []
    report: dict[str, Any] = json.loads(newest.json())
    if last is not None and report["runId"] == last.run and report["batchId"] <= last.batch + 1:
        return [report]
    return [json.loads(each.json()) for each in query._jsq.recentProgress()]


def _backlog(stage: _Stage) -> Backlog | None:
    files = None if stage.files is None else stage.files.known
    rows = offsets_behind(stage.sources)
    if files is None and rows is None:
        return None
    return replace(files or Backlog(), rows=rows)


def _plain(name: str, sink: Sink) -> SinkStatus:
    """One that has nothing to say of itself: it does not wait for snapshots."""
    return SinkStatus(name, sink.describe(), 0, 0, delivery=sink.delivery.value)


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


class _NotingWriter(SnapshotWriter):
    def __init__(self, writer: SnapshotWriter, parts: dict[SnapshotId, dict[NodeId, NodeRecord]]) -> None:
        self._writer = writer
        self._parts = parts

    def reserve(self, snapshot: SnapshotId, kind: Kind) -> None:
        self._writer.reserve(snapshot, kind)

    def write(self, progress: Progress, parts: Mapping[NodeId, StagePart]) -> None:
        self._parts[progress.snapshot] = {uid: part.record for uid, part in parts.items()}
        self._writer.write(progress, parts)

    def note_end(self, progress: Progress, parts: Mapping[NodeId, StagePart]) -> None:
        self._writer.note_end(progress, parts)

    def aborted(self, snapshot: SnapshotId) -> None:
        self._writer.aborted(snapshot)

    def dispose(self, snapshot: SnapshotId) -> None:
        self._writer.dispose(snapshot)

    def settled(self) -> None:
        self._writer.settled()

    def spare(self, consumed: Mapping[NodeId, Mapping[NodeId, int]]) -> Mapping[NodeId, int]:
        return self._writer.spare(consumed)
