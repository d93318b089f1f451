"""Law 1 for a stored snapshot: its manifest's positions, judged by `strobe.verify`."""

from __future__ import annotations

from strobe.model.ids import ChannelId, NodeId
from strobe.store.manifest import NOTHING, ChannelRecord, Manifest
from strobe.verify.positions import ChannelCut, ConsumerCut, LogGraph, LogSnapshot, check_log_snapshot
from strobe.verify.violation import Violation

__all__ = ["check_manifest"]


def check_manifest(manifest: Manifest, previous: Manifest | None = None) -> tuple[Violation, ...]:
    """Every way in which the recorded positions are not a consistent cut. `previous` is the newest earlier snapshot of
    the same timeline: positions never go back along a line of history."""
    same_graph = previous is not None and previous.graph == manifest.graph
    return check_log_snapshot(_graph(manifest), _cut(manifest), _cut(previous) if previous and same_graph else None)


def _graph(manifest: Manifest) -> LogGraph:
    """Who produces and who reads each log, from the graph; the log that a stage writes bears the stage's name."""
    readers: dict[ChannelId, tuple[NodeId, ...]] = {}
    producers: dict[ChannelId, NodeId] = {}
    for channel in manifest.graph.channels:
        log = ChannelId(channel.source)
        producers[log] = channel.source
        readers[log] = (*readers.get(log, ()), channel.target)
    return LogGraph(manifest.graph.nodes, producers, readers)


def _cut(manifest: Manifest) -> LogSnapshot:
    return LogSnapshot(
        manifest.snapshot,
        frozenset(manifest.nodes),
        {name: _channel(manifest, name, record) for name, record in manifest.channels.items()},
    )


def _channel(manifest: Manifest, name: ChannelId, record: ChannelRecord) -> ChannelCut:
    consumers = {
        node: ConsumerCut(manifest.nodes[node].inputs.get(name, NOTHING), flight.after, flight.through)
        for node, flight in record.in_flight.items()
    }
    return ChannelCut(name, record.producer, NOTHING if record.barrier is None else record.barrier, consumers)
