"""Stages and coordinator that share nothing but bytes: `restart_world` with the coordinator's own host, and a
connection between it and every stage.

Every message is turned into bytes and back. A connection carries its messages in order, late, some of them twice; it is
cut at any time, and what was not confirmed by then is sent again on the next one, whether it had arrived or not.
Connections know nothing of each other, so messages of different stages overtake one another. One seed is one schedule.
"""

from __future__ import annotations

import json
import queue
import random
import typing
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from strobe.hosts.spark.snapshot import messages
from strobe.hosts.spark.snapshot.coordinator import CoordinatorHost, SnapshotWriter, _Gathering, _Request
from strobe.hosts.spark.snapshot.messages import StagePart, ToAgent, ToCoordinator
from strobe.hosts.spark.snapshot.progress import Progress
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.coordinator.messages import AbortRequested, Tick, TriggerRequested
from strobe.protocol.events import BarrierOptions
from tests.support.spark.restart_world import RestartWorld
from tests.support.spark.scheduled_parts import Killed

M = TypeVar("M")
KINDS: Mapping[str, Any] = {
    kind.__name__: kind for kind in (*typing.get_args(messages.ToAgent), *typing.get_args(messages.ToCoordinator))
}


def to_bytes(message: object) -> bytes:
    return json.dumps([type(message).__name__, msgspec.to_builtins(message)]).encode()


def from_bytes(data: bytes) -> Any:
    kind, fields = json.loads(data)
    return msgspec.convert(fields, KINDS[kind])


class Connection(Generic[M]):
    """One direction, from one sender to one receiver."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._unconfirmed: deque[bytes] = deque()
        self._next = 0
        self.faulty = True

    def send(self, message: M) -> None:
        data = to_bytes(message)
        assert from_bytes(data) == message, f"it is not the same message any more: {message}"
        self._unconfirmed.append(data)

    @property
    def waits(self) -> bool:
        return self._next < len(self._unconfirmed)

    def receive(self) -> M:
        message: M = from_bytes(self._unconfirmed[self._next])
        if not self.faulty or self._rng.random() > 0.1:  # else it comes once more
            self._next += 1
        return message

    def confirm(self) -> None:
        """The sender hears how far the receiver has come."""
        for _ in range(self._rng.randint(0, self._next)):
            self._unconfirmed.popleft()
            self._next -= 1

    def cut(self) -> None:
        self._next = 0


class ScheduledCoordinator(CoordinatorHost):
    """Has no thread: it takes a message, and writes a manifest, when the schedule says so."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.to_write: list[tuple[SnapshotId, _Gathering]] = []

    def start(self) -> None:
        self.tick()

    def tick(self) -> None:
        self._step(Tick(self._now()))

    def turn(self) -> bool:
        try:
            item = self._queue.get_nowait()
        except queue.Empty:
            return False
        self.tick()
        self._take(item)
        return True

    def ask(self, name: str, kind: Kind, *, last: bool) -> None:
        self._queue.put(_Request(TriggerRequested(name, kind, BarrierOptions(last=last)), queue.Queue()))

    def _begin_writing(self, snapshot: SnapshotId, gathering: _Gathering) -> None:
        self.to_write.append((snapshot, gathering))

    @property
    def pending(self) -> Mapping[SnapshotId, frozenset[NodeId]]:
        return self._machine.pending


class WiredWorld(RestartWorld, SnapshotWriter):
    jobs_ended = 0  # with their last snapshot

    # ── the driver ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start_driver(self) -> None:
        self.up: dict[str, Connection[ToCoordinator]] = {uid: Connection(self.rng) for uid in self.reads}
        self.down: dict[str, Connection[ToAgent]] = {uid: Connection(self.rng) for uid in self.reads}
        self.last_parts: Mapping[NodeId, StagePart] = {}
        self.broken: list[BaseException] = []
        super().start_driver()

    def _start_coordinator(self) -> None:
        self.host = ScheduledCoordinator(
            self.upstream,
            self.settings,
            next_snapshot=self.taken + 1,
            retained=tuple(self.retained),
            writer=self,
            tell=lambda node, message: self.down[node].send(message),
            fail_job=self._fail,
            on_progress=self._progress,
        )
        self.writing = self.host.to_write  # type: ignore[assignment]
        self.host.start()

    def _fail(self, reason: str) -> None:
        raise AssertionError(reason)

    def _progress(self, progress: Progress) -> None:
        if progress.status == "complete":
            self.complete.append(progress.snapshot)
        elif progress.status == "failed":
            self.declined.append(progress.reason)

    @property
    def last(self) -> SnapshotId | None:
        """The snapshot that ends the job, if there is one."""
        return self.host._last

    # ── what is written ─────────────────────────────────────────────────────────────────────────────────────────────

    def reserve(self, snapshot: SnapshotId, kind: Kind) -> None:
        self.taken = snapshot

    def write(self, progress: Progress, parts: Mapping[NodeId, StagePart]) -> None:
        try:
            self._check(progress.snapshot, progress.kind, parts)
        except AssertionError as error:
            self.broken.append(error)
        if progress.snapshot == self.last:
            self.last_parts = dict(parts)

    def dispose(self, snapshot: SnapshotId) -> None:
        self.retained.pop(snapshot, None)

    def spare(self, consumed: Mapping[NodeId, Mapping[NodeId, int]]) -> Mapping[NodeId, int]:
        return self._spare(consumed)

    def _write(self, snapshot: SnapshotId, gathering: Any) -> None:
        self.host._write(snapshot, gathering)
        self.host.turn()
        if self.broken:
            raise self.broken[0]

    # ── the schedule ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def pending(self) -> Mapping[SnapshotId, frozenset[NodeId]]:
        return self.host.pending

    def run(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self._act()
                if self.last_parts:
                    self.end_job()
            except Killed:
                self.kill()

    def _tick(self) -> None:
        for connection in self._connections():
            roll = self.rng.random()
            if roll < 0.01:
                connection.cut()
            elif roll < 0.2:
                connection.confirm()
        if self.last is not None and self.rng.random() < 0.002:
            self.host._queue.put(AbortRequested(self.last, "somebody has changed their mind"))

    def _connections(self) -> Iterator[Connection[Any]]:
        yield from self.up.values()
        yield from self.down.values()

    def _request(self, kind: Kind, *, last: bool | None = None) -> None:
        if last is None:
            last = kind is Kind.SAVEPOINT and self.last is None and self.rng.random() < 0.5
        self.requests += 1
        self.host.ask(f"r{self.requests}", kind, last=last)

    def _post(self, uid: str, message: ToCoordinator) -> None:
        self.up[uid].send(message)

    def _receive(self) -> bool:
        if self.host.turn():
            return True
        waiting = [uid for uid, connection in self.up.items() if connection.waits]
        if not waiting:
            return False
        self.host.post(self.up[self.rng.choice(waiting)].receive())
        return True

    def _deliver(self, uid: str) -> None:
        connection = self.down[uid]
        for _ in range(1 if connection.faulty else 1000):
            if connection.waits:
                self.agents[uid].tell(connection.receive())

    def settle(self) -> None:
        self.end()
        for connection in self._connections():
            connection.faulty = False
        super().settle()

    # ── the end of a job ────────────────────────────────────────────────────────────────────────────────────────────

    def end(self) -> None:
        """Nothing fails any more, and somebody asks for the last snapshot until there is one."""
        self.crash_in = None
        for uid in self.reads:
            if uid not in self.queries:
                self.start_stage(uid)
        for turn in range(20_000):
            if self.last_parts:
                self.end_job()
                return
            if self.last is None and turn % 50 == 0:
                self._request(Kind.SAVEPOINT, last=True)
            self._tick()
            self._move()
        raise AssertionError(f"the last snapshot waits for ever: {dict(self.pending)}")

    def _move(self, *, failing: float = 0.0) -> None:
        """Something goes on that was under way. A stage may fail, and comes back."""
        uid = self.rng.choice(list(self.queries))
        if self.rng.random() < failing:
            self.fail_stage(uid)
            self.start_stage(uid)
        self._receive()
        self._deliver(uid)
        if self.uploads.waiting:
            self.uploads.finish(0)
        if self.writing:
            self._write(*self.writing.pop(0))
        if not self.queries[uid].in_batch:
            self.agents[uid].look()
        next(self.queries[uid].steps)

    def end_job(self) -> None:
        """The last snapshot is complete: whatever still runs, no row may appear behind it. Then the same job again."""
        for _ in range(100 if self.queries else 0):
            self._move(failing=0.03)
        for uid, channel in self.channels.items():
            barrier = self.last_parts[NodeId(uid)].barrier
            assert barrier is not None
            trimmed = channel.log.trimmed
            behind = [c.version for c in channel.log.commits(max(barrier, trimmed)) if c.files]
            went_on = behind or trimmed > barrier
            assert not went_on, f"{uid} went on after the last snapshot: {behind} are behind {barrier}"
        self.jobs_ended += 1
        self.kill()
