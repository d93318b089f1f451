"""What has become of snapshots and nodes since this start, and who is told of it: traces, messages about failures.

A listener is called in the event loop of the system, as soon as something has happened. What it does must not take
long; what it raises is logged, and no more.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from strobe.hosts.live.snapshot.snapshots import Gathering, phases_of
from strobe.hosts.shared.clock import Clock
from strobe.model.ids import NodeId, SnapshotId
from strobe.model.invariants import Verdict
from strobe.model.kind import Kind
from strobe.store.manifest import Manifest, NodeRecord

__all__ = ["CheckMade", "Event", "InvariantJudged", "Listener", "NodeDied", "Outcomes", "SnapshotEnded", "guarded"]

_log = logging.getLogger("strobe.live")
_RECENT: Final = 10


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    """Complete, with its manifest, or given up for a `reason`. `nodes` are the parts that had come.

    Times are in milliseconds: of the whole, and of the end of it, in which blobs and manifest were written.
    """

    snapshot: SnapshotId
    kind: Kind
    started: str
    duration_ms: float
    nodes: Mapping[NodeId, NodeRecord]
    manifest: Manifest | None = None
    reason: str = ""

    @property
    def manifest_ms(self) -> float:
        parts = (node.duration_ms or 0.0 for node in self.nodes.values())
        return max(0.0, self.duration_ms - max(parts, default=0.0))


@dataclass(frozen=True, slots=True)
class NodeDied:
    """Its process has ended, or could not be reached for too long. The system goes back to its last snapshot."""

    node: NodeId
    reason: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class InvariantJudged:
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CheckMade:
    """`found` is None if the check could not be made."""

    check: str
    snapshot: int
    found: bool | None
    sentence: str
    details: tuple[str, ...] = ()


Event: TypeAlias = SnapshotEnded | NodeDied | InvariantJudged | CheckMade
Listener: TypeAlias = Callable[[Event], None]


def guarded(listener: Listener | None) -> Listener:
    """The listener, with its errors logged: the system goes on."""

    def tell(event: Event) -> None:
        if listener is None:
            return
        try:
            listener(event)
        except Exception:
            _log.warning("Somebody who watches the system failed.", exc_info=True)

    return tell


class Outcomes:
    def __init__(self, clock: Clock, listener: Listener | None = None) -> None:
        self.completed = 0
        self.recent: deque[Manifest] = deque(maxlen=_RECENT)
        self.aborted: dict[SnapshotId, str] = {}
        self.tell = guarded(listener)
        self._clock = clock

    def complete(self, gathering: Gathering, manifest: Manifest) -> None:
        self.completed += 1
        self.recent.append(manifest)
        self.tell(self._ended(gathering, manifest.nodes, manifest))

    def given_up(self, snapshot: SnapshotId, gathering: Gathering | None, reason: str) -> None:
        self.aborted[snapshot] = reason
        if gathering is not None:
            parts = {node: phases_of(part) for node, part in gathering.parts.items()}
            self.tell(self._ended(gathering, parts, reason=reason))

    def _ended(
        self,
        gathering: Gathering,
        nodes: Mapping[NodeId, NodeRecord],
        manifest: Manifest | None = None,
        reason: str = "",
    ) -> SnapshotEnded:
        took = (self._clock.monotonic() - gathering.triggered) * 1000
        return SnapshotEnded(gathering.snapshot, gathering.kind, gathering.started, took, nodes, manifest, reason)
