"""Live snapshots and the store: parts into a manifest, and a manifest into orders.

A node's state is one file, `state.msgpack`. A channel's content is one file, `messages.msgpack`: an array of messages
as they were sent. Positions count a channel's messages from 1, so 0 is the position before the first. Before a manifest
is written it is checked against law 1, by positions (`strobe.store.consistency`) and by counting what contents hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from strobe.hosts.live.api.codec import decode_plain, is_stamped, item_to_json, number_of, to_json
from strobe.hosts.live.snapshot.bulk import EMPTY, Bulk, Stored, fetch, unpacked
from strobe.hosts.live.wire.control import PartTaken, TimerState
from strobe.model.cut import Cut, Message
from strobe.model.errors import Damaged, Failed, Misuse, PeerFault
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.base import Data
from strobe.store.consistency import InconsistentCut, check_manifest
from strobe.store.manifest import BlobRef, ChannelRecord, InFlight, Manifest, NodeRecord, Timing
from strobe.store.snapshots import Session, SnapshotStore

__all__ = [
    "Gathering", "Loaded", "NodePart", "check_fits", "closed_ms", "gathered", "load", "phases_of", "stored_contents",
    "stored_states", "to_cut", "write",
]  # fmt: skip

STATE: Final = "state.msgpack"
MESSAGES: Final = "messages.msgpack"


@dataclass(frozen=True, slots=True)
class NodePart:
    part: PartTaken
    state: Data
    contents: Mapping[ChannelId, Data] = field(default_factory=dict)  # of channels that were not empty
    arrived_ms: float | None = None  # after the trigger of its snapshot


@dataclass
class Gathering:
    """A snapshot whose parts are coming in."""

    snapshot: SnapshotId
    kind: Kind
    incarnation: Incarnation
    timeline: Timeline
    started: str
    session: Session
    where: Path | None = None  # a savepoint's directory
    parts: dict[NodeId, NodePart] = field(default_factory=dict)
    triggered: float = 0.0  # by the coordinator's clock


@dataclass(frozen=True)
class Loaded:
    """What a snapshot gives back. Snapshot 0 is the beginning: no states, empty channels."""

    snapshot: SnapshotId
    states: Stored[NodeId, bytes] = field(default_factory=lambda: stored_states({}))
    contents: Stored[ChannelId, list[bytes]] = field(default_factory=lambda: stored_contents({}))
    sent: Mapping[ChannelId, int] = field(default_factory=dict)
    received: Mapping[ChannelId, int] = field(default_factory=dict)
    timers: Mapping[NodeId, list[TimerState]] = field(default_factory=dict)

    def in_flight(self, channels: Iterable[ChannelId]) -> list[ChannelId]:
        """The channels that carried something."""
        return [c for c in channels if c in self.contents and self.contents.size(c) > len(EMPTY)]


def stored_states(values: Mapping[NodeId, Bulk]) -> Stored[NodeId, bytes]:
    return Stored(values, lambda data: data)


def stored_contents(values: Mapping[ChannelId, Bulk]) -> Stored[ChannelId, list[bytes]]:
    return Stored(values, unpacked)


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(gathering: Gathering, graph: Graph, job: str, protocol: str, completed: str, previous: Manifest | None,
          writer: str) -> Manifest:  # fmt: skip
    """Blobs first, durable; then law 1; then the manifest. Blocks: for a thread."""
    parts = gathering.parts
    files: dict[str, Data] = {f"n/{node}": part.state for node, part in parts.items()}
    for node, part in parts.items():
        files |= {f"c/{channel}": content for channel, content in part.contents.items()}
        for channel in part.part.contents:
            if channel not in graph.by_id or graph.by_id[ChannelId(channel)].target != node:
                raise Failed(f"{node} recorded channel {channel!r}, which does not lead to it.")
    stored = gathering.session.put_files(files)
    known = frozenset(ref.sha256 for _, ref in previous.blobs()) if previous is not None else frozenset[str]()
    manifest = _manifest(gathering, graph, job, protocol, completed, stored.files, known, writer)
    violations = [violation.sentence for violation in check_manifest(manifest, previous)]
    violations += _miscounted(gathering, graph)
    if violations:
        raise InconsistentCut(
            f"Snapshot {gathering.snapshot} is not a consistent cut: {violations[0]}",
            untouched="It was not written; earlier snapshots are untouched.",
        )
    gathering.session.complete(manifest)
    return manifest


def _miscounted(gathering: Gathering, graph: Graph) -> list[str]:
    """Law 1 by counting: as many messages are held as were sent before one recording and not received by the other."""
    found = []
    for channel in graph.channels:
        sent = gathering.parts[channel.source].part.sent.get(channel.id, 0)
        end = gathering.parts[channel.target].part
        held, received = end.contents.get(channel.id, 0), end.received.get(channel.id, 0)
        if held != sent - received:
            found.append(
                f"{channel} holds {held} messages, but {channel.source} had sent {sent} and {channel.target} had "
                f"received {received}."
            )
    return found


def _manifest(
    gathering: Gathering,
    graph: Graph,
    job: str,
    protocol: str,
    completed: str,
    files: Mapping[str, BlobRef],
    known: frozenset[str],
    writer: str,
) -> Manifest:
    nodes, channels, fifo = {}, {}, protocol != "lai-yang"
    for node in graph.nodes:
        part = gathering.parts[node].part
        ref = files[f"n/{node}"]
        nodes[node] = replace(
            phases_of(gathering.parts[node]),
            files={STATE: ref},
            inputs={channel: part.received[channel] for channel in graph.inputs(node)},
            offsets={
                "timers": [[t.name, t.remaining, t.period] for t in part.timers],
                "step": part.step,
                **({} if fifo else {"sent": dict(part.sent)}),
            },
            bytes_new=0 if ref.sha256 in known else ref.size,
            bytes_total=ref.size,
            extra={"forked": part.forked},
        )
    for channel in graph.channels:
        sent = gathering.parts[channel.source].part.sent[channel.id]
        received = gathering.parts[channel.target].part.received[channel.id]
        content = files.get(f"c/{channel.id}")
        channels[channel.id] = ChannelRecord(
            producer=channel.source,
            # A channel that reorders has counts, but no positions: what came first need not have been sent first.
            barrier=sent if fifo else None,
            in_flight={channel.target: InFlight(min(received, sent), sent, max(0, sent - received))} if fifo else {},
            content={} if content is None else {MESSAGES: content},
        )
    return Manifest(
        snapshot=gathering.snapshot,
        kind=gathering.kind,
        job=job,
        host="live",
        timeline=gathering.timeline,
        incarnation=gathering.incarnation,
        mode=protocol,
        started=gathering.started,
        completed=completed,
        graph=graph,
        nodes=nodes,
        channels=channels,
        writer=writer,
    )


def phases_of(arrived: NodePart) -> NodeRecord:
    """The node's phases: they follow on each other, from the trigger until the coordinator had the part.

    Clocks of two machines are not compared: what is not the node's own time, the way of the order (or of the first
    marker) and that of the part, is the start delay.
    """
    part = arrived.part
    if arrived.arrived_ms is None or part.took_ms is None:
        return NodeRecord(
            alignment_ms=round(part.align_ms, 3),
            sync_ms=round(part.gap_ms, 3),
            async_ms=round(part.write_ms, 3),
            bytes_total=part.state_bytes,
        )
    closed = max(part.gap_ms, part.align_ms)
    return NodeRecord(
        sync_ms=round(part.gap_ms, 3),
        async_ms=round(max(0.0, part.took_ms - closed), 3),
        timing=Timing(
            start_delay_ms=round(max(0.0, arrived.arrived_ms - part.took_ms), 3),
            channels_ms=round(closed - part.gap_ms, 3),
        ),
        bytes_total=part.state_bytes,
    )


def closed_ms(node: NodeRecord) -> float:
    """The time from the node's recording until its last input channel was closed."""
    return node.alignment_ms if node.timing is None else node.sync_ms + node.timing.channels_ms


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_protocol(manifest: Manifest, protocol: str, name: str) -> None:
    """What is in flight is kept as the protocol sends it: stamped, or in order."""
    if manifest.host == "live" and manifest.mode != protocol:
        raise Misuse(
            f"Snapshot {manifest.snapshot} of {manifest.job} was taken with {manifest.mode}, and {name} is to run with "
            f"{protocol}.",
            untouched="Nothing was started.",
            next=f'Start it with protocol = "{manifest.mode}", or start over in another --home.',
        )


def check_fits(manifest: Manifest, graph: Graph, name: str) -> None:
    """A snapshot is restored onto the nodes and channels that it was taken of; their names are their identity."""
    if manifest.host != "live":
        raise Misuse(f"Snapshot {manifest.snapshot} was taken of a system on {manifest.host}, not of live processes.")
    theirs = manifest.graph
    differences = (
        ([f"node {n}" for n in theirs.nodes if n not in graph.nodes], "is not in the topology"),
        ([f"node {n}" for n in graph.nodes if n not in theirs.nodes], "is not in the snapshot"),
        ([f"channel {c}" for c in theirs.channels if c not in graph.channels], "is not in the topology"),
        ([f"channel {c}" for c in graph.channels if c not in theirs.channels], "is not in the snapshot"),
    )
    for names, fault in differences:
        if names:
            raise Misuse(
                f"Snapshot {manifest.snapshot} of {manifest.job} does not fit {name}: {names[0]} {fault}.",
                untouched="Nothing was started.",
                next="Start it with the nodes and channels that it was taken of, or start over in another --home.",
            )


# What Python raises when a value of a snapshot, which anybody may have written, is not what a live host writes.
_UNREADABLE: Final = (
    ArithmeticError, AttributeError, LookupError, PeerFault, RecursionError, TypeError, ValueError,
    msgspec.MsgspecError,
)  # fmt: skip


def _damaged(snapshot: SnapshotId, error: Exception) -> Damaged:
    return Damaged(
        f"Snapshot {snapshot} does not hold what live processes write: {type(error).__name__}: {error!s:.200}.",
        untouched="Nothing was changed.",
        next="Start from another snapshot.",
    )


def load(store: SnapshotStore, snapshot: SnapshotId, graph: Graph, checked: Manifest | None = None) -> Loaded:
    """Blocks: for a thread. `checked` is the manifest that the caller has looked at: then no other one is read, whoever
    writes there meanwhile."""
    manifest = store.load(snapshot) if checked is None else checked
    check_fits(manifest, graph, store.job)
    try:
        return _load(store, manifest, graph)
    except _UNREADABLE as error:
        raise _damaged(snapshot, error) from error


def _load(store: SnapshotStore, manifest: Manifest, graph: Graph) -> Loaded:
    contents: dict[ChannelId, Bulk] = {channel.id: EMPTY for channel in graph.channels}
    sent, received = {}, {}
    for channel, record in manifest.channels.items():
        for path, ref in record.content.items():
            content = contents[channel] = fetch(store, ref, f"The content of channel {channel} ({path})")
            if isinstance(content, bytes):
                unpacked(content)  # damage is reported here, before a node is told to load it
        sent[channel], received[channel] = _counts(manifest, channel)
    states: dict[NodeId, Bulk] = {}
    timers = {}
    for node, node_record in manifest.nodes.items():
        states[node] = fetch(store, node_record.files[STATE], f"The state of {node}")
        noted = (node_record.offsets or {}).get("timers", [])
        timers[node] = [msgspec.convert(TimerState(*timer), TimerState, from_attributes=True) for timer in noted]
    return Loaded(manifest.snapshot, stored_states(states), stored_contents(contents), sent, received, timers)


def _counts(manifest: Manifest, channel: ChannelId) -> tuple[int, int]:
    """How many messages had been sent on the channel, and how many received."""
    record = manifest.channels[channel]
    counted = (manifest.nodes[record.producer].offsets or {}).get("sent", {})
    received = manifest.nodes[manifest.graph.by_id[channel].target].inputs.get(channel, 0)
    return counted.get(channel, record.barrier or 0), received


def messages_in_flight(manifest: Manifest) -> int:
    """How many messages were in flight, by counting, which also works for channels without positions."""
    counts = [_counts(manifest, channel) for channel in manifest.channels]
    return sum(max(0, sent - received) for sent, received in counts)


def to_cut(loaded: Loaded, graph: Graph) -> Cut:
    """The snapshot as a journal shows it."""
    try:
        return _cut(loaded, graph)
    except _UNREADABLE as error:
        raise _damaged(loaded.snapshot, error) from error


def _cut(loaded: Loaded, graph: Graph) -> Cut:
    return Cut(
        loaded.snapshot,
        {node: to_json(decode_plain(state)) for node, state in loaded.states.items()},
        {
            channel.id: tuple(
                Message(
                    number_of(item) if is_stamped(item) else loaded.received.get(channel.id, 0) + number,
                    item_to_json(item),
                )
                for number, item in enumerate(loaded.contents.get(channel.id, ()), 1)
            )
            for channel in graph.channels
        },
    )


def gathered(gathering: Gathering) -> Loaded:
    """What has just been recorded, as it would be loaded."""
    parts = gathering.parts
    return Loaded(
        gathering.snapshot,
        stored_states({node: part.state for node, part in parts.items()}),
        stored_contents({channel: content for part in parts.values() for channel, content in part.contents.items()}),
        {ChannelId(c): count for part in parts.values() for c, count in part.part.sent.items()},
        {ChannelId(c): count for part in parts.values() for c, count in part.part.received.items()},
        {node: part.part.timers for node, part in parts.items()},
    )
