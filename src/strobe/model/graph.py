"""A system: nodes joined by directed channels.

Any directed graph is legal: cycles, parallel channels, self-loops, several components. A channel marked `feedback`
closes a loop: barrier alignment does not wait for it (Carbone et al. 2015, section 4.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from strobe.model.errors import Misuse
from strobe.model.ids import ChannelId, NodeId, check_uid

__all__ = ["Channel", "Graph", "graph_from_json", "graph_to_json"]


@dataclass(frozen=True, slots=True)
class Channel:
    id: ChannelId
    source: NodeId
    target: NodeId
    feedback: bool = False

    def __str__(self) -> str:
        return f"{self.id} ({self.source}→{self.target})"


@dataclass(frozen=True)
class Graph:
    nodes: tuple[NodeId, ...]
    channels: tuple[Channel, ...] = ()
    by_id: Mapping[ChannelId, Channel] = field(init=False, repr=False, compare=False)
    _inputs: Mapping[NodeId, tuple[ChannelId, ...]] = field(init=False, repr=False, compare=False)
    _outputs: Mapping[NodeId, tuple[ChannelId, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.nodes:
            raise Misuse("A system needs at least one node.", next="Ask for one node or more.")
        known = set[NodeId]()
        for node in self.nodes:
            check_uid(node, "node")
            if node in known:
                raise Misuse(f"Node {node!r} is named twice.", next="Give each node its own name.")
            known.add(node)
        inputs: dict[NodeId, list[ChannelId]] = {node: [] for node in self.nodes}
        outputs: dict[NodeId, list[ChannelId]] = {node: [] for node in self.nodes}
        by_id: dict[ChannelId, Channel] = {}
        for channel in self.channels:
            if channel.id in by_id:
                raise Misuse(f"Channel {channel.id!r} is named twice.", next="Give each channel its own name.")
            for end in (channel.source, channel.target):
                if end not in known:
                    raise Misuse(
                        f"Channel {channel.id!r} joins {channel.source!r} to {channel.target!r}, "
                        f"but there is no node {end!r}.",
                        next=f"The nodes are: {', '.join(self.nodes)}.",
                    )
            by_id[channel.id] = channel
            inputs[channel.target].append(channel.id)
            outputs[channel.source].append(channel.id)
        object.__setattr__(self, "by_id", by_id)
        object.__setattr__(self, "_inputs", {n: tuple(cs) for n, cs in inputs.items()})
        object.__setattr__(self, "_outputs", {n: tuple(cs) for n, cs in outputs.items()})

    def inputs(self, node: NodeId) -> tuple[ChannelId, ...]:
        return self._inputs[node]

    def outputs(self, node: NodeId) -> tuple[ChannelId, ...]:
        return self._outputs[node]

    def sources(self) -> tuple[NodeId, ...]:
        """Nodes without a regular input: where barriers are injected."""
        return tuple(n for n in self.nodes if all(self.by_id[c].feedback for c in self._inputs[n]))

    def reachable(self, start: Iterable[NodeId], *, through_feedback: bool = True) -> frozenset[NodeId]:
        reached = set(start)
        todo = deque(reached)
        while todo:
            for channel_id in self._outputs[todo.popleft()]:
                channel = self.by_id[channel_id]
                if channel.target not in reached and (through_feedback or not channel.feedback):
                    reached.add(channel.target)
                    todo.append(channel.target)
        return frozenset(reached)

    def check_reachable(self, initiators: Iterable[NodeId], *, through_feedback: bool = True) -> None:
        """Markers travel along channels: a node that none can reach would never record."""
        start = tuple(initiators)
        unknown = [n for n in start if n not in self._inputs]
        if unknown:
            raise Misuse(
                f"No node named {', '.join(map(repr, unknown))} to start a snapshot from.",
                next=f"The nodes are: {', '.join(self.nodes)}.",
            )
        reached = self.reachable(start, through_feedback=through_feedback)
        missing = [n for n in self.nodes if n not in reached]
        if missing:
            raise Misuse(
                f"A snapshot started at {', '.join(start) or 'no node'} never reaches {', '.join(missing)}: "
                "no path of channels leads there.",
                untouched="No snapshot was started.",
                next=f"Start it at {', '.join(missing)} as well, or add a channel.",
            )

    def check_loops(self) -> None:
        """Alignment waits for every regular input, so a loop without a feedback channel would wait for itself."""
        waiting = {n: sum(not self.by_id[c].feedback for c in self._inputs[n]) for n in self.nodes}
        ready = deque(n for n, count in waiting.items() if count == 0)
        done = 0
        while ready:
            done += 1
            for channel_id in self._outputs[ready.popleft()]:
                channel = self.by_id[channel_id]
                if not channel.feedback:
                    waiting[channel.target] -= 1
                    if waiting[channel.target] == 0:
                        ready.append(channel.target)
        if done < len(self.nodes):
            stuck = [n for n, count in waiting.items() if count > 0]
            raise Misuse(
                f"{', '.join(stuck)}: these nodes wait for each other in a loop that no feedback channel closes.",
                next="Mark the channel that closes the loop as feedback.",
            )

    def with_feedback(self) -> Graph:
        """The same graph with the channels that close a loop marked as feedback, found depth first from the sources."""
        state: dict[NodeId, int] = {}
        closing: set[ChannelId] = {c.id for c in self.channels if c.feedback}
        order = [n for n in self.nodes if not self._inputs[n]] + list(self.nodes)
        for root in order:
            if root in state:
                continue
            state[root] = 1
            stack = [(root, iter(self._outputs[root]))]
            while stack:
                node, rest = stack[-1]
                for channel_id in rest:
                    target = self.by_id[channel_id].target
                    if channel_id in closing:
                        continue
                    if state.get(target) == 1:
                        closing.add(channel_id)
                    elif target not in state:
                        state[target] = 1
                        stack.append((target, iter(self._outputs[target])))
                        break
                else:
                    state[node] = 2
                    stack.pop()
        return Graph(self.nodes, tuple(Channel(c.id, c.source, c.target, c.id in closing) for c in self.channels))


def graph_to_json(graph: Graph) -> dict[str, Any]:
    return {
        "nodes": list(graph.nodes),
        "channels": [[c.id, c.source, c.target, *(["feedback"] if c.feedback else [])] for c in graph.channels],
    }


def graph_from_json(value: Mapping[str, Any]) -> Graph:
    return Graph(
        tuple(NodeId(n) for n in value["nodes"]),
        tuple(Channel(ChannelId(c[0]), NodeId(c[1]), NodeId(c[2]), "feedback" in c[3:]) for c in value["channels"]),
    )
