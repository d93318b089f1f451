"""The two kinds of snapshot."""

from __future__ import annotations

from enum import Enum

__all__ = ["Kind"]


class Kind(Enum):
    CHECKPOINT = "checkpoint"  # taken and deleted by Strobe, for recovery
    SAVEPOINT = "savepoint"  # asked for by somebody; it holds everything, and stays
