"""The nodes of the simulated system, what can happen to them, and what the world tells its driver."""

from __future__ import annotations

from enum import Enum
from typing import Any, Literal, NamedTuple

from strobe.hosts.sim.network import Wire
from strobe.hosts.sim.parts import frozen
from strobe.hosts.sim.protocols import SnapshotMachine
from strobe.model.cut import Cut, Json, Message
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.events import BarrierOptions

__all__ = ["Choice", "Control", "Driver", "Finished", "Site", "clone"]


class Choice(NamedTuple):
    """Something that can happen next. Names stay the same from run to run, so a schedule is a list of these.

    `deliver` CHANNEL index · `act` NODE · `initiate` NODE snapshot · `thaw` NODE snapshot · `time-out` NODE snapshot ·
    `count` CHANNEL snapshot · `abort` NODE snapshot
    """

    kind: Literal["deliver", "act", "initiate", "thaw", "time-out", "count", "abort"]
    at: str
    arg: int = 0

    def __str__(self) -> str:
        if self.kind == "act":
            return f"act {self.at}"
        if self.kind == "deliver":
            return f"deliver {self.at}" + (f" item {self.arg + 1}" if self.arg else "")
        return f"{self.kind} {self.at} snapshot {self.arg}"


class Control(NamedTuple):
    """A message off the data path, that may arrive at any time: a count for a channel, or an abort for a node."""

    kind: Literal["count", "abort"]
    at: str
    snapshot: SnapshotId
    sent: int = 0


class Finished:
    """A complete snapshot. `violation` is the host's own verdict on law 1 (see `strobe.hosts.sim.parts`)."""

    __slots__ = ("_key", "cut", "violation")

    def __init__(self, cut: Cut, violation: str | None) -> None:
        self.cut = cut
        self.violation = violation
        self._key: object = None

    def key(self) -> object:
        if self._key is None:
            states = tuple(frozen(state) for state in self.cut.states.values())
            self._key = (self.cut.snapshot, states, tuple(self.cut.channels.items()), self.violation)
        return self._key


class Driver:
    """What the world tells its driver. These defaults do nothing, which is right for the explorer."""

    def sent(self, wire: Wire) -> None:
        """Something was put on the wire."""

    def released(self, wire: Wire) -> None:
        """Deliveries may go on."""

    def timer(self, node: NodeId, snapshot: SnapshotId) -> None:
        """The node wants to hear when its alignment has taken too long."""

    def control(self, message: Control) -> None:
        """A message went out off the data path."""

    def fate(self, wire: Wire) -> int:
        """How many times a faulty wire will deliver the message that is being sent."""
        return 1

    def fate_of_marker(self, wire: Wire) -> int:
        return 1


class Site:
    """One node: its state, its machine, and what it still has to do when it follows a script."""

    __slots__ = ("asleep", "frozen", "id", "key_cache", "machine", "script", "stamps", "state", "step", "steps")

    def __init__(self, node: NodeId, state: Json, machine: SnapshotMachine, script: tuple[Json, ...] = ()) -> None:
        self.id = node
        self.state = state
        self.steps = 0
        self.script = script  # the actions that are left
        self.frozen = False
        self.asleep = False  # for the scheduler: has nothing to do until a message comes
        self.key_cache: object = None
        self.install(machine)

    def install(self, machine: SnapshotMachine) -> None:
        self.machine = machine
        self.step = machine.step
        self.stamps = machine.stamps_messages

    def copy(self) -> Site:
        new = Site(self.id, self.state, clone(self.machine), self.script)
        new.steps, new.frozen, new.asleep = self.steps, self.frozen, self.asleep
        return new

    def key(self) -> object:
        if self.key_cache is None:
            self.key_cache = (frozen(self.state), self.machine.key(), len(self.script), self.frozen)
        return self.key_cache


def clone(value: Any) -> Any:
    """A copy of a machine that shares what never changes: ids, tuples, messages, frozen sets, enums, functions.

    Machines are plain objects made of dicts, lists, sets and small helpers. This is several times faster than
    `copy.deepcopy`, and exploring makes one copy per step.
    """
    kind = type(value)
    if kind in _LEAVES or isinstance(value, tuple | frozenset | Enum):
        return value
    if kind is dict:
        return {k: v if type(v) in _LEAVES else clone(v) for k, v in value.items()}
    if kind is list:
        return [v if type(v) in _LEAVES else clone(v) for v in value]
    if kind is set:
        return set(value)
    new = object.__new__(kind)
    for cls in kind.__mro__:
        for slot in cls.__dict__.get("__slots__", ()):
            setattr(new, slot, clone(getattr(value, slot)))
    if hasattr(value, "__dict__"):
        own = value.__dict__
        new.__dict__.update({name: v if type(v) in _LEAVES else clone(v) for name, v in own.items()})
    return new


_LEAVES = frozenset({int, str, bytes, bool, type(None), tuple, frozenset, Message, BarrierOptions})
