"""Colours and words of the diagram.

Every colour keeps a contrast of at least 4.5 to 1 against the ground where it carries text, and neighbours in the list
of snapshot colours stay apart for the common kinds of colour blindness. The warning colour is kept for what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping

from strobe.model.cut import Json, canonical
from strobe.model.text import shortened
from strobe.verify.diagram.spacetime import Role

__all__ = [
    "DASHES", "DUPLICATE_DASHES", "FAINT", "GAP", "GROUND", "INK", "LINE", "LOST", "MARKER_DASHES", "MESSAGE",
    "RESTART_DASHES", "WARNING", "colour", "headline", "short",
]  # fmt: skip

GROUND = "#ffffff"
INK = "#1d2530"
LINE = "#8b95a1"
FAINT = "#5f6975"
MESSAGE = "#6b7683"
LOST = "#8a5a00"
WARNING = "#c4122f"
GAP = "#eceff2"

MARKER_DASHES = ' stroke-dasharray="5 3.5"'
DUPLICATE_DASHES = ' stroke-dasharray="1.5 3"'
RESTART_DASHES = ' stroke-dasharray="9 3 2 3"'
DASHES: Mapping[Role, str] = {
    Role.IN_FLIGHT: "",
    Role.BACKWARD: "",
    Role.MISSED: ' stroke-dasharray="11 4"',
    Role.LOST: ' stroke-dasharray="11 4"',
    Role.TWICE: ' stroke-dasharray="3 3"',
    Role.EXTRA: ' stroke-dasharray="3 3"',
}
"""What comes from nowhere is whole, what vanishes is broken, what is counted again is dotted."""

_SNAPSHOTS = ("#0b61b0", "#8a3a9c", "#00735a", "#9a5200", "#38508f", "#5a6a00")


def colour(index: int) -> str:
    """The colour of a run's snapshot, by its place among them."""
    return _SNAPSHOTS[index % len(_SNAPSHOTS)]


def short(value: Json, most: int) -> str:
    """A state or payload in at most `most` characters: a single value bare, otherwise compact JSON, cut off."""
    while isinstance(value, dict | list) and len(value) == 1:
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    if value is None or value == [] or value == {}:
        return ""
    text = value if isinstance(value, str) else canonical(value).decode()
    return shortened(text.replace('"', ""), most)


def headline(state: Json) -> str:
    """What stands beside a recording: the state itself if it is short, otherwise its first number or word that is."""
    text = short(state, 30)
    if len(text) <= 10:
        return text
    values = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    plain = (value for value in values if isinstance(value, int | str))
    return next((text for value in plain if 0 < len(text := short(value, 30)) <= 10), "")
