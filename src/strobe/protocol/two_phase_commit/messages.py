"""What the machines of two-phase commit say to each other and to the host. The theory is in the package."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, NewType, TypeAlias

from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.protocol.restore.messages import StandDown

__all__ = [
    "Abandon", "Abandoned", "AbortWrites", "Ask", "Begin", "Commit", "CommitCoordinatorEffect",
    "CommitCoordinatorInput", "CommitParticipantEffect", "CommitParticipantInput", "CommitWrites", "Committed",
    "Decision", "DecisionFailed", "DecisionLogged", "Finding", "Handle", "Hello", "InDoubt", "Judge", "Judged",
    "LogDecision", "Opened", "Prepare", "PrepareWrites", "Prepared", "RecoverFrom", "Refused", "Released", "Resolve",
    "Resolved", "Session", "Settled", "ToCoordinator", "ToParticipant", "WritesFailed", "WritesPrepared",
]  # fmt: skip

Handle = NewType("Handle", str)
"""Names writes that are durable and not yet visible. Never used twice, in no incarnation."""


class Session(NamedTuple):
    """The two lives between which a message was sent. It means nothing to any other two."""

    coordinator: Incarnation
    participant: Incarnation


@dataclass(frozen=True, slots=True)
class Decision:
    """What a manifest says about sinks: the handles that this snapshot makes visible, oldest first. `judged`: only
    when its invariants hold, or a person releases it."""

    snapshot: SnapshotId
    handles: tuple[tuple[NodeId, tuple[Handle, ...]], ...]
    judged: bool = False

    def of(self, participant: NodeId) -> tuple[Handle, ...]:
        return next((handles for name, handles in self.handles if name == participant), ())

    @property
    def all_handles(self) -> frozenset[tuple[NodeId, Handle]]:
        return frozenset((name, handle) for name, handles in self.handles for handle in handles)


class Finding(Enum):
    """What the invariants of a snapshot say."""

    HOLDS = "holds"
    VIOLATED = "violated"  # or could not be evaluated
    POSTPONED = "postponed"  # it cannot be asked of this snapshot: the next one's finding counts for both


# ── messages from the coordinator; what arrives is the input itself ─────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Ask:
    """A coordinator is there: what have you prepared?"""

    coordinator: Incarnation


@dataclass(frozen=True, slots=True)
class Resolve:
    """The answer to `InDoubt`: nothing of what it listed is in doubt any more.

    `snapshot` is the newest one whose decision is logged, 0 if there is none.
    """

    session: Session
    commit: tuple[Handle, ...]
    abort: tuple[Handle, ...]
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Prepare:
    session: Session
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Commit:
    session: Session
    snapshot: SnapshotId
    handles: tuple[Handle, ...]


# ── messages from a participant ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Hello:
    """A participant has started, and wants to be asked."""

    participant: NodeId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class InDoubt:
    """The handles that are prepared here, oldest first.

    `keeps`: the participant's state contains these writes and it will not make them again, so they must not be
    aborted. Otherwise it goes back to a snapshot, and makes again whatever that snapshot does not contain.
    """

    participant: NodeId
    session: Session
    handles: tuple[Handle, ...]
    keeps: bool


@dataclass(frozen=True, slots=True)
class Resolved:
    participant: NodeId
    session: Session


@dataclass(frozen=True, slots=True)
class Prepared:
    """The vote: every handle that is prepared here and not committed, oldest first."""

    participant: NodeId
    session: Session
    snapshot: SnapshotId
    handles: tuple[Handle, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    participant: NodeId
    session: Session
    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class Committed:
    participant: NodeId
    session: Session
    snapshot: SnapshotId


# ── inputs from the host ────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Opened:
    """The machine's first input: it may speak."""


@dataclass(frozen=True, slots=True)
class Begin:
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Abandon:
    """The snapshot will not be completed: a timeout, an abort, a failure elsewhere. Too late is not an error."""

    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class DecisionLogged:
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class DecisionFailed:
    """The decision is not in the log and never will be. Say this only when it is certain."""

    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class Judged:
    """The answer to `Judge`: what the invariants of exactly this snapshot say."""

    snapshot: SnapshotId
    finding: Finding


@dataclass(frozen=True, slots=True)
class Released:
    """A person lets go everything up to this snapshot, whatever its invariants say. Noted durably before it is told."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class WritesPrepared:
    """`handle` is None when nothing had been written."""

    snapshot: SnapshotId
    handle: Handle | None


@dataclass(frozen=True, slots=True)
class WritesFailed:
    snapshot: SnapshotId
    reason: str


# ── effects ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ToParticipant:
    participant: NodeId
    message: Ask | Resolve | Prepare | Commit


@dataclass(frozen=True, slots=True)
class LogDecision:
    """Make the decision durable (write the manifest); answer `DecisionLogged` or `DecisionFailed`.

    The log must refuse it when a coordinator of a higher incarnation has read the log: that one may have counted on
    its absence.
    """

    decision: Decision


@dataclass(frozen=True, slots=True)
class Judge:
    """Ask the invariants of this snapshot; answer `Judged`. Nothing that it names becomes visible before."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class Abandoned:
    """No decision will be logged. What was prepared stays prepared, and is named by the next snapshot's votes."""

    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Every participant has committed and durably forgotten. Until now the logged decision must be kept."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class ToCoordinator:
    message: Hello | InDoubt | Resolved | Prepared | Refused | Committed


@dataclass(frozen=True, slots=True)
class PrepareWrites:
    """Make all that was written up to this snapshot durable, but not visible; answer with a handle, or a failure."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class CommitWrites:
    """Make the writes visible, then durably forget the handle. A handle that is already visible is not an error."""

    handle: Handle


@dataclass(frozen=True, slots=True)
class AbortWrites:
    """Delete the writes, then durably forget the handle. A handle that is already gone is not an error."""

    handle: Handle


@dataclass(frozen=True, slots=True)
class RecoverFrom:
    """All doubts are resolved: load the participant's part of this snapshot (0: the beginning) and go on."""

    snapshot: SnapshotId


CommitCoordinatorInput: TypeAlias = (
    Opened | Begin | Abandon | DecisionLogged | DecisionFailed | Judged | Released | Hello | InDoubt | Resolved
    | Prepared | Refused | Committed
)  # fmt: skip
CommitCoordinatorEffect: TypeAlias = ToParticipant | LogDecision | Judge | Abandoned | Settled | StandDown
CommitParticipantInput: TypeAlias = Opened | WritesPrepared | WritesFailed | Ask | Resolve | Prepare | Commit
CommitParticipantEffect: TypeAlias = (
    ToCoordinator | PrepareWrites | CommitWrites | AbortWrites | RecoverFrom | StandDown
)  # fmt: skip
