"""A live system: its coordinator, its nodes as processes, and what happens when one dies.

    async with System(topology, home=Path(".strobe")) as system:
        snapshot = await system.snapshot()

Nodes at an address of this machine (or without one) are started here and started again when they end; nodes elsewhere
are started there, and waited for. Whenever one is lost, the whole system goes back to its last complete snapshot, with
a new incarnation. A node that keeps dying ends the system: a handler that fails on its state will fail again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from strobe.hosts.live.api.conditions import read_condition
from strobe.hosts.live.api.topology import DEFAULTS, Topology, load_class, parse_address
from strobe.hosts.live.coordinator.breakpoints import Break
from strobe.hosts.live.coordinator.coordinator import LiveCoordinator
from strobe.hosts.live.coordinator.outcomes import Listener
from strobe.hosts.live.coordinator.peers import Reach
from strobe.hosts.live.coordinator.record import RecordFile
from strobe.hosts.live.coordinator.revival import BEGINNING
from strobe.hosts.live.node.options import NodeOptions, open_log, read_key
from strobe.hosts.live.snapshot.checks import Check
from strobe.hosts.live.snapshot.reading import load_last, load_named, load_own, own_store
from strobe.hosts.live.snapshot.snapshots import Loaded, load
from strobe.hosts.live.wire.control import Figures
from strobe.hosts.live.wire.tls import NOBODY
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.predicates.stable import Finding
from strobe.protocol.coordinator.messages import CoordinatorSettings
from strobe.store.layout import JobLayout
from strobe.store.manifest import Manifest
from strobe.store.snapshots import SnapshotStore

__all__ = ["Status", "System"]

_log = logging.getLogger("strobe.live")


@dataclass(frozen=True)
class Status:
    """The system at one moment."""

    name: str
    running: bool
    incarnation: int
    restores: int
    snapshots: tuple[SnapshotId, ...]
    pending: dict[SnapshotId, frozenset[NodeId]]
    aborted: dict[SnapshotId, str]
    nodes: dict[NodeId, Figures]
    processes: dict[NodeId, int]
    completed: int  # snapshots since this start
    recent: tuple[Manifest, ...]  # the newest of them
    missing: dict[NodeId, str]  # the nodes that cannot be reached, and why


class System:
    def __init__(
        self,
        topology: Topology,
        *,
        home: Path = Path(".strobe"),
        settings: CoordinatorSettings | None = None,
        options: NodeOptions | None = None,
        restore: str | None = None,
        signed_by: str | None = None,
        journal: bool = False,
        max_restarts: int = 5,
        restart_window: float = 30.0,
        lost_after: float = 20.0,
        reach_within: float | None = None,
        logs: Path | None = None,
        listener: Listener | None = None,
    ) -> None:
        """`restore` names a snapshot as `strobe inspect` takes it, `signed_by` the public key that such a one must be
        signed by; without it the system goes on from its own last one, or begins. `max_restarts` within
        `restart_window` seconds are the most that a node may need; one that cannot be reached for `lost_after` seconds
        is lost. A start that has not reached every node `reach_within` seconds after it began is given up. `logs` is
        where nodes that are started here write theirs. `listener` is told what becomes of snapshots and nodes."""
        self.topology = topology
        self.home = home.absolute()
        self.failed: asyncio.Future[str] | None = None
        self._settings = settings or topology.checkpoints or DEFAULTS
        self._options = options
        self._restore_name = restore
        self._signed_by = signed_by
        self._journal = self.home / JobLayout(topology.name).journal if journal else None
        self._max_restarts = max_restarts
        self._restart_window = restart_window
        self._lost_after = lost_after
        self._reach_within = reach_within
        self._logs, self._listener = logs, listener
        self._claimed = False
        self._record = RecordFile(self.home, topology.name)
        self._coordinator: LiveCoordinator | None = None
        self._processes: dict[NodeId, asyncio.subprocess.Process] = {}
        self._watchers: dict[NodeId, asyncio.Task[None]] = {}
        self._stopping = False

    # ── start and end ───────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self) -> None:
        """Checks what can be checked, and claims the system for this process. `start` does it if that was not done."""
        if self._claimed:
            return
        for spec in self.topology.nodes:
            if spec.name in self.local:
                load_class(spec.path, spec.name)  # a class that cannot be found is reported here, not by a process
        self._record.open()
        self._claimed = True

    async def start(self) -> None:
        """Returns when every node runs; raises, with nothing left running, if that cannot be."""
        self.claim()
        self.failed = asyncio.get_running_loop().create_future()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        options = self._node_options()
        store = own_store(self.home, self.topology)
        loaded = await asyncio.to_thread(self._first, store)
        await asyncio.to_thread(store.sweep)
        reach = Reach(
            options.key,
            max_frame=options.max_frame,
            lost_after=self._lost_after,
            tls=None if options.tls is None else options.tls.dialling(),
        )
        self._coordinator = LiveCoordinator(
            self.topology, store, self._record, reach, self._settings,
            journal=self._journal, on_failed=self._fail, on_lost=self._end, listener=self._listener,
        )  # fmt: skip
        starting = [self._launch(spec.name, options) for spec in self.topology.nodes if spec.name in self.local]
        await asyncio.gather(*starting)
        for spec in self.topology.nodes:
            if spec.name not in self.local:
                self._coordinator.reach(spec.name, parse_address(spec.address, spec.name))
        try:
            async with asyncio.timeout(self._reach_within):
                await self._or_failure(self._coordinator.start(loaded))
        except TimeoutError:
            raise self._unreached(self._coordinator.missing) from None
        if self._restore_name is not None:
            await self.snapshot()  # so that the next start goes on from here

    async def stop(self) -> None:
        """Ends every node. The state since the last snapshot is given up: take one first to keep it."""
        self._stopping = True
        if self._coordinator is not None:
            await self._coordinator.finish()
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()
        for node, process in self._processes.items():
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                _log.warning("Node %s did not end by itself.", node)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        for watcher in self._watchers.values():
            watcher.cancel()
        await asyncio.gather(*self._watchers.values(), return_exceptions=True)
        self._record.close()
        self._claimed = False

    async def __aenter__(self) -> System:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ── what people ask ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def local(self) -> frozenset[NodeId]:
        """The nodes that are started here."""
        return frozenset(node.name for node in self.topology.nodes if not node.is_remote)

    @property
    def store(self) -> SnapshotStore:
        return self._running().store

    @property
    def incarnation(self) -> int:
        return self._running().incarnation

    @property
    def missing(self) -> dict[NodeId, str]:
        """The nodes that cannot be reached, and why."""
        return {} if self._coordinator is None else self._coordinator.missing

    @property
    def journal(self) -> Path | None:
        """Where the parts of the journal are; `strobe.hosts.live.journal.merge` puts them together."""
        return self._journal

    async def snapshot(
        self, kind: Kind = Kind.CHECKPOINT, *, initiators: Iterable[str] = (), directory: Path | None = None
    ) -> SnapshotId:
        """Takes a snapshot, started by `initiators` (everyone, if none are named). A savepoint goes to `directory`."""
        names = tuple(self.topology.spec(name).name for name in initiators)
        taking = self._running().snapshot(kind, initiators=names, directory=directory)
        return await self._or_failure(taking)  # type: ignore[no-any-return]

    async def check(self, check: str) -> Finding:
        """Takes a snapshot, and asks it: `deadlock`, `termination`, `garbage`, or FILE.py:FUNCTION of your own."""
        asked, graph = Check.named(check), self.topology.graph
        loaded = await asyncio.to_thread(load, self.store, await self.snapshot(), graph)
        return await asyncio.to_thread(asked, loaded, graph, self.topology)

    async def restore(self, snapshot: SnapshotId | str) -> None:
        """The whole system goes back to this snapshot, for good: it is the first thing that the new life records.

        A number is one of its own, checkpoint or savepoint; any other is named as `strobe inspect` takes it.
        """
        find = partial(self._named, snapshot) if isinstance(snapshot, str) else partial(self._own, snapshot)
        await self._or_failure(self._running().restore(find))
        await self.snapshot()

    async def running(self) -> None:
        """Returns when every node runs: after a node was lost, when the system is back."""
        await self._or_failure(self._running().running.wait())

    async def terminated(self) -> None:
        """Returns when the diffusing computation has come to its end: every node idle, nothing in flight.

        A snapshot taken afterwards holds the result. A system that goes back to a moment before its end goes on.
        """
        if self.topology.root is None:
            raise Misuse(
                f"System {self.topology.name} has no root, so its end is not detected.",
                next="Name the node where the computation begins: Topology(…, root=NODE).",
            )
        await self._or_failure(self._running().terminated.wait())

    async def break_when(self, condition: str) -> Break:
        """Waits until the condition, such as `node.balance < 0`, holds at a node; takes a savepoint that shows it.

        It may be cancelled. `strobe.hosts.live.api.conditions` says what a condition is made of.
        """
        parsed = read_condition(condition, self.topology.graph.nodes)
        nodes = self.topology.graph.nodes if parsed.node is None else (parsed.node,)
        coordinator = self._running()
        return await self._or_failure(coordinator.breakpoints.wait(parsed, nodes, self.running))  # type: ignore[no-any-return]

    async def incarnation_after(self, incarnation: int) -> int:
        """Waits until a later incarnation than this one runs, and returns it."""
        coordinator = self._running()
        while coordinator.incarnation <= incarnation or not coordinator.running.is_set():
            await self._or_failure(asyncio.sleep(0.01))
        return coordinator.incarnation

    async def status(self) -> Status:
        coordinator = self._running()
        figures = await coordinator.ask_figures()
        return Status(
            self.topology.name,
            coordinator.running.is_set(),
            coordinator.incarnation,
            coordinator.restores,
            coordinator.store.list(),
            coordinator.pending,
            dict(coordinator.outcomes.aborted),
            figures,
            {node: process.pid for node, process in self._processes.items()},
            coordinator.outcomes.completed,
            tuple(coordinator.outcomes.recent),
            coordinator.missing,
        )

    def kill(self, node: str, sig: signal.Signals = signal.SIGKILL) -> None:
        """Kills the node's process, to try what happens."""
        name = self.topology.spec(node).name
        if name not in self._processes:
            raise Misuse(f"Node {node} was not started here.", next="Kill it where it runs.")
        self._processes[name].send_signal(sig)

    # ── processes ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _launch(self, node: NodeId, options: NodeOptions) -> None:
        process, answer = await self._spawn(node, options)
        if "error" in answer:
            raise (Misuse if answer.get("exit") == 2 else Failed)(
                str(answer["error"]), untouched="Nothing was started."
            )
        self._watchers[node] = asyncio.get_running_loop().create_task(self._watch(node, process, options))
        self._running().reach(node, (str(answer["host"]), int(answer["port"])))

    async def _spawn(self, node: NodeId, options: NodeOptions) -> tuple[asyncio.subprocess.Process, dict[str, Any]]:
        with contextlib.ExitStack() as stack:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # files in the working directory must not be imported in place of our modules
                "-m",
                "strobe.hosts.live.node.main",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=None if self._logs is None else stack.enter_context(open_log(self._logs, node)),
                start_new_session=True,  # signals from the terminal, such as an interrupt, are handled by the system
            )
        self._processes[node] = process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(options.to_json(self.topology, node)).encode() + b"\n")
        line = await process.stdout.readline()
        if not line:
            return process, {"error": f"Node {node} ended with {await process.wait()} before it listened."}
        return process, json.loads(line)

    async def _watch(self, node: NodeId, process: asyncio.subprocess.Process, options: NodeOptions) -> None:
        ends: deque[float] = deque(maxlen=self._max_restarts + 1)
        loop = asyncio.get_running_loop()
        while True:
            code = await process.wait()
            if self._stopping:
                return
            ends.append(loop.time())
            reason = f"its process ended with {code}" if code >= 0 else f"its process was ended by {_signal(-code)}"
            reason = await self._running().gone(node, reason)
            if len(ends) > self._max_restarts and ends[-1] - ends[0] < self._restart_window:
                self._fail(f"node {node} ended {len(ends)} times within {self._restart_window:g} s: {reason}")
                return
            process, answer = await self._spawn(node, options)
            if "error" in answer:
                self._fail(str(answer["error"]))
                return
            self._running().reach(node, (str(answer["host"]), int(answer["port"])))

    def _end(self, node: NodeId) -> None:
        """A node that cannot be reached and has not ended hangs: it is ended, so that it can be started again."""
        process = self._processes.get(node)
        if process is not None and process.returncode is None and not self._stopping:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _first(self, store: SnapshotStore) -> Loaded:
        """What to start from."""
        if self._restore_name is not None:
            return self._named(self._restore_name)
        return load_last(store, self.topology) or BEGINNING

    def _named(self, name: str) -> Loaded:
        return load_named(name, self.home, self.topology, self._signed_by)

    def _own(self, snapshot: SnapshotId) -> Loaded:
        coordinator = self._running()
        return load_own(snapshot, coordinator.store, *coordinator.savepoint(snapshot), self.topology.graph)

    def _node_options(self) -> NodeOptions:
        key_file = self.topology.key_file
        options = self._options
        if options is None:
            remote = [node.name for node in self.topology.nodes if node.is_remote]
            if key_file is None and remote:
                raise Misuse(
                    f"Node {remote[0]} is started by hand, and there is no key by which it knows this system.",
                    untouched="Nothing was started.",
                    next='Name a file that both can read: key_file = "cluster.key"',
                )
            options = NodeOptions(
                secrets.token_bytes(32) if key_file is None else read_key(key_file), tls=self.topology.tls
            )
        own = (*self.topology.path, sys.path[0] or ".", ".")
        path = options.path or tuple(os.path.abspath(entry) for entry in own)
        return replace(options, journal=self._journal or options.journal, path=path)

    def _running(self) -> LiveCoordinator:
        if self._coordinator is None:
            raise Misuse(f"System {self.topology.name} has not been started.")
        return self._coordinator

    def _unreached(self, missing: dict[NodeId, str]) -> Failed:
        if not missing:
            return Failed(
                f"System {self.topology.name} did not run within {self._reach_within:g} s, though all nodes are there.",
                untouched="Its snapshots are untouched.",
            )
        node, trouble = next(iter(missing.items()))
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        return Failed(
            f"Node {node} at {self.topology.spec(node).address} could not be reached within "
            f"{self._reach_within:g} s{more}: {(trouble or 'no answer').rstrip('.')}.",
            untouched="No node was started; snapshots are untouched." if not self.local else "Nothing is left running.",
            next=f"Start it there: strobe live node TOPOLOGY {node}"
            if trouble in ("", NOBODY)
            else f"Fix that. If the node does not run there: strobe live node TOPOLOGY {node}",
        )

    def _fail(self, reason: str) -> None:
        if self.failed is not None and not self.failed.done():
            self.failed.set_result(reason)

    async def _or_failure(self, work: Any) -> Any:
        """The outcome of `work`, unless the system fails first."""
        assert self.failed is not None
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait([task, self.failed], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        raise Failed(
            f"System {self.topology.name} failed: {self.failed.result().rstrip('.')}.",
            untouched="Its snapshots are untouched.",
            next="Start it again: it goes on from the last one.",
        )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
