"""The snapshot protocols by name: how a machine is made for a node, what it asks of the channels, and who starts.

`PROTOCOLS` is the one registry: the command line, the tests and the documentation list what stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, TypeAlias

from strobe.model.errors import Misuse
from strobe.model.graph import Graph
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.barriers import BarrierMode, Barriers
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.events import Abort, Effect, Input
from strobe.protocol.lai_yang import LaiYang
from strobe.protocol.wrong import AgreedClock, FreezeInTurn

__all__ = ["PROTOCOLS", "Factory", "ProtocolSpec", "SnapshotMachine", "Start", "protocol"]


class SnapshotMachine(Protocol):
    """A machine as the simulator uses it: all protocols have this shape, and a key of their state."""

    stamps_messages: bool

    def step(self, input: Input) -> tuple[Effect, ...]: ...

    def key(self) -> object: ...


Factory: TypeAlias = Callable[[Graph, NodeId, int], SnapshotMachine]
"""Makes the machine of a node. The number is the newest snapshot id of earlier incarnations: those are over."""


class Start(Enum):
    """Who starts a snapshot."""

    ANYWHERE = "one node, and one more for each part of the system that its markers cannot reach"
    SOURCES = "every node without a live regular input"
    EVERYWHERE = "every node, each when it hears of it"
    BY_CLOCK = "every node, when its own clock shows the agreed time"
    IN_TURN = "every node, one after the other, frozen while it records"


@dataclass(frozen=True)
class ProtocolSpec:
    name: str
    machine: Callable[..., Any]
    needs_fifo: bool
    is_correct: bool
    start: Start
    description: str
    mode: BarrierMode | None = None

    @property
    def takes_ends(self) -> bool:
        """Only barriers support inputs that end; the other protocols keep every channel open for ever."""
        return self.mode is not None

    def factory(self, machine: Callable[..., Any] | None = None) -> Factory:
        """`machine` replaces the protocol's own class: a mutant with the same constructor."""
        make = machine or self.machine

        def build(graph: Graph, node: NodeId, newest: int) -> SnapshotMachine:
            inputs, outputs = graph.inputs(node), graph.outputs(node)
            if self.mode is not None:
                feedback = [c for c in inputs if graph.by_id[c].feedback]
                made: SnapshotMachine = make(inputs, outputs, feedback=feedback, mode=self.mode, newest=newest)
                return made
            made = make(inputs, outputs)
            for old in range(1, newest + 1):
                made.step(Abort(SnapshotId(old)))
            return made

        return build

    def prepare(self, graph: Graph) -> Graph:
        """The graph as this protocol needs it: barriers want every loop closed by a feedback channel."""
        if self.mode is None:
            return graph
        graph = graph.with_feedback()
        graph.check_loops()
        return graph

    def initiators(self, graph: Graph, snapshot: int, asked: tuple[NodeId, ...] = ()) -> tuple[NodeId, ...]:
        """Who starts this snapshot. `asked` are the nodes that the user wants; unreachable nodes are misuse."""
        if self.start is Start.ANYWHERE:
            if asked:
                graph.check_reachable(asked)
                return asked
            return _cover(graph, (snapshot - 1) % len(graph.nodes))
        if asked:
            raise Misuse(
                f"{self.name} lets nobody choose where a snapshot starts: it starts at {self.start.value}.",
                next="Leave the initiators out.",
            )
        return graph.sources() if self.start is Start.SOURCES else graph.nodes


def _cover(graph: Graph, first: int) -> tuple[NodeId, ...]:
    """A node, and as many more as it takes to reach all."""
    order = graph.nodes[first:] + graph.nodes[:first]
    chosen = [order[0]]
    reached = graph.reachable(chosen)
    for node in (*graph.sources(), *order):
        if node not in reached:
            chosen.append(node)
            reached = graph.reachable(chosen)
    return tuple(chosen)


def _barriers(mode: BarrierMode, description: str) -> ProtocolSpec:
    start = Start.EVERYWHERE if mode is BarrierMode.UNALIGNED else Start.SOURCES
    return ProtocolSpec(mode.value, Barriers, True, True, start, description, mode)


PROTOCOLS: dict[str, ProtocolSpec] = {
    spec.name: spec
    for spec in (
        ProtocolSpec(
            "chandy-lamport", ChandyLamport, True, True, Start.ANYWHERE,
            "Markers follow the messages; a channel holds what came between the recording and its marker (1985).",
        ),
        ProtocolSpec(
            "lai-yang", LaiYang, False, True, Start.ANYWHERE,
            "Messages carry their sender's snapshot number; channels, closed by counting, may reorder (1987).",
        ),
        _barriers(
            BarrierMode.ALIGNED,
            "Barriers flow with the data; an input that has delivered its barrier waits for the others (2015).",
        ),
        _barriers(
            BarrierMode.UNALIGNED,
            "All nodes start at once, barriers overtake the data, and what they overtake belongs to the snapshot.",
        ),
        _barriers(
            BarrierMode.ALIGNED_WITH_TIMEOUT,
            "Aligned at first; when the alignment takes too long, the barriers that wait overtake.",
        ),
        ProtocolSpec(
            "agreed-clock", AgreedClock, False, False, Start.BY_CLOCK,
            "Wrong on purpose: every node records at an agreed time, but clocks differ and channels are forgotten.",
        ),
        ProtocolSpec(
            "freeze-in-turn", FreezeInTurn, False, False, Start.IN_TURN,
            "Wrong on purpose: nodes are frozen, recorded and thawed one after the other while the rest goes on.",
        ),
    )
}  # fmt: skip


def protocol(name: str) -> ProtocolSpec:
    if name not in PROTOCOLS:
        raise Misuse(f"There is no protocol called {name!r}.", next=f"Choose one of: {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]
