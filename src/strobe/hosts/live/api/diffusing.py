"""Has a computation come to its end? Dijkstra–Scholten around a user's process.

A system with a `root` runs a *diffusing computation*: it begins with the root's `on_start`, and every other node is
idle until a message reaches it. A node is active while one of its handlers runs or one of its timers is set. When all
are idle and nothing is in flight, the root's `on_terminated` is called and `System.terminated()` returns: never early,
and surely in the end.

The machine is that of `strobe.protocol.dijkstra_scholten`. Its signals are ordinary messages on the channels that lead
back, and what it knows is part of the node's state, so a snapshot has both and a restored system goes on detecting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from strobe.hosts.live.api.codec import message
from strobe.hosts.live.api.process import Process, Runtime
from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId
from strobe.protocol.dijkstra_scholten import (
    BecameIdle,
    DijkstraScholten,
    SendingWork,
    SendSignal,
    SignalArrived,
    StartWork,
    Terminated,
    TerminationInput,
    WorkArrived,
)

__all__ = ["AsyncDetecting", "Detecting", "TerminationSignal", "check_root", "ways_back"]

SAVED: Final = "@termination"  # the key of the machine's part in a recorded state
STATE: Final = "@state"  # the process's own part, where that is not a dict


@message
@dataclass(frozen=True, slots=True)
class TerminationSignal:
    """One message that was sent on this channel is accounted for."""

    channel: str


def check_root(graph: Graph, root: str) -> None:
    """Signals go back: every channel needs one that leads the other way."""
    if root not in graph.nodes:
        raise Misuse(f"The root {root!r} is not a node.", next=f"The nodes are: {', '.join(graph.nodes)}.")
    for node in graph.nodes:
        ways_back(graph, node)


def ways_back(graph: Graph, node: NodeId) -> dict[ChannelId, ChannelId]:
    """For each input of the node, an output to its sender."""
    found = {}
    for channel in graph.inputs(node):
        source = graph.by_id[channel].source
        back = [c for c in graph.outputs(node) if graph.by_id[c].target == source]
        if not back:
            raise Misuse(
                f"Termination cannot be detected: {channel} leads from {source} to {node}, and no channel back.",
                untouched="Nothing was started.",
                next=f"Add a channel from {node} to {source}, or leave the root out.",
            )
        found[channel] = back[0]
    return found


class Detecting(Process):
    """Stands between the node and the user's process: the node sees a process, the process sees its runtime."""

    def __init__(self, graph: Graph, runtime: Runtime, *, root: bool, announce: Callable[[], None]) -> None:
        self.inner: Process = Process()
        self._runtime = runtime
        self._graph = graph
        self._announce = announce
        self._back = ways_back(graph, runtime.name)
        self._inputs, self._outputs = graph.inputs(runtime.name), graph.outputs(runtime.name)
        self._by_name: Mapping[str, ChannelId] = _named(graph, self._outputs)
        self._machine = DijkstraScholten(self._inputs, self._outputs, root=root)
        self._timers: set[str] = set()
        self._periodic: set[str] = set()

    # ── a process to the node ───────────────────────────────────────────────────────────────────────────────────────

    def on_start(self) -> Any:
        if self._machine.root:
            self._step(StartWork())
        self.inner.on_start()
        return self._rest()

    def on_restore(self) -> Any:
        if self._machine.root and not self._machine.engaged:
            self._announce()  # it had ended before it was recorded
        self.inner.on_restore()

    def on_message(self, sender: str, message: Any) -> Any:
        if message.__class__ is TerminationSignal:
            return self._ended() if self._step(SignalArrived(ChannelId(message.channel))) else None
        signals = self._arrived(message)
        self.inner.on_message(sender, message)
        for channel in signals:
            self._signal(channel)
        return self._rest()

    def on_timer(self, name: str) -> Any:
        self._rings(name)
        self.inner.on_timer(name)
        return self._rest()

    def snapshot(self) -> Any:
        state = self.inner.snapshot()
        own = {SAVED: {**self._machine.saved(), "timers": sorted(self._timers), "periodic": sorted(self._periodic)}}
        return {**state, **own} if isinstance(state, dict) else {STATE: state, **own}

    def restore(self, state: Any) -> None:
        if not isinstance(state, dict) or SAVED not in state:
            raise Misuse(
                f"The stored state of {self.name} is of a run without termination detection.",
                untouched="The snapshot is untouched.",
                next="Restore it onto a topology without a root.",
            )
        saved = state[SAVED]
        self._timers, self._periodic = set(saved["timers"]), set(saved["periodic"])
        root = self._machine.root
        self._machine = DijkstraScholten.resumed(self._inputs, self._outputs, saved, root=root)
        own = {key: value for key, value in state.items() if key != SAVED}
        self.inner.restore(own.get(STATE, own))

    # ── the runtime to the user's process ───────────────────────────────────────────────────────────────────────────

    def send(self, to: str, message: Any) -> None:
        channel = self._by_name.get(to)
        if channel is None:
            self._runtime.send(to, message)  # raises if it cannot be sent
            return
        if not self._machine.active:
            raise Misuse(
                f"{self.name} sends to {to}, but it is idle: only the root may start work by itself.",
                next="Send from on_message, from a timer, or from the root's on_start.",
            )
        self._runtime.send(to, message)
        self._step(SendingWork(channel, None))

    def set_timer(self, name: str, seconds: float, period: float | None) -> None:
        if not self._machine.active:
            raise Misuse(
                f"{self.name} sets timer {name!r}, but it is idle: only the root may start work by itself.",
                next="Set it in on_message, in another timer, or in the root's on_start.",
            )
        self._runtime.set_timer(name, seconds, period)
        self._timers.add(name)
        (self._periodic.discard if period is None else self._periodic.add)(name)

    def cancel_timer(self, name: str) -> None:
        self._runtime.cancel_timer(name)
        self._timers.discard(name)
        self._periodic.discard(name)

    @property
    def has_timers(self) -> bool:
        return bool(self._timers)

    def request_snapshot(self) -> None:
        self._runtime.request_snapshot()

    def act(self, action: Json, handler: Callable[..., Any], *args: Any) -> None:
        raise Misuse(
            f"{self.name} acts by itself, so it is not known when it stops: the end cannot be detected.",
            next="Leave the root out of the topology.",
        )

    def on_stop(self) -> None:
        self.inner.on_stop()

    # ── the machine ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _arrived(self, message: Any) -> list[ChannelId]:
        """Whose signals are due once the message has been handled."""
        channel = self.channel
        assert channel is not None
        effects = self._machine.step(WorkArrived(channel, message))
        return [effect.channel for effect in effects if isinstance(effect, SendSignal)]

    def _rings(self, name: str) -> None:
        if name not in self._periodic:
            self._timers.discard(name)

    def _rest(self) -> Any:
        """A handler has returned: without a timer there is nothing more to do here."""
        ended = self._machine.active and not self._timers and self._step(BecameIdle())
        return self._ended() if ended else None

    def _step(self, input: TerminationInput) -> bool:
        """Whether this was the end of everything."""
        ended = False
        for effect in self._machine.step(input):
            if isinstance(effect, SendSignal):
                self._signal(effect.channel)
            ended = ended or isinstance(effect, Terminated)
        return ended

    def _signal(self, channel: ChannelId) -> None:
        self._runtime.send(self._back[channel], TerminationSignal(channel))

    def _ended(self) -> Any:
        self._announce()
        return self.inner.on_terminated()


class AsyncDetecting(Detecting):
    """The same around coroutine handlers: each is awaited to its end before the node may be idle."""

    async def on_start(self) -> None:
        if self._machine.root:
            self._step(StartWork())
        await _done(self.inner.on_start())
        await _done(self._rest())

    async def on_restore(self) -> None:
        if self._machine.root and not self._machine.engaged:
            self._announce()
        await _done(self.inner.on_restore())

    async def on_message(self, sender: str, message: Any) -> None:
        if message.__class__ is TerminationSignal:
            await _done(super().on_message(sender, message))
            return
        signals = self._arrived(message)
        await _done(self.inner.on_message(sender, message))
        for channel in signals:
            self._signal(channel)
        await _done(self._rest())

    async def on_timer(self, name: str) -> None:
        self._rings(name)
        await _done(self.inner.on_timer(name))
        await _done(self._rest())


async def _done(result: Any) -> None:
    if result is not None:
        await result


def _named(graph: Graph, outputs: tuple[ChannelId, ...]) -> dict[str, ChannelId]:
    """The outputs by their own name, and by their target's where only one leads there."""
    targets = [graph.by_id[channel].target for channel in outputs]
    by_target = {str(t): c for t, c in zip(targets, outputs, strict=True) if targets.count(t) == 1}
    return {str(channel): channel for channel in outputs} | by_target
