"""A newtype for each kind of id, so that one cannot be passed for another.

Law 7: identity is the uid, never the position in the graph. Two numbers order time: the *incarnation* rises with
every start and fences off whatever an older one still does; the *timeline* rises with every restore and names a
line of history.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NewType

from strobe.model.errors import Misuse

__all__ = ["ChannelId", "Incarnation", "NodeId", "SeenIds", "SnapshotId", "Timeline", "check_uid"]

NodeId = NewType("NodeId", str)
ChannelId = NewType("ChannelId", str)
SnapshotId = NewType("SnapshotId", int)
Incarnation = NewType("Incarnation", int)
Timeline = NewType("Timeline", int)

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def check_uid(uid: str, what: str = "uid") -> str:
    """`uid` itself, or Misuse: it becomes part of file names, table properties and URLs."""
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise Misuse(
            f"{what} {uid!r} is not legal: it must start with a letter or digit and hold at most 100 letters, "
            "digits, '_', '-' or '.'.",
            next="Choose another name; it is the identity that snapshots are restored by.",
        )
    return uid


class SeenIds:
    """A set of snapshot ids that only grows, kept as one floor and the few ids above it.

    Finished ids must be remembered for ever (a late marker must not start a snapshot again); ids are handed out
    upwards from 1, so all but the newest collapse into the floor.
    """

    __slots__ = ("_above", "_floor")

    def __init__(self) -> None:
        self._floor = 0
        self._above: set[int] = set()

    def add(self, snapshot: SnapshotId) -> None:
        if snapshot > self._floor:
            self._above.add(snapshot)
            while self._floor + 1 in self._above:
                self._floor += 1
                self._above.discard(self._floor)

    def __contains__(self, snapshot: object) -> bool:
        return isinstance(snapshot, int) and (snapshot <= self._floor or snapshot in self._above)

    def __iter__(self) -> Iterator[SnapshotId]:
        return (SnapshotId(i) for i in (*range(1, self._floor + 1), *sorted(self._above)))

    def key(self) -> tuple[int, tuple[int, ...]]:
        """A hashable picture of the set."""
        return self._floor, tuple(sorted(self._above))
