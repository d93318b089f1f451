"""The parts of the debugger's screen: the diagram, which is drawn line by line as it is scrolled, and text to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Static

from strobe.cli.debug_diagram import Diagram, Line, Role
from strobe.cli.output import printable
from strobe.predicates.computation import Positions

__all__ = ["DiagramView", "Page", "as_text"]

_STYLES: Final[Mapping[Role, Style]] = {
    Role.NUMBER: Style(dim=True),
    Role.NAME: Style(bold=True),
    Role.CHOSEN_NAME: Style(bold=True, reverse=True),
    Role.LANE: Style(color="bright_cyan"),
    Role.BEYOND: Style(color="grey50"),
    Role.STEP: Style(color="bright_white", bold=True),
    Role.CHOSEN: Style(color="bright_green", bold=True),
    Role.MESSAGE: Style(color="cornflower_blue"),
    Role.FLYING: Style(color="bright_yellow", bold=True),
    Role.WORDS: Style(),
    Role.SPACE: Style(),
}


class DiagramView(ScrollView, inherit_bindings=False):
    """Its first line, with the names, does not scroll. It has no keys of its own: keys move the cut, and the view
    follows."""

    class Picked(Message):
        """Somebody clicked beside this step of the node."""

        def __init__(self, node: int, number: int) -> None:
            super().__init__()
            self.node, self.number = node, number

    def __init__(self, diagram: Diagram, cut: Positions, chosen: int) -> None:
        super().__init__()
        self._diagram, self._cut, self._chosen = diagram, cut, chosen
        self.virtual_size = Size(diagram.width, diagram.height + 1)

    def show(self, cut: Positions, chosen: int, line: int) -> None:
        """Draw this cut, and scroll so that the line is visible."""
        self._cut, self._chosen = cut, chosen
        room = max(1, self.scrollable_content_region.height - 1)
        top = self.scroll_offset.y
        if not top <= line < top + room:
            self.scroll_to(y=max(0, line - room // 2), animate=False)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        place = top + y - 1
        if y == 0:
            line = self._diagram.header(self._chosen)
        elif place < self._diagram.height:
            line = self._diagram.line(place, self._cut, self._chosen)
        else:
            line = ()
        return _strip(line).crop_extend(left, left + self.size.width, None).apply_style(self.rich_style)

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        node = self._diagram.node_at(offset.x + self.scroll_offset.x)
        place = offset.y + self.scroll_offset.y - 1
        if offset.y and 0 <= place < self._diagram.height:
            self.post_message(self.Picked(node, self._diagram.position_at(node, place)))
        elif not offset.y:
            self.post_message(self.Picked(node, self._cut[node]))


class Page(ModalScreen[None]):
    """Something to read; any of its keys closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark,d,enter", "dismiss", "Close"),
    ]
    DEFAULT_CSS = """
    Page { align: center middle; }
    Page > VerticalScroll { width: 90%; max-width: 110; height: auto; max-height: 90%; border: round $accent;
                            padding: 1 2; background: $surface; }
    Page Static { width: auto; }
    """

    def __init__(self, title: str, lines: Iterable[str]) -> None:
        super().__init__()
        self._title, self._lines = title, tuple(lines)

    def compose(self) -> ComposeResult:
        with VerticalScroll() as box:
            box.border_title = Text(printable(self._title))
            yield Static(as_text(self._lines), markup=False)


def as_text(lines: Iterable[str]) -> Text:
    """Text from outside as plain text: it cannot control the terminal, and is not read as markup."""
    return Text(printable("\n".join(lines)), no_wrap=True, overflow="ellipsis")


def _strip(line: Line) -> Strip:
    return Strip([Segment(text, _STYLES[role]) for text, role in line])
