"""Drawing primitives: shapes as SVG text, widths of words, curves.

The same shapes give the same bytes: numbers are rounded to a tenth, and nothing depends on hashes or on the machine.
Fonts differ between viewers, so widths are estimates on the generous side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

__all__ = ["Box", "Canvas", "Curve", "Spot", "number", "text_width", "wrap"]

_NARROW = frozenset("fijlrtI.,:;'!|()[]{} ·")
_WIDE = frozenset("mwMW→—…@%")


class Spot(NamedTuple):
    x: float
    y: float


class Box(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def hits(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def holds(self, spot: Spot) -> bool:
        return self.left < spot.x < self.right and self.top < spot.y < self.bottom


def number(value: float) -> str:
    text = f"{value:.1f}"
    text = text[:-2] if text.endswith(".0") else text
    return "0" if text == "-0" else text


def text_width(text: str, size: float) -> float:
    return size * sum(0.36 if c in _NARROW else 0.92 if c in _WIDE else 0.62 for c in text)


def wrap(text: str, size: float, width: float) -> list[str]:
    lines: list[str] = []
    for word in text.split(" "):
        if lines and text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


@dataclass(frozen=True, slots=True)
class Curve:
    """From `start` to `end`, bent towards `middle` (a quadratic Bézier curve; straight if that lies between them)."""

    start: Spot
    middle: Spot
    end: Spot

    @classmethod
    def between(cls, start: Spot, end: Spot, bend: float = 0.0) -> Curve:
        """`bend`: how far the middle of the curve stands off the straight line, to its right."""
        dx, dy = end.x - start.x, end.y - start.y
        length = math.hypot(dx, dy) or 1.0
        across = Spot(-dy / length * bend * 2, dx / length * bend * 2)
        return cls(start, Spot((start.x + end.x) / 2 + across.x, (start.y + end.y) / 2 + across.y), end)

    @property
    def length(self) -> float:
        """The distance between its ends, never zero."""
        return math.hypot(self.end.x - self.start.x, self.end.y - self.start.y) or 1.0

    @property
    def straight(self) -> bool:
        a, b, c = self.start, self.middle, self.end
        return abs((b.x - a.x) * (c.y - a.y) - (b.y - a.y) * (c.x - a.x)) < 1

    def at(self, t: float) -> Spot:
        a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t * t
        return Spot(
            a * self.start.x + b * self.middle.x + c * self.end.x, a * self.start.y + b * self.middle.y + c * self.end.y
        )

    def spots(self, every: float = 5.0) -> list[Spot]:
        count = max(4, math.ceil(self.length / every))
        return [self.at(i / count) for i in range(count + 1)]

    def shortened(self, at_start: float, at_end: float) -> Curve:
        """Without its first and last pixels, so that an arrow touches a dot and does not cover it."""
        return self.part(min(0.4, at_start / self.length), max(0.6, 1 - at_end / self.length))

    def part(self, first: float, last: float) -> Curve:
        start, end = self.at(first), self.at(last)
        middle = Spot(
            *(
                (1 - first) * (1 - last) * a + (first * (1 - last) + last * (1 - first)) * b + first * last * c
                for a, b, c in zip(self.start, self.middle, self.end, strict=True)
            )
        )
        return Curve(start, middle, end)


@dataclass
class Canvas:
    """Elements in the order in which they are painted."""

    elements: list[str] = field(default_factory=list)

    def add(self, name: str, attributes: str, title: str = "", text: str | None = None) -> None:
        inner = (escape(text) if text is not None else "") + (f"<title>{escape(title)}</title>" if title else "")
        self.elements.append(f"<{name} {attributes}>{inner}</{name}>" if inner else f"<{name} {attributes}/>")

    def line(self, start: Spot, end: Spot, style: str, title: str = "") -> None:
        ends = f'x1="{number(start.x)}" y1="{number(start.y)}" x2="{number(end.x)}" y2="{number(end.y)}"'
        self.add("line", f"{ends} {style}", title)

    def path(self, commands: str, style: str, title: str = "") -> None:
        self.add("path", f'd="{commands}" {style}', title)

    def curve(self, curve: Curve, style: str, title: str = "") -> None:
        a, b, c = (f"{number(spot.x)} {number(spot.y)}" for spot in (curve.start, curve.middle, curve.end))
        self.path(f"M{a}L{c}" if curve.straight else f"M{a}Q{b} {c}", f'fill="none" {style}', title)

    def head(self, curve: Curve, colour: str, size: float = 7.0) -> None:
        """An arrowhead at the end of `curve`."""
        tip = curve.end
        angle = math.atan2(tip.y - curve.middle.y, tip.x - curve.middle.x)
        corners = [tip]
        for side in (-1, 1):
            turn = angle + math.pi + side * 0.42
            corners.append(Spot(tip.x + size * math.cos(turn), tip.y + size * math.sin(turn)))
        self.polygon(corners, f'fill="{colour}"')

    def polygon(self, corners: Sequence[Spot], style: str, title: str = "") -> None:
        points = " ".join(f"{number(c.x)},{number(c.y)}" for c in corners)
        self.add("polygon", f'points="{points}" {style}', title)

    def circle(self, centre: Spot, radius: float, style: str, title: str = "") -> None:
        self.add("circle", f'cx="{number(centre.x)}" cy="{number(centre.y)}" r="{number(radius)}" {style}', title)

    def box(self, box: Box, style: str, title: str = "") -> None:
        size = f'width="{number(box.right - box.left)}" height="{number(box.bottom - box.top)}"'
        self.add("rect", f'x="{number(box.left)}" y="{number(box.top)}" {size} {style}', title)

    def text(self, spot: Spot, text: str, style: str) -> None:
        self.add("text", f'x="{number(spot.x)}" y="{number(spot.y)}" {style}', text=text)

    def document(self, width: float, height: float, title: str) -> str:
        size = f'width="{number(width)}" height="{number(height)}" viewBox="0 0 {number(width)} {number(height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label={quoteattr(title)}'
        font = "font-family=\"system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif\""
        return "\n".join((f"{head} {font}>", f"<title>{escape(title)}</title>", *self.elements, "</svg>", ""))
