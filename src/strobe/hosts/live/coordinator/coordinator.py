"""The coordinator of a live system: performs what the machines of `strobe.protocol` ask for.

Two machines: `Coordinator` decides when snapshots start, are written, given up and disposed of; `RestoreCoordinator`
brings a snapshot to life, which is also how a system starts (from snapshot 0, the beginning) and how it comes back when
a node is lost. This module gives them the time and the nodes' messages, and performs their effects: control messages,
the store, the job record. What blocks, runs in one thread, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from strobe import __version__
from strobe.hosts.live.api.topology import Topology, parse_address
from strobe.hosts.live.coordinator.breakpoints import Breakpoints
from strobe.hosts.live.coordinator.intake import Intake
from strobe.hosts.live.coordinator.outcomes import Listener, NodeDied, Outcomes
from strobe.hosts.live.coordinator.peers import Peer, Reach
from strobe.hosts.live.coordinator.record import RecordFile
from strobe.hosts.live.coordinator.requests import Requests, ignore_outcome
from strobe.hosts.live.coordinator.revival import BEGINNING, Revival
from strobe.hosts.live.journal.parts import COORDINATOR, PartWriter
from strobe.hosts.live.snapshot.snapshots import Gathering, Loaded, gathered, load, to_cut, write
from strobe.hosts.live.wire import control
from strobe.hosts.live.wire.link import Address
from strobe.hosts.shared.clock import SYSTEM, Clock, utc_now
from strobe.model.errors import StrobeError
from strobe.model.events import Completed, Restarted
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.protocol.coordinator import Coordinator
from strobe.protocol.coordinator import messages as snap
from strobe.protocol.restore import messages as back
from strobe.store.consistency import InconsistentCut
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import SavepointLayout
from strobe.store.manifest import Manifest
from strobe.store.snapshots import SnapshotStore

__all__ = ["LiveCoordinator"]

_log = logging.getLogger("strobe.live")


class LiveCoordinator:
    def __init__(
        self,
        topology: Topology,
        store: SnapshotStore,
        record: RecordFile,
        reach: Reach,
        settings: snap.CoordinatorSettings,
        *,
        journal: Path | None = None,
        restore_timeout: float = 30.0,
        on_failed: Callable[[str], None] = lambda reason: None,
        on_lost: Callable[[NodeId], None] = lambda node: None,
        listener: Listener | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.topology = topology
        self.graph = topology.graph
        self.store = store
        self.latest: Manifest | None = store.latest()
        self.running = asyncio.Event()
        self.terminated = asyncio.Event()
        self.breakpoints = Breakpoints(self, self.graph)
        self.outcomes = Outcomes(clock, listener)
        self.figures: dict[NodeId, control.Figures] = {}
        self.restores = 0
        self._asked: set[NodeId] = set()  # who wants a snapshot as soon as all run
        self._record = record
        self._journal_directory = journal
        self._journal: PartWriter | None = None
        self._on_failed = on_failed
        self._on_lost = on_lost
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "snapshots")
        self._clock, self._began = clock, clock.monotonic()
        self._peers = {node: Peer(node, self, reach) for node in self.graph.nodes}
        self._gathering: dict[SnapshotId, Gathering] = {}
        self._intake = Intake(Path(store.objects.describe()))
        self._requests = Requests()
        self._faults: dict[NodeId, str] = {}  # the reasons that nodes gave before they ended
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._figures_asked: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False
        newest = max((record.now.snapshot, *store.list()), default=0)
        # Every node starts a snapshot by itself: then it need not be reachable from any other node.
        self._snapshots = Coordinator(
            dict.fromkeys(self.graph.nodes, ()), settings, next_snapshot=newest + 1, retained=store.list()
        )
        elsewhere = {s.name: parse_address(s.reach, s.name) for s in topology.nodes if s.reach is not None}
        self._revival = Revival(
            self.graph, self._peers, record, self, elsewhere=elsewhere, timeout_ms=int(restore_timeout * 1000)
        )
        self._feed()

    @property
    def incarnation(self) -> Incarnation:
        return self._revival.incarnation

    @property
    def newest(self) -> int:
        return self._snapshots.newest

    @property
    def pending(self) -> dict[SnapshotId, frozenset[NodeId]]:
        return dict(self._snapshots.pending)

    @property
    def missing(self) -> dict[NodeId, str]:
        """The nodes that cannot be reached, and why."""
        return {node: peer.trouble for node, peer in self._peers.items() if not peer.present or peer.trouble}

    def present(self, node: NodeId) -> bool:
        return self._peers[node].present

    # ── what a host asks ────────────────────────────────────────────────────────────────────────────────────────────

    def reach(self, node: NodeId, address: Address) -> None:
        """The node listens there."""
        self._peers[node].dial(address)

    async def gone(self, node: NodeId, reason: str) -> str:
        """The node's process has ended. If it has said why, then that is the reason, which is returned."""
        await self._peers[node].last_words()
        reason = self._faults.pop(node, reason)
        self._peers[node].gone(reason)
        return reason

    async def start(self, loaded: Loaded = BEGINNING) -> None:
        """Brings the snapshot to life as soon as all nodes are reached; returns when all run."""
        self._request_restore(loaded)
        await self.running.wait()

    async def restore(self, find: Callable[[], Loaded]) -> None:
        """The whole system goes back to the snapshot that `find` reads, with a new incarnation."""
        loaded = await self._blocking(find)
        await self.running.wait()
        self._end_life("the system was restored")
        self._request_restore(loaded)
        await self.running.wait()

    async def snapshot(
        self, kind: Kind = Kind.CHECKPOINT, *, initiators: Iterable[NodeId] = (), directory: Path | None = None
    ) -> SnapshotId:
        """Takes a snapshot; returns when its manifest is durable, or raises Failed."""
        return await self._request(kind, tuple(initiators), directory)

    def break_snapshot(self, node: NodeId, number: int) -> asyncio.Future[SnapshotId]:
        start = (node,) if len(self.graph.reachable([node])) == len(self.graph.nodes) else self.graph.nodes
        return self._request(Kind.SAVEPOINT, start, None, number)

    def savepoint(self, snapshot: SnapshotId, directory: Path | None = None) -> tuple[Path, SnapshotStore]:
        """Where a savepoint is, or will be."""
        objects = self.store.objects
        where = directory or Path(objects.describe(self.store.layout.savepoint(snapshot)))  # type: ignore[attr-defined]
        place, layout = FilesystemStore(where.absolute()), SavepointLayout("", snapshot)
        return where.absolute(), SnapshotStore(place, layout, self.store.job, sign=self.store.sign)

    async def ask_figures(self, seconds: float = 2.0) -> dict[NodeId, control.Figures]:
        """Fresh figures of the nodes that answer in time."""
        self.figures.clear()
        answered: asyncio.Future[None] = self._loop.create_future()
        self._figures_asked.append(answered)
        self._tell_all(control.FiguresAsked())
        await asyncio.wait([answered], timeout=seconds)
        self._figures_asked = [each for each in self._figures_asked if each is not answered]
        return dict(self.figures)

    async def finish(self) -> None:
        """Tells every node to end, and lets go of everything. The last snapshot stays what it is."""
        self.running.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._tell_all(control.Finish())
        await asyncio.gather(*(peer.flushed(1.0) for peer in self._peers.values()))
        for peer in self._peers.values():
            peer.close()
        self._over = True  # what is under way ends; nothing new begins
        for timer in self._timers.values():
            timer.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._loop.run_in_executor(None, self._thread.shutdown)
        self._requests.stop()
        for gathering in self._gathering.values():
            gathering.session.abort()
        self._intake.close()
        if self._journal is not None:
            self._journal.close()

    # ── what nodes say ──────────────────────────────────────────────────────────────────────────────────────────────

    def peer_piece(self, node: NodeId, piece: control.Piece) -> None:
        if piece.number in self._gathering:
            self._intake.add(node, piece)

    def peer_said(self, node: NodeId, message: control.Control) -> None:
        if isinstance(message, control.PartTaken):
            self._part(node, message)
        elif isinstance(message, control.Decline):
            self._feed(
                snap.DeclinedBy(
                    SnapshotId(message.snapshot), node, Incarnation(message.incarnation), message.reason.rstrip(".")
                )
            )
        elif isinstance(message, control.SnapshotAsked) and message.incarnation == self.incarnation:
            if self.running.is_set():
                self._request(Kind.CHECKPOINT, (node,), None).add_done_callback(ignore_outcome)
            else:  # a node may run before the last one does
                self._asked.add(node)
        elif isinstance(message, control.BreakHit | control.BreakRefused):
            self.breakpoints.said(node, message)
        elif isinstance(message, control.HasTerminated):
            if message.incarnation == self.incarnation:
                self.terminated.set()
        elif isinstance(message, control.IsReady):
            self._revival.feed(back.Ready(node, Incarnation(message.incarnation)))
        elif isinstance(message, control.IsRefused):
            self._revival.feed(back.Refused(node, Incarnation(message.incarnation), message.reason))
        elif isinstance(message, control.IsRunning):
            self._revival.feed(back.Running(node, Incarnation(message.incarnation)))
        elif isinstance(message, control.Figures):
            self.figures[node] = message
            if len(self.figures) == sum(peer.present for peer in self._peers.values()):
                for waiting in self._figures_asked:
                    if not waiting.done():
                        waiting.set_result(None)
        elif isinstance(message, control.Fault):
            self._fault(node, f"a handler failed: {message.reason}")

    def _fault(self, node: NodeId, reason: str) -> None:
        if self.topology.spec(node).is_remote:
            self._peers[node].replaced(reason)
        else:
            self._faults[node] = reason  # whoever started it will say that it has ended

    def peer_lost(self, node: NodeId, reason: str) -> None:
        _log.warning("Node %s is lost: %s", node, reason)
        self.outcomes.tell(NodeDied(node, reason, self.incarnation))
        was_running = self.running.is_set()
        self.running.clear()
        self.terminated.clear()
        self._end_life(f"{node} was lost: {reason}")
        self._revival.lost(node, reason)
        if was_running and not self._revival.underway:
            self._revival.underway = True
            self._spawn(self._go_back())
        self._on_lost(node)

    def peer_back(self, node: NodeId) -> None:
        self._revival.back(node)

    async def _go_back(self) -> None:
        """To the last complete snapshot of this life, or else to what the life began from.

        Never to a newer one of another timeline: that timeline was left by a restore. The thread has
        finished by then what it was writing: a snapshot that becomes complete while a node dies counts.
        """
        try:
            loaded = await self._blocking(self._newest, self._revival.timeline, self._revival.loaded)
        except StrobeError as error:
            self.fail(str(error))
            return
        self._request_restore(loaded)

    def _newest(self, timeline: Timeline, otherwise: Loaded) -> Loaded:
        manifest = self.store.latest(timeline)
        return otherwise if manifest is None else load(self.store, manifest.snapshot, self.graph)

    def _part(self, node: NodeId, part: control.PartTaken) -> None:
        snapshot, incarnation = SnapshotId(part.snapshot), Incarnation(part.incarnation)
        gathering = self._gathering.get(snapshot)
        if gathering is None or gathering.incarnation != incarnation:
            return
        taken = self._intake.take(node, part)
        if isinstance(taken, str):
            self._feed(snap.DeclinedBy(snapshot, node, incarnation, taken))
            return
        arrived = (self._clock.monotonic() - gathering.triggered) * 1000
        gathering.parts[node] = replace(taken, arrived_ms=arrived)
        self._feed(snap.Acknowledged(snapshot, node, incarnation))

    # ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _request(
        self, kind: Kind, initiators: tuple[NodeId, ...], directory: Path | None, breakpoint: int = 0
    ) -> asyncio.Future[SnapshotId]:
        if initiators:
            self.graph.check_reachable(initiators)
        name, outcome = self._requests.add(initiators, directory, breakpoint)
        self._feed(snap.TriggerRequested(name, kind))
        return outcome

    def _feed(self, *inputs: snap.CoordinatorInput) -> None:
        """Each input comes with the time; without one, the time alone."""
        for each in (snap.Tick(self.now()), *inputs):
            for effect in self._snapshots.step(each):
                self._perform(effect)

    def _perform(self, effect: snap.CoordinatorEffect) -> None:
        if isinstance(effect, snap.Trigger):
            self._trigger(effect)
        elif isinstance(effect, snap.WriteManifest):
            self._spawn(self._write(self._gathering[effect.snapshot]))
        elif isinstance(effect, snap.AnnounceComplete):
            self._tell_all(control.SnapshotDone(self.incarnation, effect.snapshot))
        elif isinstance(effect, snap.AnnounceAbort):
            _log.warning("Snapshot %s is given up: %s", effect.snapshot, effect.reason)
            self.outcomes.given_up(effect.snapshot, self._gathering.get(effect.snapshot), effect.reason)
            self._drop(effect.snapshot)
            self._tell_all(control.AbortPart(self.incarnation, effect.snapshot))
        elif isinstance(effect, snap.Dispose):
            self._spawn(self._dispose(effect.snapshot))
        elif isinstance(effect, snap.Reply):
            self._requests.reply(effect.request, effect.snapshot, effect.failure)
        elif isinstance(effect, snap.FailJob):
            self.fail(effect.reason)
        else:
            self.wake("snapshots", effect.at, self._feed)

    def _trigger(self, trigger: snap.Trigger) -> None:
        request = self._requests.of(self._snapshots.request_of(trigger.snapshot))
        where, store = None, self.store
        if trigger.kind is Kind.SAVEPOINT:
            where, store = self.savepoint(trigger.snapshot, request.directory)
        self._record.reserve(SnapshotId((trigger.snapshot + 99) // 100 * 100))
        self._gathering[trigger.snapshot] = Gathering(
            trigger.snapshot,
            trigger.kind,
            self.incarnation,
            self._revival.timeline,
            utc_now(self._clock),
            store.begin(trigger.snapshot),
            where,
            triggered=self._clock.monotonic(),
        )
        initiators = request.initiators or trigger.nodes
        for node in initiators:
            self.say(node, control.TakePart(self.incarnation, trigger.snapshot, request.breakpoint))

    async def _write(self, gathering: Gathering) -> None:
        args = (
            gathering,
            self.graph,
            self.store.job,
            self.topology.protocol,
            utc_now(self._clock),
            self.latest,
            f"strobe {__version__}",
        )
        try:
            manifest: Manifest = await self._blocking(write, *args)
        except (StrobeError, OSError) as error:
            why = error.what if isinstance(error, StrobeError) else str(error)
            refused = isinstance(error, InconsistentCut)
            self._feed((snap.CutRefused if refused else snap.ManifestFailed)(gathering.snapshot, why.rstrip(".")))
            return
        self._gathering.pop(gathering.snapshot, None)
        self.outcomes.complete(gathering, manifest)
        if gathering.kind is Kind.CHECKPOINT:
            self.latest = manifest
        if self._journal is not None:
            self._journal.write(Completed(to_cut(gathered(gathering), self.graph)))
            self._journal.flush()
        self._spawn(self._blocking(self._intake.release(gathering.snapshot)))
        self._feed(snap.ManifestWritten(gathering.snapshot))

    async def _dispose(self, snapshot: SnapshotId) -> None:
        try:
            await self._blocking(self.store.dispose, snapshot)
        except StrobeError as error:
            _log.warning("Snapshot %s could not be disposed of: %s", snapshot, error)

    def _drop(self, snapshot: SnapshotId) -> None:
        gathering = self._gathering.pop(snapshot, None)
        if gathering is not None:
            self._spawn(self._blocking(gathering.session.abort))
        self._spawn(self._blocking(self._intake.release(snapshot)))

    def _end_life(self, reason: str) -> None:
        """What the life had begun to record is over, and nothing new begins until every node is ready for the next."""
        self._feed(snap.AllLost(reason))

    # ── lives ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _request_restore(self, loaded: Loaded) -> None:
        self.running.clear()
        self.terminated.clear()
        self._revival.request(loaded)

    def restored(self, restored: back.Restored, loaded: Loaded) -> None:
        self.restores += 1
        if self._journal_directory is not None:
            if self._journal is not None:
                self._journal.close()
            self._journal = PartWriter(self._journal_directory, COORDINATOR, restored.incarnation)
            if restored.snapshot or restored.incarnation > 1:
                self._journal.write(Restarted(restored.incarnation, to_cut(loaded, self.graph)))
            self._journal.flush()
        for node in self.graph.nodes:
            self._feed(snap.NodeReady(node, restored.incarnation))
        _log.info("Incarnation %s runs, from snapshot %s.", restored.incarnation, restored.snapshot)
        self.running.set()
        while self._asked:
            self.peer_said(self._asked.pop(), control.SnapshotAsked(restored.incarnation))

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def say(self, node: NodeId, message: control.Control) -> None:
        self._peers[node].say(message)

    def _tell_all(self, message: control.Control) -> None:
        for peer in self._peers.values():
            peer.say(message)

    def fail(self, reason: str) -> None:
        _log.error("System %s fails: %s", self.topology.name, reason)
        self.running.clear()
        self._on_failed(reason)

    def now(self) -> int:
        return int((self._clock.monotonic() - self._began) * 1000)

    def wake(self, what: str, at: int, do: Callable[[], None]) -> None:
        if what in self._timers:
            self._timers[what].cancel()
        if self._over:
            return
        self._timers[what] = self._loop.call_later(max(0, at - self.now()) / 1000 + 0.001, do)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        if self._over:
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        return await self._loop.run_in_executor(self._thread, function, *args)
