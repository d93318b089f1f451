"""How long to wait before the next attempt: longer after each failure, up to a limit."""

from __future__ import annotations

import math

__all__ = ["backoff"]


def backoff(failures: int, first: float, longest: float = math.inf, factor: float = 2.0) -> float:
    """The pause after so many failures in a row: `first` after the first one, then each `factor` times the one before.

    >>> [backoff(failures, first=0.5, longest=3.0) for failures in (1, 2, 3, 4, 1000)]
    [0.5, 1.0, 2.0, 3.0, 3.0]
    """
    return min(longest, first * factor ** min(failures - 1, 30))
