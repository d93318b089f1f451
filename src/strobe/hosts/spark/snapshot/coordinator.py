"""Runs the protocol's coordinator for a job: one thread, one queue, real time.

The machine decides; this host performs. It gathers the stages' parts, lays them together as a manifest, has the cut
checked against law 1 from its recorded positions *before* the manifest exists, and only then lets it become visible.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from strobe.hosts.shared.clock import SYSTEM, Clock, utc_now
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.snapshot.decisions import Decisions
from strobe.hosts.spark.snapshot.messages import (
    AbortSnapshot,
    Acknowledge,
    Decline,
    SnapshotComplete,
    StageLost,
    StagePart,
    StageReady,
    StageRegistered,
    StartSnapshot,
    ToAgent,
    ToCoordinator,
    TrimChannel,
)
from strobe.hosts.spark.snapshot.progress import Progress, arrived, completed, with_figures
from strobe.hosts.spark.snapshot.writing import SnapshotWriter
from strobe.model.errors import Failed, StrobeError
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.coordinator import Coordinator
from strobe.protocol.coordinator.messages import (
    AbortRequested,
    Acknowledged,
    AnnounceAbort,
    AnnounceComplete,
    CoordinatorEffect,
    CoordinatorInput,
    CoordinatorSettings,
    CutRefused,
    DeclinedBy,
    Dispose,
    FailJob,
    ManifestFailed,
    ManifestWritten,
    NodeLost,
    NodeReady,
    Reply,
    Tick,
    Trigger,
    TriggerRequested,
    WakeAt,
    WriteManifest,
)
from strobe.protocol.events import BarrierOptions
from strobe.store.consistency import InconsistentCut

__all__ = ["CoordinatorHost", "Progress", "SnapshotWriter"]

_log = logging.getLogger("strobe.coordinator")
HISTORY = 100
_STOPPING = "the job is stopping"


@dataclass(slots=True)
class _Gathering:
    progress: Progress
    began: float
    consumed: Mapping[NodeId, Mapping[NodeId, int]]  # how far stages had read when it began; its cut is not before
    parts: dict[NodeId, StagePart] = field(default_factory=dict)
    last: NodeId | None = None  # whose part came last

    def ms(self, at: float) -> float:
        """Since the trigger."""
        return (at - self.began) * 1000


@dataclass(frozen=True, slots=True)
class _Acknowledged:
    """A message and when it came: how long it then waits here is part of what a snapshot takes."""

    message: Acknowledge
    posted: float


@dataclass(frozen=True, slots=True)
class _Request:
    """Somebody waits for a snapshot."""

    input: TriggerRequested
    done: queue.Queue[Reply]


@dataclass(frozen=True, slots=True)
class _Written:
    snapshot: SnapshotId
    failure: str | None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class _Settled:
    snapshot: SnapshotId


_Item: TypeAlias = ToCoordinator | _Acknowledged | _Request | _Written | _Settled | AbortRequested | None


class CoordinatorHost:
    def __init__(
        self,
        upstream: Mapping[NodeId, tuple[NodeId, ...]],
        settings: CoordinatorSettings,
        *,
        next_snapshot: int,
        retained: tuple[SnapshotId, ...],
        writer: SnapshotWriter,
        tell: Callable[[NodeId, ToAgent], None],
        fail_job: Callable[[str], None],
        on_progress: Callable[[Progress], None] = lambda progress: None,
        decisions: Decisions | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._clock = clock
        self._machine = Coordinator(upstream, settings, next_snapshot=next_snapshot, retained=retained)
        self._nodes = tuple(upstream)
        self._writer = writer
        self._tell = tell
        self._fail_job = fail_job
        self._on_progress = on_progress
        self._decisions = decisions or Decisions()
        self._queue: queue.Queue[_Item] = queue.Queue()
        self._gathering: dict[SnapshotId, _Gathering] = {}
        self._waiting: dict[str, queue.Queue[Reply]] = {}
        self._lives: dict[NodeId, Incarnation] = {}
        self._lost: dict[NodeId, Incarnation] = {}
        self._last: SnapshotId | None = None  # the one that ends the job, unless it is given up
        self._consumed: dict[NodeId, Mapping[NodeId, int]] = {}
        self._wake_at: float | None = None
        self._history: dict[SnapshotId, Progress] = {}
        self.completed = self.failed = 0  # in this run; the history is only the end of it
        self._newest = SnapshotId(next_snapshot - 1)
        self._requests = 0
        self._stopping = False
        self._writing: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)

    @property
    def history(self) -> tuple[Progress, ...]:
        with self._lock:
            return tuple(self._history.values())

    def acknowledged(self, snapshot: SnapshotId) -> frozenset[NodeId]:
        """The stages whose part is there; of a snapshot that is under way."""
        gathering = self._gathering.get(snapshot)
        return frozenset() if gathering is None else frozenset(tuple(gathering.parts))

    @property
    def failures_in_a_row(self) -> int:
        return self._machine.failures_in_a_row

    @property
    def next_in(self) -> float | None:
        """Seconds until the next periodic checkpoint; None if there is no schedule."""
        due = self._machine.due_at
        return None if due is None else max(0.0, due / 1000 - self._clock.monotonic())

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the schedule. What is pending is forgotten: without a manifest there is no snapshot. A manifest that is
        being written is waited for, so that nothing of this driver becomes visible after its end."""
        with self._lock:
            self._stopping = True
        self._queue.put(None)
        for thread in (self._thread, *self._writing):
            if thread.is_alive() and thread is not threading.current_thread():
                thread.join()
        waiting = list(self._waiting.values())
        while not self._queue.empty():
            item = self._queue.get_nowait()
            waiting += [item.done] if isinstance(item, _Request) else []
        for done in waiting:
            done.put(Reply("", None, _STOPPING))

    def post(self, message: ToCoordinator) -> None:
        now = self._clock.monotonic()
        self._queue.put(_Acknowledged(message, now) if isinstance(message, Acknowledge) else message)

    def settled(self, snapshot: SnapshotId) -> None:
        self._queue.put(_Settled(snapshot))

    def abort(self, snapshot: SnapshotId, reason: str) -> None:
        self._queue.put(AbortRequested(snapshot, reason))

    def snapshot(self, kind: Kind, timeout: float | None = None, *, last: bool = False) -> SnapshotId:
        """Take a snapshot now and wait until it is complete; Failed says why it is not. After the `last` one, for
        which one savepoint at a time may ask, no stage begins another batch."""
        done: queue.Queue[Reply] = queue.Queue()
        with self._lock:
            self._requests += 1
            asked = TriggerRequested(f"request-{self._requests}", kind, BarrierOptions(last=last))
            request = _Request(asked, done)
            if self._stopping:
                done.put(Reply("", None, _STOPPING))
            else:
                self._queue.put(request)
        try:
            reply = done.get(timeout=timeout)
        except queue.Empty:
            raise Failed(
                f"The {kind.value} did not complete within {timeout} s.",
                untouched="The job goes on, and so does the attempt.",
                next="Look at `strobe checkpoints` for the stage that it waits for.",
            ) from None
        if reply.failure is not None or reply.snapshot is None:
            raise Failed(
                f"The {kind.value} failed: {reply.failure}.",
                untouched="The job goes on; earlier snapshots are intact.",
                next="Fix the cause and ask again.",
            )
        return reply.snapshot

    def _now(self) -> int:
        return int(self._clock.monotonic() * 1000)

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        self._step(Tick(self._now()))
        while True:
            pause = None if self._wake_at is None else max(0.0, self._wake_at - self._clock.monotonic())
            due = False
            item: _Item = None
            try:
                item = self._queue.get(timeout=pause)
            except queue.Empty:
                due = True
            if item is None and not due:
                return
            try:
                self._step(Tick(self._now()))
                if item is not None:
                    self._take(item)
            except Exception as error:  # the coordinator must never die silently
                _log.exception("the coordinator failed")
                self._fail_job(f"the coordinator failed: {error}")
                return

    def _take(self, item: _Item) -> None:
        if isinstance(item, StageReady):
            self._register(item)
        elif isinstance(item, StageLost):
            if item.incarnation >= self._lives.get(item.stage, item.incarnation):
                self._lost[item.stage] = item.incarnation
                self._step(NodeLost(item.stage, item.reason))
        elif isinstance(item, _Acknowledged):
            self._acknowledge(item.message, item.posted)
        elif isinstance(item, Decline):
            self._step(DeclinedBy(item.snapshot, item.stage, item.incarnation, item.reason))
        elif isinstance(item, _Request):
            self._waiting[item.input.request] = item.done
            self._step(item.input)
        elif isinstance(item, _Written):
            if item.failure is None:
                self._step(ManifestWritten(item.snapshot))
            elif item.refused:
                self._step(CutRefused(item.snapshot, item.failure))
            else:
                self._step(ManifestFailed(item.snapshot, item.failure))
        elif isinstance(item, _Settled):
            self._retire(self._writer.settled)
        elif isinstance(item, AbortRequested):
            self._step(item)

    def _register(self, ready: StageReady) -> None:
        """The answer goes out first: messages about what the next step starts or gives up come after it."""
        if ready.incarnation <= self._lost.get(ready.stage, Incarnation(-1)):
            return  # it has been lost since
        self._lives[ready.stage] = max(ready.incarnation, self._lives.get(ready.stage, ready.incarnation))
        self._tell(ready.stage, StageRegistered(ready.incarnation, self._newest, self._last))
        self._step(NodeReady(ready.stage, ready.incarnation))

    def _acknowledge(self, message: Acknowledge, posted: float) -> None:
        self._consumed[message.stage] = message.consumed
        gathering = self._gathering.get(message.snapshot)
        if gathering is not None:
            times = {"posted_ms": gathering.ms(posted), "taken_ms": gathering.ms(self._clock.monotonic())}
            gathering.parts[message.stage] = replace(message.part, record=arrived(message.part.record, **times))
            gathering.last = message.stage
            self._report(replace(gathering.progress, acknowledged=len(gathering.parts)), gathering)
            crash_points.point("snapshot.acknowledged", message.stage)
        self._step(Acknowledged(message.snapshot, message.stage, message.incarnation))

    def _step(self, input: CoordinatorInput) -> None:
        self._wake_at = None
        effects = self._machine.step(input)
        for effect in effects:
            self._perform(effect)
        if any(isinstance(effect, AnnounceComplete) for effect in effects):
            self._trim()

    def _perform(self, effect: CoordinatorEffect) -> None:
        if isinstance(effect, Trigger):
            self._start_snapshot(effect)
        elif isinstance(effect, WriteManifest):
            crash_points.point("snapshot.all-acknowledged")
            gathering = self._gathering[effect.snapshot]
            assert gathering.last is not None
            gathering.progress = with_figures(
                gathering.progress, gathering.parts, gathering.last, gathering.ms(self._clock.monotonic())
            )
            try:
                self._decisions.decide(effect.snapshot, gathering.parts.values())
            except StrobeError as error:
                self._queue.put(_Written(effect.snapshot, str(error)))
                return
            self._begin_writing(effect.snapshot, gathering)
        elif isinstance(effect, AnnounceComplete):
            self._finish(effect.snapshot, "complete", "")
            for node in self._nodes:
                self._tell(node, SnapshotComplete(effect.snapshot, effect.kind))
            crash_points.point("snapshot.announced")
        elif isinstance(effect, AnnounceAbort):
            self._finish(effect.snapshot, "failed", effect.reason)
            self._last = None if self._last == effect.snapshot else self._last
            self._decisions.abandon(effect.snapshot, effect.reason)
            for node in self._nodes:
                self._tell(node, AbortSnapshot(effect.snapshot, effect.reason))
            self._writer.aborted(effect.snapshot)
        elif isinstance(effect, Dispose):
            crash_points.point("snapshot.disposing")
            snapshot = effect.snapshot
            self._retire(lambda: self._writer.dispose(snapshot))
            crash_points.point("snapshot.disposed")
        elif isinstance(effect, Reply):
            waiting = self._waiting.pop(effect.request, None)
            if waiting is not None:
                waiting.put(effect)
        elif isinstance(effect, FailJob):
            self._fail_job(effect.reason)
        elif isinstance(effect, WakeAt):
            self._wake_at = effect.at / 1000

    def _start_snapshot(self, trigger: Trigger) -> None:
        snapshot = trigger.snapshot
        progress = Progress(snapshot, trigger.kind, "in progress", utc_now(self._clock))
        self._gathering[snapshot] = _Gathering(progress, self._clock.monotonic(), dict(self._consumed))
        self._report(progress, self._gathering[snapshot])
        try:
            self._decisions.begin(snapshot)
            self._writer.reserve(snapshot, trigger.kind)
        except StrobeError as error:
            # No room for the id: nobody is told, and the first stage declines. Later, since a machine takes one input
            # at a time.
            node = trigger.nodes[0]
            self._queue.put(Decline(node, self._lives[node], snapshot, str(error)))
            return
        crash_points.point("snapshot.id-reserved")
        self._newest = max(self._newest, snapshot)
        self._last = snapshot if trigger.options.last else self._last
        for node in trigger.nodes:
            self._tell(node, StartSnapshot(snapshot, trigger.kind, trigger.options))
            crash_points.point("snapshot.triggered", node)

    def _retire(self, act: Callable[[], None]) -> None:
        try:
            act()
        except StrobeError as error:
            _log.warning("checkpoints could not be disposed of: %s", error)

    def _trim(self) -> None:
        """No further than what is under way may need: a newer snapshot can be complete before an older one."""
        begun = [gathering.consumed for gathering in self._gathering.values()]
        consumed = {
            stage: {p: min((at, *(then.get(stage, {}).get(p, 0) for then in begun))) for p, at in read.items()}
            for stage, read in self._consumed.items()
        }
        for producer, upto in self._writer.spare(consumed).items():
            self._tell(producer, TrimChannel(upto))

    def _begin_writing(self, snapshot: SnapshotId, gathering: _Gathering) -> None:
        """In a thread of its own: it waits for the disk, or for an object store."""
        thread = threading.Thread(
            target=self._write, args=(snapshot, gathering), name=f"manifest-{snapshot}", daemon=True
        )
        self._writing = [*(t for t in self._writing if t.is_alive()), thread]
        thread.start()

    def _write(self, snapshot: SnapshotId, gathering: _Gathering) -> None:
        failure: str | None = None
        refused = False
        try:
            self._writer.write(gathering.progress, gathering.parts)
        except InconsistentCut as error:
            failure, refused = str(error), True
        except StrobeError as error:
            failure = str(error)
        except Exception as error:
            _log.exception("the manifest of snapshot %d could not be written", snapshot)
            failure = f"{type(error).__name__}: {error}"
        if failure is None:
            self._decisions.logged(snapshot)
        else:
            self._decisions.failed(snapshot, failure)
        self._queue.put(_Written(snapshot, failure, refused))

    def _finish(self, snapshot: SnapshotId, status: str, reason: str) -> None:
        gathering = self._gathering.pop(snapshot)
        duration = gathering.ms(self._clock.monotonic())
        if status == "complete":
            self._report(completed(gathering.progress, duration), gathering)
            self.completed += 1
        else:
            self._report(replace(gathering.progress, status=status, duration_ms=duration, reason=reason), gathering)
            self.failed += 1
            _log.warning("snapshot %d failed after %.0f ms: %s", snapshot, duration, reason)
        self._writer.note_end(gathering.progress, gathering.parts)

    def _report(self, progress: Progress, gathering: _Gathering) -> None:
        gathering.progress = progress
        with self._lock:
            self._history[progress.snapshot] = progress
            while len(self._history) > HISTORY:
                del self._history[next(iter(self._history))]
        self._on_progress(progress)
