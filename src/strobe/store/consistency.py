"""Law 1 for a stored snapshot: its manifest's positions, judged by `strobe.verify`.

Who must have recorded what is taken from the graph, never from the records: a channel or a consumer that the manifest
forgot is a violation. A channel of a manifest is either one channel of the graph, with its id (live hosts), or the log
that a node writes, whatever number of channels of the graph it stands for, with the node's uid as its id (pipelines).

A channel without positions (one that reorders: the messages received are not a prefix of those sent) has nothing to
judge here; its content is checked from a journal.
"""

from __future__ import annotations

from strobe.model.errors import Damaged
from strobe.model.ids import ChannelId, NodeId
from strobe.store.manifest import NOTHING, ChannelRecord, Manifest
from strobe.verify.positions import ChannelCut, ConsumerCut, LogGraph, LogSnapshot, check_log_snapshot
from strobe.verify.violation import Violation

__all__ = ["InconsistentCut", "check_manifest"]


class InconsistentCut(Damaged):
    """The parts of a snapshot are not a consistent cut: it is refused, and nothing of it is written."""


def check_manifest(manifest: Manifest, previous: Manifest | None = None) -> tuple[Violation, ...]:
    """Every way in which the recorded positions are not a consistent cut. `previous` is an earlier snapshot: along one
    timeline, and while the graph is the same, positions never go back."""
    comparable = previous is not None and (previous.graph, previous.timeline) == (manifest.graph, manifest.timeline)
    before = _cut(previous) if previous is not None and comparable else None
    return check_log_snapshot(_graph(manifest), _cut(manifest), before)


def _graph(manifest: Manifest) -> LogGraph:
    readers: dict[ChannelId, tuple[NodeId, ...]] = {}
    producers: dict[ChannelId, NodeId] = {}
    for channel in manifest.graph.channels:
        record = manifest.channels.get(channel.id)
        if record is not None and not _has_positions(record):
            continue
        name = channel.id if record is not None else ChannelId(channel.source)
        producers[name] = channel.source
        readers[name] = (*readers.get(name, ()), channel.target)
    return LogGraph(manifest.graph.nodes, producers, readers)


def _cut(manifest: Manifest) -> LogSnapshot:
    channels = {name: record for name, record in manifest.channels.items() if _has_positions(record)}
    return LogSnapshot(
        manifest.snapshot,
        frozenset(manifest.nodes),
        {name: _channel(manifest, name, record) for name, record in channels.items()},
    )


def _has_positions(record: ChannelRecord) -> bool:
    """A log always has; a channel that keeps nothing itself has them if its host counts."""
    return record.location is not None or record.barrier is not None or bool(record.in_flight)


def _channel(manifest: Manifest, name: ChannelId, record: ChannelRecord) -> ChannelCut:
    consumers = {
        node: ConsumerCut(manifest.nodes[node].inputs.get(name, NOTHING), flight.after, flight.through)
        for node, flight in record.in_flight.items()
    }
    return ChannelCut(name, record.producer, NOTHING if record.barrier is None else record.barrier, consumers)
