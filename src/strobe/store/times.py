"""A time as text: UTC with milliseconds, such as `2031-05-17T09:30:00.250Z`. So it stands in manifests, job records,
histories and messages. Nothing here reads a clock."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["milliseconds_between", "utc_seconds", "utc_text"]


def utc_text(seconds: float) -> str:
    """`seconds` since 1970."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def utc_seconds(text: str) -> float:
    """Seconds since 1970. `ValueError` if it is no time, such as the 31st of February."""
    return datetime.fromisoformat(text).timestamp()


def milliseconds_between(began: str, ended: str) -> float:
    """Never below 0; 0 if one of them is no time."""
    try:
        return max(0.0, (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds() * 1000)
    except (ValueError, TypeError):  # TypeError: one of them says no zone
        return 0.0
