"""Agents without Spark: real agents, machines, channels and offset logs; only the queries are played.

A played query does what Spark does, in the order in which Spark does it: ask every reader how far, log the offsets, run
the batch, commit. One row in gives one row out, so a stage's state is simply how many rows it has read, and a cut can
be checked against an account that knows nothing of barriers: what a producer had written before its barrier must be
what it had read when it recorded.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql.types import LongType, StructField, StructType

from strobe.hosts.shared.clock import SYSTEM, Clock
from strobe.hosts.spark.channel.admission import Limits
from strobe.hosts.spark.channel.log import DataFile
from strobe.hosts.spark.channel.pace import Pace
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.snapshot.messages import (
    AbortSnapshot,
    Acknowledge,
    Decline,
    StagePart,
    StageReady,
    StageRegistered,
    StartSnapshot,
    ToCoordinator,
)
from strobe.hosts.spark.snapshot.recording import Recorded, Recording
from strobe.hosts.spark.stage.agent import StageAgent, StageContext
from strobe.model.errors import StrobeError
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.protocol.barriers import BarrierMode
from strobe.protocol.events import BarrierOptions
from strobe.store.manifest import NOTHING, NodeRecord
from tests.support.spark.played_agents import PlayedAgent

SCHEMA = StructType([StructField("id", LongType())])
Reads = dict[str, tuple[str, ...]]
Submitted = tuple[Recorded, Recording, Callable[[StagePart | StrobeError], None]]


class Immediate:
    """Uploads that are durable at once, or when a test says so."""

    def submit(self, stage: Recorded, recording: Recording, done: Callable[[StagePart | StrobeError], None]) -> None:
        record = NodeRecord(batch=recording.batch, inputs=dict(recording.inputs), output=recording.barrier)  # type: ignore[arg-type]
        done(StagePart(record, recording.barrier, dict(recording.in_flight)))

    def run(self, act: Callable[[], None]) -> None:
        act()


@dataclass
class Stage:
    agent: StageAgent
    reads: tuple[str, ...]
    path: Path
    batch: int = NOTHING
    offsets: dict[str, int] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=lambda: {NOTHING: 0})  # rows read, after each batch


class World:
    def __init__(
        self,
        root: Path,
        reads: Reads,
        *,
        mode: BarrierMode = BarrierMode.ALIGNED,
        feedback: frozenset[str] = frozenset(),
        limits: Limits | None = None,
        seed: int = 0,
        threads: bool = False,
        uploads: Immediate | None = None,
        clock: Clock = SYSTEM,
        pace: float | None = None,
        cost: float = 0.0,
    ) -> None:
        """`feedback` are channels named reader<producer, e.g. "a<c". With `threads` every stage has its own, as in a
        job; else what is said to it is heard before anything else happens. `pace`: seconds that a batch should last;
        `cost`: seconds that a row takes."""
        self.cost = cost
        # What happens while a batch of a stage runs: before its rows are in the channel, and after that.
        self.meanwhile: Callable[[str, bool], None] = lambda uid, shown: None
        self._clock = clock
        self.everywhere = mode is BarrierMode.UNALIGNED  # all stages are told that a snapshot begins
        self.newest = 0  # the highest snapshot that was begun, when a stage starts again
        self.random = random.Random(seed)
        self.posted: list[ToCoordinator] = []
        self.reads = reads
        self.channels: dict[str, ChannelWriter] = {
            uid: ChannelWriter(
                root / "channels" / uid,
                SCHEMA,
                job="j",
                producer=NodeId(uid),
                timeline=Timeline(1),
                incarnation=Incarnation(1),
            )
            for uid in reads
            if any(uid in r for r in reads.values())
        }
        self.stages: dict[str, Stage] = {}
        for uid, inputs in reads.items():
            path = root / "stages" / uid
            (path / "offsets").mkdir(parents=True)
            (path / "commits").mkdir()
            context = StageContext(
                NodeId(uid),
                checkpoint=path,
                inputs={NodeId(r): self.channels[r].log for r in inputs},
                output=self.channels.get(uid),
                feedback=frozenset(NodeId(r) for r in inputs if f"{uid}<{r}" in feedback),
                mode=mode,
                alignment_timeout=3600.0,
                limits=limits or Limits(),
                uploads=uploads or Immediate(),
                post=self._post,
                clock=clock,
                pace=None if pace is None else Pace(pace),
            )
            agent = StageAgent(context) if threads else PlayedAgent(context)
            self.stages[uid] = Stage(agent, inputs, path, offsets=dict.fromkeys(inputs, 0))
            agent.start(Incarnation(1))

    def close(self) -> None:
        for stage in self.stages.values():
            stage.agent.stop()
        for channel in self.channels.values():
            channel.close()

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────────────

    def source_batch(self, uid: str, rows: int) -> None:
        """The source stage reads `rows` rows from wherever."""
        self._run(self.stages[uid], {}, rows)

    def cut_short(self, uid: str, rows: int) -> None:
        """The source stage's next batch fails when its rows are in the channel; with no rows, before it is begun."""
        stage = self.stages[uid]
        number = self._log(stage, {})
        if rows:
            assert stage.agent.output is not None
            stage.agent.begin_batch(number)
            stage.agent.output.append([DataFile(f"data/{number}.parquet", rows, rows * 8)], number)
            stage.agent.end_batch(number, failed=True)

    def restart(self, uid: str) -> None:
        """Another life of the stage, in another driver or in the same."""
        output = self.channels.get(uid)
        written = output.log.last_batch(output.timeline) if output is not None else None
        self.newest = max((m.snapshot for m in self.posted if isinstance(m, Acknowledge)), default=0)
        self.stages[uid].agent.start(Incarnation(2), written=NOTHING if written is None else written)

    def _post(self, message: ToCoordinator) -> None:
        self.posted.append(message)
        if isinstance(message, StageReady):
            registered = StageRegistered(message.incarnation, SnapshotId(self.newest))
            self.stages[message.stage].agent.tell(registered)

    def plan(self, uid: str) -> dict[str, int]:
        """Spark asks each reader how far it may read."""
        stage = self.stages[uid]
        return {r: stage.agent.latest(f"{uid}<{r}", NodeId(r), stage.offsets[r]) for r in stage.reads}

    def batch(self, uid: str) -> int:
        """Plan and, if there is something to read, run a batch. Rows read."""
        stage = self.stages[uid]
        ends = self.plan(uid)
        rows = sum(
            c.rows for r, end in ends.items() for c in self.channels[r].log.commits(stage.offsets[r], end) if c.files
        )
        if ends != stage.offsets:
            self._run(stage, ends, rows)
        return rows

    def trigger(self, snapshot: int, *, last: bool = False, aligned: bool = False) -> None:
        kind = Kind.SAVEPOINT if last else Kind.CHECKPOINT
        for stage in self.stages.values():
            if not stage.reads or (self.everywhere and not aligned):
                stage.agent.tell(StartSnapshot(SnapshotId(snapshot), kind, BarrierOptions(last=last, aligned=aligned)))

    def abort(self, snapshot: int) -> None:
        for stage in self.stages.values():
            stage.agent.tell(AbortSnapshot(SnapshotId(snapshot), "test"))

    def settle(self) -> None:
        """Until nothing moves any more."""
        for _ in range(1000):
            for stage in self.stages.values():
                stage.agent.at_rest()
            if not sum(self.batch(uid) for uid, stage in self.stages.items() if stage.reads):
                break

    def _run(self, stage: Stage, ends: dict[str, int], rows: int) -> None:
        number = self._log(stage, ends)
        stage.agent.begin_batch(number)
        if self.cost:
            self._clock.sleep(rows * self.cost)
        self.meanwhile(stage.agent.uid, False)
        if stage.agent.output is not None:
            stage.agent.show_batch(number)
            if rows:
                stage.agent.output.append([DataFile(f"data/{number}.parquet", rows, rows * 8)], number)
            self.meanwhile(stage.agent.uid, True)
        stage.agent.end_batch(number)
        (stage.path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        stage.batch = number
        stage.offsets.update(ends)
        stage.rows[number] = stage.rows[number - 1] + rows

    def _log(self, stage: Stage, ends: dict[str, int]) -> int:
        number = stage.batch + 1
        sources = [json.dumps({"channel": r, "version": v}) for r, v in ends.items()]
        head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
        (stage.path / "offsets" / str(number)).write_text("\n".join(["v1", head, *sources]))
        return number

    # ── what came of it ─────────────────────────────────────────────────────────────────────────────────────────────

    def parts(self, snapshot: int) -> dict[str, StagePart]:
        return {m.stage: m.part for m in self.posted if isinstance(m, Acknowledge) and m.snapshot == snapshot}

    def declined(self, snapshot: int) -> list[str]:
        return [m.stage for m in self.posted if isinstance(m, Decline) and m.snapshot == snapshot]

    def rows_in(self, channel: str, upto: int) -> int:
        return sum(c.rows for c in self.channels[channel].log.commits(0, upto))

    def check(self, snapshot: int) -> None:
        """Law 1 from rows alone, and the ranges in flight."""
        parts = self.parts(snapshot)
        assert parts.keys() == self.stages.keys(), f"snapshot {snapshot} lacks {self.stages.keys() - parts.keys()}"
        for uid, part in parts.items():
            state = self.stages[uid].rows[part.record.batch or 0 if part.record.batch is None else part.record.batch]
            if part.barrier is not None:
                written = self.rows_in(uid, part.barrier)
                assert written == state, f"{uid} had read {state} rows, but {written} are before its barrier"
            read = 0
            for producer in self.reads[uid]:
                flight = part.in_flight[NodeId(producer)]
                barrier = parts[producer].barrier
                assert barrier is not None
                position = part.record.inputs[NodeId(producer)]  # type: ignore[index]
                assert (flight.after, flight.through) == (position, barrier)
                assert flight.rows == self.rows_in(producer, barrier) - self.rows_in(producer, position)
                read += self.rows_in(producer, position)
            if self.reads[uid]:
                assert read == state, f"{uid} has {state} rows in its state, but its positions say {read}"
