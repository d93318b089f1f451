"""The name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """A question that ends with a space, to stand in front of what else there is to say; empty if nothing is near."""
    near = get_close_matches(name, list(names), 1, 0.5)
    return f"Did you mean {near[0]!r}? " if near else ""
