"""Paints the diagram, from the back to the front. See the package for what it shows."""

from __future__ import annotations

from collections.abc import Iterable

from strobe.model.cut import Json
from strobe.model.ids import NodeId
from strobe.verify.diagram.labels import Labels
from strobe.verify.diagram.layout import Layout, lay_out
from strobe.verify.diagram.legend import Legend, captions, notes
from strobe.verify.diagram.plan import Plan, Way
from strobe.verify.diagram.spacetime import Arrow, MarkKind, SpaceTime, Taken, space_time
from strobe.verify.diagram.svg import Box, Canvas, Curve, Spot, number, text_width
from strobe.verify.diagram.theme import (
    DASHES,
    DUPLICATE_DASHES,
    FAINT,
    GAP,
    GROUND,
    INK,
    LINE,
    LOST,
    MARKER_DASHES,
    MESSAGE,
    RESTART_DASHES,
    WARNING,
    headline,
    short,
)
from strobe.verify.journal import Header, Journal

__all__ = ["render"]

_DOTTED = ' stroke-dasharray="1 5" stroke-linecap="round"'


def render(journal: Journal, *, title: str | None = None, max_events: int = 120) -> str:
    """The diagram of `journal`, as SVG. At most about `max_events` points are drawn, those around the snapshots."""
    run = space_time(journal)
    layout = lay_out(run, max(1, max_events))
    return _Drawing(run, layout, _title(journal.header) if title is None else title).draw()


def _title(header: Header) -> str:
    seed = "" if header.seed is None else f", seed {header.seed}"
    count = len(header.graph.nodes)
    return f"{header.workload}: {count} node{'s' * (count != 1)}, {header.protocol}, {header.order} channels{seed}"


class _Drawing:
    def __init__(self, run: SpaceTime, layout: Layout, title: str) -> None:
        self.run, self.layout, self.title = run, layout, title
        self.notes = notes(layout, len(run.graph.nodes))
        self.plan = Plan(run, layout, 52 + 17 * len(self.notes))
        self.canvas = Canvas()
        self.labels = Labels()
        self.legend = Legend()

    def draw(self) -> str:
        self._past()
        self._gaps()
        self._lanes()
        self._markers()
        ways = [(arrow, way) for arrow in self.layout.arrows if (way := self.plan.way(arrow)) is not None]
        self._messages(ways)
        self._cuts()
        self._highlights(ways)
        self._points()
        self._gap_words()
        self._node_names()
        self._states()
        self._payloads(ways)
        self._pills()
        return self._document()

    # ── the ground ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _past(self) -> None:
        """A tint over what the snapshot contains, where there is only one."""
        if len(self.layout.cuts) == 1 and self.layout.cuts[0].snapshot in self.plan.pills:
            cut = self.layout.cuts[0]
            edge = number(self.plan.left - 4)
            floor, ceiling = number(self.plan.ground), number(self.plan.ceiling)
            path = f"{self.plan.cut_path(cut)}L{edge} {floor}L{edge} {ceiling}Z"
            self.canvas.path(path, f'fill="{self.plan.colours[cut.snapshot]}" fill-opacity="0.055"')

    def _gaps(self) -> None:
        for gap in self.layout.gaps:
            x, half = self.plan.column_x(gap.column), min(13.0, self.plan.column_width * 0.45)
            box = Box(x - half, self.plan.ceiling, x + half, self.plan.ground)
            self.canvas.box(box, f'fill="{GAP}"', f"{gap.points:,} steps left out")
            self.labels.solid.append(box)

    def _gap_words(self) -> None:
        plan = self.plan
        for gap in self.layout.gaps:
            middle = Spot(plan.column_x(gap.column) + 4, (plan.ceiling + plan.ground) / 2)
            style = f'transform="rotate(-90 {number(middle.x)} {number(middle.y)})" font-size="11" text-anchor="middle"'
            halo = f'paint-order="stroke" stroke="{GAP}" stroke-width="4" stroke-linejoin="round"'
            self.canvas.text(middle, f"{gap.points:,} left out", f'fill="{FAINT}" {style} {halo}')

    def _lanes(self) -> None:
        """Dotted while the node is down, from its crash to the restart."""
        for node, y in self.plan.lanes.items():
            turns = [(self.plan.left, True)]
            for at in self.layout.shown:
                point = self.run.points[at]
                if point.kind is MarkKind.RESTART or (point.kind is MarkKind.CRASH and point.node == node):
                    turns.append((self.plan.x(at), point.kind is MarkKind.RESTART))
            ends = [x for x, _ in turns[1:]] + [self.plan.right]
            for (start, up), end in zip(turns, ends, strict=True):
                style = f'stroke="{LINE}" stroke-width="1.5"{"" if up else _DOTTED}'
                self.canvas.line(Spot(start, y), Spot(end, y), style)
            self.labels.solid.append(Box(0, y - 2.5, self.plan.width, y + 2.5))

    def _node_names(self) -> None:
        for node, y in self.plan.lanes.items():
            style = f'font-size="13" font-weight="600" fill="{INK}" text-anchor="end"'
            self.canvas.text(Spot(self.plan.left - 10, y + 4.5), node, style)

    # ── arrows and cuts ─────────────────────────────────────────────────────────────────────────────────────────────

    def _markers(self) -> None:
        for marker in self.layout.markers:
            way = self.plan.way(marker)
            if way is None:
                continue
            tint = self.plan.colours.get(marker.snapshot, FAINT)
            title = f"marker of snapshot {marker.snapshot}, {marker.channel.source}→{marker.channel.target}"
            style = f'stroke="{tint}" stroke-width="1.2" stroke-opacity="0.75"{MARKER_DASHES}'
            self.canvas.curve(way.curve, style, title)
            if way.arrives:
                self.canvas.head(way.curve, tint, 6)
            self.labels.add_line(way.curve.spots())
            self.legend.note("marker", tint)

    def _messages(self, ways: Iterable[tuple[Arrow, Way]]) -> None:
        for arrow, way in ways:
            self.labels.add_line(way.curve.spots())
            if self.plan.tints(arrow):
                continue
            tint = LOST if arrow.lost else MESSAGE
            dashes = DUPLICATE_DASHES if arrow.again else ""
            self.canvas.curve(way.curve, f'stroke="{tint}" stroke-width="1.2"{dashes}', _describe(arrow))
            self._end(arrow, way, tint, 6.5)
            self.legend.note("again" if arrow.again else "message")

    def _highlights(self, ways: Iterable[tuple[Arrow, Way]]) -> None:
        for arrow, way in ways:
            tints = self.plan.tints(arrow)
            if not tints:
                continue
            title = _describe(arrow)
            self.canvas.curve(way.curve, f'stroke="{GROUND}" stroke-width="5" stroke-opacity="0.85"')
            self.canvas.curve(way.curve, f'stroke="{tints[0]}" stroke-width="2.8"{_wrong_dashes(arrow)}', title)
            for i, tint in enumerate(tints[1:], 1):  # in flight at several cuts: striped in their colours
                dashes = f'stroke-dasharray="7 {7 * (len(tints) - 1)}" stroke-dashoffset="{7 * i}"'
                self.canvas.curve(way.curve, f'stroke="{tint}" stroke-width="2.8" {dashes}', title)
            self._end(arrow, way, tints[0], 9.5)
            for crossing in arrow.crossings:
                self.legend.note(crossing.role, self.plan.colours[crossing.snapshot])

    def _end(self, arrow: Arrow, way: Way, tint: str, size: float) -> None:
        if not way.whole:
            self.legend.note("cut off", tint)
        if way.arrives:
            self.canvas.head(way.curve, tint, size)
        elif arrow.lost:
            x, y = way.curve.end
            cross = f"M{number(x - 4)} {number(y - 4)}l8 8m0 -8l-8 8"
            self.canvas.path(cross, f'fill="none" stroke="{LOST}" stroke-width="2"', _describe(arrow))
            self.labels.solid.append(Box(x - 5, y - 5, x + 5, y + 5))
            self.legend.note("lost")
        elif arrow.end is None:
            self.canvas.circle(way.curve.end, 2.6, f'fill="{GROUND}" stroke="{tint}" stroke-width="1.2"')
            self.legend.note("pending")

    def _cuts(self) -> None:
        for cut in self.layout.cuts:
            if cut.snapshot in self.plan.pills:
                tint = self.plan.colours[cut.snapshot]
                style = f'fill="none" stroke="{tint}" stroke-width="3.5" stroke-opacity="0.5"'
                title = f"the cut of {self.plan.pills[cut.snapshot].name}"
                self.canvas.path(self.plan.cut_path(cut), style + ("" if cut.cut else _DOTTED), title)
                self.labels.add_line(self.plan.cut_spots(cut))

    # ── points ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _points(self) -> None:
        for at in self.layout.shown:
            point = self.run.points[at]
            if point.node is None:
                self._restart(self.plan.x(at), point.snapshot)
                continue
            x, y = spot = self.plan.spot(at, point.node)
            tint = FAINT if point.snapshot is None else self.plan.colours.get(point.snapshot, FAINT)
            reach = 4.5
            match point.kind:
                case MarkKind.RECORD:
                    reach = 7.0
                    corners = [Spot(x, y - 7), Spot(x + 7, y), Spot(x, y + 7), Spot(x - 7, y)]
                    title = f"{point.node} records for snapshot {point.snapshot}, after step {point.step}"
                    state = self._state(point.node, point.snapshot)
                    title += "" if state is None else f": {short(state, 200)}"
                    self.canvas.polygon(corners, f'fill="{tint}" stroke="{GROUND}" stroke-width="1.5"', title)
                    self.legend.note("record", tint)
                case MarkKind.MARKER:
                    title = f"{point.node} gets a marker of snapshot {point.snapshot}"
                    self.canvas.circle(spot, 2.8, f'fill="{GROUND}" stroke="{tint}" stroke-width="1.5"', title)
                case MarkKind.CRASH:
                    reach = 7.0
                    cross = f"M{number(x - 6)} {number(y - 6)}l12 12m0 -12l-12 12"
                    style = f'fill="none" stroke="{WARNING}" stroke-width="3"'
                    self.canvas.path(cross, style, f"{point.node} crashes")
                    self.legend.note("crash")
                case _:
                    hollow = point.kind is MarkKind.IDLE
                    fill = f'fill="{GROUND}" stroke="{INK}"' if hollow else f'fill="{INK}" stroke="{GROUND}"'
                    action = short(point.action, 60)
                    title = f"{point.node}, step {point.step}" + (f": {action}" if action else "")
                    self.canvas.circle(spot, 3.0 if hollow else 3.8, f'{fill} stroke-width="1.3"', title)
                    if hollow:
                        self.legend.note("idle")
            self.labels.solid.append(Box(x - reach, y - reach, x + reach, y + reach))

    def _state(self, node: NodeId, snapshot: Taken | None) -> Json:
        """What the node recorded, or None."""
        cuts = (cut.cut for cut in self.run.cuts if cut.snapshot == snapshot and cut.cut is not None)
        return next((cut.states.get(node) for cut in cuts), None)

    def _restart(self, x: float, snapshot: Taken | None) -> None:
        top, bottom = Spot(x, self.plan.ceiling), Spot(x, self.plan.ground)
        source = f"snapshot {snapshot}" if snapshot and snapshot.id else "the initial state"
        style = f'stroke="{INK}" stroke-width="1.6"{RESTART_DASHES}'
        self.canvas.line(top, bottom, style, f"everything starts again from {source}")
        words = Spot(x + 5, bottom.y - 3)
        self.canvas.text(words, f"from {source}", f'font-size="11" fill="{FAINT}"')
        self.labels.solid.append(Box(x - 3, top.y, x + 3, bottom.y))
        self.labels.solid.append(Box(x, words.y - 10, x + 5 + text_width(f"from {source}", 11), words.y + 3))
        self.legend.note("restart")

    # ── labels, the most important first ────────────────────────────────────────────────────────────────────────────

    def _label(self, spot: Spot, text: str, tint: str, size: float, bold: bool) -> None:
        weight = ' font-weight="700"' if bold else ""
        halo = f'paint-order="stroke" stroke="{GROUND}" stroke-width="3" stroke-linejoin="round"'
        style = f'font-size="{number(size)}" fill="{tint}" text-anchor="middle"{weight} {halo}'
        self.canvas.text(Spot(spot.x, spot.y + size * 0.36), text, style)

    def _states(self) -> None:
        for cut in self.layout.cuts:
            for node, at in cut.records.items():
                text = headline(self._state(node, cut.snapshot))
                if not text or at not in self.plan.shown or node not in self.plan.lanes:
                    continue
                width = text_width(text, 11.5) + 4
                x, y = self.plan.spot(at, node)
                sides = [Spot(x + dx * (width / 2 + 5), y + dy) for dy in (14, -14) for dx in (1, -1)]
                place = self.labels.place(sides, width, 13, 3)
                if place is not None:
                    self._label(place, text, self.plan.colours[cut.snapshot], 11.5, True)
                    self.legend.note("state", self.plan.colours[cut.snapshot])

    def _payloads(self, ways: Iterable[tuple[Arrow, Way]]) -> None:
        """What is wrong is labelled first and may cover lines; a plain message is labelled where there is room."""
        for arrow, way in sorted(ways, key=lambda entry: (not entry[0].wrong, not self.plan.tints(entry[0]))):
            tints = self.plan.tints(arrow)
            wrong = bool(tints) and tints[0] == WARNING
            text = short(arrow.payload, 14 if tints else 8) if arrow.start is not None else ""
            text = f"! {text}".rstrip() if wrong else text
            if not text:
                continue
            size = 12.0 if tints else 10.5
            width, height = text_width(text, size) + 3, size + 1
            most = 8.0 if wrong else 3.0 if tints else 0.0
            place = self.labels.place(_beside(way.curve, width, height), width, height, most)
            if place is not None:
                self._label(place, text, tints[0] if tints else MESSAGE, size, bool(tints))

    def _pills(self) -> None:
        for snapshot, pill in self.plan.pills.items():
            bottom = self.plan.ceiling - 3 - 24 * (self.plan.pill_rows - 1 - pill.row)
            tint = self.plan.colours[snapshot]
            stem = f'stroke="{tint}" stroke-width="3.5" stroke-opacity="0.5"'
            self.canvas.line(Spot(pill.x, bottom), Spot(pill.x, self.plan.ceiling), stem)
            self.canvas.box(Box(pill.left, bottom - 20, pill.right, bottom), f'rx="10" fill="{tint}"')
            style = f'font-size="12" font-weight="600" fill="{GROUND}" text-anchor="middle"'
            self.canvas.text(Spot((pill.left + pill.right) / 2, bottom - 6), pill.name, style)

    def _document(self) -> str:
        page, width = Canvas(), self.plan.width
        y = self.plan.ground + 26
        y = captions(page, self.layout.cuts, self.run.arrows, self.plan.colours, Spot(16, y), width - 32)
        height = self.legend.draw(page, Spot(16, y + 6), width - 32) + 14
        ground = Canvas()
        ground.box(Box(0, 0, width, height), f'fill="{GROUND}"')
        ground.text(Spot(16, 28), self.title, f'font-size="16" font-weight="700" fill="{INK}"')
        for i, note in enumerate(self.notes):
            ground.text(Spot(16, 48 + 17 * i), note, f'font-size="12" fill="{FAINT}"')
        return Canvas(ground.elements + self.canvas.elements + page.elements).document(width, height, self.title)


def _describe(arrow: Arrow) -> str:
    text = f"{arrow.channel.source}→{arrow.channel.target}, message {arrow.seq}: {short(arrow.payload, 60)}"
    if arrow.lost:
        text += ", lost"
    elif arrow.end is None:
        text += ", never received"
    return text + (", received once more" if arrow.again else "")


def _wrong_dashes(arrow: Arrow) -> str:
    """A stroke of its own for each way to be wrong; the worst one counts."""
    roles = sorted((crossing.role for crossing in arrow.crossings if crossing.role.wrong), key=lambda role: role.value)
    return DASHES[roles[0]] if roles else ""


def _beside(curve: Curve, width: float, height: float) -> Iterable[Spot]:
    """Centres for a label next to a curve, from its middle outwards."""
    dx, dy = (curve.end.x - curve.start.x) / curve.length, (curve.end.y - curve.start.y) / curve.length
    off = abs(dy) * width / 2 + abs(dx) * height / 2 + 2.5
    for t in (0.5, 0.4, 0.6, 0.3, 0.7, 0.22, 0.78, 0.15, 0.85):
        on = curve.at(t)
        for side in (1, -1):
            yield Spot(on.x - side * dy * off, on.y + side * dx * off)
