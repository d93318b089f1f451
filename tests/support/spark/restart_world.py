"""A job without Spark that is killed, and whose stages fail, at any point: real agents, machines, channels and offset
logs under the protocol's coordinator; only Spark's query loop is played.

One seed is one schedule. A query does what Spark does, in the order in which Spark does it, and can be left between
any two steps: run the batch that was logged and not committed; ask every reader how far; log the offsets; run the
batch; commit. Messages between agents and coordinator wait until the schedule delivers them. A kill takes everything
that is not on disk, also in the middle of an agent's step.

Each complete snapshot is judged twice: by an account of rows that knows nothing of barriers, and by the rules that a
real job applies before it writes a manifest. Any refusal is a bug: nothing here damages anything.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from strobe.hosts.spark.channel.admission import Limits
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.snapshot.manifests import snapshot_before
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
from strobe.hosts.spark.stage.agent import StageContext
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.protocol.barriers import BarrierMode
from strobe.protocol.coordinator import Coordinator
from strobe.protocol.coordinator.messages import (
    Acknowledged,
    AnnounceAbort,
    AnnounceComplete,
    CoordinatorEffect,
    CoordinatorInput,
    CoordinatorSettings,
    DeclinedBy,
    Dispose,
    FailJob,
    ManifestWritten,
    NodeLost,
    NodeReady,
    Tick,
    Trigger,
    TriggerRequested,
    WriteManifest,
)
from strobe.store.consistency import check_manifest
from strobe.store.manifest import NOTHING, ChannelRecord, Manifest
from tests.support.spark.agent_world import SCHEMA, Reads
from tests.support.spark.played_agents import ScheduledAgent
from tests.support.spark.played_spark import PlayedSpark
from tests.support.spark.scheduled_parts import Account, Delayed, Killed, Query

TIME = "2031-05-17T09:30:00.000Z"


class RestartWorld(PlayedSpark):
    def __init__(
        self,
        root: Path,
        reads: Reads,
        *,
        mode: BarrierMode,
        seed: int,
        feedback: frozenset[str] = frozenset(),
        limits: Limits | None = None,
        max_concurrent: int = 1,
    ) -> None:
        """`feedback` are channels named reader<producer, e.g. "a<c"."""
        self.rng = random.Random(seed)
        self.root, self.reads, self.mode = root, reads, mode
        self.limits, self.feedback = limits or Limits(), feedback
        channels = tuple(
            Channel(ChannelId(f"{p}-{uid}"), NodeId(p), NodeId(uid)) for uid, inputs in reads.items() for p in inputs
        )
        self.graph = Graph(tuple(map(NodeId, reads)), channels)
        self.settings = CoordinatorSettings(max_concurrent=max_concurrent, tolerable_failures=10**6, retained=2)
        self.accounts = {uid: Account({NOTHING: dict.fromkeys(inputs, 0)}) for uid, inputs in reads.items()}
        self.rows: dict[str, dict[int, int]] = {uid: {} for uid in reads}  # by version
        self.retained: dict[SnapshotId, Manifest] = {}
        self.complete: list[SnapshotId] = []
        self.refused: list[str] = []
        self.declined: list[str] = []
        self.incarnation = 0
        self.taken = 0  # the highest snapshot id that is reserved
        self.now = 0
        self.crash_in: int | None = None  # points until the process is killed
        self.start_driver()

    # ── the driver ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start_driver(self) -> None:
        self.incarnation += 1
        self.queries: dict[str, Query] = {}
        self.lives = dict.fromkeys(self.reads, 0)
        self.posted: deque[ToCoordinator] = deque()
        self.inboxes: dict[NodeId, deque[ToAgent]] = {NodeId(uid): deque() for uid in self.reads}
        self.parts: dict[SnapshotId, dict[NodeId, StagePart]] = {}
        self.writing: list[tuple[SnapshotId, Kind]] = []
        self.consumed: dict[NodeId, Mapping[NodeId, int]] = {}
        self.uploads = Delayed()
        self.requests = 0
        self.channels = {
            uid: ChannelWriter(
                self.root / "channels" / uid,
                SCHEMA,
                job="j",
                producer=NodeId(uid),
                timeline=Timeline(1),
                incarnation=Incarnation(self.incarnation),
            )
            for uid in self.reads
            if any(uid in inputs for inputs in self.reads.values())
        }
        self.agents = {uid: self._agent(uid) for uid in self.reads}
        self._start_coordinator()

    @property
    def upstream(self) -> dict[NodeId, tuple[NodeId, ...]]:
        return {
            NodeId(uid): tuple(NodeId(p) for p in inputs if f"{uid}<{p}" not in self.feedback)
            for uid, inputs in self.reads.items()
        }

    def _start_coordinator(self) -> None:
        self.coordinator = Coordinator(
            self.upstream, self.settings, next_snapshot=self.taken + 1, retained=tuple(self.retained)
        )
        self._step(Tick(self.now))

    def kill(self) -> None:
        """SIGKILL, and the same command once more."""
        self.close()
        self.crash_in = None
        self.start_driver()

    def close(self) -> None:
        for agent in self.agents.values():
            agent.stop(0)
        for channel in self.channels.values():
            channel.close()

    def _agent(self, uid: str) -> ScheduledAgent:
        path = self.root / "stages" / uid
        for part in ("offsets", "commits"):
            (path / part).mkdir(parents=True, exist_ok=True)
        context = StageContext(
            NodeId(uid),
            checkpoint=path,
            inputs={NodeId(p): self.channels[p].log for p in self.reads[uid]},
            output=self.channels.get(uid),
            feedback=frozenset(NodeId(p) for p in self.reads[uid] if f"{uid}<{p}" in self.feedback),
            mode=self.mode,
            alignment_timeout=3600.0,
            limits=self.limits,
            uploads=self.uploads,
            post=partial(self._post, uid),
        )
        return ScheduledAgent(context)

    def _post(self, uid: str, message: ToCoordinator) -> None:
        self.posted.append(message)

    def point(self, name: str, stage: str = "") -> None:
        """Stands in for `faults.point`."""
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                raise Killed(f"{name}@{stage}")

    # ── the schedule ────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self._act()
            except Killed:
                self.kill()

    def settle(self) -> None:
        """Nothing breaks any more, and a last snapshot is asked for: it must come to be, and so must all before it."""
        self.crash_in = None
        asked = False
        for _ in range(2000):
            for uid in self.reads:
                if uid not in self.queries:
                    self.start_stage(uid)
            while self.uploads.waiting:
                self.uploads.finish(0)
            while self._receive():
                pass
            while self.writing:
                self._write(*self.writing.pop(0))
            for uid, query in self.queries.items():
                self._deliver(uid)
                if not query.in_batch:
                    query.agent.look()
                next(query.steps)
            if asked and not self.pending:
                assert self.complete[-1] == self.taken, f"the last snapshot failed: {self.declined[-1:]}"
                return
            if not asked and not self.pending:
                asked = True
                self._request(Kind.CHECKPOINT)
        raise AssertionError(f"it waits for ever: {dict(self.pending)}")

    def _act(self) -> None:
        self._tick()
        roll = self.rng.random()
        uid = self.rng.choice(list(self.reads))
        if roll < 0.004:
            self.crash_in = self.rng.randrange(1, 6)
        elif roll < 0.006:
            self.kill()
        elif roll < 0.012 and uid in self.queries:
            self.fail_stage(uid)
        elif roll < 0.06:
            self._request(Kind.SAVEPOINT if self.rng.random() < 0.2 else Kind.CHECKPOINT)
        elif roll < 0.10 and self.pending and self.mode is BarrierMode.ALIGNED_WITH_TIMEOUT:
            aligning = self.agents[uid].aligning if uid in self.queries else None
            if aligning is not None:
                self.agents[uid].time_out(aligning)
        elif roll < 0.14:
            if self.uploads.waiting:
                self.uploads.finish(self.rng.randrange(len(self.uploads.waiting)))
        elif roll < 0.16:
            if self.writing:
                self._write(*self.writing.pop(self.rng.randrange(len(self.writing))))
        elif roll < 0.30:
            self._receive()
        elif roll < 0.45:
            self._deliver(uid)
        elif roll < 0.55:
            if uid in self.queries and not self.queries[uid].in_batch:
                self.agents[uid].look()
        elif uid in self.queries:
            next(self.queries[uid].steps)
        else:
            self.start_stage(next(u for u in self.reads if u not in self.queries))

    def start_stage(self, uid: str) -> None:
        self.lives[uid] += 1
        agent = self.agents[uid]
        channel = self.channels.get(uid)
        written = channel.log.last_batch(channel.timeline) if channel is not None else None
        agent.start(Incarnation(self.lives[uid]), written=NOTHING if written is None else written)
        query = self.queries[uid] = Query(agent, iter(()))
        query.steps = self._query(uid, query)

    def fail_stage(self, uid: str) -> None:
        """The query fails, wherever it is."""
        query = self.queries.pop(uid)
        if query.in_batch:
            query.agent.end_batch(0, failed=True)
        query.agent.stop()
        self._post(uid, StageLost(NodeId(uid), Incarnation(self.lives[uid]), "it failed"))

    # ── the coordinator ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def pending(self) -> Mapping[SnapshotId, frozenset[NodeId]]:
        """Snapshots under way, and whom each waits for."""
        return self.coordinator.pending

    def _tick(self) -> None:
        self.now += 1
        self._step(Tick(self.now))

    def _request(self, kind: Kind) -> None:
        self.requests += 1
        self._step(TriggerRequested(f"r{self.requests}", kind))

    def _receive(self) -> bool:
        """The coordinator takes one message. False if there is none."""
        if not self.posted:
            return False
        self._take(self.posted.popleft())
        return True

    def _deliver(self, uid: str) -> None:
        inbox = self.inboxes[NodeId(uid)]
        while inbox:
            self.agents[uid].tell(inbox.popleft())

    def _take(self, message: ToCoordinator) -> None:
        if isinstance(message, StageReady):
            self.inboxes[message.stage].append(StageRegistered(message.incarnation, SnapshotId(self.taken)))
            self._step(NodeReady(message.stage, message.incarnation))
        elif isinstance(message, StageLost):
            self._step(NodeLost(message.stage, message.reason))
        elif isinstance(message, Decline):
            self.declined.append(f"{message.stage}: {message.reason}")
            self._step(DeclinedBy(message.snapshot, message.stage, message.incarnation, message.reason))
        elif isinstance(message, Acknowledge):
            self.consumed[message.stage] = message.consumed
            if message.snapshot in self.parts:
                self.parts[message.snapshot][message.stage] = message.part
            self._step(Acknowledged(message.snapshot, message.stage, message.incarnation))

    def _step(self, input: CoordinatorInput) -> None:
        for effect in self.coordinator.step(input):
            self._perform(effect)

    def _perform(self, effect: CoordinatorEffect) -> None:
        if isinstance(effect, Trigger):
            self.taken = effect.snapshot
            self.parts[effect.snapshot] = {}
            for node in effect.nodes:
                self.inboxes[node].append(StartSnapshot(effect.snapshot, effect.kind))
        elif isinstance(effect, WriteManifest):
            self.writing.append((effect.snapshot, effect.kind))
        elif isinstance(effect, AnnounceComplete | AnnounceAbort):
            for inbox in self.inboxes.values():
                if isinstance(effect, AnnounceComplete):
                    inbox.append(SnapshotComplete(effect.snapshot, effect.kind))
                else:
                    inbox.append(AbortSnapshot(effect.snapshot, effect.reason))
            if isinstance(effect, AnnounceComplete):
                self.complete.append(effect.snapshot)
                self._trim()
        elif isinstance(effect, Dispose):
            self.retained.pop(effect.snapshot, None)
        elif isinstance(effect, FailJob):
            raise AssertionError(effect.reason)

    def _trim(self) -> None:
        for uid, upto in self._spare(self.consumed).items():
            self.inboxes[uid].append(TrimChannel(upto))

    def _spare(self, consumed: Mapping[NodeId, Mapping[NodeId, int]]) -> dict[NodeId, int]:
        """As a job does it."""
        spare = {}
        for uid in self.channels:
            needed = [consumed[NodeId(reader)][NodeId(uid)] for reader, ins in self.reads.items() if uid in ins]
            for manifest in self.retained.values():
                needed += [flight.after for flight in manifest.channels[ChannelId(uid)].in_flight.values()]
            spare[NodeId(uid)] = min(needed)
        return spare

    # ── what came of it ─────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, snapshot: SnapshotId, kind: Kind) -> None:
        self._check(snapshot, kind, self.parts.pop(snapshot))
        self._step(ManifestWritten(snapshot))

    def _check(self, snapshot: SnapshotId, kind: Kind, parts: Mapping[NodeId, StagePart]) -> None:
        channels = {
            ChannelId(uid): ChannelRecord(
                NodeId(uid),
                f"channels/{uid}",
                parts[NodeId(uid)].barrier,
                {NodeId(r): parts[NodeId(r)].in_flight[NodeId(uid)] for r, ins in self.reads.items() if uid in ins},
            )
            for uid in self.channels
        }
        manifest = Manifest(
            snapshot, kind, "j", "spark", Timeline(1), Incarnation(self.incarnation), "m", TIME,
            TIME, self.graph, {uid: part.record for uid, part in parts.items()}, channels,
        )  # fmt: skip
        found = check_manifest(manifest, snapshot_before(manifest, self.retained.values()))
        self.refused += [v.sentence for v in found]
        assert not self.refused, self.refused
        self._check_rows(parts)
        if kind is Kind.CHECKPOINT:
            self.retained[snapshot] = manifest

    def _check_rows(self, parts: Mapping[NodeId, StagePart]) -> None:
        for uid, part in parts.items():
            account, batch = self.accounts[uid], part.record.batch
            assert batch is not None
            if part.barrier is not None:
                written = self.rows_upto(uid, part.barrier)
                assert written == account.written[batch], f"{uid}: {written} rows before its barrier, not its state's"
            for producer in self.reads[uid]:
                position = part.record.inputs[ChannelId(producer)]
                read = self.rows_upto(producer, position)
                assert read == account.read[batch][producer], f"{uid}: its position says {read} rows of {producer}"
                flight, barrier = part.in_flight[NodeId(producer)], parts[NodeId(producer)].barrier
                assert barrier is not None
                assert flight.rows == self.rows_upto(producer, barrier) - read, f"{uid}: in flight from {producer}"
