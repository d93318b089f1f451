"""Text for people."""

from __future__ import annotations

__all__ = ["shortened"]


def shortened(text: str, most: int) -> str:
    """The text in at most `most` characters: one that is longer is cut off, and ends with a mark that says so.

    >>> shortened("balances", 8), shortened("balances", 5)
    ('balances', 'bala…')
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"
