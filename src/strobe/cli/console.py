"""The console for styled text and tables. Imported only where it is needed: most commands print plain lines."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from strobe.cli.output import printable

__all__ = ["console"]

_UNBOUNDED: Final = 10_000


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else printable(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)

    def on_broken_pipe(self) -> None:
        """Raise the error: `main` handles a reader that has gone."""
        raise BrokenPipeError


def console(*, stderr: bool) -> Console:
    made = _Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _UNBOUNDED  # a file or a pipe has no margin: no table is cut short or wrapped
    return made
