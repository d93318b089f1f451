"""What a workload is: a system, what runs on it, what it does by itself, and what must be true of it.

A workload is an `Application` (pure functions), a generator of actions, and a checker, in one file whose docstring is
its specification. Payloads are hashable (numbers, strings, tuples of these) so that the explorer can compare queues;
code that reads them must take lists for tuples, because that is how they come back from a journal.

Work that is left to do stands in the state, never in the generator: after a restart the nodes go on from what their
restored states say, and so sources replay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from strobe.hosts.sim.dice import Dice
from strobe.model.app import Reaction
from strobe.model.cut import Cut, Json
from strobe.model.errors import Misuse
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, NodeId
from strobe.predicates.deadlock import Wait

__all__ = ["Script", "Workload"]


@dataclass(frozen=True)
class Script:
    """A small fixed run without chance, for the explorer: what each node does, in order."""

    description: str
    nodes: int
    actions: Mapping[NodeId, tuple[Json, ...]]
    params: Mapping[str, Json] = field(default_factory=dict)


class Workload(ABC):
    """Subclasses set the class attributes and `graph`, and implement the abstract methods."""

    name: ClassVar[str]
    description: ClassVar[str]
    defaults: ClassVar[Mapping[str, Json]]  # every parameter with its default, which also gives its type
    default_nodes: ClassVar[int] = 4
    least_nodes: ClassVar[int] = 1
    most_nodes: ClassVar[int] = 100_000
    ends: ClassVar[bool] = False  # a node that has finished says so on its output channels
    wakes: ClassVar[bool] = False  # a message can give a node that had nothing to do something to do

    graph: Graph

    def __init__(self, nodes: int | None = None, params: Mapping[str, Json] | None = None) -> None:
        self.nodes = self.default_nodes if nodes is None else nodes
        if not self.least_nodes <= self.nodes <= self.most_nodes:
            most = "" if self.most_nodes >= 100_000 else f" and at most {self.most_nodes}"
            raise Misuse(
                f"The workload {self.name!r} needs at least {self.least_nodes}{most} nodes, not {self.nodes}.",
                next=f"Ask for {max(self.least_nodes, min(self.nodes, self.most_nodes))} nodes.",
            )
        self.params: dict[str, Json] = dict(self.defaults)
        for key, value in (params or {}).items():
            if key not in self.defaults:
                known = ", ".join(self.defaults) or "none"
                raise Misuse(
                    f"The workload {self.name!r} has no parameter {key!r}.", next=f"Its parameters are: {known}."
                )
            wanted = type(self.defaults[key])
            if type(value) is not wanted or (wanted is int and value < 0):
                kind = {int: "a whole number from 0 up", str: "a word", bool: "true or false"}[wanted]
                raise Misuse(
                    f"The parameter {key!r} of the workload {self.name!r} cannot be {value!r}.",
                    next=f"Give {kind}; the default is {self.defaults[key]!r}.",
                )
            self.params[key] = value

    # ── the application ─────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def initial(self, node: NodeId) -> Json: ...

    @abstractmethod
    def act(self, node: NodeId, state: Json, action: Json) -> Reaction: ...

    @abstractmethod
    def receive(self, node: NodeId, state: Json, channel: ChannelId, payload: Json) -> Reaction: ...

    # ── the generator ───────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def next_action(self, node: NodeId, state: Json, dice: Dice) -> Json | None:
        """What the node does next, or None when there is nothing for it to do at present."""

    @property
    @abstractmethod
    def length(self) -> int:
        """About how many actions a busy node takes: the run's length, for placing snapshots and faults in it."""

    def finished(self, node: NodeId, state: Json) -> bool:
        """With `ends`: the node will send nothing more by itself."""
        return False

    @classmethod
    @abstractmethod
    def scripts(cls) -> Mapping[str, Script]:
        """Small runs for the explorer, by name; the first is the default."""

    # ── the checker ─────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def check(self, cut: Cut) -> str | None:
        """None when the snapshot satisfies the invariant, else a sentence that says how it does not."""

    @abstractmethod
    def check_end(self, states: Mapping[NodeId, Json]) -> str | None:
        """The same for the states of a run that has come to rest."""

    # ── what stable predicates ask (`strobe.predicates.stable`) ─────────────────────────────────────────────────────

    def waits_for(self, node: NodeId, state: Json) -> Wait | None:
        """Whom the node waits for; None if it can act, or will when its time comes."""
        return None

    def holds(self, node: NodeId, state: Json) -> tuple[str, ...]:
        """What the node has that others may wait for, in words."""
        return ()

    def would_give(self, node: NodeId, state: Json, to: NodeId) -> bool:
        """Whether the node, though it waits itself, gives `to` what that one waits for as soon as it is asked."""
        return False

    def is_grant(self, channel: ChannelId, payload: Json) -> bool:
        """Whether the message gives its receiver what that one waits for."""
        return True

    def is_active(self, node: NodeId, state: Json) -> bool:
        """Whether the node will do something without being sent a message."""
        return self.next_action(node, state, Dice(0)) is not None

    def is_work(self, channel: ChannelId, payload: Json) -> bool:
        """Whether the message can make its receiver do something."""
        return True

    def objects(self, node: NodeId, state: Json) -> Mapping[Hashable, Iterable[Hashable]]:
        """The objects that the node keeps, each with those that it refers to."""
        return {}

    def refs(self, node: NodeId, state: Json) -> Iterable[Hashable]:
        """The objects that the node itself refers to."""
        return ()

    def objects_in(self, channel: ChannelId, payload: Json) -> Mapping[Hashable, Iterable[Hashable]]:
        """The objects that travel in the message, each with those that it refers to."""
        return {}

    def refs_in(self, channel: ChannelId, payload: Json) -> Iterable[Hashable]:
        """The objects that whoever receives the message will refer to."""
        return ()
