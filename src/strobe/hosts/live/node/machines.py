"""Which machine of `strobe.protocol` a topology's protocol stands for, as a life begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strobe.hosts.live.wire.control import Order
from strobe.model.graph import Graph
from strobe.model.ids import NodeId
from strobe.protocol.chandy_lamport import ChandyLamport
from strobe.protocol.events import Machine
from strobe.protocol.lai_yang import LaiYang

__all__ = ["MACHINES"]


def _chandy_lamport(graph: Graph, node: NodeId, order: Order) -> Machine:
    return ChandyLamport(graph.inputs(node), graph.outputs(node))


def _lai_yang(graph: Graph, node: NodeId, order: Order) -> Machine:
    sent = {channel: order.sent.get(channel, 0) for channel in graph.outputs(node)}
    received = {channel: order.received.get(channel, 0) for channel in graph.inputs(node)}
    return LaiYang.resumed(received, sent, number=order.base, sent=sent, received=received)


MACHINES: Final[dict[str, Callable[[Graph, NodeId, Order], Machine]]] = {
    "chandy-lamport": _chandy_lamport,
    "lai-yang": _lai_yang,
}
