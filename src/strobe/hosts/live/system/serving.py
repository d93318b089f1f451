"""A system from its start to its end, with everything around it: commands, signals, a viewer, the last snapshot.

It ends when it is told to, by a command or a signal, when its time is over, when its computation has terminated, or
when it fails. Unless it must end at once, it takes a last snapshot first: the next start goes on from there, and what
happened after it happens again. After a second signal it ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from strobe.hosts.live.api.topology import Topology
from strobe.hosts.live.coordinator.outcomes import Listener
from strobe.hosts.live.journal.journals import note_graph
from strobe.hosts.live.snapshot.snapshots import to_cut
from strobe.hosts.live.system.checking import Checker
from strobe.hosts.live.system.commands import Action, CommandServer, RuntimeFile
from strobe.hosts.live.system.report import Report, Reporter, snapshot_report
from strobe.hosts.live.system.system import System
from strobe.hosts.shared.clock import utc_now
from strobe.model.errors import Failed, Misuse, StrobeError
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.coordinator.messages import CoordinatorSettings
from strobe.store.layout import JobLayout

__all__ = ["Ending", "Plan", "Viewer", "serve"]

_REFRESH: Final = 0.5
_LAST_SNAPSHOT: Final = 15.0  # seconds that the last snapshot may take


@dataclass(frozen=True)
class Plan:
    """What is to be brought up. `target` is what the user called the topology."""

    topology: Topology
    home: Path
    target: str = ""
    settings: CoordinatorSettings | None = None
    restore: str | None = None
    journal: bool = False
    reach_within: float = 60.0
    seconds: float | None = None
    signed_by: str | None = None


@dataclass(frozen=True)
class Ending:
    """Why it ended, and the last snapshot, or why there is none."""

    system: str
    why: str
    snapshot: SnapshotId | None
    trouble: str
    report: Report | None


class Viewer(Protocol):
    def waiting(self, missing: Mapping[NodeId, str]) -> None:
        """Called while not all nodes are there."""

    def running(self, report: Report) -> None:
        """All nodes run, for the first time."""

    def show(self, report: Report) -> None: ...

    def ending(self, why: str) -> None: ...


def serve(plan: Plan, viewer: Viewer, listener: Listener | None = None) -> Ending:
    """Runs the system to its end. Raises Failed if it fails, Misuse if the plan makes no sense. The listener is told of
    each snapshot, check and verdict, and of nodes that die."""
    return asyncio.run(_Serving(plan, viewer, listener).run())


class _Serving:
    def __init__(self, plan: Plan, viewer: Viewer, listener: Listener | None) -> None:
        topology = plan.topology
        self._plan = plan
        self._viewer = viewer
        self._layout = JobLayout(topology.name)
        self._runtime = RuntimeFile(
            plan.home, topology.name, topology=plan.target, directory=os.getcwd(), started=utc_now()
        )
        self._listener = listener
        self._checker = Checker(topology, plan.home, listener)
        self._why = ""
        self._hurry = False

    async def run(self) -> Ending:
        plan = self._plan
        self._end = asyncio.Event()
        self._rush = asyncio.Event()
        self._ended: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._system = System(
            plan.topology,
            home=plan.home,
            settings=plan.settings,
            restore=plan.restore,
            signed_by=plan.signed_by,
            journal=plan.journal,
            reach_within=plan.reach_within,
            logs=plan.home.absolute() / self._layout.logs,
            listener=self._listener,
        )
        self._reporter = Reporter(self._system, os.getpid(), self._checker)
        self._system.claim()
        server: CommandServer | None = None
        error: BaseException | None = None
        try:
            if plan.journal:
                note_graph(plan.home, plan.topology)
            self._watch_signals()
            server = CommandServer(plan.home.absolute() / self._layout.token, self._actions())
            self._runtime.say(state="starting", port=server.port)
            return await self._live()
        except BaseException as caught:
            error = caught
            raise
        finally:
            await self._system.stop()
            said = "" if error is None else error.what if isinstance(error, StrobeError) else type(error).__name__
            with contextlib.suppress(Failed):
                self._runtime.say(state="stopped" if error is None else "failed", error=said, port=None)
            if server is not None:
                await self._answer_down(error)
                await server.stop()

    async def _live(self) -> Ending:
        await self._start()
        report = None
        if not self._end.is_set():
            report = await self._reporter.take()
            self._runtime.say(state="running", incarnation=report.incarnation)
            self._viewer.running(report)
            report = await self._watch()
        self._viewer.ending(self._why)
        snapshot, trouble = await self._last_snapshot()
        with contextlib.suppress(StrobeError):
            await self._checker.look(self._system.store)
            report = await self._reporter.take("stopped")
        self._outcome = Ending(self._plan.topology.name, self._why, snapshot, trouble, report)
        return self._outcome

    async def _start(self) -> None:
        """Start, and wait until all nodes run, or until it is told to end."""
        starting = asyncio.ensure_future(self._system.start())
        ending = asyncio.ensure_future(self._end.wait())
        told: dict[NodeId, str] = {}
        while not starting.done() and not ending.done():
            await asyncio.wait([starting, ending], timeout=_REFRESH, return_when=asyncio.FIRST_COMPLETED)
            # What is started here needs a moment, and says itself why it cannot start.
            missing = {n: why for n, why in self._system.missing.items() if n not in self._system.local}
            if missing and missing != told and not starting.done():
                told = missing
                self._viewer.waiting(missing)
        ending.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])
            self._hurry = True  # nothing has happened that a snapshot could keep
            return
        starting.result()

    async def _watch(self) -> Report:
        failed = self._system.failed
        assert failed is not None
        waits: list[asyncio.Future[Any]] = [failed, asyncio.ensure_future(self._end.wait())]
        if self._plan.topology.root is not None:
            waits.append(asyncio.ensure_future(self._terminated()))
        if self._plan.seconds is not None:
            waits.append(asyncio.ensure_future(self._time_over(self._plan.seconds)))
        waits.append(asyncio.ensure_future(self._checks()))
        incarnation = 0
        while True:
            await asyncio.wait(waits, timeout=_REFRESH, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                raise Failed(
                    f"System {self._plan.topology.name} failed: {failed.result().rstrip('.')}.",
                    untouched="Its snapshots are untouched.",
                    next=f"Fix the cause and bring it up again: it goes on from the last one. "
                    f"Logs: {self._plan.home / self._layout.logs}",
                )
            report = await self._reporter.take()
            if self._end.is_set():
                break
            if report.incarnation != incarnation:
                incarnation = report.incarnation
                self._runtime.say(incarnation=incarnation)
            self._viewer.show(report)
        for wait in waits[1:]:
            wait.cancel()
        return report

    async def _terminated(self) -> None:
        await self._system.terminated()
        self._finish("the computation has terminated")

    async def _checks(self) -> None:
        await self._checker.watch(self._system.store)
        await asyncio.Event().wait()  # without checks the task ends at once, and the system must not

    async def _time_over(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._finish(f"its {seconds:g} s are over")

    async def _last_snapshot(self) -> tuple[SnapshotId | None, str]:
        if self._hurry:
            return None, ""
        taking = asyncio.ensure_future(self._system.snapshot())
        rush = asyncio.ensure_future(self._rush.wait())
        await asyncio.wait([taking, rush], timeout=_LAST_SNAPSHOT, return_when=asyncio.FIRST_COMPLETED)
        rush.cancel()
        if not taking.done():
            taking.cancel()
            if self._rush.is_set():
                return None, "it was not waited for"
            missing = ", ".join(self._system.missing)
            return None, f"it took longer than {_LAST_SNAPSHOT:g} s{missing and f'; missing: {missing}'}"
        error = taking.exception()
        if isinstance(error, StrobeError):
            return None, error.what
        return taking.result(), ""

    # ── who may end it ──────────────────────────────────────────────────────────────────────────────────────────────

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self._interrupt)

    def _interrupt(self) -> None:
        if self._end.is_set():
            self._rush.set()
        self._finish("it was interrupted")

    def _finish(self, why: str, *, hurry: bool = False) -> None:
        if not self._end.is_set():
            self._why, self._hurry = why, hurry
            self._end.set()

    # ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _actions(self) -> dict[tuple[str, str], Action]:
        return {
            ("GET", "/v1/status"): self._status,
            ("POST", "/v1/snapshot"): self._snapshot,
            ("POST", "/v1/restore"): self._restore,
            ("POST", "/v1/kill"): self._kill,
            ("POST", "/v1/break"): self._break,
            ("POST", "/v1/down"): self._down,
        }

    async def _status(self, body: dict[str, Any]) -> dict[str, Any]:
        return (await self._reporter.take()).to_json()

    async def _snapshot(self, body: dict[str, Any]) -> dict[str, Any]:
        directory = body.get("directory")
        kind = Kind.CHECKPOINT if directory is None else Kind.SAVEPOINT
        where = None if directory is None else Path(_text(body, "directory"))
        initiators = body.get("initiators") or []
        if not isinstance(initiators, list):
            raise Misuse("initiators is a list of nodes.")
        taking = asyncio.ensure_future(self._system.snapshot(kind, initiators=initiators, directory=where))
        snapshot = await asyncio.shield(taking)
        place = where or self._plan.home.absolute() / self._layout.directory(snapshot)
        recent = {m.snapshot: dataclasses.asdict(snapshot_report(m)) for m in (await self._system.status()).recent}
        return {"system": self._plan.topology.name, **recent.get(snapshot, {"snapshot": snapshot}), "where": str(place)}

    async def _restore(self, body: dict[str, Any]) -> dict[str, Any]:
        snapshot = body.get("snapshot")
        if isinstance(snapshot, bool) or not isinstance(snapshot, int | str) or snapshot == "":
            raise Misuse("The request names no snapshot.", untouched="Nothing was changed.")
        wanted = snapshot if isinstance(snapshot, str) else SnapshotId(snapshot)
        await asyncio.shield(asyncio.ensure_future(self._system.restore(wanted)))
        return {
            "system": self._plan.topology.name,
            "snapshot": snapshot,
            "incarnation": self._system.incarnation,
        }

    async def _kill(self, body: dict[str, Any]) -> dict[str, Any]:
        node = _text(body, "node")
        status = await self._system.status()
        self._system.kill(node)
        return {"system": status.name, "node": node, "pid": status.processes.get(NodeId(node))}

    async def _break(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answered when the condition has held; whoever hangs up before no longer waits for it."""
        hit = await self._system.break_when(_text(body, "condition"))
        cut = to_cut(hit.loaded, self._plan.topology.graph)
        return {
            "system": self._plan.topology.name,
            "condition": hit.condition,
            "node": hit.node,
            "snapshot": hit.snapshot,
            "where": str(hit.directory),
            "states": dict(cut.states),
            "channels": {c: [message.payload for message in content] for c, content in cut.channels.items()},
        }

    async def _down(self, body: dict[str, Any]) -> dict[str, Any]:
        self._finish("it was told to end", hurry=body.get("snapshot") is False)
        ending = await asyncio.shield(self._ended)
        return {
            "system": ending.system,
            "why": ending.why,
            "snapshot": ending.snapshot,
            "trouble": ending.trouble,
        }

    async def _answer_down(self, error: BaseException | None) -> None:
        """Once nothing runs any more."""
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(self._outcome)
        else:
            self._ended.set_exception(error if isinstance(error, StrobeError) else Failed("The system was cut off."))
            self._ended.exception()
        await asyncio.sleep(0.05)


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise Misuse(f"The request has no {name}.", untouched="Nothing was changed.")
    return value
