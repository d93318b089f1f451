"""Where everything in a diagram stands, in pixels: columns and lines, the ways of arrows and of cuts.

An arrow is bent when, straight, it would touch a point of a node that it does not concern. A cut stands upright at each
line, so that one sees which points are before it and which after.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from strobe.model.ids import NodeId
from strobe.verify.diagram.layout import Layout
from strobe.verify.diagram.spacetime import Arrow, CutLine, Marker, SpaceTime, Taken
from strobe.verify.diagram.svg import Box, Curve, Spot, number, text_width
from strobe.verify.diagram.theme import WARNING, colour

__all__ = ["Pill", "Plan", "Way"]

_BENDS = (0.0, 9.0, -9.0, 18.0, -18.0, 28.0, -28.0)
_CLEARANCE = 7.0
"""How near an arrow may pass a point that it does not concern."""
_STUB = 34.0
"""So much of an arrow is drawn when its other end is left out."""
_CROWD = 16
"""With more highlighted messages than this, those with an end left out become stubs as well."""
_UPRIGHT = 0.55
"""How firmly a cut stands upright at a line: the pull of its curve's inner points."""
_MARGIN = 0.42
"""Room above the first line and below the last, in distances between lines."""


class Way(NamedTuple):
    curve: Curve
    arrives: bool
    """It ends at a point, with an arrowhead."""
    whole: bool
    """Neither end was left out of the picture."""


@dataclass(frozen=True, slots=True)
class Pill:
    """The name of a snapshot, at the top of its cut, where it covers no other."""

    name: str
    x: float
    """Where the cut begins."""
    left: float
    right: float
    row: int


class Plan:
    def __init__(self, run: SpaceTime, layout: Layout, head: float) -> None:
        """`head` is the height that title and notes take."""
        count = len(layout.nodes)
        self.run, self.layout = run, layout
        self.column_width = min(96.0, max(25.0, 1060 / max(1, layout.columns)))
        self.lane = 118.0 if count <= 2 else 92.0 if count <= 4 else 74.0 if count <= 8 else 60.0
        self.left = 30 + max(text_width(node, 13) for node in layout.nodes)
        self.right = self.left + layout.columns * self.column_width + 14
        self.width = max(680.0, self.right + 26)
        self.pills = self._pills()
        self.pill_rows = 1 + max((pill.row for pill in self.pills.values()), default=-1)
        self.top = head + 24 * self.pill_rows + self.lane * _MARGIN
        self.lanes = {node: self.top + i * self.lane for i, node in enumerate(layout.nodes)}
        self.ceiling = self.top - self.lane * _MARGIN
        self.ground = self.top + (count - 1 + _MARGIN) * self.lane
        self.colours: Mapping[Taken, str] = {cut.snapshot: colour(i) for i, cut in enumerate(run.cuts)}
        self.shown = frozenset(layout.shown)
        self._drawn_cuts = frozenset(cut.snapshot for cut in layout.cuts)
        self._crowded = sum(bool(self.tints(arrow)) for arrow in layout.arrows) > _CROWD
        self._on_lane: dict[NodeId, list[float]] = {node: [] for node in layout.nodes}
        for at in layout.shown:
            node = run.points[at].node
            if node is not None:
                self._on_lane[node].append(self.x(at))

    def column_x(self, column: float) -> float:
        return self.left + (column + 0.6) * self.column_width

    def x(self, at: int) -> float:
        return self.column_x(self.layout.column[at])

    def spot(self, at: int, node: NodeId) -> Spot:
        return Spot(self.x(at), self.lanes[node])

    def tints(self, arrow: Arrow) -> tuple[str, ...]:
        """The colours in which a message is highlighted: none for most."""
        drawn = [crossing for crossing in arrow.crossings if crossing.snapshot in self._drawn_cuts]
        if any(crossing.role.wrong for crossing in drawn):
            return (WARNING,)
        return tuple(self.colours[crossing.snapshot] for crossing in drawn)

    # ── cuts ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _records(self, cut: CutLine) -> list[tuple[NodeId, int]]:
        return [(node, cut.records[node]) for node in self.layout.nodes if node in cut.records]

    def _pills(self) -> dict[Taken, Pill]:
        rows: list[list[Box]] = []
        pills = {}
        for cut in self.layout.cuts:
            records = self._records(cut)
            if not records:
                continue
            name = f"snapshot {cut.snapshot}" + ("" if cut.cut else ", not complete")
            half = text_width(name, 13) / 2 + 8
            x = self.x(records[0][1])
            middle = min(max(x, half + 8), self.width - half - 8)
            box = Box(middle - half - 3, 0, middle + half + 3, 1)
            row = next((i for i, taken in enumerate(rows) if not any(box.hits(b) for b in taken)), len(rows))
            if row == len(rows):
                rows.append([])
            rows[row].append(box)
            pills[cut.snapshot] = Pill(name, x, middle - half, middle + half, row)
        return pills

    def _cut_way(self, cut: CutLine) -> tuple[Spot, ...]:
        """From the top, through each recording, to the bottom."""
        spots = [self.spot(at, node) for node, at in self._records(cut)]
        return Spot(spots[0].x, self.ceiling), *spots, Spot(spots[-1].x, self.ground)

    def cut_path(self, cut: CutLine) -> str:
        way = self._cut_way(cut)
        path = f"M{number(way[0].x)} {number(way[0].y)}"
        for a, b in pairwise(way):
            pull = (b.y - a.y) * _UPRIGHT
            path += f"C{number(a.x)} {number(a.y + pull)} {number(b.x)} {number(b.y - pull)} "
            path += f"{number(b.x)} {number(b.y)}"
        return path

    def cut_spots(self, cut: CutLine) -> Iterable[Spot]:
        for start, end in pairwise(self._cut_way(cut)):
            count = 4 + int(abs(end.x - start.x) / 4)
            for i in range(count + 1):
                t = i / count
                a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
                y = start.y + (b * _UPRIGHT + c * (1 - _UPRIGHT) + d) * (end.y - start.y)
                yield Spot((a + b) * start.x + (c + d) * end.x, y)

    # ── arrows ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def way(self, link: Arrow | Marker) -> Way | None:
        """None if nothing of it is to be seen: both ends are left out at the same place."""
        source, target = link.channel.source, link.channel.target
        start = self.spot(link.start, source) if link.start is not None else None
        end = self.spot(link.end, target) if link.end is not None else None
        if start is not None and end is not None:
            if start.x == end.x:
                return None
            curve = self._route(source, target, start, end)
            whole = link.start in self.shown and link.end in self.shown
            important = isinstance(link, Arrow) and bool(self.tints(link)) and not self._crowded
            if whole or important:
                return Way(curve.shortened(4, 5), True, whole)
            stub = min(1.0, _STUB / curve.length)
            if link.start in self.shown:
                return Way(curve.part(0, stub), False, False)
            return Way(curve.part(1 - stub, 1).shortened(0, 5), True, False)
        aside = self.column_width * 0.9
        if start is not None:
            far = Spot(start.x + aside, start.y - self.lane * 0.8 if source == target else self.lanes[target])
            curve = Curve.between(start, far)
            return Way(curve.part(0, self._half(curve)).shortened(4, 0), False, True)
        if end is not None:
            far = Spot(end.x - aside, end.y - self.lane * 0.8 if source == target else self.lanes[source])
            curve = Curve.between(far, end)
            return Way(curve.part(1 - self._half(curve), 1).shortened(0, 5), True, True)
        return None

    def _half(self, curve: Curve) -> float:
        return min(0.5, self.lane * 0.6 / curve.length)

    def _route(self, source: NodeId, target: NodeId, start: Spot, end: Spot) -> Curve:
        """A curve past the points of the nodes between; a message to oneself makes an arc over the line."""
        if source == target:
            return Curve(start, Spot((start.x + end.x) / 2, start.y - self.lane * 0.62), end)
        between = [
            (y, self._on_lane[node]) for node, y in self.lanes.items() if min(start.y, end.y) < y < max(start.y, end.y)
        ]
        best: tuple[int, Curve] | None = None
        for bend in _BENDS:
            curve = Curve.between(start, end, bend)
            touched = sum(
                abs(spot.x - x) < _CLEARANCE
                for spot in curve.spots(3.0)
                for y, points in between
                if abs(spot.y - y) < 4
                for x in points
            )
            if best is None or touched < best[0]:
                best = touched, curve
            if touched == 0:
                break
        assert best is not None
        return best[1]
