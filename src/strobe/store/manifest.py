"""What a snapshot says about itself: the manifest.

A manifest names every byte that belongs to a snapshot and every position that makes it a consistent cut. It is
host-neutral: a node has files (a stage's Spark checkpoint, a process's state) and positions; a channel has the position
of its barrier, what each consumer had in flight and, where the channel does not keep its messages, their content.

Positions are the channel's own count, one per message or commit, and inclusive: "read up to 17" contains 17. Nothing at
all is -1. A range in flight is therefore (after, through]: after what the consumer had read, through the barrier.

A `Manifest` that exists is well formed: every record is checked when it is made, whether by a host or by the reader
in `strobe.store.codec`. Whether its positions are a consistent cut is for `strobe.verify` to say. Nothing here reads a
clock: times are given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.graph import Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline, check_uid
from strobe.model.kind import Kind
from strobe.model.paths import check_relative, check_text
from strobe.store.times import utc_seconds

__all__ = [
    "FORMAT", "NOTHING", "BlobRef", "ChannelRecord", "InFlight", "Manifest", "NodeRecord", "Prepared",
    "SinkRecord", "Timing",
]  # fmt: skip

FORMAT: Final = 2  # that new manifests are written in; those from 1 on are read
NOTHING: Final = -1  # the position before the first
_MOST: Final = (1 << 63) - 1  # of anything that is counted
_HIGHEST_ID: Final = 1 << 53  # of snapshots, timelines and incarnations, which a restored job counts on from
_MOST_PARTITIONS: Final = (1 << 31) - 1

_SHA256 = re.compile(r"[0-9a-f]{64}")
_UTC = re.compile(r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?Z")


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Bytes by their content: the SHA-256 as 64 lower-case hex digits, and how many there are."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha256):
            raise Misuse(f"sha256: {self.sha256!r} is not 64 lower-case hex digits.")
        _at_least(0, "size", self.size)


@dataclass(frozen=True, slots=True)
class InFlight:
    """What a consumer had not read of a channel's content before the barrier: the positions (after, through]."""

    after: int
    through: int
    rows: int | None = None

    def __post_init__(self) -> None:
        _at_least(NOTHING, "after", self.after)
        _at_least(NOTHING, "through", self.through)
        _at_least(0, "rows", self.rows)
        if self.after > self.through:
            raise Misuse(f"after: a range in flight cannot begin after {self.after} and end with {self.through}.")


@dataclass(frozen=True, slots=True)
class Timing:
    """The phases of a node's part, in milliseconds, besides `alignment_ms`, `sync_ms` and `async_ms`. Together they are
    the time from the trigger of the snapshot until the coordinator had the part: nothing is left out or counted twice.

    `start_delay_ms` until the node could begin: the barrier was on its way, or the node's own batch was running.
    `channels_ms` until the last barrier had come to a node that did not wait for it. `prepare_ms` until its sinks had
    prepared. `acknowledge_ms` until the coordinator had read the part.
    """

    start_delay_ms: float = 0
    channels_ms: float = 0
    prepare_ms: float = 0
    acknowledge_ms: float = 0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            _at_least(0, name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node at its recording: the state as files, and how far it had read and written.

    `files` maps paths relative to where the state is laid out again to their bytes. `inputs` has the last position read
    of each channel, `output` the last one written before the barrier. `offsets` is what a source needs to go on from.
    `bytes_new` counts only what no earlier snapshot had stored. `timing` is None where nobody has measured all phases.
    `extra` keeps fields that a later Strobe added.
    """

    files: Mapping[str, BlobRef] = field(default_factory=dict)
    batch: int | None = None
    inputs: Mapping[ChannelId, int] = field(default_factory=dict)
    output: int | None = None
    offsets: Json = None
    partitions: int | None = None
    state_rows: int | None = None
    bytes_new: int = 0
    bytes_total: int = 0
    alignment_ms: float = 0
    sync_ms: float = 0
    async_ms: float = 0
    timing: Timing | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_files("files", self.files)
        for channel, position in self.inputs.items():
            _at_least(NOTHING, f"inputs.{channel}", position)
        _at_least(NOTHING, "batch", self.batch)
        _at_least(NOTHING, "output", self.output)
        _at_least(1, "partitions", self.partitions, _MOST_PARTITIONS)
        for name in ("state_rows", "bytes_new", "bytes_total", "alignment_ms", "sync_ms", "async_ms"):
            _at_least(0, name, getattr(self, name))

    @property
    def phases(self) -> dict[str, float]:
        """How long each phase took, in milliseconds and in their order; empty if not all are known."""
        if self.timing is None:
            return {}
        return {
            "start_delay": self.timing.start_delay_ms,
            "alignment": self.alignment_ms,
            "sync": self.sync_ms,
            "channels": self.timing.channels_ms,
            "async": self.async_ms,
            "prepare": self.timing.prepare_ms,
            "acknowledge": self.timing.acknowledge_ms,
        }

    @property
    def duration_ms(self) -> float | None:
        """From the trigger until the coordinator had this part."""
        return sum(self.phases.values()) if self.timing is not None else None


@dataclass(frozen=True, slots=True)
class ChannelRecord:
    """A channel at the cut. `barrier` is the last position before the producer's barrier.

    `location` says where the channel's log is; `content` has copies of what was in flight (live channels, savepoints).
    """

    producer: NodeId
    location: str | None = None
    barrier: int | None = None
    in_flight: Mapping[NodeId, InFlight] = field(default_factory=dict)
    content: Mapping[str, BlobRef] = field(default_factory=dict)
    extra: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _at_least(NOTHING, "barrier", self.barrier)
        _check_files("content", self.content)
        if self.location is not None:
            check_relative(self.location, "location")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sink's prepared transaction: to be committed once this snapshot is complete, and only then."""

    handle: str
    data: Json = None


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """A sink at the cut. `position` is where it stood, in words that only the sink understands; None if it keeps none.
    `prepared` are the parts that this snapshot makes visible, oldest first."""

    position: Json = None
    prepared: tuple[Prepared, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """`channels` are named as the host names them (one log with several consumers is one channel here, and one
    channel per consumer in `graph`); their producers and consumers are nodes of the graph. `format` is the one that it
    was written in, and will be written in again: the root of a snapshot never changes."""

    snapshot: SnapshotId
    kind: Kind
    job: str
    host: str
    timeline: Timeline
    incarnation: Incarnation
    mode: str
    started: str
    completed: str
    graph: Graph
    nodes: Mapping[NodeId, NodeRecord]
    channels: Mapping[ChannelId, ChannelRecord] = field(default_factory=dict)
    sinks: Mapping[str, SinkRecord] = field(default_factory=dict)
    writer: str = ""
    extra: Mapping[str, Json] = field(default_factory=dict)
    format: int = FORMAT

    def __post_init__(self) -> None:
        _at_least(1, "format", self.format, FORMAT)
        _at_least(1, "snapshot", self.snapshot, _HIGHEST_ID)
        _at_least(1, "timeline", self.timeline, _HIGHEST_ID)
        _at_least(1, "incarnation", self.incarnation, _HIGHEST_ID)
        check_uid(self.job, "job")
        for name, text in (("host", self.host), ("mode", self.mode), ("writer", self.writer)):
            check_text(text, name)
        for sink in self.sinks:
            for word in sink.split("/"):
                check_uid(word, "sink")
        for name, time in (("started", self.started), ("completed", self.completed)):
            if not _is_utc(time):
                raise Misuse(f"{name}: {time!r} is not a time in UTC such as 2031-05-17T09:30:00.250Z.")
        known = set(self.graph.nodes)
        missing = [node for node in self.graph.nodes if node not in self.nodes]
        unknown = [node for node in self.nodes if node not in known]
        if missing or unknown:
            raise Misuse(
                "nodes: a snapshot has a record for each node of its graph, but "
                + " and ".join(
                    f"{', '.join(map(repr, names))} {fault}"
                    for names, fault in ((missing, "has none"), (unknown, "is not in the graph"))
                    if names
                )
                + "."
            )
        for uid, node in self.nodes.items():
            for channel in node.inputs:
                if channel not in self.channels:
                    raise Misuse(f"nodes.{uid}.inputs: there is no channel {channel!r} in this snapshot.")
        for channel, record in self.channels.items():
            check_uid(channel, "channel")
            if record.producer not in known:
                raise Misuse(f"channels.{channel}.producer: there is no node {record.producer!r} in the graph.")
            for consumer in record.in_flight:
                if consumer not in known:
                    raise Misuse(f"channels.{channel}.in_flight: there is no node {consumer!r} in the graph.")

    def blobs(self) -> Iterator[tuple[str, BlobRef]]:
        """Every file of the snapshot as (path, blob), where the path says whose it is: `nodes/<uid>/files/<path>` or
        `channels/<id>/content/<path>`. These are the leaves of the Merkle tree."""
        for uid, node in self.nodes.items():
            for path, ref in node.files.items():
                yield f"nodes/{uid}/files/{path}", ref
        for channel, record in self.channels.items():
            for path, ref in record.content.items():
                yield f"channels/{channel}/content/{path}", ref

    @property
    def bytes_total(self) -> int:
        """What the snapshot holds, each distinct content counted once."""
        return sum({ref.sha256: ref.size for _, ref in self.blobs()}.values())

    @property
    def bytes_new(self) -> int:
        return sum(node.bytes_new for node in self.nodes.values())

    @property
    def rows_in_flight(self) -> int:
        return sum(r.rows or 0 for channel in self.channels.values() for r in channel.in_flight.values())


def _is_utc(text: str) -> bool:
    try:
        return _UTC.fullmatch(text) is not None and utc_seconds(text) is not None
    except ValueError:  # the 31st of February
        return False


def _at_least(least: int, name: str, value: float | None, most: int = _MOST) -> None:
    # `not >=` rather than `<`: NaN must not pass.
    if value is not None and not value >= least:
        raise Misuse(f"{name}: {value} is below {least}.")
    if value is not None and not value <= most:
        raise Misuse(f"{name}: {value} is above {most}.")


def _check_files(name: str, files: Mapping[str, BlobRef]) -> None:
    """Restoring writes to these paths, so none may lead out of the directory that they are laid out in."""
    for path in files:
        check_relative(path, name)
