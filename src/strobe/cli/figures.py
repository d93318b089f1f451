"""Sizes, times and counts as commands print them."""

from __future__ import annotations

__all__ = ["human_bytes", "human_ms", "human_phase", "plural"]


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_ms(value: float) -> str:
    return f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def human_phase(value: float) -> str:
    return f"{value:.1f} ms" if value < 100 else human_ms(value)


def plural(count: int, thing: str) -> str:
    """
    >>> plural(1, "message"), plural(2000, "message")
    ('1 message', '2,000 messages')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
