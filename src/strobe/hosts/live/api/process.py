"""What a user writes: a process with a state that reacts to messages and timers.

A process moves in steps. Each call of a handler is one step: it may change the state and send; the snapshot sees it
before the step or after it, never in the middle. Handlers may be coroutines: then one is awaited to its end before the
next begins, and a marker waits for it like any other input.

The state of a dataclass is its fields. Anything else gives its own `snapshot()` and `restore(state)`. Timers belong to
the state: they have names, not callbacks, and a restored process has those that were set when it was recorded.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

from strobe.hosts.live.api.codec import decode_state
from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.ids import ChannelId, NodeId
from strobe.predicates.deadlock import Wait

__all__ = ["Process", "Runtime", "has_coroutines", "new_process"]

P = TypeVar("P", bound="Process")


class Runtime(Protocol):
    """What a process asks of the node that runs it."""

    @property
    def name(self) -> NodeId: ...

    @property
    def peers(self) -> tuple[NodeId, ...]: ...

    @property
    def channel(self) -> ChannelId | None: ...

    @property
    def congested(self) -> bool: ...

    @property
    def has_timers(self) -> bool: ...

    def send(self, to: str, message: Any) -> None: ...

    def set_timer(self, name: str, seconds: float, period: float | None) -> None: ...

    def cancel_timer(self, name: str) -> None: ...

    def request_snapshot(self) -> None: ...

    def act(self, action: Json, handler: Callable[..., Any], *args: Any) -> None:
        """A step that comes from no message and no timer."""
        ...


class Process:
    """Subclass it, as a rule as a dataclass. Everything below `on_` is yours to define."""

    _runtime: Runtime

    def on_start(self) -> Awaitable[None] | None:
        """The system starts for the first time. After a restore it is not called."""

    def on_restore(self) -> Awaitable[None] | None:
        """The state is back. What was in flight comes next, in order."""

    def on_message(self, sender: str, message: Any) -> Awaitable[None] | None:
        """A message came from the node `sender`."""

    def on_timer(self, name: str) -> Awaitable[None] | None:
        """A timer of this name has run out."""

    def on_terminated(self) -> Awaitable[None] | None:
        """At the root of a diffusing computation: every node is idle, and nothing is in flight."""

    def on_stop(self) -> None:
        """This life is over, because the system goes back to a snapshot or ends. Nothing can be sent any more."""

    # ── questions about a recorded state ────────────────────────────────────────────────────────────────────────────
    #
    # By `strobe live check` and `System.check`, of an instance that only looks at its state: nothing can be sent. A
    # class may also have `holds()`, what others may wait for, in words; and for garbage `objects()`, the objects that
    # it keeps, each with those that it refers to, and `refs()`, those that it refers to itself. Messages may have
    # `objects()` and `refs()`, too.

    def waits_for(self) -> Wait | None:
        """Whom it waits for: `all_of("a", "b")`, `any_of(…)`, `at_least(2, …)`; None if it can go on by itself."""
        return None

    def would_give(self, to: str) -> bool:
        """Whether it gives `to` what that one waits for as soon as it is asked, although it waits itself."""
        return False

    def is_grant(self, sender: str, message: Any) -> bool:
        """Whether a message that is in flight to it, from one whom it waits for, gives it what it waits for."""
        return True

    def is_active(self) -> bool:
        """Whether it will do something without being sent a message. By default: whether a timer is set."""
        return self._runtime.has_timers

    def is_work(self, sender: str, message: Any) -> bool:
        """Whether a message that is in flight to it can make it active."""
        return True

    # ── what it can do ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def name(self) -> NodeId:
        """The name of the node."""
        return self._runtime.name

    @property
    def peers(self) -> tuple[NodeId, ...]:
        """The nodes that this one can send to, in the order of the topology."""
        return self._runtime.peers

    @property
    def channel(self) -> ChannelId | None:
        """The channel that the message came on, while `on_message` runs."""
        return self._runtime.channel

    @property
    def congested(self) -> bool:
        """Whether a receiver cannot keep up. Timers wait while this holds; long loops of sends should too."""
        return self._runtime.congested

    def send(self, to: str, message: Any) -> None:
        """Sends to a node, or on a channel by its name (needed where several lead to one node)."""
        self._runtime.send(to, message)

    def send_all(self, to: str, messages: Iterable[Any]) -> None:
        """Sends one message after the other, like `send`, in less time. If one cannot be sent, those before it are."""
        for message in messages:
            self.send(to, message)

    def every(self, seconds: float, name: str = "tick") -> None:
        """Calls `on_timer(name)` again and again, `seconds` apart."""
        self._runtime.set_timer(name, seconds, seconds)

    def after(self, seconds: float, name: str = "timeout") -> None:
        """Calls `on_timer(name)` once. A timer of that name is replaced."""
        self._runtime.set_timer(name, seconds, None)

    def cancel(self, name: str) -> None:
        self._runtime.cancel_timer(name)

    def request_snapshot(self) -> None:
        """Asks for a snapshot that starts at this node."""
        self._runtime.request_snapshot()

    # ── state ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> Any:
        """The state, as a value that the codec can write. It is written before the next step, or from a copy."""
        if not dataclasses.is_dataclass(self):
            raise Misuse(
                f"{type(self).__name__} is not a dataclass, and has no snapshot() and restore() of its own.",
                next="Make it a dataclass, or define both.",
            )
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def restore(self, state: Any) -> None:
        """Takes over what `snapshot` gave, as it comes back from disk: dicts, lists, numbers, text, bytes."""
        if not dataclasses.is_dataclass(self) or not isinstance(state, dict):
            raise Misuse(f"{type(self).__name__} cannot take over a {type(state).__name__} as its state.")
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            if field.name in state:  # a field that is newer than the snapshot keeps its default
                where = f"{type(self).__name__}.{field.name}"
                object.__setattr__(self, field.name, decode_state(state[field.name], hints[field.name], where))


def has_coroutines(kind: type[Process]) -> bool:
    handlers = (kind.on_start, kind.on_restore, kind.on_message, kind.on_timer, kind.on_terminated)
    return any(inspect.iscoroutinefunction(handler) for handler in handlers)


def new_process(kind: type[P], params: dict[str, Any], runtime: Runtime) -> P:
    try:
        process = kind(**params)
    except TypeError as error:
        raise Misuse(
            f"Node {runtime.name}: {kind.__name__} cannot be made from params {params!r}: {error}.",
            next="Params are the arguments of the class.",
        ) from error
    process._runtime = runtime
    if kind.send is Process.send and "send" not in vars(process):
        vars(process)["send"] = runtime.send  # one call less for each message
    return process
