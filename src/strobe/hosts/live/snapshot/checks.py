"""Stable predicates on a snapshot of a live system: deadlock, termination, garbage, or a function of the user's own.

What a process waits for, whether it is active, what it keeps: its class says it (`api.process`), asked of
an instance that has taken over the recorded state and is only looked at. None of its handlers run, and it cannot send.
Messages in flight are decoded into their classes. A function of the user's own needs no classes: it gets the cut as
`read_cut` gives it, states and messages as plain values.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from inspect import isroutine
from typing import Any, NoReturn

from strobe.hosts.live.api.codec import decode_message, decode_plain, is_stamped, unstamped
from strobe.hosts.live.api.diffusing import SAVED, STATE, TerminationSignal
from strobe.hosts.live.api.process import Process, new_process
from strobe.hosts.live.api.topology import Topology, load_class
from strobe.hosts.live.snapshot.snapshots import Loaded, to_cut
from strobe.hosts.shared.functions import function_named, is_function_name
from strobe.model.cut import Cut, Json
from strobe.model.errors import Misuse
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId
from strobe.predicates.deadlock import Wait
from strobe.predicates.stable import Finding, answer_of, examine, examine_by, known_check

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """A check by its name; `predicate` is the function if it is one of the user's own."""

    name: str
    predicate: Callable[[Cut], Any] | None = None

    @classmethod
    def named(cls, text: str) -> Check:
        """`deadlock`, `termination`, `garbage`, or FILE.py:FUNCTION."""
        return cls(text, function_named(text)) if is_function_name(text) else cls(known_check(text))

    @property
    def needs_classes(self) -> bool:
        return self.predicate is None

    def __call__(self, loaded: Loaded, graph: Graph, topology: Topology | None) -> Finding:
        """`topology` says which class each node has; a function of the user's own does not need it."""
        if self.predicate is not None:
            return examine_by(self.name, self.predicate, to_cut(loaded, graph))
        assert topology is not None
        return examine(self.name, _Parties(topology, loaded))


class _OnlyLooking:
    """The runtime of a process that is looked at: it knows its place, and can do nothing."""

    def __init__(self, node: NodeId, graph: Graph, timers: int) -> None:
        self.name = node
        self.peers = tuple(dict.fromkeys(graph.by_id[channel].target for channel in graph.outputs(node)))
        self.channel: ChannelId | None = None
        self.congested = False
        self.has_timers = timers > 0

    def _refuse(self, what: str) -> NoReturn:
        raise Misuse(
            f"{self.name} tries to {what} while it is only looked at.",
            untouched="Nothing was sent or set.",
            next="waits_for(), is_active(), objects() and the like only look at the state.",
        )

    def send(self, to: str, message: Any) -> None:
        self._refuse(f"send to {to}")

    def set_timer(self, name: str, seconds: float, period: float | None) -> None:
        self._refuse(f"set the timer {name!r}")

    def cancel_timer(self, name: str) -> None:
        self._refuse(f"cancel the timer {name!r}")

    def request_snapshot(self) -> None:
        self._refuse("ask for a snapshot")

    def act(self, action: Json, handler: Callable[..., Any], *args: Any) -> None:
        self._refuse("act")


class _Parties:
    def __init__(self, topology: Topology, loaded: Loaded) -> None:
        self.graph = topology.graph
        self._loaded = loaded
        self._kinds = {
            spec.name: spec.cls if isinstance(spec.cls, type) else load_class(spec.cls, spec.name)
            for spec in topology.nodes
        }
        self._processes = {spec.name: self._looked_at(spec.name, dict(spec.params)) for spec in topology.nodes}

    def _looked_at(self, node: NodeId, params: dict[str, Any]) -> Process:
        kind = self._kinds[node]
        runtime = _OnlyLooking(node, self.graph, len(self._loaded.timers.get(node, ())))
        process = answer_of(f"{kind.__name__}, the class of node {node},", lambda: new_process(kind, params, runtime))
        state = decode_plain(self._loaded.states[node])
        if isinstance(state, dict) and SAVED in state:  # what termination detection has put around it
            state = {key: value for key, value in state.items() if key != SAVED}
            state = state.get(STATE, state)
        answer_of(f"restore() of node {node}", lambda: process.restore(state))
        return process  # type: ignore[no-any-return]

    @cached_property
    def in_flight(self) -> tuple[tuple[Channel, Any], ...]:
        found = []
        for channel in self.graph.channels:
            for item in self._loaded.contents.get(channel.id, ()):
                message = decode_message(unstamped(item) if is_stamped(item) else item)
                if not isinstance(message, TerminationSignal):
                    found.append((channel, message))
        return tuple(found)

    def can(self, check: str) -> str | None:
        wanted = {"deadlock": "waits_for", "garbage": "objects"}.get(check)
        if wanted is None or any(self._defines(node, wanted) for node in self.graph.nodes):
            return None
        kinds = ", ".join(dict.fromkeys(kind.__name__ for kind in self._kinds.values()))
        return f"No class in this system has {wanted}(), so there is no {check} to look for: {kinds}."

    def _defines(self, node: NodeId, name: str) -> bool:
        """Whether the class has a method of that name; a field of that name does not count."""
        own = getattr(self._kinds[node], name, None)
        return isroutine(own) and own is not getattr(Process, name, None)

    def _ask(self, node: NodeId, name: str, default: Any, *args: Any) -> Any:
        if not isroutine(getattr(self._kinds[node], name, None)):
            return default
        return answer_of(f"{name}() of node {node}", lambda: getattr(self._processes[node], name)(*args))

    # ── what `strobe.predicates.stable` asks ────────────────────────────────────────────────────────────────────────

    def waits_for(self, node: NodeId) -> Wait | None:
        return self._ask(node, "waits_for", None)  # type: ignore[no-any-return]

    def holds(self, node: NodeId) -> Iterable[str]:
        held = self._ask(node, "holds", ())
        return (held,) if isinstance(held, str) else tuple(str(one) for one in held or ())

    def would_give(self, node: NodeId, to: NodeId) -> bool:
        return bool(self._ask(node, "would_give", False, to))

    def is_grant(self, channel: Channel, message: Any) -> bool:
        return bool(self._ask(channel.target, "is_grant", True, channel.source, message))

    def is_active(self, node: NodeId) -> bool:
        return bool(self._ask(node, "is_active", True))

    def is_work(self, channel: Channel, message: Any) -> bool:
        return bool(self._ask(channel.target, "is_work", True, channel.source, message))

    def objects(self, node: NodeId) -> Mapping[Hashable, Iterable[Hashable]]:
        return _heap(f"objects() of node {node}", self._ask(node, "objects", {}))

    def refs(self, node: NodeId) -> Iterable[Hashable]:
        return _references(f"refs() of node {node}", self._ask(node, "refs", ()))

    def objects_in(self, channel: Channel, message: Any) -> Mapping[Hashable, Iterable[Hashable]]:
        return _heap(*_asked_of(message, "objects", {}))

    def refs_in(self, channel: Channel, message: Any) -> Iterable[Hashable]:
        return _references(*_asked_of(message, "refs", ()))


def _asked_of(message: Any, name: str, default: Any) -> tuple[str, Any]:
    who = f"{name}() of message {type(message).__name__}"
    if not isroutine(getattr(type(message), name, None)):
        return who, default
    return who, answer_of(who, getattr(message, name))


def _heap(who: str, value: Any) -> Mapping[Hashable, Iterable[Hashable]]:
    if not isinstance(value, Mapping):
        raise Misuse(
            f"{who} returned {type(value).__name__}, not a dict.",
            untouched="Nothing was decided.",
            next="Return each object by its name, with the names of those that it refers to: {'x': ['y']}.",
        )
    return {one: _references(f"{who}, at {one!r},", refers) for one, refers in value.items()}


def _references(who: str, value: Any) -> Iterable[Hashable]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise Misuse(
            f"{who} gives {value!r}, which is not a list of references.",
            untouched="Nothing was decided.",
            next="Give names of objects, in a list, a set or a tuple.",
        )
    return answer_of(who, lambda: tuple(dict.fromkeys(value)))  # type: ignore[no-any-return]
