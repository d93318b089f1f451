"""What a stage does at rest: it looks at its channels, steps its machine, and performs the effects.

The barrier machine decides; here is what its effects mean for a Spark query. How far the stage has come on each input,
and what the machine gets to know when, is in `stage.inputs`. *Content* of a channel is a span of positions, because the
channel is durable itself. What becomes of a recorded part is in `stage.parts`.

All of this runs in the stage's own thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.channel.admission import merge, rows_in
from strobe.hosts.spark.connectors.base import NO_SNAPSHOT
from strobe.hosts.spark.snapshot.messages import AbortSnapshot, SnapshotComplete, StageRegistered, StartSnapshot
from strobe.hosts.spark.snapshot.recording import Recording
from strobe.hosts.spark.stage.inbox import SinkVoted, Uploaded
from strobe.hosts.spark.stage.inputs import Reach, StageInputs
from strobe.hosts.spark.stage.parts import StageContext, StageParts
from strobe.model.cut import Json
from strobe.model.errors import Damaged, Failed, Fenced, HostFault
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

__all__ = ["Recorder"]

_log = logging.getLogger("strobe.agent")
_FALLIBLE = (RecordState, SendBarrier, ChannelRecorded, NodeRecorded, Overtake)
Message: TypeAlias = StartSnapshot | AbortSnapshot | SnapshotComplete | AlignmentTimedOut


class Recorder:
    """Records snapshots in one life of the stage, which begins after `batch`."""

    def __init__(
        self,
        stage: StageContext,
        incarnation: Incarnation,
        batch: int,
        put: Callable[[Uploaded | SinkVoted | AlignmentTimedOut], None],
    ) -> None:
        """`put`, from any thread: into the stage's inbox."""
        self._stage, self._incarnation, self._put = stage, incarnation, put
        self.batch = batch  # the newest committed one that was taken in
        self.reading = StageInputs(stage.inputs, stage.limits, stage.pace)
        self.reading.start(stage.checkpoint, batch)
        self.parts = StageParts(stage, incarnation, put)
        self._machine: Barriers | None = None  # until the coordinator has said which barriers are settled
        self._messages: deque[Message] = deque()
        self._heard: dict[SnapshotId, float] = {}
        # The snapshot that ends the job, and the batch after which the stage was recorded for it.
        self._last: tuple[SnapshotId, int] | None = None
        self._sinks_before: Mapping[str, Json] | None = None  # while a batch runs: where its sinks stood before it

    # ── what the coordinator says ───────────────────────────────────────────────────────────────────────────────────

    @property
    def machine(self) -> Barriers | None:
        """To be looked at, from any thread."""
        return self._machine

    @property
    def registered(self) -> bool:
        return self._machine is not None

    def register(self, registered: StageRegistered) -> None:
        if registered.incarnation != self._incarnation or self._machine is not None:
            return
        self._machine = Barriers(
            [ChannelId(c) for c in self._stage.inputs],
            [ChannelId(self._stage.uid)] if self._stage.output is not None else [],
            feedback=[ChannelId(c) for c in self._stage.feedback],
            mode=self._stage.mode,
            newest=registered.newest,
        )
        if registered.last is not None:
            self._last = (registered.last, self.batch)

    def hear(self, message: Message) -> None:
        """At the next rest. What is said before the coordinator knows of this life is not meant for it."""
        if self._machine is not None:
            self._messages.append(message)

    @property
    def has_messages(self) -> bool:
        return bool(self._messages)

    @property
    def last_batch(self) -> int | None:
        """The last batch before the job's end; None if it goes on."""
        return None if self._last is None else self._last[1]

    def plan(self) -> dict[NodeId, int]:
        """How far the next batch may read each channel."""
        return {} if self._machine is None or self._last is not None else self.reading.plan(self._machine)

    # ── at rest ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def rest(self, batch: int, *, begun: int) -> None:
        """The stage is at rest after `batch`. Take in what it read, and what was said meanwhile. `begun` is the newest
        batch of which others may see something."""
        began = self._stage.clock.monotonic()
        self._sinks_before = None
        if batch != self.batch:
            self.reading.committed(self._stage.checkpoint, batch)
            self.batch = batch
        self.reading.refresh()
        machine = self._machine
        if machine is None or begun > batch:
            return  # rows of a later batch are out already, the state behind them is not
        # First all that the batch has read, on every input: what is recorded below is the state after the whole batch.
        self._walk(machine, began, Reach.READ)
        self._walk(machine, began, Reach.SETTLED)
        self._take_in(machine, began)
        while (
            self._walk(machine, began, Reach.SETTLED)
            or self._walk(machine, began, Reach.BARRIER)
            or self._arrivals(machine, self.reading.look_ahead(machine), began)
        ):
            pass

    # ── while a batch runs ──────────────────────────────────────────────────────────────────────────────────────────

    def begin_batch(self) -> bool:
        """A batch begins of which nobody has seen anything. True if snapshots may be recorded as before it until its
        rows are in the channel. Not if it is the first batch: there is nothing before it. Not if a sink delivers on
        snapshot: its rows would wait for the next one. And not if a sink cannot say in advance where it stands."""
        stage = self._stage
        if stage.mode is not BarrierMode.UNALIGNED or stage.sinks or not stage.steady or self.batch == NOTHING:
            return False
        try:
            self._sinks_before = stage.sink_positions(NO_SNAPSHOT)
        except Exception as error:  # a sink may be anybody's
            _log.debug("%s: snapshots wait for its batch: %s", stage.uid, error)
            return False
        return True

    def record_before_batch(self) -> None:
        """Take in what was said since the last rest, up to the first message for which the stage must be at rest. What
        the batch reads is not in the state that is recorded, so it counts as in flight."""
        machine = self._machine
        if machine is not None and machine.aligning is None:
            self.reading.refresh()
            self._take_in(machine, self._stage.clock.monotonic(), lambda message: not _needs_rest(machine, message))

    def close_channels(self) -> None:
        """A batch may be running. Barriers of snapshots for which the stage is recorded say where the content of their
        channels ends: that needs no rest, and the snapshot does not wait for the batch."""
        machine = self._machine
        if machine is not None and machine.recording and machine.aligning is None:
            self.reading.refresh()
            self._arrivals(machine, self.reading.look_ahead(machine, recorded=True), self._stage.clock.monotonic())

    def _take_in(self, machine: Barriers, now: float, may: Callable[[Message], bool] = lambda message: True) -> None:
        while self._messages and may(self._messages[0]):
            message = self._messages.popleft()
            match message:
                case StartSnapshot(snapshot, _, options):
                    self._heard.setdefault(snapshot, now)
                    self._step(machine, Initiate(snapshot, options), now)
                case AlignmentTimedOut():
                    self._step(machine, message, now)
                case AbortSnapshot(snapshot) | SnapshotComplete(snapshot):
                    self.parts.forget(snapshot)
                    self._heard.pop(snapshot, None)
                    if isinstance(message, AbortSnapshot):
                        if self._last is not None and self._last[0] == snapshot:
                            self._last = None
                        self._step(machine, Abort(snapshot), now)

    def _walk(self, machine: Barriers, now: float, reach: Reach) -> bool:
        return self._arrivals(machine, self.reading.walk(machine, reach), now)

    def _arrivals(self, machine: Barriers, arrivals: Iterable[BarrierArrived | MessageArrived], now: float) -> bool:
        """Step the machine with each. True if there were any."""
        count = 0
        for count, arrival in enumerate(arrivals, 1):  # noqa: B007
            if isinstance(arrival, BarrierArrived):
                self._heard.setdefault(arrival.snapshot, now)
            self._step(machine, arrival, now)
        return count > 0

    # ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, machine: Barriers, input: Input, now: float) -> None:
        for effect in machine.step(input):
            try:
                self._perform(machine, effect, now)
            except Fenced:
                raise
            except (Failed, Damaged, OSError) as error:
                # The machine has moved on, so this cannot be done again: the snapshot fails, the stage goes on.
                if not isinstance(effect, _FALLIBLE):
                    raise
                self.parts.decline(effect.snapshot, str(error))
        self.parts.synced(self._stage.clock.monotonic())

    def _perform(self, machine: Barriers, effect: Effect, now: float) -> None:
        match effect:
            case Deliver() | Hold() | Release():
                pass  # rows are delivered by Spark; `held` is asked for when the next batch is planned
            case RecordState(snapshot, options):
                began = self._heard.get(snapshot, now)
                self.parts.record(self._recording(snapshot, began, now))
                if options.last:
                    self._last = (snapshot, self.batch)
                crash_points.point("snapshot.state-recorded", self._stage.uid)
            case StartTimer(snapshot):
                timed_out = partial(self._put, AlignmentTimedOut(snapshot))
                self._stage.clock.timer(self._stage.alignment_timeout, timed_out)
            case Declined(snapshot, reason):
                self.parts.decline(snapshot, reason)
            case SendBarrier() | ChannelRecorded() | NodeRecorded() | Overtake():
                if effect.snapshot in self.parts:  # else the stage could not do what it needs, and has declined it
                    self._contribute(machine, effect, now)
            case _:
                raise HostFault(f"A stage's agent cannot perform {type(effect).__name__}.")

    def _recording(self, snapshot: SnapshotId, began: float, now: float) -> Recording:
        before = self._sinks_before
        return Recording(
            snapshot,
            self.batch,
            self.reading.positions,
            began=began,
            recorded_at=now,
            sinks=self._stage.sink_positions(snapshot) if before is None else before,
            consumed=self.reading.offsets,
        )

    def _contribute(
        self, machine: Barriers, effect: SendBarrier | ChannelRecorded | NodeRecorded | Overtake, now: float
    ) -> None:
        recording = self.parts[effect.snapshot]
        match effect:
            case SendBarrier(_, snapshot, _, options):
                assert self._stage.output is not None
                recording.barrier = self._stage.output.place_barrier(snapshot, options).version
                crash_points.point("snapshot.barrier-placed", self._stage.uid)
            case ChannelRecorded(_, channel, content):
                producer = NodeId(channel)
                span = merge(content, start=recording.inputs[producer])
                rows = rows_in(self._stage.inputs[producer], span)
                recording.in_flight[producer] = InFlight(span.after, span.through, rows)
            case NodeRecorded(snapshot):
                self.parts.upload(snapshot)
            case Overtake(channel, snapshot):
                self._arrivals(machine, self.reading.overtaken_by(NodeId(channel), snapshot), now)


def _needs_rest(machine: Barriers, message: Message) -> bool:
    """Whether it cannot be heard while a batch runs: only what does not wait for barriers can be recorded then, and
    nothing may come after what ends the job."""
    match message:
        case StartSnapshot(_, _, options):
            return options.last or not machine.overtakes(options)
        case AlignmentTimedOut():
            return True
        case _:
            return False
