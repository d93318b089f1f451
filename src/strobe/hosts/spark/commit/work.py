"""One sink that delivers on snapshot, at work: prepares its parts, and commits them when they are decided.

The protocol's participant decides what is due; this host performs it, in one thread for each sink, so that a sink is
never asked two things at once. `write` is not among them: the stage stages later batches meanwhile.

A commit that fails is tried again, after a pause that doubles up to a limit, until it succeeds: its snapshot is
complete, so there is no way back. Later snapshots go on between two attempts; their votes name what is still in doubt.
A prepare is tried again only if the sink says that its system is `Unreachable`, and for as long as its snapshot waits.

Order of writes, each durable before the next begins: the part is noted in the ledger; the sink prepares; the ledger has
what it said; the vote goes out; the manifest is written (elsewhere); the ledger has the decision; the sink commits; the
ledger forgets; the coordinator is told.
"""

from __future__ import annotations

import copy
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from strobe.hosts.shared.clock import SYSTEM, Clock
from strobe.hosts.spark import crash_points
from strobe.hosts.spark.commit.ledger import Entry, PartState, SinkLedger
from strobe.hosts.spark.connectors.base import Part, SinkContext, TransactionalSink, Unreachable
from strobe.hosts.spark.connectors.staging import Staging
from strobe.hosts.spark.snapshot.metrics import SinkStatus
from strobe.hosts.spark.snapshot.recording import Vote
from strobe.model.backoff import backoff
from strobe.model.cut import Json
from strobe.model.errors import Failed, Fenced, HostFault, Misuse, StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.restore.messages import StandDown
from strobe.protocol.two_phase_commit import TwoPhaseParticipant
from strobe.protocol.two_phase_commit import messages as protocol
from strobe.store.manifest import Prepared

__all__ = ["SinkWork", "Vote", "check_handles"]

_log = logging.getLogger("strobe.sinks")
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0

ToCoordinator: TypeAlias = (
    protocol.Hello | protocol.InDoubt | protocol.Resolved | protocol.Prepared | protocol.Refused | protocol.Committed
)
FromCoordinator: TypeAlias = protocol.Ask | protocol.Resolve | protocol.Prepare | protocol.Commit


@dataclass(slots=True)
class _Prepare:
    """A stage was recorded for a snapshot, its last batch being `batch`; `done` is told how it went."""

    snapshot: SnapshotId
    batch: int
    done: Callable[[Vote | StrobeError], None]
    part: Part | None = None
    begun: bool = False


@dataclass(frozen=True, slots=True)
class _Held:
    """A complete snapshot names these, and they are held back."""

    snapshot: SnapshotId
    handles: tuple[protocol.Handle, ...]


@dataclass(slots=True)
class _Attempts:
    """Failures in a row, and when to try again."""

    failures: int = 0
    reason: str = ""
    not_before: float = 0.0
    said: set[str] = field(default_factory=set)

    def failed(self, reason: str, now: float) -> float:
        self.failures += 1
        self.reason = reason
        pause = backoff(self.failures, FIRST_PAUSE, LONGEST_PAUSE)
        self.not_before = now + pause
        return pause

    def is_news(self) -> bool:
        """Each reason is logged once, not at every attempt."""
        news = self.reason not in self.said
        self.said.add(self.reason)
        return news


class SinkWork:
    def __init__(
        self,
        sink: TransactionalSink,
        context: SinkContext,
        ledger: SinkLedger,
        *,
        guard: Callable[[], None],
        post: Callable[[ToCoordinator], None],
        wanted: Callable[[SnapshotId], bool],
        broken: Callable[[str], None],
        clock: Clock = SYSTEM,
    ) -> None:
        """`guard` raises if this is no longer the job's driver. `post` carries messages to the coordinator; `wanted`
        says whether a snapshot is still under way; `broken` is told if this very work cannot go on."""
        self.sink = sink
        self.context = context
        self.name = context.name
        self._ledger = ledger
        self._guard = guard
        self._post = post
        self._wanted = wanted
        self._broken = broken
        self._clock = clock
        handles = [protocol.Handle(e.handle) for e in ledger.entries]
        self._machine = TwoPhaseParticipant(NodeId(self.name), context.incarnation, prepared=handles, keeps=True)
        self._prepares: dict[SnapshotId, protocol.Prepare] = {}  # asked for, the stage is not recorded yet
        self._waiting: deque[_Prepare] = deque()
        self._due: deque[protocol.Ask | protocol.Resolve | protocol.Commit] = deque()
        self._preparing, self._committing = _Attempts(), _Attempts()
        self._tasks: queue.Queue[FromCoordinator | _Prepare | _Held | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name=f"sink-{self.name}", daemon=True)
        self._closed = False

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def boundary(self) -> int:
        """The last batch that a part contains: it never comes again, whatever Spark has lost of it."""
        return self._ledger.ledger.boundary

    @property
    def in_doubt(self) -> tuple[Entry, ...]:
        return self._ledger.entries

    def open(self) -> None:
        """After the sink's own `open`, before the stage's first batch."""
        self._guard()
        held = self.sink.last_batch() if self._ledger.fresh else None
        if held is not None and held > self.boundary:
            raise Misuse(
                f"Sink {self.name!r} ({self.sink.describe()}) has delivered on batch until now, and has batch {held}, "
                "which its stage has not finished: a driver ended in the middle of it. It would be there twice.",
                untouched="Nothing was started.",
                next="Run the file as it was, end the job with `strobe stop`, then change the delivery.",
            )
        self._ledger.begin()
        self.sink.recover([e.part for e in self._ledger.entries])
        for effect in self._machine.step(protocol.Opened()):
            self._perform(effect)
        self._thread.start()

    def close(self, patience: float) -> None:
        """End the thread. A commit that hangs is left to itself: the ledger still has it."""
        self._closed = True
        self._tasks.put(None)
        if self._thread.is_alive():
            self._thread.join(patience)
        for waiting in self._waiting:
            waiting.done(Failed("the job is stopping"))

    def tell(self, message: FromCoordinator) -> None:
        self._tasks.put(message)

    def hold(self, snapshot: SnapshotId, handles: tuple[protocol.Handle, ...]) -> None:
        """A complete snapshot names these, and they are held back: to be noted, for people to see."""
        if handles:
            self._tasks.put(_Held(snapshot, handles))

    def prepare(self, snapshot: SnapshotId, batch: int, done: Callable[[Vote | StrobeError], None]) -> None:
        """The stage was recorded for the snapshot after `batch`; its files are in the store."""
        self._tasks.put(_Prepare(snapshot, batch, done))

    def status(self) -> SinkStatus:
        entries = self._ledger.entries
        trying = self._committing if self._committing.failures else self._preparing
        return SinkStatus(
            sink=self.name,
            where=self.sink.describe(),
            in_doubt=sum(e.state is PartState.DECIDED for e in entries),
            prepared=sum(e.state is PartState.PREPARED for e in entries),
            held=sum(e.state is PartState.HELD for e in entries),
            failures=trying.failures,
            error=trying.reason,
        )

    # ── the thread ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        while not self._closed:
            task: FromCoordinator | _Prepare | _Held | None = None
            try:
                task = self._tasks.get(timeout=self._pause())
                if task is None:
                    return
            except queue.Empty:
                pass
            try:
                if task is not None:
                    self._take(task)
                self._try_due()
                self._try_prepares()
            except Fenced as error:
                self._stand_down(error)
                return
            except Exception as error:
                _log.exception("%s: the thread of a sink", self.name)
                self._broken(f"the work of sink {self.name!r} failed: {type(error).__name__}: {error}")
                return

    def _stand_down(self, error: Fenced) -> None:
        """Another driver has taken the job over, and says so; or only what is behind this sink: then we must say it."""
        try:
            self._guard()
        except Fenced:
            return
        except Exception as doubt:  # whether it has cannot be found out now: this thread ends, so somebody must know
            _log.warning("%s: %s", self.name, doubt)
        self._broken(f"sink {self.name!r} may no longer write: {error}")

    def _pause(self) -> float | None:
        times = [self._committing.not_before] if self._due else []
        if self._waiting and not self._machine.in_doubt:
            times.append(self._preparing.not_before)
        return None if not times else max(0.0, min(times) - self._clock.monotonic())

    def _take(self, task: FromCoordinator | _Prepare | _Held) -> None:
        if isinstance(task, _Prepare):
            self._waiting.append(task)
        elif isinstance(task, _Held):
            self._note_held(task)
        elif isinstance(task, protocol.Prepare):
            # It is meant for the moment of the cut, which the stage tells.
            self._prepares = {s: p for s, p in self._prepares.items() if self._wanted(s)}
            self._prepares[task.snapshot] = task
        else:
            self._due.append(task)

    def _note_held(self, task: _Held) -> None:
        try:
            self._ledger.held(task.handles, task.snapshot)
        except Fenced:
            raise
        except (Failed, OSError) as error:  # no room on the disk: nothing depends on it
            _log.warning("%s: %s", self.name, error)

    # ── preparing ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_prepares(self) -> None:
        while self._waiting and self._clock.monotonic() >= self._preparing.not_before:
            task = self._waiting[0]
            if self._machine.in_doubt and self._wanted(task.snapshot):
                return  # what an earlier driver left is to be settled first: the snapshot waits for it
            outcome = self._prepare(task)
            if outcome is None:
                return  # later
            self._waiting.popleft()
            self._preparing = _Attempts()
            task.done(outcome)

    def _prepare(self, task: _Prepare) -> Vote | StrobeError | None:
        """The vote, the refusal, or None if it is to be tried again."""
        snapshot = task.snapshot
        if not task.begun:
            message = self._prepares.pop(snapshot, None)
            if message is None:
                return Failed(f"snapshot {snapshot} is over")
            effects = self._machine.step(message)
            if not any(isinstance(e, protocol.PrepareWrites) for e in effects):
                return self._vote(effects)
            task.begun = True
        if not self._wanted(snapshot):
            return self._refuse(task, f"snapshot {snapshot} is over")
        try:
            handle = self._prepare_writes(task)
        except Fenced:
            raise
        except Unreachable as error:
            pause = self._preparing.failed(str(error), self._clock.monotonic())
            if self._preparing.is_news():
                _log.warning("%s cannot prepare: %s; it is tried again in %.1f s", self.name, error, pause)
            return None
        except StrobeError as error:
            return self._refuse(task, str(error))
        except Exception as error:
            _log.exception("%s: prepare for snapshot %d", self.name, snapshot)
            return self._refuse(task, f"{type(error).__name__}: {error}")
        return self._vote(self._machine.step(protocol.WritesPrepared(snapshot, handle)))

    def _prepare_writes(self, task: _Prepare) -> protocol.Handle | None:
        after = self.boundary
        if task.batch <= after:
            return None  # nothing was staged since
        context = self.context
        if task.part is None:
            handle = f"{context.job}/{context.name}/{context.timeline}/{task.snapshot}"
            task.part = Part(handle, task.snapshot, context.timeline, after, task.batch)
            self._guard()
            self._ledger.note(task.part, self.sink.describe())
            crash_points.point("sink.part-noted", context.stage)
        part = task.part
        self._guard()
        data = self.sink.prepare(part)
        crash_points.point("sink.part-prepared", context.stage)
        staged = context.staging.is_dir() and not Staging(context, sweep=False).missing(part)
        try:
            self._ledger.prepared(part.handle, data, self.sink.by_hand(part), staged=staged)
        except (Failed, OSError):
            self._withdraw(part, data)
            raise
        crash_points.point("sink.vote-durable", context.stage)
        return protocol.Handle(part.handle)

    def _withdraw(self, part: Part, data: Json) -> None:
        """It is prepared, and no snapshot will name it: nobody would come back to it before the next part, if there is
        one, and what holds locks there would hold them until then."""
        try:
            self.sink.withdraw(part, data)
        except Fenced:
            raise
        except Exception as error:  # the next part, or the next start, finds it
            _log.warning("%s: what was prepared for snapshot %d stays for now: %s", self.name, part.snapshot, error)

    def _refuse(self, task: _Prepare, reason: str) -> Failed:
        if task.part is not None:
            try:
                self._ledger.refused(task.part.handle)
            except (Failed, OSError) as error:  # no room on the disk: the next part takes its place all the same
                _log.warning("%s: %s", self.name, error)
        refusal = self._vote(self._machine.step(protocol.WritesFailed(task.snapshot, reason)))
        return refusal if isinstance(refusal, Failed) else Failed(reason)

    def _vote(self, effects: tuple[protocol.CommitParticipantEffect, ...]) -> Vote | Failed:
        """The one message that the machine has for the coordinator."""
        for effect in effects:
            if isinstance(effect, protocol.ToCoordinator) and isinstance(effect.message, protocol.Prepared):
                return Vote(effect.message, tuple(self._manifested(h) for h in effect.message.handles))
            if isinstance(effect, protocol.ToCoordinator) and isinstance(effect.message, protocol.Refused):
                return Failed(f"sink {self.name!r}: {effect.message.reason}")
        return Failed(f"sink {self.name!r} has no vote")

    def _manifested(self, handle: str) -> Prepared:
        entry = self._ledger.ledger.find(handle)
        assert entry is not None
        part = entry.part
        data: dict[str, Json] = {
            "snapshot": part.snapshot,
            "timeline": part.timeline,
            "after": part.after,
            "through": part.through,
            "where": entry.where,
            "prepared": entry.data,
        }
        return Prepared(handle, data)

    # ── committing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _try_due(self) -> None:
        """Hand the machine what the coordinator has said, one message after the other. One counts as heard when all it
        asks for is done, so that until then every vote names what is still in doubt."""
        while self._due and self._clock.monotonic() >= self._committing.not_before:
            message = self._due[0]
            heard = copy.copy(self._machine)
            try:
                self._note_decision(message)
                for effect in heard.step(message):
                    self._perform(effect)
            except (Fenced, HostFault):
                raise
            except Exception as error:
                pause = self._committing.failed(str(error) or type(error).__name__, self._clock.monotonic())
                if self._committing.is_news():
                    _log.warning(
                        "%s cannot commit what a complete snapshot names: %s; nothing is lost, it is tried again in "
                        "%.1f s and until it succeeds", self.name, error, pause,
                    )  # fmt: skip
                    _log.debug("%s: commit", self.name, exc_info=True)
                return
            if self._committing.failures:
                _log.info("%s has committed", self.name)
            self._machine = heard
            self._committing = _Attempts()
            self._due.popleft()

    def _note_decision(self, message: protocol.Ask | protocol.Resolve | protocol.Commit) -> None:
        if isinstance(message, protocol.Commit):
            self._ledger.decided(message.handles, message.snapshot)
        elif isinstance(message, protocol.Resolve):
            self._ledger.decided(message.commit, message.snapshot)

    def _perform(self, effect: protocol.CommitParticipantEffect) -> None:
        if isinstance(effect, protocol.ToCoordinator):
            self._post(effect.message)
        elif isinstance(effect, protocol.CommitWrites):
            self._commit(effect.handle)
        elif isinstance(effect, StandDown):
            raise Fenced(f"Incarnation {self.context.incarnation} of sink {self.name!r} is no longer the newest.")
        else:
            raise HostFault(f"A running sink cannot perform {type(effect).__name__}.")

    def _commit(self, handle: str) -> None:
        entry = next((e for e in self._ledger.entries if e.handle == handle), None)
        if entry is None:
            return  # an earlier attempt came as far as forgetting it
        stage = self.context.stage
        self._guard()
        crash_points.point("commit.begun", stage)
        self.sink.commit(entry.part, entry.data)
        crash_points.point("commit.visible", stage)
        self._ledger.forget(handle, PartState.COMMITTED)
        crash_points.point("commit.forgotten", stage)


def check_handles(decision: protocol.Decision, name: str, prepared: tuple[Prepared, ...]) -> None:
    """The manifest is the decision: both must name the same."""
    written = tuple(p.handle for p in prepared)
    if written != decision.of(NodeId(name)):
        raise HostFault(f"The manifest names {written} of sink {name!r}, the decision {decision.of(NodeId(name))}.")
