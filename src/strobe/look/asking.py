"""The messages to the process that asks invariants of snapshots. They have a module of their own, so that the caller
does not import what that process needs."""

from __future__ import annotations

import msgspec

__all__ = ["Ask", "Setup"]


class Setup(msgspec.Struct, frozen=True):
    home: str
    job: str
    queries: dict[str, str]  # by the invariant's name
    functions: dict[str, str]  # pickles in base 64
    path: list[str]  # where the modules are that the functions import
    memory: str = "1GB"
    timeout: float | None = None


class Ask(msgspec.Struct, frozen=True):
    """`place` is where the snapshot is, if it is not a checkpoint of the job's."""

    snapshot: int
    invariants: list[str]
    place: str | None = None
