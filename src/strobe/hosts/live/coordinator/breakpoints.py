"""Breakpoints of the whole system: when a condition holds at a node, a savepoint shows everyone at that moment.

Every node judges the condition after each of its steps. Where it holds, the node takes no further step until it has
recorded its state, so that the savepoint shows what made the condition true; that is one round trip to the coordinator,
and nobody else waits. Then it goes on, and so does everything: the breakpoint has done its work.

A breakpoint outlives the nodes: each life is told of it with its orders, before its first step.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from strobe.hosts.live.api.codec import decode_plain, to_json
from strobe.hosts.live.api.conditions import Condition
from strobe.hosts.live.snapshot.snapshots import Loaded, load
from strobe.hosts.live.wire import control
from strobe.model.cut import Json
from strobe.model.errors import Failed, Misuse
from strobe.model.graph import Graph
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.store.snapshots import SnapshotStore

__all__ = ["Break", "BreakOwner", "Breakpoints"]


@dataclass(frozen=True)
class Break:
    """The condition held at `node`; `state` is that node's, as the savepoint in `directory` has it."""

    condition: str
    node: NodeId
    snapshot: SnapshotId
    directory: Path
    state: Json
    loaded: Loaded = field(repr=False)


class BreakOwner(Protocol):
    running: asyncio.Event

    @property
    def incarnation(self) -> Incarnation: ...

    def say(self, node: NodeId, message: control.Control) -> None: ...

    def break_snapshot(self, node: NodeId, number: int) -> asyncio.Future[SnapshotId]:
        """Starts a savepoint there, now, whatever else is under way."""
        ...

    def savepoint(self, snapshot: SnapshotId) -> tuple[Path, SnapshotStore]: ...


class _Armed:
    def __init__(self, condition: Condition, nodes: tuple[NodeId, ...]) -> None:
        self.condition = condition
        self.nodes = nodes
        self.outcome: asyncio.Future[tuple[NodeId, Incarnation, asyncio.Future[SnapshotId]]] = (
            asyncio.get_running_loop().create_future()
        )


class Breakpoints:
    def __init__(self, owner: BreakOwner, graph: Graph) -> None:
        self._graph = graph
        self._owner = owner
        self._numbers = itertools.count(1)
        self._armed: dict[int, _Armed] = {}

    def texts(self, node: NodeId) -> dict[int, str]:
        """What a life of this node has to watch for."""
        return {n: armed.condition.text for n, armed in self._armed.items() if node in armed.nodes}

    async def wait(
        self, condition: Condition, nodes: tuple[NodeId, ...], running: Callable[[], Awaitable[None]]
    ) -> Break:
        """Returns when the condition has held somewhere and the savepoint is complete."""
        number = next(self._numbers)
        try:
            while True:
                armed = self._armed[number] = _Armed(condition, nodes)
                for node in nodes:
                    self._owner.say(node, control.SetBreak(number, condition.text))
                node, incarnation, taking = await armed.outcome
                try:
                    snapshot = await taking
                except Failed:
                    await running()
                    if self._owner.incarnation == incarnation:
                        raise
                    continue  # the life in which it held is over: it is waited for again
                directory, store = self._owner.savepoint(snapshot)
                loaded = await asyncio.to_thread(load, store, snapshot, self._graph)
                state = to_json(decode_plain(loaded.states[node]))
                return Break(condition.text, node, snapshot, directory, state, loaded)
        finally:
            self._armed.pop(number, None)
            for node in nodes:
                self._owner.say(node, control.ClearBreak(number))

    def said(self, node: NodeId, message: control.BreakHit | control.BreakRefused) -> None:
        armed = self._armed.get(message.number)
        if armed is None or armed.outcome.done():
            self._owner.say(node, control.ClearBreak(message.number))  # it waits, and somebody else was first
        elif isinstance(message, control.BreakRefused):
            armed.outcome.set_exception(
                Misuse(
                    f"{armed.condition.text!r} cannot be judged at node {node}: {message.reason.rstrip('.')}.",
                    untouched="The system runs on.",
                )
            )
        elif message.incarnation == self._owner.incarnation and self._owner.running.is_set():
            # Of a life that is ending no snapshot can be taken any more: one would show the next life, at its start.
            taking = self._owner.break_snapshot(node, message.number)
            armed.outcome.set_result((node, self._owner.incarnation, taking))
            for other in armed.nodes:
                if other != node:
                    self._owner.say(other, control.ClearBreak(message.number))
