"""Which part of a run a diagram shows, and in which column each point stands.

Theory
------
A picture has room for so many points and no more. When a run has more, those nearest to the recordings (in the order of
the run) stay, and every stretch that is left out becomes one *gap* with its own column, so that nobody takes two
distant steps for neighbours. Ends of messages that break law 1 count as recordings: they are what one looks for.

Columns: a point stands right of the point before it on its line and of the sends and markers that it received. It may
also share a column with concurrent points, but never stands more than `SLACK` columns left of a point that came before
it in the run: the picture is compact and still looks like the run's own time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from strobe.model.ids import NodeId
from strobe.verify.diagram.spacetime import Arrow, CutLine, Marker, MarkKind, SpaceTime

__all__ = ["Gap", "Layout", "lay_out"]

SLACK = 1
"""How far left of its predecessor in the run a concurrent point may stand."""
MAX_NODES = 24
MAX_MARKERS = 40
"""With more, markers that only closed a channel are left out: they are many, and the cut is drawn anyway."""
SMALLEST_GAP = 4
"""A gap takes the room of about this many points."""


@dataclass(frozen=True, slots=True)
class Gap:
    column: int
    points: int
    """So many were left out here."""


@dataclass(frozen=True)
class Layout:
    nodes: tuple[NodeId, ...]
    columns: int
    column: Mapping[int, int]
    """By point. Points in a gap have the gap's column."""
    shown: tuple[int, ...]
    """The points that are drawn."""
    gaps: tuple[Gap, ...]
    total: int
    arrows: tuple[Arrow, ...]
    markers: tuple[Marker, ...]
    cuts: tuple[CutLine, ...]
    hidden_nodes: tuple[NodeId, ...]
    hidden_cuts: tuple[CutLine, ...]
    hidden_markers: int


def lay_out(run: SpaceTime, max_events: int) -> Layout:
    nodes = _nodes(run)
    inside = frozenset(nodes)
    arrows = [a for a in run.arrows if a.channel.source in inside and a.channel.target in inside]
    markers = [m for m in run.markers if m.channel.source in inside and m.channel.target in inside]
    points = [i for i, p in enumerate(run.points) if p.node is None or p.node in inside]
    hidden_markers = 0
    if len(markers) > MAX_MARKERS:
        closing = [m for m in markers if not m.first]
        hidden_markers = len(closing)
        markers = [m for m in markers if m.first]
        dropped = {m.end for m in closing if m.end is not None and run.points[m.end].kind is MarkKind.MARKER}
        points = [i for i in points if i not in dropped]
    cuts = list(run.cuts)
    if len(points) > max_events:
        cuts = _chosen_cuts(run, arrows, max_events, len(nodes))
    shown = _window(points, _anchors(arrows, cuts, points), max_events)
    column, gaps, columns = _columns(run, arrows, markers, points, shown)
    visible = frozenset(shown)

    def drawn(link: Arrow | Marker) -> bool:
        return (link.start in visible or link.end in visible) or (
            isinstance(link, Arrow) and any(c.snapshot in chosen for c in link.crossings)
        )

    chosen = {cut.snapshot for cut in cuts}
    return Layout(
        nodes,
        columns,
        column,
        tuple(shown),
        gaps,
        len(points),
        tuple(a for a in arrows if drawn(a)),
        tuple(m for m in markers if m.start in visible or m.end in visible),
        tuple(cuts),
        tuple(n for n in run.graph.nodes if n not in inside),
        tuple(cut for cut in run.cuts if cut not in cuts),
        hidden_markers,
    )


def _nodes(run: SpaceTime) -> tuple[NodeId, ...]:
    """All nodes, or the most telling ones: at the ends of wrong messages, then of those in flight, then the first."""
    if len(run.graph.nodes) <= MAX_NODES:
        return run.graph.nodes
    ends = [
        node
        for arrow in sorted((a for a in run.arrows if a.crossings), key=lambda a: not a.wrong)
        for node in (arrow.channel.source, arrow.channel.target)
    ]
    chosen = frozenset(list(dict.fromkeys((*ends, *run.graph.nodes)))[:MAX_NODES])
    return tuple(node for node in run.graph.nodes if node in chosen)


def _chosen_cuts(run: SpaceTime, arrows: Iterable[Arrow], max_events: int, nodes: int) -> list[CutLine]:
    """As many snapshots as can have some surroundings drawn; those that break law 1 first."""
    wrong = {c.snapshot for a in arrows for c in a.crossings if c.role.wrong}
    room = max(1, max_events // (5 * nodes))
    chosen = sorted(run.cuts, key=lambda cut: cut.snapshot not in wrong)[:room]
    return [cut for cut in run.cuts if cut in chosen]


def _anchors(arrows: Iterable[Arrow], cuts: Iterable[CutLine], points: list[int]) -> list[int]:
    """The points that a window must surround."""
    chosen = {cut.snapshot for cut in cuts}
    anchors = {at for cut in cuts for at in cut.records.values()}
    for arrow in arrows:
        if any(c.snapshot in chosen and c.role.wrong for c in arrow.crossings):
            anchors.update(at for at in (arrow.start, arrow.end) if at is not None)
    return sorted(anchors.intersection(points)) or points[:1]


def _window(points: list[int], anchors: list[int], max_events: int) -> list[int]:
    if len(points) <= max_events:
        return points
    place = {at: i for i, at in enumerate(points)}
    distance = [len(points)] * len(points)
    for sweep in (range(len(points)), range(len(points) - 1, -1, -1)):
        marks = {place[at] for at in anchors}
        far = len(points)
        for i in sweep:
            far = 0 if i in marks else far + 1
            distance[i] = min(distance[i], far)
    nearest = sorted(range(len(points)), key=lambda i: (distance[i], i))[:max_events]
    kept = sorted(nearest)
    filled = list[int]()
    for i in kept:
        missing = i - (filled[-1] if filled else -1) - 1
        if 0 < missing < SMALLEST_GAP:
            filled.extend(range(i - missing, i))
        filled.append(i)
    if len(points) - 1 - filled[-1] < SMALLEST_GAP:
        filled.extend(range(filled[-1] + 1, len(points)))
    return [points[i] for i in filled]


def _columns(
    run: SpaceTime, arrows: Iterable[Arrow], markers: Iterable[Marker], points: list[int], shown: list[int]
) -> tuple[dict[int, int], tuple[Gap, ...], int]:
    causes: dict[int, list[int]] = {}
    links: tuple[Arrow | Marker, ...] = (*arrows, *markers)
    for link in links:
        if link.start is not None and link.end is not None:
            causes.setdefault(link.end, []).append(link.start)
    visible = frozenset(shown)
    column: dict[int, int] = {}
    gaps: list[Gap] = []
    last: dict[NodeId, int] = {}
    floor = newest = 0
    skipped: list[int] = []

    def close_gap() -> None:
        nonlocal floor, newest
        if skipped:
            at = newest + 1 if column else 0
            gaps.append(Gap(at, len(skipped)))
            column.update(dict.fromkeys(skipped, at))
            skipped.clear()
            newest, floor = at, at + 1

    for at in points:
        if at not in visible:
            skipped.append(at)
            continue
        close_gap()
        node = run.points[at].node
        if node is None:
            column[at] = newest = newest + 1
            floor = newest + 1
            continue
        after = [last.get(node, -1), *(column[cause] for cause in causes.get(at, ()) if cause in column)]
        column[at] = max(floor, newest - SLACK, max(after) + 1)
        last[node] = column[at]
        newest = max(newest, column[at])
    close_gap()
    return column, tuple(gaps), newest + 1
