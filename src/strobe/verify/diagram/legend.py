"""The words around the lines: what was left out, a sentence for each snapshot, the meaning of the signs that occur."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from strobe.verify.diagram.layout import Layout
from strobe.verify.diagram.spacetime import Arrow, CutLine, Role, Taken
from strobe.verify.diagram.svg import Box, Canvas, Curve, Spot, text_width, wrap
from strobe.verify.diagram.theme import (
    DASHES,
    DUPLICATE_DASHES,
    FAINT,
    GAP,
    GROUND,
    INK,
    LOST,
    MARKER_DASHES,
    MESSAGE,
    RESTART_DASHES,
    WARNING,
    short,
)

__all__ = ["Legend", "captions", "notes"]

_SIZE = 12.0
_NAMED = 4
"""So many messages of one kind are named in a sentence; of more, the number is told."""


# ── sentences ───────────────────────────────────────────────────────────────────────────────────────────────────────


def notes(layout: Layout, nodes: int) -> list[str]:
    """What the picture leaves out of a run with so many nodes."""
    said = []
    if layout.gaps:
        names = ", ".join(str(cut.snapshot) for cut in layout.cuts)
        around = f", around snapshot{'s' * (len(layout.cuts) > 1)} {names}" if names else ""
        said.append(f"Shown: {len(layout.shown):,} of {layout.total:,} steps{around}.")
    left_out = []
    if layout.hidden_cuts:
        hidden = [str(cut.snapshot) for cut in layout.hidden_cuts]
        named = ", ".join(hidden) if len(hidden) <= 12 else f"{', '.join(hidden[:10])} and {len(hidden) - 10} more"
        left_out.append(f"snapshot{'s' * (len(hidden) > 1)} {named}")
    if layout.hidden_nodes:
        left_out.append(f"{len(layout.hidden_nodes):,} of {nodes:,} nodes with their messages")
    if layout.hidden_markers:
        left_out.append(f"{layout.hidden_markers:,} markers that only closed a channel")
    if left_out:
        said.append(f"Left out: {'; '.join(left_out)}.")
    return said


def captions(
    canvas: Canvas,
    cuts: tuple[CutLine, ...],
    arrows: tuple[Arrow, ...],
    colours: Mapping[Taken, str],
    corner: Spot,
    width: float,
) -> float:
    """A caption for each cut from `corner` down; `arrows` are all of the run's. Gives back where it ended."""
    y = corner.y
    for cut in cuts:
        tint = colours[cut.snapshot]
        sentences = _caption(cut, arrows)
        canvas.box(Box(corner.x, y - 9, corner.x + 10, y + 1), f'fill="{tint}" rx="2"')
        for text, ink in sentences:
            for line in wrap(text, _SIZE, width - 18):
                canvas.text(Spot(corner.x + 18, y), line, f'font-size="12" fill="{ink}"')
                y += 17
        y += 4
    return y


def _caption(cut: CutLine, arrows: tuple[Arrow, ...]) -> list[tuple[str, str]]:
    """Sentences, each with its colour."""
    by_role: dict[Role, list[str]] = {role: [] for role in Role}
    for arrow in arrows:
        for crossing in arrow.crossings:
            if crossing.snapshot == cut.snapshot:
                ends = f"{arrow.channel.source}→{arrow.channel.target}"
                by_role[crossing.role].append(f"{ends} {short(arrow.payload, 24)}".rstrip())
    flight = by_role[Role.IN_FLIGHT]
    faults = [
        (f"{_list(by_role[role])}: {words}.", WARNING)
        for role, words in (
            (Role.BACKWARD, "received before the cut, but sent after it"),
            (Role.MISSED, "in flight across the cut, but not recorded"),
            (Role.LOST, "sent before the cut and dropped by the channel"),
            (Role.TWICE, "received more than once before the cut"),
            (Role.EXTRA, "recorded as in flight, but it was not"),
        )
        if by_role[role]
    ]
    if faults:
        right = [(f"Rightly recorded as in flight: {_list(flight)}.", INK)] if flight else []
        return [(f"Snapshot {cut.snapshot} is wrong.", INK), *faults, *right]
    verdict = "is a consistent cut" if cut.cut else "was never complete"
    return [(f"Snapshot {cut.snapshot} {verdict}, with {_list(flight) or 'nothing'} in flight.", INK)]


def _list(names: list[str]) -> str:
    if len(names) > _NAMED:
        return f"{len(names)} messages"
    return ", ".join(names)


# ── signs ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Legend:
    """Collects which signs were painted."""

    used: dict[str | Role, str] = field(default_factory=dict)

    def note(self, sign: str | Role, tint: str = "") -> None:
        self.used.setdefault(sign, tint)

    def draw(self, canvas: Canvas, corner: Spot, width: float) -> float:
        """In rows from `corner` down; gives back where it ended."""
        x, y = corner
        for sign, (paint, words) in _SIGNS.items():
            if sign not in self.used:
                continue
            size = 44 + text_width(words, _SIZE) + 20
            if x > corner.x and x + size > corner.x + width:
                x, y = corner.x, y + 22
            paint(canvas, Spot(x, y - 4), self.used[sign])
            canvas.text(Spot(x + 42, y), words, f'font-size="12" fill="{FAINT}"')
            x += size
        return y if self.used else corner.y - 22


def _arrow(canvas: Canvas, at: Spot, style: str, tint: str, size: float, head: bool = True) -> None:
    curve = Curve.between(at, Spot(at.x + 34, at.y))
    canvas.curve(curve, f'stroke="{tint}" {style}')
    if head:
        canvas.head(curve, tint, size)


def _message(canvas: Canvas, at: Spot, _: str) -> None:
    _arrow(canvas, at, 'stroke-width="1.2"', MESSAGE, 6.5)


def _marker(canvas: Canvas, at: Spot, tint: str) -> None:
    _arrow(canvas, at, 'stroke-width="1.2"' + MARKER_DASHES, tint, 6)


def _in_flight(canvas: Canvas, at: Spot, tint: str) -> None:
    _arrow(canvas, at, 'stroke-width="2.8"', tint, 9.5)


def _wrong(role: Role) -> Callable[[Canvas, Spot, str], None]:
    def paint(canvas: Canvas, at: Spot, _: str) -> None:
        _arrow(canvas, at, f'stroke-width="2.8"{DASHES[role]}', WARNING, 9.5)

    return paint


def _record(canvas: Canvas, at: Spot, tint: str) -> None:
    x, y = at.x + 17, at.y
    canvas.line(Spot(x, y - 9), Spot(x, y + 9), f'stroke="{tint}" stroke-width="3.5" stroke-opacity="0.5"')
    corners = [Spot(x, y - 6), Spot(x + 6, y), Spot(x, y + 6), Spot(x - 6, y)]
    canvas.polygon(corners, f'fill="{tint}" stroke="{GROUND}" stroke-width="1.2"')


def _state(canvas: Canvas, at: Spot, tint: str) -> None:
    canvas.text(
        Spot(at.x + 17, at.y + 4), "12", f'font-size="11.5" font-weight="700" fill="{tint}" text-anchor="middle"'
    )


def _idle(canvas: Canvas, at: Spot, _: str) -> None:
    canvas.circle(Spot(at.x + 17, at.y), 3, f'fill="{GROUND}" stroke="{INK}" stroke-width="1.3"')


def _pending(canvas: Canvas, at: Spot, _: str) -> None:
    _arrow(canvas, at, 'stroke-width="1.2"', MESSAGE, 0, head=False)
    canvas.circle(Spot(at.x + 34, at.y), 2.6, f'fill="{GROUND}" stroke="{MESSAGE}" stroke-width="1.2"')


def _cut_off(canvas: Canvas, at: Spot, tint: str) -> None:
    canvas.box(Box(at.x + 22, at.y - 8, at.x + 34, at.y + 8), f'fill="{GAP}"')
    _arrow(canvas, Spot(at.x - 8, at.y), 'stroke-width="1.2"', tint, 0, head=False)


def _cross(canvas: Canvas, x: float, y: float, tint: str, size: float, width: float) -> None:
    style = f'stroke="{tint}" stroke-width="{width}"'
    canvas.line(Spot(x - size, y - size), Spot(x + size, y + size), style)
    canvas.line(Spot(x - size, y + size), Spot(x + size, y - size), style)


def _lost(canvas: Canvas, at: Spot, _: str) -> None:
    _arrow(canvas, at, 'stroke-width="1.2"', LOST, 0, head=False)
    _cross(canvas, at.x + 32, at.y, LOST, 4, 2)


def _again(canvas: Canvas, at: Spot, _: str) -> None:
    _arrow(canvas, at, 'stroke-width="1.2"' + DUPLICATE_DASHES, MESSAGE, 6.5)


def _crash(canvas: Canvas, at: Spot, _: str) -> None:
    _cross(canvas, at.x + 17, at.y, WARNING, 5, 3)


def _restart(canvas: Canvas, at: Spot, _: str) -> None:
    style = f'stroke="{INK}" stroke-width="1.6"{RESTART_DASHES}'
    canvas.line(at, Spot(at.x + 34, at.y), style)


_SIGNS: Mapping[str | Role, tuple[Callable[[Canvas, Spot, str], None], str]] = {
    "message": (_message, "message"),
    "marker": (_marker, "marker"),
    "record": (_record, "recording and cut"),
    "state": (_state, "recorded state"),
    Role.IN_FLIGHT: (_in_flight, "in flight at the cut, and recorded"),
    Role.BACKWARD: (_wrong(Role.BACKWARD), "received before the cut, sent after it"),
    Role.MISSED: (_wrong(Role.MISSED), "in flight, but not recorded"),
    Role.LOST: (_wrong(Role.LOST), "lost before the cut"),
    Role.TWICE: (_wrong(Role.TWICE), "received again before the cut"),
    Role.EXTRA: (_wrong(Role.EXTRA), "recorded, but not in flight"),
    "idle": (_idle, "step without a message"),
    "cut off": (_cut_off, "other end left out"),
    "pending": (_pending, "not received"),
    "lost": (_lost, "lost by the channel"),
    "again": (_again, "received once more"),
    "crash": (_crash, "crash"),
    "restart": (_restart, "restart from a snapshot"),
}
