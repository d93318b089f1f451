"""A sink, its ledger, its work and the commit coordinator, without Spark: with crashes at any point, and a judge.

The sink is a table in memory that outlives the driver. Rows are batch numbers. The judge asks two things: that nothing
is visible which no complete snapshot names, at any moment; and that in the end every batch up to the last complete
snapshot is visible once, in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StructType

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.commit.commits import Commits
from strobe.hosts.spark.commit.ledger import SinkLedger, named_handles
from strobe.hosts.spark.commit.work import SinkWork, Vote
from strobe.hosts.spark.connectors.base import Part, SinkContext, TransactionalSink
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.snapshot.messages import StagePart
from strobe.model.cut import Json
from strobe.model.errors import Failed, StrobeError
from strobe.model.graph import Graph
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.manifest import Manifest, NodeRecord, SinkRecord
from strobe.store.releases import HOLD, released_up_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NOW = "2031-05-17T09:30:00.250Z"
PATIENCE = 60.0


class Killed(BaseException):
    """The driver dies here."""


@dataclass
class Table:
    """What outlives every driver: the system behind the sink, and the snapshots that are complete."""

    staged: set[int] = field(default_factory=set)
    prepared: dict[str, Part] = field(default_factory=dict)
    visible: list[int] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)


class TableSink(TransactionalSink):
    def __init__(self, table: Table) -> None:
        self.table = table
        self.refusal: StrobeError | None = None
        self.down: Exception | None = None
        self.attempts = 0
        self.tells: bool | None = None

    def visible(self, part: Part, prepared: Json, context: SinkContext) -> bool | None:
        return self.tells

    def describe(self) -> str:
        return "a table in memory"

    def write(self, batch: DataFrame | None, batch_id: int) -> None:
        self.table.staged.add(batch_id)

    def prepare(self, part: Part) -> Json:
        self.attempts += 1
        if self.refusal is not None:
            raise self.refusal
        missing = set(range(part.after + 1, part.through + 1)) - self.table.staged
        if missing:
            self.table.violations.append(f"{part.handle} is to be prepared without the batches {sorted(missing)}")
        self.table.prepared[part.handle] = part
        return {"handle": part.handle}

    def commit(self, part: Part, prepared: Json) -> None:
        self.attempts += 1
        if self.down is not None:
            raise self.down
        table = self.table
        if prepared != {"handle": part.handle}:
            table.violations.append(f"{part.handle} is to be committed with {prepared}")
        if not any(part.handle in handles for m in table.manifests for handles in named_handles(m).values()):
            table.violations.append(f"{part.handle} became visible, and no complete snapshot names it")
        if part.handle not in table.committed:
            table.committed.append(part.handle)
            rows = [batch for batch in range(part.after + 1, part.through + 1) if batch in table.staged]
            table.visible += rows
            table.staged -= set(rows)
        table.prepared.pop(part.handle, None)

    def withdraw(self, part: Part, prepared: Json) -> None:
        self.table.prepared.pop(part.handle, None)

    def abort(self, part: Part, prepared: Json) -> None:
        self.table.aborted.append(part.handle)
        self.table.prepared.pop(part.handle, None)
        self.table.staged -= set(range(part.after + 1, part.through + 1))

    def recover(self, parts: Iterable[Part]) -> None:
        known = {part.handle for part in parts}
        self.table.prepared = {h: p for h, p in self.table.prepared.items() if h in known}


class World:
    """One job with one sink. `start` again after a crash."""

    work_class: type[SinkWork] = SinkWork
    commits_class: type[Commits] = Commits
    judges = False  # whether its snapshots wait for a verdict

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = home
        self.table = Table()
        self.batch = -1
        self.snapshot = 0
        self.broken: list[str] = []
        self._die_at = ""
        self._dead = threading.Event()
        monkeypatch.setattr(crash_points, "point", self._point)
        monkeypatch.setattr(threading, "excepthook", lambda args: None)  # a killed thread says nothing
        self.start()

    # ── drivers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, *, read_manifests: bool = True) -> None:
        self._die_at, self._dead = "", threading.Event()
        self.home = JobHome(self.place, "job")
        self.home.claim(pytest.fail)
        context = SinkContext(
            job="job", stage=NodeId("gold"), name="gold/0", timeline=Timeline(1),
            incarnation=self.home.record.incarnation, schema=StructType(), output_mode="append", base=self.place,
            staging=self.place / "staging",
        )  # fmt: skip
        self.sink = TableSink(self.table)
        self.ledger = SinkLedger(self.home, "gold/0", lambda: NOW)
        self.ledger.open("TableSink", Timeline(1), self.batch, context.staging)
        self.settled: list[int] = []
        self.asked: list[int] = []  # snapshots of which a verdict is wanted
        judge = self.asked.append if self.judges else None
        self.commits = self.commits_class(self.home.record.incarnation, self.settled.append, judge=judge)
        self.work = self.work_class(
            self.sink, context, self.ledger,
            guard=self.home.check_owner, post=self.commits.post, wanted=self.commits.wanted, broken=self.broken.append,
        )  # fmt: skip
        released = released_up_to(self.place, "job")
        self.commits.open([self.work], self.table.manifests if read_manifests else (), released)

    def crash(self) -> None:
        """The driver is gone: nothing that it was about to do is done."""
        self._dead.set()
        self._die_at = "*"
        self.work.close(PATIENCE)
        self.home.release()

    def kill_at(self, point: str) -> None:
        self._die_at = point

    def start_points(self, point: str) -> None:
        """For work without a driver's threads: die at `point`, or at none."""
        self._die_at, self._dead = point, threading.Event()

    def _point(self, name: str, stage: str = "") -> None:
        if self._dead.is_set() or name == self._die_at:
            self._dead.set()
            raise Killed(name)

    # ── what a job does ─────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.batch += 1
            if self.batch > self.work.boundary:
                self.sink.write(None, self.batch)

    def vote(self, snapshot: SnapshotId) -> StagePart | StrobeError:
        """The asynchronous part of a snapshot, to its end. Killed if the driver dies in it."""
        got: list[Vote | StrobeError] = []
        done = threading.Event()

        def take(vote: Vote | StrobeError) -> None:
            got.append(vote)
            done.set()

        self.work.prepare(snapshot, self.batch, take)
        self.await_(lambda: done.is_set() or self._dead.is_set())
        if not got:
            raise Killed
        vote = got[0]
        if isinstance(vote, StrobeError):
            return vote
        sinks = {"gold/0": SinkRecord(None, vote.prepared)}
        return StagePart(NodeRecord(batch=self.batch), None, {}, sinks, (vote.message,))

    def begin(self) -> SnapshotId:
        self.snapshot += 1
        self.commits.begin(SnapshotId(self.snapshot))
        return SnapshotId(self.snapshot)

    def complete(self, snapshot: SnapshotId, part: StagePart) -> None:
        self.commits.decide(snapshot, [part])
        extra: dict[str, Json] = {HOLD: ["no money is made"]} if self.judges else {}
        self.table.manifests.append(manifest(snapshot, self.home.record.incarnation, part, extra))
        self.commits.logged(snapshot)

    def take_snapshot(self, *, settle: bool = True) -> SnapshotId:
        """From begin to the commit. Killed if the driver dies on the way."""
        snapshot = self.begin()
        part = self.vote(snapshot)
        if isinstance(part, StrobeError):
            self.commits.abandon(snapshot, str(part))
            raise part
        self.complete(snapshot, part)
        if settle:
            self.await_(lambda: not self.commits.unsettled or self._dead.is_set())
            if self._dead.is_set():
                raise Killed
        return snapshot

    def await_(self, happened: Callable[[], bool]) -> None:
        waiting = threading.Event()
        for _ in range(int(PATIENCE / 0.002)):
            if happened():
                return
            waiting.wait(0.002)
        raise AssertionError("it never happened")

    # ── the judge ───────────────────────────────────────────────────────────────────────────────────────────────────

    def judge(self) -> list[str]:
        """What is wrong when a last snapshot is complete and everything is settled."""
        found = list(self.table.violations)
        if self.table.visible != list(range(self.batch + 1)):
            found.append(f"visible are {self.table.visible}, of the batches up to {self.batch}")
        if self.ledger.entries:
            found.append(f"in doubt for ever: {[e.handle for e in self.ledger.entries]}")
        return found + self.broken


def manifest(
    snapshot: SnapshotId, incarnation: Incarnation, part: StagePart, extra: dict[str, Json] | None = None
) -> Manifest:
    return Manifest(
        snapshot=snapshot, kind=Kind.CHECKPOINT, job="job", host="spark", timeline=Timeline(1), incarnation=incarnation,
        mode="aligned", started=NOW, completed=NOW, graph=Graph((NodeId("gold"),), ()),
        nodes={NodeId("gold"): part.record}, sinks=part.sinks,
        extra=extra or {},
    )  # fmt: skip


__all__ = ["Failed", "Killed", "Table", "TableSink", "World"]
