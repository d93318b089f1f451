"""The space–time diagram of a run as text, a line for each step: time goes down, each node has a lane.

A message leaves its sender's lane to the right, runs down beside it in a *track* while it is in flight, and crosses to
the receiver's lane in the line of its receipt. A lane has a few tracks; a message that finds none free is drawn in the
line of its receipt alone.

A cut is shown by its lanes: solid as far as the cut goes, dotted from the first step that it lacks. If the cut is one
that the recorded order passed through, that is a straight line; if not, a staircase.

Nothing here depends on a terminal: a line is made of pieces, each with the role of its text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Final

from strobe.cli.output import printable
from strobe.cli.predicate import in_words
from strobe.model.events import Internal
from strobe.model.ids import ChannelId, NodeId
from strobe.model.text import shortened
from strobe.predicates.computation import Positions
from strobe.predicates.replay import Run
from strobe.predicates.walk import Walk

__all__ = ["Diagram", "Line", "Role", "step_words"]


class Role(Enum):
    NUMBER = "number"
    NAME = "name"
    CHOSEN_NAME = "chosen name"
    LANE = "lane"  # inside the cut
    BEYOND = "beyond"  # outside: lanes, steps and messages that are not there yet
    STEP = "step"
    CHOSEN = "chosen"  # the last step in the cut of the node that was chosen
    MESSAGE = "message"
    FLYING = "flying"  # sent inside the cut, received outside
    WORDS = "words"
    SPACE = "space"


Line = tuple[tuple[str, Role], ...]

_TRACKS: Final = 4
_LONGEST_NAME: Final = 16
_WORDS: Final = 60  # characters, of what a step was
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_BOX: Final = dict(enumerate(" ╵╷│╴┘┐┤╶└┌├─┴┬┼"))


@dataclass(frozen=True)
class _Drawn:
    """A message: the lines of its sending (-1: before the run) and of its receipts. `track` is None if it has none."""

    sender: int
    sent: int
    receipts: tuple[tuple[int, int], ...]  # (receiver, line), in order
    lost: bool
    track: int | None = None


class Diagram:
    def __init__(self, run: Run, walk: Walk) -> None:
        self._run, self._walk = run, walk
        self._nodes = run.computation.nodes
        drawn = list(_with_tracks(_messages(run, walk), len(walk.order)))
        self._sent: dict[int, list[_Drawn]] = {}
        self._received: dict[int, list[tuple[_Drawn, int]]] = {}
        tracks: dict[tuple[int, int], list[_Drawn]] = {}
        for message in drawn:
            self._sent.setdefault(message.sent, []).append(message)
            for receiver, line in message.receipts:
                self._received.setdefault(line, []).append((message, receiver))
            if message.track is not None:
                tracks.setdefault((message.sender, message.track), []).append(message)
        self._tracks = [(key, found, [m.sent for m in found]) for key, found in tracks.items()]
        used = [max((t + 1 for (n, t) in tracks if n == node), default=0) for node in range(len(self._nodes))]
        self._digits = len(str(len(walk.order)))
        self._lanes: list[int] = []
        at = self._digits + 3
        for node, count in zip(self._nodes, used, strict=True):
            self._lanes.append(at)
            at += max(len(_shown(node)) + 2, count + 5)
        self.words_at = at

    @property
    def height(self) -> int:
        return len(self._walk.order)

    @property
    def width(self) -> int:
        return self.words_at + _WORDS

    def node_at(self, x: int) -> int:
        """The node whose lane is nearest."""
        return min(range(len(self._lanes)), key=lambda node: abs(self._lanes[node] - x))

    def position_at(self, node: int, line: int) -> int:
        """How many steps the node has taken up to the end of this line."""
        return self._walk.prefix(line + 1)[node]

    def header(self, chosen: int) -> Line:
        pieces: list[tuple[str, Role]] = [(" " * self._lanes[0], Role.SPACE)]
        ends = [*self._lanes[1:], self.words_at]
        for index, (node, start, end) in enumerate(zip(self._nodes, self._lanes, ends, strict=True)):
            name = _shown(node)
            role = Role.CHOSEN_NAME if index == chosen else Role.NAME
            pieces += [(name, role), (" " * (end - start - len(name)), Role.SPACE)]
        return tuple(pieces)

    def line(self, line: int, cut: Positions, chosen: int) -> Line:
        """The step at this place of the recorded order, and what passes by."""
        node, number = self._walk.order[line]
        grid = _Grid(self.words_at)
        for (sender, track), messages, starts in self._tracks:
            at = bisect_left(starts, line) - 1
            if at >= 0 and line < _end(messages[at], self.height):
                grid.draw(self._lanes[sender] + 2 + track, _UP | _DOWN, self._role(messages[at], cut))
        for lane, x in enumerate(self._lanes):
            inside = self._inside(lane, line, cut)
            grid.put(x, "┃" if inside else "┊", Role.LANE if inside else Role.BEYOND)
        for message in self._sent.get(line, ()):
            self._draw_sent(grid, message, self._role(message, cut))
        for message, receiver in self._received.get(line, ()):
            self._draw_received(grid, message, receiver, line, self._role(message, cut))
        inside = number <= cut[node]
        last = node == chosen and number == cut[node]
        role = Role.CHOSEN if last else Role.STEP if inside else Role.BEYOND
        grid.put(self._lanes[node], "◆" if last else "●" if inside else "○", role)
        words = printable(step_words(self._run, self._nodes[node], number)).replace("\n", " ").replace("\t", " ")
        return (
            (f" {line + 1:>{self._digits}}  ", Role.NUMBER),
            *grid.pieces(self._digits + 3),
            (words[:_WORDS], Role.WORDS if inside else Role.BEYOND),
        )

    def text(self, first: int, height: int, cut: Positions, chosen: int) -> Iterator[str]:
        """A window of it, without colours."""
        yield _plain(self.header(chosen))
        for line in range(max(0, first), min(self.height, first + height)):
            yield _plain(self.line(line, cut, chosen))

    def _inside(self, node: int, line: int, cut: Positions) -> bool:
        if cut[node] < self._run.computation.lengths[node] and line >= self._walk.place(node, cut[node] + 1):
            return False
        return line < self._walk.front(cut)

    def _role(self, message: _Drawn, cut: Positions) -> Role:
        if message.sent >= 0 and self._walk.order[message.sent][1] > cut[message.sender]:
            return Role.BEYOND
        if not message.receipts:
            return Role.BEYOND if message.lost else Role.FLYING
        receiver, line = message.receipts[-1]
        return Role.MESSAGE if self._walk.order[line][1] <= cut[receiver] else Role.FLYING

    def _draw_sent(self, grid: _Grid, message: _Drawn, role: Role) -> None:
        x = self._lanes[message.sender]
        if message.lost:
            grid.put(x + 1, "✗", role)
        elif message.track is not None:
            end = x + 2 + message.track
            for between in range(x + 1, end):
                grid.draw(between, _LEFT | _RIGHT, role)
            grid.draw(end, _LEFT | _DOWN, role)

    def _draw_received(self, grid: _Grid, message: _Drawn, receiver: int, line: int, role: Role) -> None:
        target = self._lanes[receiver]
        start = self._lanes[message.sender] + (1 if message.track is None else 2 + message.track)
        right = target > start
        if message.track is not None:
            further = line < _end(message, self.height)
            grid.draw(start, _UP | (_DOWN if further else 0) | (_RIGHT if right else _LEFT), role)
        span = range(start + 1, target) if right else range(target + 1, start)
        for x in span:
            grid.draw(x, _LEFT | _RIGHT, role)
        grid.put(target - 1 if right else target + 1, "▶" if right else "◀", role)


class _Grid:
    """The cells of one line. Lines that meet in a cell become one sign; what is `put` stays as it is."""

    def __init__(self, width: int) -> None:
        self._bits = [0] * width
        self._signs: list[str] = [""] * width
        self._roles = [Role.SPACE] * width

    def draw(self, x: int, bits: int, role: Role) -> None:
        if self._signs[x] in ("┃", "┊"):  # a lane that is crossed
            self._signs[x] = "╂" if self._signs[x] == "┃" else "┼"
            return
        self._bits[x] |= bits
        if self._roles[x] is not Role.FLYING:
            self._roles[x] = role

    def put(self, x: int, sign: str, role: Role) -> None:
        self._signs[x], self._roles[x] = sign, role

    def pieces(self, start: int) -> Iterator[tuple[str, Role]]:
        cells = zip(self._roles[start:], self._signs[start:], self._bits[start:], strict=True)
        for role, group in groupby(cells, key=lambda cell: cell[0]):
            yield "".join(sign or _BOX[bits] for _, sign, bits in group), role


def step_words(run: Run, node: NodeId, number: int) -> str:
    """What a step was, in a few words."""
    event = run.event(node, number)
    sends = [
        f"sends {in_words(sent.payload)} to {run.graph.by_id[sent.channel].target}" for sent in run.sends(node, number)
    ]
    if isinstance(event, Internal):
        done = "" if sends else f"acts: {in_words(event.action)}"
    else:
        payload = run.history.payload(run.epoch, event.channel, event.seq)
        done = f"receives {in_words(payload)} from {run.graph.by_id[event.channel].source}"
    return f"{node} {'; '.join(filter(None, (done, *sends)))}"


def _messages(run: Run, walk: Walk) -> Iterator[_Drawn]:
    """The messages in the order in which they were sent; those that were in flight before come first."""
    index = {node: i for i, node in enumerate(run.computation.nodes)}
    receipts: dict[tuple[ChannelId, int], list[tuple[int, int]]] = {}
    sent: dict[tuple[ChannelId, int], tuple[int, int]] = {}
    for line, (node, number) in enumerate(walk.order):
        event = run.event(run.computation.nodes[node], number)
        if not isinstance(event, Internal):
            receipts.setdefault((event.channel, event.seq), []).append((node, line))
        for each in run.sends(run.computation.nodes[node], number):
            sent[each.channel, each.seq] = (node, line)
    losses = {channel.id: run.history.losses(run.epoch, channel.id) for channel in run.graph.channels}
    before = {
        (channel.id, seq): (index[channel.source], -1)
        for channel in run.graph.channels
        for seq in run.history.sender(run.epoch, channel.id)
        if (channel.id, seq) not in sent
    }
    for message, (node, line) in (*before.items(), *sent.items()):
        found = receipts.get(message, [])
        yield _Drawn(node, line, tuple(found), lost=not found and message[1] in losses[message[0]])


def _with_tracks(messages: Iterator[_Drawn], height: int) -> Iterator[_Drawn]:
    """Each takes the first track of its sender that is free from its sending to its last receipt."""
    busy: dict[int, list[int]] = {}
    for message in messages:
        ends = busy.setdefault(message.sender, [-2] * _TRACKS)
        track = next((t for t, end in enumerate(ends) if end < message.sent), None)
        if message.lost or track is None:
            yield message
            continue
        ends[track] = _end(message, height)
        yield _Drawn(message.sender, message.sent, message.receipts, message.lost, track)


def _end(message: _Drawn, height: int) -> int:
    return message.receipts[-1][1] if message.receipts else height


def _shown(node: NodeId) -> str:
    name = printable(node).replace("\n", " ").replace("\t", " ")
    return shortened(name, _LONGEST_NAME)


def _plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()
