"""What the restore machines say to each other and to the host, and the fence between incarnations.

The theory is in the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.protocol.coordinator.messages import NodeLost, Tick, WakeAt
from strobe.protocol.events import Deliver, Sending

__all__ = [
    "CancelRestore", "ClaimIncarnation", "Fence", "Fenced", "LoadFailed", "LoadState", "NodeReturned", "Ready",
    "Refused", "RestoreCoordinatorEffect", "RestoreCoordinatorInput", "RestoreFailed", "RestoreOrder",
    "RestoreParticipantEffect", "RestoreParticipantInput", "RestoreRequested", "Restored", "Running", "SendFenced",
    "StandDown", "Start", "StartApplication", "StateLoaded", "StopApplication", "Superseded", "ToCoordinator", "ToNode",
    "Verdict",
]  # fmt: skip


# ── the fence ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Verdict(Enum):
    CURRENT = "of this life"
    OLDER = "of a life that is over: drop it"
    NEWER = "of a later life: this one is over, stop"


class Fence(NamedTuple):
    """The rule that tells lives apart; used wherever an incarnation is checked."""

    incarnation: Incarnation

    def judge(self, incarnation: Incarnation) -> Verdict:
        if incarnation == self.incarnation:
            return Verdict.CURRENT
        return Verdict.OLDER if incarnation < self.incarnation else Verdict.NEWER


# ── messages between coordinator and nodes; what arrives is the input itself ────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    incarnation: Incarnation
    timeline: Timeline
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Start:
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Ready:
    node: NodeId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Refused:
    node: NodeId
    incarnation: Incarnation
    reason: str


@dataclass(frozen=True, slots=True)
class Running:
    node: NodeId
    incarnation: Incarnation


# ── inputs from the host ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class RestoreRequested:
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class CancelRestore:
    reason: str


@dataclass(frozen=True, slots=True)
class NodeReturned:
    """A node that was lost can be reached again."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Superseded:
    """A claim failed: this higher incarnation has been claimed by somebody else."""

    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class StateLoaded:
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class LoadFailed:
    incarnation: Incarnation
    reason: str


class Fenced(NamedTuple):
    """An application message arrived; `incarnation` is its sender's."""

    channel: ChannelId
    message: Any
    incarnation: Incarnation


# ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ClaimIncarnation:
    """Make durable that both numbers are taken, before anything else of this list.

    If a higher incarnation has been claimed, perform nothing more of the list and answer `Superseded`.
    """

    incarnation: Incarnation
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class ToNode:
    node: NodeId
    message: RestoreOrder | Start


@dataclass(frozen=True, slots=True)
class Restored:
    """Every node runs."""

    incarnation: Incarnation
    timeline: Timeline
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """Given up. Nodes that were stopped stay stopped; the snapshot is untouched and can be restored again."""

    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class StandDown:
    """A newer incarnation is at work: this machine does nothing more, and its process should end."""

    newer: Incarnation


@dataclass(frozen=True, slots=True)
class StopApplication:
    """No message may be delivered to it, and none of its messages sent, from now on."""


@dataclass(frozen=True, slots=True)
class LoadState:
    """Load the node's part of the snapshot and answer `StateLoaded` or `LoadFailed`; drop an older load."""

    incarnation: Incarnation
    timeline: Timeline
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class StartApplication:
    """Let it run. The recorded contents of its input channels come first, in order; then the `Deliver`s that follow."""

    incarnation: Incarnation
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    message: Ready | Refused | Running


class SendFenced(NamedTuple):
    channel: ChannelId
    message: Any
    incarnation: Incarnation


RestoreCoordinatorInput: TypeAlias = (
    Tick | RestoreRequested | CancelRestore | NodeLost | NodeReturned | Superseded | Ready | Refused | Running
)
RestoreCoordinatorEffect: TypeAlias = ClaimIncarnation | ToNode | WakeAt | Restored | RestoreFailed | StandDown
RestoreParticipantInput: TypeAlias = RestoreOrder | Start | StateLoaded | LoadFailed | Fenced | Sending
RestoreParticipantEffect: TypeAlias = (
    StopApplication | LoadState | StartApplication | ToCoordinator | Deliver | SendFenced
)
