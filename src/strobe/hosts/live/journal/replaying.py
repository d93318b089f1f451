"""A user's own processes as an application that can be replayed: each step of a journal, through the same handlers.

A handler is a function of the process's state, the message and its sender, or the name of the timer: that is what lets
a journal without states say what every state was. A handler that reads a clock, uses random numbers, reads a file or
depends on the order of a set breaks this, and is noticed by what it sends or by what a snapshot recorded
(`strobe.predicates.faithful`).

Handlers really run: what they do outside the system (files, requests) they do again. They can send nothing, their
timers never ring, and a coroutine that sleeps is woken at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from strobe.hosts.live.api.attach import Service
from strobe.hosts.live.api.codec import (
    decode_plain,
    encode_message,
    encode_state,
    item_to_json,
    message_from_json,
    to_json,
)
from strobe.hosts.live.api.diffusing import AsyncDetecting, Detecting
from strobe.hosts.live.api.process import Process, has_coroutines, new_process
from strobe.hosts.live.api.topology import Topology, load_class
from strobe.model.app import Reaction
from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId

__all__ = ["ReplayedProcesses"]


class ReplayedProcesses:
    """An `Application` made of the classes of a topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._kinds: dict[NodeId, type[Process]] = {}
        self._live: dict[NodeId, tuple[Json, Process, _Replaying]] = {}  # by node: the last state, and who is in it
        self._loop: _NoWaiting | None = None
        for spec in topology.nodes:
            kind = load_class(spec.path, spec.name)
            if issubclass(kind, Service):
                raise Misuse(
                    f"{spec.name} is an attached service ({kind.__name__}): what its coroutines did between two steps "
                    "is not in the journal, so they cannot be replayed.",
                    untouched="Nothing was replayed.",
                )
            self._kinds[spec.name] = kind

    def initial(self, node: NodeId) -> Json:
        process, _ = self._new(node)
        return _state(process)

    def act(self, node: NodeId, state: Json, action: Json) -> Reaction:
        process, runtime = self._at(node, state)
        handler, arguments = _handler(process, action)
        if isinstance(action, dict) and isinstance(action.get("timer"), str):
            runtime.rings(str(action["timer"]))
        return self._step(process, runtime, handler, *arguments)

    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction:
        process, runtime = self._at(node, state)
        runtime.channel = channel
        sender = self.topology.graph.by_id[channel].source
        return self._step(process, runtime, process.on_message, sender, message_from_json(payload))

    def handler(self, node: NodeId, action: Json | None) -> str:
        """What the user calls the step: `Account.on_message`, `Account.on_timer('tick')`."""
        name = "on_message"
        if isinstance(action, dict):
            name = next((known for key, known in _HANDLERS.items() if key in action), "?")
            if name == "on_timer":
                name = f"on_timer({action['timer']!r})"
        return f"{self._kinds[node].__name__}.{name}"

    def _step(self, process: Process, runtime: _Replaying, handler: Callable[..., Any], *arguments: Any) -> Reaction:
        runtime.sends = []
        try:
            result = handler(*arguments)
            if result is not None:
                self._await(result)
        finally:
            runtime.channel = None
        state = _state(process)
        self._live[runtime.name] = (state, process, runtime)
        return state, runtime.sends

    def _at(self, node: NodeId, state: Json) -> tuple[Process, _Replaying]:
        """The process in this state: the one that stepped into it, if it was the last, or another one."""
        known = self._live.pop(node, None)
        if known is not None and known[0] is state:
            return known[1], known[2]
        process, runtime = self._new(node)
        if _state(process) != state:
            _restore(process, state)
        return process, runtime

    def _new(self, node: NodeId) -> tuple[Process, _Replaying]:
        topology, kind = self.topology, self._kinds[node]
        runtime = _Replaying(node, topology.graph)
        params = dict(topology.spec(node).params)
        if topology.root is None:
            return new_process(kind, params, runtime), runtime
        detecting = (AsyncDetecting if has_coroutines(kind) else Detecting)(
            topology.graph, runtime, root=topology.root == node, announce=lambda: None
        )
        detecting.inner = new_process(kind, params, detecting)
        return detecting, runtime

    def _await(self, result: Any) -> None:
        if self._loop is None:
            self._loop = _NoWaiting()
        self._loop.run_until_complete(result)


_HANDLERS: Mapping[str, str] = {"start": "on_start", "restore": "on_restore", "timer": "on_timer"}


def _handler(process: Process, action: Json) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    for key, name in _HANDLERS.items():
        if isinstance(action, dict) and key in action:
            return getattr(process, name), (str(action[key]),) if key == "timer" else ()
    raise Misuse(f"The journal has an action of {process.name} that is not a handler's: {action!r}.")


def _state(process: Process) -> Json:
    """The state as a snapshot would show it."""
    return to_json(decode_plain(encode_state(process.snapshot(), process.name)))


def _restore(process: Process, state: Json) -> None:
    """Restore a state from JSON, which has bytes and every key as text; the annotations of a dataclass say what they
    were."""
    own = process.inner if isinstance(process, Detecting) else process
    if isinstance(process, Detecting) or type(own).restore is not Process.restore or not is_dataclass(own):
        if isinstance(process, Detecting) and type(own).restore is Process.restore and isinstance(state, dict):
            state = {**state, **_native(own, state)}
        process.restore(state)
        return
    if not isinstance(state, dict):
        raise Misuse(f"The journal's state of {process.name} is not a state of {type(own).__name__}.")
    process.restore({**state, **_native(own, state)})


def _native(process: Process, state: Mapping[str, Json]) -> dict[str, Any]:
    """The fields as the codec would have given them."""
    hints = typing.get_type_hints(type(process))
    found: dict[str, Any] = {}
    names: list[str] = [field.name for field in fields(process)] if is_dataclass(process) else []
    for name in names:
        if name in state:
            for strict in (True, False):  # numbers that JSON does not have are text in it
                with contextlib.suppress(msgspec.ValidationError, TypeError):
                    value = msgspec.convert(state[name], hints[name], str_keys=True, strict=strict)
                    found[name] = decode_plain(encode_state(value, process.name))
                    break
            # If neither fits, `restore` says what is wrong.
    return found


class _Replaying:
    """The runtime of a process that is replayed: it notes what is sent, and does nothing."""

    def __init__(self, node: NodeId, graph: Graph) -> None:
        self.name = node
        outputs = graph.outputs(node)
        targets = [graph.by_id[channel].target for channel in outputs]
        self.peers = tuple(dict.fromkeys(targets))
        self.channel: ChannelId | None = None
        self.congested = False
        self.sends: list[tuple[ChannelId, Json]] = []
        self._timers: dict[str, bool] = {}  # whether it is periodic
        self._by_name = {str(channel): channel for channel in outputs}
        for channel, target in zip(outputs, targets, strict=True):
            if targets.count(target) == 1:
                self._by_name[str(target)] = channel

    @property
    def has_timers(self) -> bool:
        return bool(self._timers)

    def send(self, to: str, message: Any) -> None:
        if to not in self._by_name:
            raise Misuse(f"{self.name} has no channel to {to!r}.", next=f"It can send to: {', '.join(self._by_name)}.")
        self.sends.append((self._by_name[to], item_to_json(encode_message(message))))

    def set_timer(self, name: str, seconds: float, period: float | None) -> None:
        self._timers[name] = period is not None

    def cancel_timer(self, name: str) -> None:
        self._timers.pop(name, None)

    def rings(self, name: str) -> None:
        if not self._timers.get(name, True):
            del self._timers[name]

    def request_snapshot(self) -> None:
        """The journal has the snapshots that were taken."""

    def act(self, action: Json, handler: Callable[..., Any], *args: Any) -> None:
        raise Misuse(f"{self.name} acts by itself, which cannot be replayed.")


class _NoWaiting(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__(_Jumping(self))
        self._ahead = 0.0

    def time(self) -> float:
        return super().time() + self._ahead

    def jump(self, seconds: float) -> None:
        self._ahead += seconds


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: _NoWaiting) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0 if timeout is not None else 0.05)
        if not found and timeout:
            self._loop.jump(timeout)
        return found
