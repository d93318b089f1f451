"""What the coordinator is told and what it asks for: settings, inputs, effects. The theory is in the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from strobe.model.errors import Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.events import ORDINARY, BarrierOptions

__all__ = [
    "TOLERABLE_REFUSALS", "AbortRequested", "Acknowledged", "AllLost", "AnnounceAbort", "AnnounceComplete",
    "CoordinatorEffect", "CoordinatorInput", "CoordinatorSettings", "CutRefused", "DeclinedBy", "Dispose", "FailJob",
    "ManifestFailed", "ManifestWritten", "NodeLost", "NodeReady", "Reply", "Tick", "Trigger",
    "TriggerRequested", "WakeAt", "WriteManifest",
]  # fmt: skip


TOLERABLE_REFUSALS = 3  # cuts in a row


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Milliseconds. `interval` None: only when asked. `everywhere`: of a checkpoint every node is told to start, not
    only those without a live node upstream; its protocol must allow that, as unaligned barriers do. Savepoints are
    aligned then, and no checkpoint starts beside them."""

    interval: int | None = None
    min_pause: int = 0
    timeout: int = 600_000
    max_concurrent: int = 1
    tolerable_failures: int = 0
    retained: int = 1
    everywhere: bool = False

    def __post_init__(self) -> None:
        rules = (
            ("interval", self.interval is None or self.interval >= 1, "at least 1 ms, or None for no periodic ones"),
            ("min_pause", self.min_pause >= 0, "0 or more"),
            ("timeout", self.timeout >= 1, "at least 1 ms"),
            ("max_concurrent", self.max_concurrent >= 1, "at least 1"),
            ("tolerable_failures", self.tolerable_failures >= 0, "0 or more"),
            ("retained", self.retained >= 1, "at least 1"),
        )
        for name, holds, rule in rules:
            if not holds:
                raise Misuse(f"Checkpoint setting {name}={getattr(self, name)!r} is not legal: it must be {rule}.")


# ── inputs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Tick:
    now: int


@dataclass(frozen=True, slots=True)
class TriggerRequested:
    """Somebody asks for a snapshot; the outcome comes back as `Reply(request, …)`."""

    request: str
    kind: Kind = Kind.CHECKPOINT
    options: BarrierOptions = ORDINARY


@dataclass(frozen=True, slots=True)
class Acknowledged:
    snapshot: SnapshotId
    node: NodeId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class DeclinedBy:
    snapshot: SnapshotId
    node: NodeId
    incarnation: Incarnation
    reason: str


@dataclass(frozen=True, slots=True)
class ManifestWritten:
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class ManifestFailed:
    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class CutRefused:
    """The parts are not a consistent cut, so that no manifest was written."""

    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class AbortRequested:
    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class NodeReady:
    node: NodeId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class NodeLost:
    node: NodeId
    reason: str


@dataclass(frozen=True, slots=True)
class AllLost:
    """Every node's life is over, because the system goes back as a whole: none is ready until it says so again."""

    reason: str


CoordinatorInput: TypeAlias = (
    Tick | TriggerRequested | Acknowledged | DeclinedBy | ManifestWritten | ManifestFailed | CutRefused | AbortRequested
    | NodeReady | NodeLost | AllLost
)  # fmt: skip


# ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Trigger:
    """Tell these nodes to start the snapshot: those without a live node upstream, or all. `options`: as it was
    requested."""

    snapshot: SnapshotId
    kind: Kind
    nodes: tuple[NodeId, ...]
    options: BarrierOptions = ORDINARY


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Every part is durable: check the cut, make the manifest durable, and answer `ManifestWritten`, `ManifestFailed`
    or `CutRefused`."""

    snapshot: SnapshotId
    kind: Kind


@dataclass(frozen=True, slots=True)
class AnnounceComplete:
    """Tell every node: sinks may commit."""

    snapshot: SnapshotId
    kind: Kind


@dataclass(frozen=True, slots=True)
class AnnounceAbort:
    """Tell every node; forget the parts."""

    snapshot: SnapshotId
    kind: Kind
    reason: str


@dataclass(frozen=True, slots=True)
class Dispose:
    """The checkpoint is past its retention: delete it."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of a request: the snapshot, and why it failed if it did."""

    request: str
    snapshot: SnapshotId | None
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class FailJob:
    reason: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a `Tick` at this time at the latest. A newer one replaces it."""

    at: int


CoordinatorEffect: TypeAlias = (
    Trigger | WriteManifest | AnnounceComplete | AnnounceAbort | Dispose | Reply | FailJob | WakeAt
)
