"""A run as points on lines, arrows between them and cuts across them: what a space–time diagram shows, before it is
drawn.

Theory
------
A *point* is something atomic on one node's line: a step with its sends; a recording with the marker that caused it and
the markers that it sends; a marker that only closes a channel; a crash. A restart is a point that all lines share.
Points are put into one order that respects each node's order and every message, and follows the journal otherwise, so
a journal merged from files per node is drawn as well as a simulated one.

Each arrow knows how it stands to each snapshot of its epoch (`Role`). With "before" meaning "in a step that the
recorded state contains", law 1 says: what is sent before and received after is recorded as in flight, nothing is
received before and sent after, and nothing else is recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

from strobe.model.cut import Cut, Json
from strobe.model.events import (
    Completed,
    Crashed,
    Event,
    Internal,
    Lost,
    MarkerReceived,
    MarkerSent,
    Received,
    Recorded,
    Restarted,
    Sent,
)
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.verify.diagram.order import in_causal_order
from strobe.verify.journal import Journal

__all__ = ["Arrow", "Crossing", "CutLine", "MarkKind", "Marker", "Point", "Role", "SpaceTime", "Taken", "space_time"]


class MarkKind(Enum):
    STEP = auto()
    """A step that received or sent a message."""
    IDLE = auto()
    """A step that neither received nor sent."""
    RECORD = auto()
    MARKER = auto()
    """A marker that came after the recording and only closed its channel."""
    CRASH = auto()
    RESTART = auto()


class Role(Enum):
    """How a message stands to a snapshot. All but the first break law 1."""

    IN_FLIGHT = auto()
    """Sent before, received after, and recorded as the channel's content."""
    BACKWARD = auto()
    """Received before, sent after: it comes from nowhere."""
    MISSED = auto()
    """Sent before, received after, and not recorded: it vanishes."""
    LOST = auto()
    """Sent before, and the channel dropped it: it is in no state and in no channel."""
    TWICE = auto()
    """Received more than once before: its effect is counted again."""
    EXTRA = auto()
    """Recorded as in flight, but it was not: it is counted again, or too early."""

    @property
    def wrong(self) -> bool:
        return self is not Role.IN_FLIGHT


class Taken(NamedTuple):
    """A snapshot as it was taken. `incarnation` is told only of ids that were used again after a restart."""

    id: SnapshotId
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.id} of incarnation {self.incarnation}" if self.incarnation else str(self.id)


@dataclass(frozen=True, slots=True)
class Point:
    node: NodeId | None
    """None: a restart, which all nodes share."""
    kind: MarkKind
    step: int
    snapshot: Taken | None = None
    action: Json = None


class Crossing(NamedTuple):
    snapshot: Taken
    role: Role


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message, once for each time that it was received. `start` and `end` are points, by index."""

    channel: Channel
    seq: int
    payload: Json
    start: int | None
    """None: the journal does not say who sent it."""
    end: int | None
    """None: it was not received, in this epoch."""
    lost: bool = False
    again: bool = False
    """It was received before: the channel delivered it twice."""
    crossings: tuple[Crossing, ...] = ()

    @property
    def wrong(self) -> bool:
        return any(crossing.role.wrong for crossing in self.crossings)


@dataclass(frozen=True, slots=True)
class Marker:
    channel: Channel
    snapshot: Taken
    start: int | None
    end: int | None
    first: bool
    """It made its receiver record."""


@dataclass(frozen=True, slots=True)
class CutLine:
    snapshot: Taken
    records: Mapping[NodeId, int]
    """The point at which each node recorded."""
    cut: Cut | None
    """What was recorded; None if the snapshot never became complete."""


@dataclass(frozen=True)
class SpaceTime:
    graph: Graph
    points: tuple[Point, ...]
    arrows: tuple[Arrow, ...]
    markers: tuple[Marker, ...]
    cuts: tuple[CutLine, ...]
    """By their ids."""


class _Send(NamedTuple):
    point: int
    step: int
    payload: Json


@dataclass
class _Epoch:
    """What one incarnation did, by message and by snapshot."""

    sends: dict[tuple[ChannelId, int], _Send] = field(default_factory=dict)
    receives: dict[tuple[ChannelId, int], list[tuple[int, int]]] = field(default_factory=dict)
    """Per message the points and steps that received it."""
    lost: set[tuple[ChannelId, int]] = field(default_factory=set)
    markers: dict[tuple[ChannelId, Taken], int] = field(default_factory=dict)
    marker_ends: dict[tuple[ChannelId, Taken], tuple[int, bool]] = field(default_factory=dict)
    records: dict[Taken, dict[NodeId, tuple[int, int]]] = field(default_factory=dict)
    """Per snapshot and node the point of the recording and the last step that it contains."""
    cuts: dict[Taken, Cut] = field(default_factory=dict)


class _Reader:
    """Turns events into points, in the order of the journal."""

    def __init__(self, reused: frozenset[SnapshotId]) -> None:
        """`reused`: ids that more than one incarnation recorded for."""
        self.reused = reused
        self.points: list[Point] = []
        self.before: list[int | None] = []
        """The point before this one on the same line."""
        self.epochs = [_Epoch()]
        self.restarts: list[int] = []
        self._last: dict[NodeId, int] = {}
        self._arrived: dict[int, tuple[ChannelId, Taken]] = {}

    def read(self, event: Event) -> None:
        epoch = self.epochs[-1]
        match event:
            case Internal(node, step, action):
                self._add(Point(node, MarkKind.IDLE, step, action=action))
            case Received(node, step, channel, seq):
                at = self._add(Point(node, MarkKind.STEP, step))
                epoch.receives.setdefault((channel, seq), []).append((at, step))
            case Sent(node, step, channel, seq, payload):
                epoch.sends[channel, seq] = _Send(self._step(node, step), step, payload)
            case MarkerReceived(node, step, channel, number):
                snapshot = self._taken(number)
                at = self._add(Point(node, MarkKind.MARKER, step, snapshot))
                epoch.marker_ends[channel, snapshot] = at, False
                self._arrived[at] = channel, snapshot
            case Recorded(node, step, number):
                snapshot = self._taken(number)
                at = self._record(node, step, snapshot)
                epoch.records.setdefault(snapshot, {}).setdefault(node, (at, step))
            case MarkerSent(node, step, channel, number):
                snapshot = self._taken(number)
                epoch.markers[channel, snapshot] = self._marker(node, step, snapshot)
            case Lost(channel, seq):
                epoch.lost.add((channel, seq))
            case Crashed(node):
                self._add(Point(node, MarkKind.CRASH, 0))
            case Completed(cut):
                self._complete(cut)
            case Restarted(_, cut):
                self._restart(cut)

    def _taken(self, snapshot: SnapshotId) -> Taken:
        return Taken(snapshot, len(self.epochs) if snapshot in self.reused else 0)

    def _complete(self, cut: Cut) -> None:
        """A merged journal may have the line behind a restart: it belongs to the last incarnation that recorded."""
        for number, epoch in reversed(list(enumerate(self.epochs, 1))):
            taken = Taken(cut.snapshot, number if cut.snapshot in self.reused else 0)
            if taken in epoch.records:
                epoch.cuts[taken] = cut
                return

    def _add(self, point: Point) -> int:
        self.points.append(point)
        at = len(self.points) - 1
        assert point.node is not None
        self.before.append(self._last.get(point.node))
        self._last[point.node] = at
        return at

    def _open(self, node: NodeId) -> tuple[int, Point] | None:
        at = self._last.get(node)
        return None if at is None else (at, self.points[at])

    def _step(self, node: NodeId, step: int) -> int:
        """The point of a step that sends: the one that is open, or a new one."""
        match self._open(node):
            case at, Point(_, MarkKind.STEP | MarkKind.IDLE as kind, number, _, action) if number == step:
                if kind is MarkKind.IDLE:
                    self.points[at] = Point(node, MarkKind.STEP, step, action=action)
                return at
        return self._add(Point(node, MarkKind.STEP, step))

    def _record(self, node: NodeId, step: int, snapshot: Taken) -> int:
        match self._open(node):
            case at, Point(_, MarkKind.MARKER, _, cause) if cause == snapshot and at in self._arrived:
                self.points[at] = Point(node, MarkKind.RECORD, step, snapshot)
                self.epochs[-1].marker_ends[self._arrived[at]] = at, True
                return at
        return self._add(Point(node, MarkKind.RECORD, step, snapshot))

    def _marker(self, node: NodeId, step: int, snapshot: Taken) -> int:
        match self._open(node):
            case at, Point(_, MarkKind.RECORD | MarkKind.MARKER, _, mine) if mine == snapshot:
                return at
        return self._add(Point(node, MarkKind.MARKER, step, snapshot))

    def _restart(self, cut: Cut) -> None:
        self.points.append(Point(None, MarkKind.RESTART, 0, Taken(cut.snapshot)))
        at = len(self.points) - 1
        self.before.append(None)
        self.restarts.append(at)
        self._last = {}
        epoch = _Epoch()
        for channel, content in cut.channels.items():
            for message in content:
                epoch.sends[channel, message.seq] = _Send(at, 0, message.payload)
        self.epochs.append(epoch)


def space_time(journal: Journal) -> SpaceTime:
    reader = _Reader(_reused(journal.events))
    for event in journal.events:
        reader.read(event)
    graph = journal.header.graph
    arrows: list[Arrow] = []
    markers: list[Marker] = []
    cuts: list[CutLine] = []
    for epoch in reader.epochs:
        arrows.extend(_arrows(graph, epoch))
        for channel, snapshot in dict.fromkeys((*epoch.markers, *epoch.marker_ends)):
            end, first = epoch.marker_ends.get((channel, snapshot), (None, False))
            start = epoch.markers.get((channel, snapshot))
            markers.append(Marker(graph.by_id[channel], snapshot, start, end, first))
        for snapshot, records in epoch.records.items():
            points = {node: at for node, (at, _) in records.items()}
            cuts.append(CutLine(snapshot, points, epoch.cuts.get(snapshot)))
    return _in_order(reader, SpaceTime(graph, tuple(reader.points), tuple(arrows), tuple(markers), tuple(cuts)))


def _reused(events: Iterable[Event]) -> frozenset[SnapshotId]:
    epoch, seen, reused = 0, dict[SnapshotId, int](), set[SnapshotId]()
    for event in events:
        if isinstance(event, Restarted):
            epoch += 1
        elif isinstance(event, Recorded) and seen.setdefault(event.snapshot, epoch) != epoch:
            reused.add(event.snapshot)
    return frozenset(reused)


def _arrows(graph: Graph, epoch: _Epoch) -> Iterable[Arrow]:
    recorded = {
        snapshot: Counter((channel, message.seq) for channel, content in cut.channels.items() for message in content)
        for snapshot, cut in epoch.cuts.items()
    }
    for key in dict.fromkeys((*epoch.sends, *epoch.receives)):
        channel, send = graph.by_id[key[0]], epoch.sends.get(key)
        ends: list[tuple[int | None, int | None]] = list(epoch.receives.get(key, ())) or [(None, None)]
        lost = key in epoch.lost and key not in epoch.receives
        crossings: list[list[Crossing]] = [[] for _ in ends]
        for snapshot, records in epoch.records.items() if send else ():
            source, target = records.get(channel.source), records.get(channel.target)
            if send is not None and source is not None and target is not None:
                received = [step is not None and step <= target[1] for _, step in ends]
                held = recorded[snapshot][key] if snapshot in recorded else None
                for at, role in _roles(send.step <= source[1], received, held, lost):
                    crossings[at].append(Crossing(snapshot, role))
        payload, start = (send.payload, send.point) if send else (None, None)
        for number, ((end, _), crossing) in enumerate(zip(ends, crossings, strict=True)):
            yield Arrow(channel, key[1], payload, start, end, lost, number > 0, tuple(crossing))


def _roles(sent: bool, received: list[bool], held: int | None, lost: bool) -> Iterable[tuple[int, Role]]:
    """Which of a message's arrows stands how to a snapshot. `received`: per arrow, whether it was before the cut.
    `held`: how often the snapshot recorded it, None if the snapshot never became complete."""
    early = [at for at, before in enumerate(received) if before]
    late = [at for at, before in enumerate(received) if not before]
    if not sent:
        yield from ((at, Role.BACKWARD) for at in early)
        if held and not early:
            yield 0, Role.EXTRA
    elif held is None:
        if not early and not lost:
            yield late[0], Role.IN_FLIGHT
    elif not early and held <= 1:
        yield late[0], Role.IN_FLIGHT if held else Role.LOST if lost else Role.MISSED
    elif len(early) > 1:
        yield early[1], Role.TWICE
    elif held:
        yield early[0] if early else 0, Role.EXTRA


def _in_order(reader: _Reader, run: SpaceTime) -> SpaceTime:
    """The same run with its points renumbered, so that every point comes after what it depends on."""
    needs: list[list[int]] = [[] if at is None else [at] for at in reader.before]
    links: tuple[Arrow | Marker, ...] = (*run.arrows, *run.markers)
    for link in links:
        if link.start is not None and link.end is not None:
            needs[link.end].append(link.start)
    edges = [*reader.restarts, len(run.points)]
    order: list[int] = []
    start = 0
    for end in edges:
        order.extend(in_causal_order(range(start, end), needs))
        if end < len(run.points):
            order.append(end)
        start = end + 1
    place = {at: i for i, at in enumerate(order)}

    def moved(at: int | None) -> int | None:
        return None if at is None else place[at]

    arrows = [replace(arrow, start=moved(arrow.start), end=moved(arrow.end)) for arrow in run.arrows]
    markers = [replace(marker, start=moved(marker.start), end=moved(marker.end)) for marker in run.markers]
    cuts = [replace(cut, records={n: place[at] for n, at in cut.records.items()}) for cut in run.cuts]
    last = len(order)

    def when(link: Arrow | Marker) -> tuple[int, int, str, int]:
        start, end = (last if at is None else at for at in (link.start, link.end))
        return start, end, link.channel.id, link.seq if isinstance(link, Arrow) else link.snapshot.id

    return SpaceTime(
        run.graph,
        tuple(run.points[at] for at in order),
        tuple(sorted(arrows, key=when)),
        tuple(sorted(markers, key=when)),
        tuple(sorted(cuts, key=lambda cut: (cut.snapshot, min(cut.records.values())))),
    )
