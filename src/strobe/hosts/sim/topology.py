"""Shapes of systems: who can send to whom.

Channels are named after their ends, `n1-n2`; a second channel between the same ends is `n1-n2.2`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from strobe.hosts.sim.dice import Dice
from strobe.model.errors import Misuse
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId

__all__ = ["SHAPES", "anything", "complete", "joined", "line", "node_names", "random_connected", "ring", "shaped"]

SHAPES = ("complete", "ring", "line", "random", "anything")


def node_names(count: int, prefix: str = "n") -> tuple[NodeId, ...]:
    return tuple(NodeId(f"{prefix}{i}") for i in range(1, count + 1))


def joined(nodes: tuple[NodeId, ...], pairs: Iterable[tuple[NodeId, NodeId]]) -> Graph:
    """A graph with a channel for each pair; pairs may repeat and may join a node to itself."""
    times: dict[tuple[NodeId, NodeId], int] = {}
    channels = []
    for pair in pairs:
        times[pair] = times.get(pair, 0) + 1
        name = f"{pair[0]}-{pair[1]}" + (f".{times[pair]}" if times[pair] > 1 else "")
        channels.append(Channel(ChannelId(name), *pair))
    return Graph(nodes, tuple(channels))


def complete(nodes: tuple[NodeId, ...]) -> Graph:
    return joined(nodes, ((a, b) for a in nodes for b in nodes if a != b))


def ring(nodes: tuple[NodeId, ...]) -> Graph:
    return joined(nodes, zip(nodes, nodes[1:] + nodes[:1], strict=True))


def line(nodes: tuple[NodeId, ...]) -> Graph:
    """Both ways between neighbours."""
    pairs = list(pairwise(nodes))
    return joined(nodes, [*pairs, *((b, a) for a, b in pairs)])


def random_connected(nodes: tuple[NodeId, ...], channels: int, dice: Dice) -> Graph:
    """Strongly connected: a ring through all nodes in random order, then random channels, parallel ones included."""
    if len(nodes) == 1:
        return joined(nodes, ())
    order = dice.shuffled(nodes)
    pairs = list(zip(order, order[1:] + order[:1], strict=True))
    while len(pairs) < channels:
        a, b = dice.pick(nodes), dice.pick(nodes)
        if a != b:
            pairs.append((a, b))
    return joined(nodes, pairs)


def anything(nodes: tuple[NodeId, ...], channels: int, dice: Dice) -> Graph:
    """No promise at all: self-loops, parallel channels, nodes that nothing reaches."""
    return joined(nodes, [(dice.pick(nodes), dice.pick(nodes)) for _ in range(channels)])


def shaped(shape: str, nodes: tuple[NodeId, ...], channels: int, seed: int) -> Graph:
    """A graph by the name of its shape. `channels` and `seed` count for the random shapes; 0 channels means three for
    each node."""
    if shape == "complete":
        return complete(nodes)
    if shape == "ring":
        return ring(nodes)
    if shape == "line":
        return line(nodes)
    wanted = channels or 3 * len(nodes)
    if shape == "random":
        return random_connected(nodes, wanted, Dice(seed))
    if shape == "anything":
        return anything(nodes, wanted, Dice(seed))
    raise Misuse(f"There is no graph called {shape!r}.", next=f"Choose one of: {', '.join(SHAPES)}.")
