"""Parts of snapshots as they come in from the nodes, in pieces: what is large is on disk before it is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from strobe.hosts.live.snapshot.bulk import Spool
from strobe.hosts.live.snapshot.snapshots import NodePart
from strobe.hosts.live.wire.control import PartTaken, Piece
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.store.base import Data
from strobe.store.scratch import Scratch

__all__ = ["Intake"]


class Intake:
    def __init__(self, root: Path) -> None:
        """Large parts are kept in a directory of their own below `root`, until they are in the store."""
        self._root = root
        self._scratch: Scratch | None = None
        self._spools: dict[tuple[SnapshotId, NodeId, str], Spool] = {}
        self._trouble: dict[tuple[SnapshotId, NodeId], str] = {}

    def add(self, node: NodeId, piece: Piece) -> None:
        snapshot = SnapshotId(piece.number)
        if (snapshot, node) in self._trouble:
            return
        try:
            self._spools.setdefault((snapshot, node, piece.channel), Spool(self._new_path)).add(piece.data)
        except OSError as error:
            self._trouble[snapshot, node] = f"its part could not be kept below {self._root}: {error.strerror}"

    def take(self, node: NodeId, part: PartTaken) -> NodePart | str:
        """The whole part, or why there is none."""
        snapshot = SnapshotId(part.snapshot)
        if (snapshot, node) in self._trouble:
            return self._trouble[snapshot, node]
        state = self._data(snapshot, node, "", part.state_bytes)
        contents = {ChannelId(c): self._data(snapshot, node, c, size) for c, size in part.content_bytes.items()}
        whole = {channel: content for channel, content in contents.items() if content is not None}
        if state is None or len(whole) < len(contents):
            return "its part did not come whole"
        return NodePart(part, state, whole)

    def release(self, snapshot: SnapshotId) -> Callable[[], None]:
        """Forgets the snapshot's parts. The files go when the result is called, which blocks."""
        mine = [key for key in self._spools if key[0] == snapshot]
        spools = [self._spools.pop(key) for key in mine]
        self._trouble = {key: why for key, why in self._trouble.items() if key[0] != snapshot}
        return partial(_drop, spools)

    def close(self) -> None:
        _drop(self._spools.values())
        if self._scratch is not None:
            self._scratch.close()

    def _data(self, snapshot: SnapshotId, node: NodeId, channel: str, size: int) -> Data | None:
        spool = self._spools.get((snapshot, node, channel))
        if spool is None:
            return b"" if size == 0 else None
        return spool.close() if spool.size == size else None

    def _new_path(self) -> Path:
        if self._scratch is None:
            self._scratch = Scratch(self._root)
        return self._scratch.new_path()


def _drop(spools: Iterable[Spool]) -> None:
    for spool in spools:
        spool.drop()
