"""Lays out a graph: layers from left to right, loops drawn as loops.

1. Channels that close a loop are set aside: those marked as feedback, and whatever else goes back in a walk from the
   sources.
2. A node stands one layer right of the last one that it reads. A channel that passes over layers takes a place in each.
3. Within a layer, each takes the mean place of its neighbours; a few sweeps to the right and to the left.
4. A channel is a curve through its places. One that closes a loop leaves to the right, runs below everything that it
   passes, and comes back from the left.

Pure, and the same graph gives the same drawing: a page that redraws does not jump.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from strobe.web.views import Box, Drawing, Wire

__all__ = ["Link", "draw"]

_MANY = 16  # nodes from which on boxes are small
_MARGIN = 24.0
_SWEEPS = 8


@dataclass(frozen=True, slots=True)
class Link:
    source: str
    target: str
    feedback: bool = False


@dataclass(frozen=True, slots=True)
class _Sizes:
    width: float
    height: float
    gap_x: float
    gap_y: float


_LARGE = _Sizes(204.0, 88.0, 92.0, 34.0)
_SMALL = _Sizes(164.0, 54.0, 64.0, 18.0)

# A place in a layer: a node, or the n-th channel on its way through.
_Place = str | int


def draw(nodes: Sequence[str], links: Iterable[Link]) -> Drawing:
    """`links` between `nodes`; several between the same two are drawn as one."""
    known = dict.fromkeys(nodes)
    single = {(link.source, link.target): link for link in links if link.source in known and link.target in known}
    sizes = _LARGE if len(known) < _MANY else _SMALL
    if not known:
        return Drawing(0, 0, sizes.width, sizes.height)
    forward, backward = _split(tuple(known), tuple(single.values()))
    layer = _layers(tuple(known), forward)
    columns, ways = _places(tuple(known), forward, layer)
    _order(columns, ways)
    return _draw(columns, ways, forward, backward, layer, sizes)


def _split(nodes: tuple[str, ...], links: tuple[Link, ...]) -> tuple[list[Link], list[Link]]:
    """The links that go forward, and those that close a loop. Without recursion: a chain may be long."""
    outgoing: dict[str, list[Link]] = defaultdict(list)
    entered = {link.target for link in links if not link.feedback and link.source != link.target}
    backward = {link for link in links if link.feedback or link.source == link.target}
    for link in links:
        if link not in backward:
            outgoing[link.source].append(link)
    done: set[str] = set()
    for start in (*(n for n in nodes if n not in entered), *nodes):
        if start in done:
            continue
        path, on_path = [(start, iter(outgoing[start]))], {start}
        while path:
            node, rest = path[-1]
            following = next(rest, None)
            if following is None:
                done.add(node)
                on_path.discard(node)
                path.pop()
            elif following.target in on_path:
                backward.add(following)
            elif following.target not in done:
                path.append((following.target, iter(outgoing[following.target])))
                on_path.add(following.target)
    return [link for link in links if link not in backward], [link for link in links if link in backward]


def _layers(nodes: tuple[str, ...], forward: list[Link]) -> dict[str, int]:
    """The layer of each node: as far left as what it reads allows."""
    layer = dict.fromkeys(nodes, 0)
    waiting = dict.fromkeys(nodes, 0)
    outgoing: dict[str, list[str]] = defaultdict(list)
    for link in forward:
        waiting[link.target] += 1
        outgoing[link.source].append(link.target)
    ready = [node for node in nodes if not waiting[node]]
    for node in ready:
        for target in outgoing[node]:
            layer[target] = max(layer[target], layer[node] + 1)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    return layer


def _places(
    nodes: tuple[str, ...], forward: list[Link], layer: dict[str, int]
) -> tuple[list[list[_Place]], dict[Link, list[_Place]]]:
    """What stands in each layer, and the places that each channel passes, ends included."""
    columns: list[list[_Place]] = [[] for _ in range(max(layer.values()) + 1)]
    for node in nodes:
        columns[layer[node]].append(node)
    ways: dict[Link, list[_Place]] = {}
    count = 0
    for link in forward:
        way: list[_Place] = [link.source]
        for between in range(layer[link.source] + 1, layer[link.target]):
            columns[between].append(count)
            way.append(count)
            count += 1
        ways[link] = [*way, link.target]
    return columns, ways


def _order(columns: list[list[_Place]], ways: dict[Link, list[_Place]]) -> None:
    before: dict[_Place, list[_Place]] = defaultdict(list)
    after: dict[_Place, list[_Place]] = defaultdict(list)
    for way in ways.values():
        for left, right in itertools.pairwise(way):
            before[right].append(left)
            after[left].append(right)
    for sweep in range(_SWEEPS):
        neighbours, walk = (before, columns) if sweep % 2 == 0 else (after, columns[::-1])
        for last, column in itertools.pairwise(walk):
            at = {place: float(i) / max(1, len(last) - 1) for i, place in enumerate(last)}
            own = {place: float(i) / max(1, len(column) - 1) for i, place in enumerate(column)}

            def wanted(place: _Place, at: dict[_Place, float] = at, own: dict[_Place, float] = own) -> float:
                near = [at[n] for n in neighbours[place] if n in at]  # noqa: B023
                return sum(near) / len(near) if near else own[place]

            column.sort(key=wanted)


def _heights(columns: list[list[_Place]], ways: dict[Link, list[_Place]], sizes: _Sizes) -> dict[_Place, float]:
    """The middle of each place: in its order, as near to its neighbours as there is room."""
    space = {p: sizes.height + sizes.gap_y if isinstance(p, str) else sizes.gap_y * 1.4 for c in columns for p in c}
    middle: dict[_Place, float] = {}
    for column in columns:
        top = -sum(space[p] for p in column) / 2
        for place in column:
            middle[place] = top + space[place] / 2
            top += space[place]
    near: dict[_Place, list[_Place]] = defaultdict(list)
    for way in ways.values():
        for left, right in itertools.pairwise(way):
            near[left].append(right)
            near[right].append(left)
    for _ in range(_SWEEPS):
        for column in columns:
            wanted = [sum(middle[n] for n in near[p]) / len(near[p]) if near[p] else middle[p] for p in column]
            for place, want in zip(column, _apart(wanted, [space[p] for p in column]), strict=True):
                middle[place] = want
    return middle


def _apart(wanted: list[float], space: list[float]) -> list[float]:
    """As near to what is wanted as possible, in order, and never closer than there is room: neighbours that would
    overlap become a block, which stands at the mean of what its members want."""
    blocks: list[tuple[float, list[int]]] = []  # the middle of its first member, and its members
    offset = [0.0] * len(wanted)
    for i in range(1, len(wanted)):
        offset[i] = offset[i - 1] + (space[i - 1] + space[i]) / 2
    for i, want in enumerate(wanted):
        blocks.append((want - offset[i], [i]))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, first), (b, second) = blocks[-2:]
            mean = (a * len(first) + b * len(second)) / (len(first) + len(second))
            blocks[-2:] = [(mean, first + second)]
    return [start + offset[i] for start, members in blocks for i in members]


def _draw(
    columns: list[list[_Place]],
    ways: dict[Link, list[_Place]],
    forward: list[Link],
    backward: list[Link],
    layer: dict[str, int],
    sizes: _Sizes,
) -> Drawing:
    middle = _heights(columns, ways, sizes)
    top = min(m - (sizes.height / 2 if isinstance(p, str) else 0) for p, m in middle.items())
    y = {place: m - top + _MARGIN for place, m in middle.items()}
    step = sizes.width + sizes.gap_x
    loops = bool(backward)
    left = _MARGIN + (sizes.gap_x * 0.6 if loops else 0)
    x = {node: left + layer[node] * step for node in layer}
    boxes = [Box(node, round(x[node], 1), round(y[node] - sizes.height / 2, 1)) for node in layer]
    floor = max(box.y for box in boxes) + sizes.height
    wires = [_curve(link, ways[link], x, y, layer, sizes, step, left) for link in forward]
    lanes = 0
    for link in backward:
        lanes += 1
        wires.append(_loop(link, x, y, sizes, floor + 14.0 + 16.0 * lanes))
    width = left + len(columns) * step - sizes.gap_x + _MARGIN + (sizes.gap_x * 0.6 if loops else 0)
    height = floor + _MARGIN + (20.0 + 16.0 * lanes if lanes else 0)
    return Drawing(round(width, 1), round(height, 1), sizes.width, sizes.height, boxes, wires)


def _curve(
    link: Link,
    way: list[_Place],
    x: dict[str, float],
    y: dict[_Place, float],
    layer: dict[str, int],
    sizes: _Sizes,
    step: float,
    left: float,
) -> Wire:
    spots = [(x[link.source] + sizes.width, y[link.source])]
    for n, place in enumerate(way[1:-1], layer[link.source] + 1):
        spots += [(left + n * step, y[place]), (left + n * step + sizes.width, y[place])]
    spots.append((x[link.target], y[link.target]))
    path = f"M{_n(spots[0][0])} {_n(spots[0][1])}"
    for (x0, y0), (x1, y1) in itertools.pairwise(spots):
        bend = (x1 - x0) / 2
        path += f"C{_n(x0 + bend)} {_n(y0)} {_n(x1 - bend)} {_n(y1)} {_n(x1)} {_n(y1)}"
    spot = _along(spots[0], spots[1], 0.64)
    return Wire(link.source, link.target, False, path, round(spot[0], 1), round(spot[1], 1))


def _loop(link: Link, x: dict[str, float], y: dict[_Place, float], sizes: _Sizes, lane: float) -> Wire:
    """Out to the right, down, back below everything, up, and in from the left."""
    x0, y0 = x[link.source] + sizes.width, y[link.source]
    x1, y1 = x[link.target], y[link.target]
    out = sizes.gap_x * 0.45
    path = (
        f"M{_n(x0)} {_n(y0)}C{_n(x0 + out)} {_n(y0)} {_n(x0 + out)} {_n(lane)} {_n(x0)} {_n(lane)}"
        f"L{_n(x1)} {_n(lane)}C{_n(x1 - out)} {_n(lane)} {_n(x1 - out)} {_n(y1)} {_n(x1)} {_n(y1)}"
    )
    return Wire(link.source, link.target, True, path, round((x0 + x1) / 2, 1), round(lane, 1))


def _along(start: tuple[float, float], end: tuple[float, float], t: float) -> tuple[float, float]:
    """A point of such a curve. Near its end: curves that leave one node begin together."""
    middle = (start[0] + end[0]) / 2
    x = start[0] * (1 - t) ** 3 + middle * 3 * t * (1 - t) + end[0] * t**3
    return x, start[1] + (end[1] - start[1]) * (3 * t * t - 2 * t**3)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
