"""The agent of one stage: it drives the barrier machine from what the stage's query reads, and carries out its effects.

Theory of operation
-------------------
A stage is *at rest* when its last batch is committed and no batch is being written. Only at rest does the agent look
at the channels and step the machine, so a snapshot always falls between two batches. A batch that failed, or that an
earlier life left, may be in channel and sinks already: the stage is not at rest until it is run again and committed.
There are three moments at which a stage is known to be at rest, and the agent uses whichever comes first:

* Spark asks how far the next batch may read (`latest`): it does so only after the last batch is committed;
* the next batch arrives (`begin_batch`): Spark has committed the one before;
* a word from the coordinator comes while the stage idles: the agent's own thread sees that the last batch is committed.

Barriers need no batch: an entry without rows at the next position has been reached the moment all before it has been
read, so a snapshot costs a stage no micro-batch, and a stage without data passes barriers on all the same.

How far the stage has come on each input, and what the machine gets to know when, is in `stage_inputs`. *Content* of a
channel is a span of positions, because the channel is durable itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.channel.admission import Limits, merge, rows_in
from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.snapshot.messages import (
    AbortSnapshot,
    Acknowledge,
    Decline,
    SnapshotComplete,
    StagePart,
    StageReady,
    StartSnapshot,
    ToAgent,
    ToCoordinator,
    TrimChannel,
)
from strobe.hosts.spark.snapshot.recording import Recording, Uploads
from strobe.hosts.spark.stage.inputs import Reach, StageInputs
from strobe.hosts.spark.stage.standstill import Standstill
from strobe.model.cut import Json
from strobe.model.errors import Damaged, Failed, Fenced, HostFault, ProtocolError, StrobeError
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId
from strobe.protocol.barriers import BarrierMode, Barriers
from strobe.protocol.events import (
    Abort,
    AlignmentTimedOut,
    BarrierArrived,
    ChannelRecorded,
    Declined,
    Deliver,
    Effect,
    Hold,
    Initiate,
    Input,
    MessageArrived,
    NodeRecorded,
    Overtake,
    RecordState,
    Release,
    SendBarrier,
    StartTimer,
)
from strobe.store.manifest import NOTHING, InFlight

__all__ = ["StageAgent"]

_log = logging.getLogger("strobe.agent")
_COMMIT_POLL = 0.002
_ALONE_POLL = 0.05
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between two looks at a stage that cannot be looked at
_FALLIBLE = (RecordState, SendBarrier, ChannelRecorded, NodeRecorded, Overtake)
_PATIENCE = 30.0  # seconds until such a stage fails


class StageAgent:
    def __init__(
        self,
        uid: NodeId,
        *,
        checkpoint: Path,
        inputs: Mapping[NodeId, ChannelLog],
        output: ChannelWriter | None,
        feedback: frozenset[NodeId],
        mode: BarrierMode,
        alignment_timeout: float,
        limits: Limits,
        uploads: Uploads,
        post: Callable[[ToCoordinator], None],
        sink_positions: Callable[[SnapshotId], Mapping[str, Json]] = lambda snapshot: {},
    ) -> None:
        self.uid = uid
        self.checkpoint = checkpoint
        self.inputs = dict(inputs)
        self.output = output
        self._feedback = feedback
        self._mode, self._alignment_timeout = mode, alignment_timeout
        self._reading = StageInputs(self.inputs, limits)
        self._uploads, self._post = uploads, post
        self._sink_positions = sink_positions
        self._lock = threading.RLock()  # held while a batch is written, and at rest while the machine is stepped
        self._wake = threading.Event()
        self._inbox: deque[ToAgent | AlignmentTimedOut] = deque()
        self._thread: threading.Thread | None = None
        self._live = self._draining = False
        self.standstill = Standstill()
        self.broken: Callable[[Exception], None] = self._unheard  # told if the agent's own thread cannot go on
        self.alone = False  # the stage has no query any more: nobody but the agent itself looks at its channels
        self.incarnation = Incarnation(0)
        self.asked = threading.Event()  # the stage's readers are up: one has asked, or a batch has come
        self.replayed: int | None = None  # the batch that an earlier life began and did not commit

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, life: Incarnation, newest: SnapshotId, *, written: int = NOTHING, aloof: bool = False) -> None:
        """Before the stage's query starts, the first time and after each failure. `newest` is the highest snapshot id
        that was ever begun: what older barriers asked for has been settled without this life of the stage. `written` is
        the last batch of which channel or sinks know. One that is `aloof` takes part in no snapshot."""
        self.stop()
        with self._lock:
            self.incarnation = life
            self._machine = Barriers(
                [ChannelId(c) for c in self.inputs],
                [ChannelId(self.uid)] if self.output is not None else [],
                feedback=[ChannelId(c) for c in self._feedback],
                mode=self._mode,
                newest=newest,
            )
            self._recordings: dict[SnapshotId, Recording] = {}
            self._heard: dict[SnapshotId, float] = {}
            self._asked: set[str] = set()
            self._rounds = 0  # times that Spark has planned since the last batch
            self._plan: dict[NodeId, int] = {}
            self._inbox.clear()
            committed = spark_checkpoint.last_committed(self.checkpoint)
            self._batch = NOTHING if committed is None else committed
            self._finished = self._batch  # the newest batch whose function has returned
            logged = spark_checkpoint.last_logged(self.checkpoint)
            self.replayed = logged if logged is not None and logged > self._batch else None
            self._begun = max(self._batch, written) if self.replayed is not None else self._batch
            self._reading.start(self.checkpoint, self._batch)
            self._live, self._draining = True, False
            self.asked.clear()
        self._thread = threading.Thread(target=self._run, name=f"agent-{self.uid}", daemon=True)
        self._thread.start()
        if not aloof:
            self._post(StageReady(self.uid, life))

    def stop(self, patience: float | None = None) -> None:
        """The query has ended: no more snapshots from this life. With `patience` also if a batch of it never does."""
        free = self._lock.acquire(timeout=-1 if patience is None else patience)
        self._live = False
        if free:
            self._lock.release()
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)

    def halt(self, patience: float) -> bool:
        """Admit nothing more and wait until the last batch is committed, so that the query can be stopped between
        batches. False if that took too long."""
        self._draining = True
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                try:
                    self._live = False  # a batch that arrives now is refused, and left for the next start
                    if self._is_committed():
                        return True
                finally:
                    self._lock.release()
            time.sleep(_COMMIT_POLL)
        return False

    @property
    def batch(self) -> int:
        """The last batch that is committed."""
        return self._finished if self._is_committed() else self._batch

    @property
    def idle(self) -> bool:
        """Nothing is left to read and no batch is under way or due: Spark has planned twice without running one (one
        without data may be due when the watermark has moved). Only for a stage whose inputs are channels."""
        with self._lock:
            return self._rounds > 1 and self._finished == self._batch and self._reading.exhausted

    def lag(self) -> tuple[int, int]:
        """Rows and commits that wait in the inputs."""
        return self._reading.lag()

    # ── what Spark calls ────────────────────────────────────────────────────────────────────────────────────────────

    def latest(self, reader: str, producer: NodeId, start: int) -> int:
        """Spark plans a batch: how far may this reader read? The first to ask in a round sets the plan for all."""
        with self._lock:
            self.asked.set()
            if not self._live or self._draining:
                return start
            if reader in self._asked or not self._asked:
                self._asked.clear()
                self._rounds += 1
                self._rest(self._finished)
                self._plan = {} if self.standstill.stands else self._reading.plan(self._machine)
            self._asked.add(reader)
            return max(start, self._plan.get(producer, start))

    def begin_batch(self, batch: int) -> None:
        """Spark hands over a batch; it has committed the one before. Holds the stage until `end_batch`."""
        self.asked.set()
        self._lock.acquire()
        try:
            self.check_live(batch)
            self._asked.clear()
            self._rounds = 0
            if batch - 1 >= self._batch:
                self._rest(batch - 1)
            while self.standstill.holds(batch, self._lock):
                self.check_live(batch)
                self._rest(batch - 1)  # nobody else looks at the channels meanwhile
            self._begun = max(self._begun, batch)
        except BaseException:
            self._lock.release()
            raise

    def check_live(self, batch: int) -> None:
        """A batch that comes, or goes on, after the stage was told to stop must not be committed."""
        if not self._live:
            raise Failed(f"Stage {self.uid!r} is stopping; batch {batch} is left for its next start.")

    def end_batch(self, batch: int, *, failed: bool = False) -> None:
        if not failed:
            self._finished = max(self._finished, batch)
        self._lock.release()
        self._wake.set()

    def _is_committed(self) -> bool:
        return self._finished == self._batch or spark_checkpoint.is_committed(self.checkpoint, self._finished)

    # ── what the coordinator says ───────────────────────────────────────────────────────────────────────────────────

    def tell(self, message: ToAgent) -> None:
        if isinstance(message, AbortSnapshot):
            self.standstill.given_up(message.snapshot)
        self._inbox.append(message)
        self._wake.set()

    def _run(self) -> None:
        """Handle words from the coordinator at the next moment of rest, for a stage that nobody asks to read.

        Nobody else answers for a stage that idles, so the thread outlives errors that pass, such as those of a network
        file system. One that stays fails the stage."""
        failing_since: float | None = None
        pause = _FIRST_PAUSE
        while self._live:
            try:
                self._look()
                failing_since, pause = None, _FIRST_PAUSE
            except Exception as error:
                now = time.monotonic()
                if failing_since is None:
                    failing_since = now
                    _log.warning("%s: an idle stage could not be looked at: %s", self.uid, error)
                if isinstance(error, Fenced | ProtocolError) or now - failing_since >= _PATIENCE:
                    if self._live:
                        self.broken(error)
                    return
                self._wake.wait(pause)
                self._wake.clear()
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _look(self) -> None:
        if not self._inbox:
            if not self._wake.wait(_ALONE_POLL if self.alone else None):
                self.at_rest()
            self._wake.clear()
        elif not self.at_rest():
            time.sleep(_COMMIT_POLL)  # Spark writes the commit within milliseconds of the batch's return

    def _unheard(self, error: Exception) -> None:
        _log.error("%s: it takes part in no snapshot any more: %s", self.uid, error)

    def at_rest(self) -> bool:
        """If the stage is at rest, do what is due. False if a batch is begun and not committed."""
        with self._lock:
            if not self._is_committed() or self._begun > self._finished:
                return False
            if self._live:
                self._rest(self._finished)
            return True

    # ── at rest ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rest(self, batch: int) -> None:
        """The stage is at rest after `batch`. Take in what it read, and what was said meanwhile."""
        began = time.monotonic()
        if batch != self._batch:
            self._reading.committed(self.checkpoint, batch)
            self._batch, self._finished = batch, max(self._finished, batch)
        self._reading.refresh()
        if self._begun > batch:
            return  # rows of a later batch are out already, the state behind them is not
        # First all that the batch has read, on every input: what is recorded below is the state after the whole batch.
        self._walk(began, Reach.READ)
        self._walk(began, Reach.SETTLED)
        self._read_inbox(began)
        while (
            self._walk(began, Reach.SETTLED)
            or self._walk(began, Reach.BARRIER)
            or self._take(self._reading.look_ahead(self._machine), began)
        ):
            pass

    def _read_inbox(self, now: float) -> None:
        while self._inbox:
            message = self._inbox.popleft()
            if isinstance(message, StartSnapshot):
                self._heard.setdefault(message.snapshot, now)
                self._step(Initiate(message.snapshot, message.options), now)
            elif isinstance(message, TrimChannel):
                self._uploads.run(lambda upto=message.upto: self._trim(upto))  # type: ignore[misc]
            elif isinstance(message, AbortSnapshot | SnapshotComplete):
                self._recordings.pop(message.snapshot, None)
                self._heard.pop(message.snapshot, None)
                if isinstance(message, AbortSnapshot):
                    self.standstill.given_up(message.snapshot)
                    self._step(Abort(message.snapshot), now)
            elif isinstance(message, AlignmentTimedOut):
                self._step(message, now)

    def _walk(self, now: float, reach: Reach) -> bool:
        return self._take(self._reading.walk(self._machine, reach), now)

    def _take(self, arrivals: Iterable[BarrierArrived | MessageArrived], now: float) -> bool:
        """Step the machine with each. True if there were any."""
        count = 0
        for count, arrival in enumerate(arrivals, 1):  # noqa: B007
            if isinstance(arrival, BarrierArrived):
                self._heard.setdefault(arrival.snapshot, now)
            self._step(arrival, now)
        return count > 0

    # ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, input: Input, now: float) -> None:
        for effect in self._machine.step(input):
            try:
                self._perform(effect, now)
            except Fenced:
                raise
            except (Failed, Damaged, OSError) as error:
                # The machine has moved on, so this cannot be done again: the snapshot fails, the stage goes on.
                if not isinstance(effect, _FALLIBLE):
                    raise
                self._recordings.pop(effect.snapshot, None)
                self._post(Decline(self.uid, self.incarnation, effect.snapshot, str(error)))
        for recording in self._recordings.values():
            if recording.synced_at is None:
                recording.synced_at = time.monotonic()

    def _perform(self, effect: Effect, now: float) -> None:
        if isinstance(effect, Deliver | Hold | Release):
            pass  # rows are delivered by Spark; `held` is asked for when the next batch is planned
        elif isinstance(effect, RecordState):
            self._recordings[effect.snapshot] = Recording(
                effect.snapshot,
                self._batch,
                self._reading.positions,
                began=self._heard.get(effect.snapshot, now),
                recorded_at=now,
                sinks=self._sink_positions(effect.snapshot),
                consumed=self._reading.offsets,
            )
            if effect.options.last:
                self.standstill.recorded(effect.snapshot, self._batch)
            crash_points.point("snapshot.state-recorded", self.uid)
        elif isinstance(effect, StartTimer):
            timer = threading.Timer(self._alignment_timeout, self.time_out, (effect.snapshot,))
            timer.daemon = True
            timer.start()
        elif isinstance(effect, Declined):
            self._recordings.pop(effect.snapshot, None)
            self._post(Decline(self.uid, self.incarnation, effect.snapshot, effect.reason))
        elif isinstance(effect, _FALLIBLE) and effect.snapshot not in self._recordings:
            pass  # this stage could not do what the snapshot needs, and has declined it
        elif isinstance(effect, SendBarrier):
            assert self.output is not None
            placed = self.output.place_barrier(effect.snapshot, effect.options)
            self._recordings[effect.snapshot].barrier = placed.version
            crash_points.point("snapshot.barrier-placed", self.uid)
        elif isinstance(effect, ChannelRecorded):
            recording = self._recordings[effect.snapshot]
            producer = NodeId(effect.channel)
            span = merge(effect.content, start=recording.inputs[producer])
            recording.in_flight[producer] = InFlight(span.after, span.through, rows_in(self.inputs[producer], span))
        elif isinstance(effect, NodeRecorded):
            recording = self._recordings[effect.snapshot]
            recording.closed_at = time.monotonic()
            recording.synced_at = recording.synced_at or recording.closed_at
            life = self.incarnation
            self._uploads.submit(self, recording, lambda result: self._uploaded(recording, life, result))
        elif isinstance(effect, Overtake):
            self._take(self._reading.overtaken_by(NodeId(effect.channel), effect.snapshot), now)
        else:
            raise HostFault(f"A stage's agent cannot perform {type(effect).__name__}.")

    def time_out(self, snapshot: SnapshotId) -> None:
        """The alignment of `snapshot` has taken long enough. Too late, or in another life, it means nothing."""
        self._inbox.append(AlignmentTimedOut(snapshot))
        self._wake.set()

    def _uploaded(self, recording: Recording, life: Incarnation, result: StagePart | StrobeError) -> None:
        if isinstance(result, StrobeError):
            _log.warning("%s: its part of snapshot %d failed: %s", self.uid, recording.snapshot, result)
            self._post(Decline(self.uid, life, recording.snapshot, str(result)))
        else:
            crash_points.point("snapshot.part-durable", self.uid)
            part = recording.settled(result, time.monotonic())
            self._post(Acknowledge(self.uid, life, recording.snapshot, part, recording.consumed))

    def _trim(self, upto: int) -> None:
        assert self.output is not None
        try:
            self.output.trim(upto)
            crash_points.point("channel.trimmed", self.uid)
        except (StrobeError, OSError) as error:
            _log.warning("channel %s could not be trimmed: %s", self.uid, error)
