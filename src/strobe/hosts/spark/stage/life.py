"""One life of a stage: from one start of its query to the next. One thread steps the stage's machine.

Theory of operation
-------------------
All that happens to the stage comes through its inbox and is taken by its thread, one after the other, so nothing here
needs a lock. What may take long is not done here: uploads, sinks, trimming work elsewhere and put their results into
the inbox. Spark therefore waits for an answer as long as it takes to look at the channels, and no longer.

A stage is *at rest* when its last batch is committed and no batch is being written. Only at rest are the channels
looked at and the machine stepped, so a snapshot always falls between two batches. A batch that failed, or that an
earlier life left, may be in channel and sinks already: the stage is not at rest until it is run again and committed.
There are three moments at which a stage is known to be at rest, and whichever comes first is used:

* Spark asks how far the next batch may read (`PlanAsked`): it does so only after the last batch is committed;
* the next batch arrives (`BatchArrived`): Spark has committed the one before;
* a message from the coordinator comes while the stage idles: its thread sees that the last batch is committed.

Barriers need no batch: an entry without rows at the next position has been reached the moment all before it has been
read, so a snapshot costs a stage no micro-batch, and a stage without data passes barriers on all the same.

While a batch runs, two things are done. A barrier of a snapshot for which the stage is recorded already ends the
content of its channel: that is a number and touches no state. And an unaligned snapshot that begins is recorded *as the
stage was before the batch*, as long as nobody sees anything of the batch: the state before it is on disk, what it reads
counts as in flight, and the barrier is placed before its rows. So a snapshot does not wait for a batch. Before its rows
go into the channel, the batch asks (`BatchComputed`); a snapshot that begins later waits until the stage is at rest. A
stage without a channel never asks; its sinks are recorded where they stood before the batch. `Recorder.begin_batch`
says which stages are recorded at rest only. So is every stage if the snapshot is aligned, or ends the job.

A batch *waits* in front of the stage's function if the stage was recorded for the snapshot that ends the job: it
belongs to the next start from that snapshot. If that snapshot is given up, the batch begins; if the job ends, it is
left for the next start. Meanwhile Spark does not ask, so the thread looks at the channels by itself.

A question is *held* while there is nothing to read: Spark would only ask again, and every question goes through a
process of its own. Whatever comes in meanwhile, a commit of a producer among it, is a reason to look: barriers are
passed on as they come, and if there are rows, the held question is answered with nothing, at once, so that Spark asks
again. It does not get the rows by the held question, or it would count the time of waiting as work of the batch. The
first question after a batch is never held: by its answer Spark decides whether a batch without rows is due.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.snapshot.messages import StageRegistered, TrimChannel
from strobe.hosts.spark.stage.inbox import (
    BatchArrived,
    BatchComputed,
    BatchEnded,
    Closed,
    HaltAsked,
    IdleAsked,
    Inbox,
    InputGrew,
    Item,
    LookAsked,
    PlanAsked,
    Question,
    SinkVoted,
    StopAsked,
    Uploaded,
)
from strobe.hosts.spark.stage.parts import StageContext
from strobe.hosts.spark.stage.recorder import Recorder
from strobe.model.backoff import backoff
from strobe.model.errors import Damaged, Failed, Fenced, ProtocolError, StrobeError
from strobe.model.ids import Incarnation, NodeId
from strobe.protocol.barriers import Barriers
from strobe.store.manifest import NOTHING

__all__ = ["StageLife"]

_log = logging.getLogger("strobe.agent")
_COMMIT_POLL = 0.002  # Spark writes the commit within milliseconds of the batch's return
_ALONE_POLL = 0.05
_WAITING_POLL = 0.1
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between two looks at a stage that cannot be looked at
_PATIENCE = 30.0  # seconds until such a stage fails


class StageLife:
    def __init__(
        self,
        stage: StageContext,
        incarnation: Incarnation,
        *,
        written: int,
        apart: int | None,
        reads: Mapping[NodeId, int],
        alone: bool,
        broken: Callable[[Exception], None],
    ) -> None:
        """`written` is the last batch of which channel or sinks know. A life `apart` takes part in no snapshot, runs
        no batch after that one, and reads each channel up to where `reads` says, else not at all. `alone`: the stage
        has no query, so nobody else looks at its channels. `broken` is told, from a thread of its own, if the stage can
        take part in no more snapshots."""
        self._stage = stage
        self.incarnation = incarnation
        self._apart, self._reads, self._alone, self._broken = apart, reads, alone, broken
        committed = spark_checkpoint.last_committed(stage.checkpoint)
        logged = spark_checkpoint.last_logged(stage.checkpoint)
        self._finished = NOTHING if committed is None else committed  # the newest whose function has returned
        self._recorder = Recorder(stage, incarnation, self._finished, self.put)
        self.replayed = logged if logged is not None and logged > self._finished else None
        self._begun = max(self._finished, written) if self.replayed is not None else self._finished
        self._written = written
        self.live = True
        self._ended = False
        self.halting = False  # it admits nothing more
        self._inbox = Inbox(str(self._is_stopping()))
        self._running: int | None = None  # the batch that is being written
        self._running_since = 0.0
        self._unseen = False  # a snapshot can be recorded as the stage was before the batch that is being written
        self._waiting: BatchArrived | None = None
        self._plans: list[PlanAsked] = []  # that cannot be answered yet
        self._held: tuple[PlanAsked, float] | None = None  # the one that waits for rows, and until when
        self._halts: list[HaltAsked] = []
        self._asked: set[str] = set()
        self._rounds = 0  # times that Spark has planned since the last batch
        self._empty = 0  # batches that came one after the other when nothing was left to read
        self._ends: dict[NodeId, int] = {}
        self._failing_since: float | None = None
        self._look_again, self._failed_looks = 0.0, 0
        self._error: Exception | None = None  # why it takes part in no more snapshots
        self._thread = threading.Thread(target=self._run, name=f"agent-{stage.uid}", daemon=True)

    # ── called from any thread ──────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        for log in self._stage.inputs.values():
            log.watch(self._input_grew)
        self._thread.start()

    def put(self, item: Item) -> None:
        self._inbox.put(item)

    def stop(self, patience: float | None) -> None:
        """End it, once the batch that is being written has ended; with `patience` also if that never does. Such a batch
        must not be committed: see `live`."""
        self.live = False
        self.put(StopAsked())
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(patience)

    def _input_grew(self) -> None:
        self.put(InputGrew())

    @property
    def batch(self) -> int:
        """The last batch that is committed."""
        return self._finished if self.is_committed() else self._recorder.batch

    def lag(self) -> tuple[int, int]:
        """Rows and commits that wait in the inputs."""
        return self._recorder.reading.lag()

    def lag_of(self, producer: NodeId) -> tuple[int, int]:
        """Rows and commits that wait in one of them."""
        return self._recorder.reading.lag_of(producer)

    @property
    def holds(self) -> bool:
        """Whether Spark has asked, and there is nothing to read."""
        return self._held is not None

    @property
    def machine(self) -> Barriers | None:
        """To be looked at."""
        return self._recorder.machine

    def is_committed(self) -> bool:
        """Whether Spark has committed the last batch whose function has returned."""
        finished = self._finished
        return finished == self._recorder.batch or spark_checkpoint.is_committed(self._stage.checkpoint, finished)

    def _is_stopping(self) -> Closed:
        return Closed(f"Stage {self._stage.uid!r} is stopping; its batch is left for its next start.")

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._ended or self._running is not None:
            item = self._inbox.get(self._timeout())
            if item is not None:
                self.take(item)
            self.go_on()
        for log in self._stage.inputs.values():
            log.unwatch(self._input_grew)
        self._inbox.close()

    def _timeout(self) -> float | None:
        """How long nothing needs to be looked at, unless something comes."""
        if self._running is not None:
            return None
        if self._halts:
            return _COMMIT_POLL
        if not self.live or self._error is not None:
            return None
        if self._failing_since is not None:
            return max(0.0, self._look_again - self._stage.clock.monotonic())
        if self._recorder.has_messages:
            return _COMMIT_POLL
        if self._waiting is not None:
            return _WAITING_POLL
        if self._held is not None:
            return max(0.0, self._held[1] - self._stage.clock.monotonic())
        return _ALONE_POLL if self._alone else None

    def take(self, item: Item) -> None:
        """One item of the inbox. An error while a question is handled is its answer."""
        try:
            self._take(item)
        except Exception as error:
            if isinstance(item, Question):
                item.refuse(error)
            else:
                self._cannot_go_on(error)

    def _take(self, item: Item) -> None:
        match item:
            case PlanAsked():
                self._plan(item)
            case InputGrew():
                self._close_channels()  # a held question is looked at again in any case; else Spark asks in a moment
            case BatchArrived():
                self._arrive(item)
            case BatchComputed():
                self._unseen = False
                item.answer(None)
            case BatchEnded():
                self._end(item)
            case Uploaded():
                self._recorder.parts.prepare(item)
            case SinkVoted():
                self._recorder.parts.voted(item)
            case StageRegistered():
                self._recorder.register(item)
            case TrimChannel():
                self._stage.uploads.run(lambda: self._trim(item.upto))
            case IdleAsked():
                item.answer(self._is_idle())
            case LookAsked():
                item.answer(self.at_rest())
            case HaltAsked():
                self.halting = True
                self._halts.append(item)
            case StopAsked():
                self.live, self._ended = False, True
            case _:
                self._recorder.hear(item)

    def go_on(self) -> None:
        """What has become possible: look at the channels if something is due, and answer whom that answers."""
        if self._halts and self._running is None:
            self.live = False  # a batch that arrives now is refused, and left for the next start
            self._try_halt()
        self._let_begin()
        self._record_before_batch()
        due = self._recorder.has_messages or self._waiting is not None or self._alone
        if self.live and due and self._error is None and self._stage.clock.monotonic() >= self._look_again:
            self._look()
            self._let_begin()
        if self._plans and self._can_plan():
            plans, self._plans = self._plans, []
            for plan in plans:
                self.take(plan)
        self._let_ask_again()

    def _try_halt(self) -> None:
        try:
            if not self.is_committed():
                return
        except OSError:
            return  # it is tried again, until the caller's timeout is over
        for halt in self._halts:
            halt.answer(None)
        self._halts.clear()

    def _look(self) -> None:
        """Nobody else answers for a stage that idles, so errors that pass, such as those of a network file system, are
        outlived. One that stays fails the stage."""
        try:
            self.at_rest()
            self._failing_since, self._look_again, self._failed_looks = None, 0.0, 0
        except Exception as error:
            now = self._stage.clock.monotonic()
            if self._failing_since is None:
                self._failing_since = now
                _log.warning("%s: an idle stage could not be looked at: %s", self._stage.uid, error)
            if isinstance(error, Fenced | ProtocolError) or now - self._failing_since >= _PATIENCE:
                self._cannot_go_on(error)
                return
            self._failed_looks += 1
            self._look_again = now + backoff(self._failed_looks, _FIRST_PAUSE, _LONGEST_PAUSE)

    def _cannot_go_on(self, error: Exception) -> None:
        """The machine is not stepped again in this life. Who asks is still answered, until the runner has heard."""
        if self._error is None and self.live:
            self._error = error
            threading.Thread(target=self._broken, args=(error,), name=f"broken-{self._stage.uid}", daemon=True).start()

    # ── Spark ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _admits_nothing(self) -> bool:
        return not self.live or self.halting or self._error is not None

    @property
    def _is_known(self) -> bool:
        """Whether the coordinator has answered. Until then the stage must not go on: it may have its part in the
        snapshot that ends the job."""
        return self._recorder.registered or self._apart is not None

    def _can_plan(self) -> bool:
        return self._admits_nothing or (self._is_known and self._running is None)

    def _plan(self, asked: PlanAsked) -> None:
        """The first to ask in a round sets the plan for all."""
        if not self._can_plan():
            self._plans.append(asked)
            return
        if self._admits_nothing:
            asked.answer(asked.start)
            return
        if asked.reader in self._asked or not self._asked:
            self._asked.clear()
            self._rounds += 1
            self._rest(self._finished)
            self._ends = self._recorder.plan() if self._apart is None else dict(self._reads)
            if self._rounds > 1 and self._stage.hold and self._apart is None and not self._has_rows():
                self._held = (asked, self._stage.clock.monotonic() + self._stage.hold)
                return
        self._answer(asked)

    def _answer(self, asked: PlanAsked) -> None:
        self._asked.add(asked.reader)
        asked.answer(max(asked.start, self._ends.get(asked.producer, asked.start)))

    def _has_rows(self) -> bool:
        """Whether the next batch has something to read, by its plan."""
        read = self._recorder.reading.offsets
        return any(end > read[producer] for producer, end in self._ends.items())

    def _let_ask_again(self) -> None:
        """Answer the held question if there is a reason for another one: rows, the end, or the time."""
        if self._held is None:
            return
        asked, until = self._held
        try:
            if not self._admits_nothing and self._stage.clock.monotonic() < until:
                self._rest(self._finished)
                self._ends = self._recorder.plan()
                if not self._has_rows():
                    return
        except Exception as error:
            self._held = None
            asked.refuse(error)
            return
        self._held, self._ends = None, {}
        self._answer(asked)

    def _arrive(self, arrived: BatchArrived) -> None:
        if not self.live:
            raise self._is_stopping()
        if self._error is not None:
            raise self._error
        self._asked.clear()
        self._rounds = 0
        if arrived.batch - 1 >= self._recorder.batch:
            self._rest(arrived.batch - 1)
        self._empty = self._empty + 1 if self._recorder.reading.exhausted else 0
        self._waiting = arrived

    def _let_begin(self) -> None:
        arrived = self._waiting
        if arrived is None:
            return
        if not self.live or self._ended:
            self._waiting = None
            arrived.refuse(self._is_stopping())
        elif self._is_known and self._admits(arrived.batch):
            self._waiting = None
            begun_before = arrived.batch <= max(self._begun, self._written) or arrived.batch == self.replayed
            self._unseen = self._apart is None and not begun_before and self._recorder.begin_batch()
            self._begun = max(self._begun, arrived.batch)
            self._running, self._running_since = arrived.batch, self._stage.clock.monotonic()
            arrived.answer(None)

    def _admits(self, batch: int) -> bool:
        return all(last is None or batch <= last for last in (self._apart, self._recorder.last_batch))

    def _end(self, ended: BatchEnded) -> None:
        if not ended.failed:
            self._finished = max(self._finished, ended.batch)
            self._recorder.reading.ran(self._stage.clock.monotonic() - self._running_since)
        self._running, self._unseen = None, False

    def _is_idle(self) -> bool:
        """Spark has planned twice without running a batch: one without data may be due when the watermark has moved. A
        stage that never rests has run one without data instead, and begun another."""
        if self._stage.never_rests:
            return self._empty > 1 and self._recorder.reading.exhausted
        resting = self._running is None and self._finished == self._recorder.batch
        return self._rounds > 1 and resting and self._recorder.reading.exhausted

    def _close_channels(self) -> None:
        if self._running is None or not self.live or self._error is not None:
            return  # at rest all of the channels is looked at
        try:
            self._recorder.close_channels()
        except (Failed, Damaged, OSError) as error:
            _log.debug("%s: its channels are looked at again after the batch: %s", self._stage.uid, error)

    def _record_before_batch(self) -> None:
        """A batch runs, and nobody sees anything of it: what has been asked for can be recorded as before it."""
        if not self._unseen or not self._recorder.has_messages or not self.live or self._error is not None:
            return
        try:
            self._recorder.record_before_batch()
        except (Fenced, ProtocolError) as error:
            self._cannot_go_on(error)
        except Exception as error:
            _log.debug("%s: it is recorded after its batch: %s", self._stage.uid, error)

    def _trim(self, upto: int) -> None:
        """Not in this thread: it waits for the disk."""
        assert self._stage.output is not None
        try:
            self._stage.output.trim(upto)
            crash_points.point("channel.trimmed", self._stage.uid)
        except (StrobeError, OSError) as error:
            _log.warning("channel %s could not be trimmed: %s", self._stage.uid, error)

    # ── at rest ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def at_rest(self) -> bool:
        """If the stage is at rest, do what is due. False if a batch is begun and not committed."""
        if self._running is not None or self._begun > self._finished or not self.is_committed():
            return False
        if self.live and self._error is None:
            self._rest(self._finished)
        return True

    def _rest(self, batch: int) -> None:
        self._finished = max(self._finished, batch)
        self._recorder.rest(batch, begun=self._begun)
