"""What agents and the coordinator say to each other. Messages only, never shared objects: a stage may move to another
Spark application, and the coordinator to another process, and these are all that would have to travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from strobe.model.ids import Incarnation, NodeId, SnapshotId
from strobe.model.kind import Kind
from strobe.protocol.events import ORDINARY, BarrierOptions
from strobe.protocol.two_phase_commit.messages import Prepared as Vote
from strobe.store.manifest import InFlight, NodeRecord, SinkRecord

__all__ = [
    "AbortSnapshot", "Acknowledge", "Decline", "SnapshotComplete", "StageLost", "StagePart", "StageReady",
    "StageRegistered", "StartSnapshot", "ToAgent", "ToCoordinator", "TrimChannel",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class StageRegistered:
    """The answer to `StageReady`. `newest` is the highest snapshot id that was ever begun: what older barriers asked
    for has been settled without this life of the stage. `last` is the snapshot that ends the job, if it was begun and
    not given up: the stage has its part in it already, and must do nothing more."""

    incarnation: Incarnation
    newest: SnapshotId
    last: SnapshotId | None = None


@dataclass(frozen=True, slots=True)
class StartSnapshot:
    snapshot: SnapshotId
    kind: Kind
    options: BarrierOptions = ORDINARY


@dataclass(frozen=True, slots=True)
class AbortSnapshot:
    snapshot: SnapshotId
    reason: str


@dataclass(frozen=True, slots=True)
class SnapshotComplete:
    snapshot: SnapshotId
    kind: Kind


@dataclass(frozen=True, slots=True)
class TrimChannel:
    """To the owner of a channel: no consumer, and no retained snapshot, needs its rows up to this position."""

    upto: int


ToAgent: TypeAlias = StageRegistered | StartSnapshot | AbortSnapshot | SnapshotComplete | TrimChannel


@dataclass(frozen=True, slots=True)
class StagePart:
    """A stage's part of a snapshot, durable. `barrier` is where its own barrier is; `in_flight` is by producer. `votes`
    are those of its sinks that deliver on snapshot."""

    record: NodeRecord
    barrier: int | None
    in_flight: Mapping[NodeId, InFlight] = field(default_factory=dict)
    sinks: Mapping[str, SinkRecord] = field(default_factory=dict)
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class StageReady:
    stage: NodeId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class StageLost:
    """This life of the stage, and every one before it, is over."""

    stage: NodeId
    incarnation: Incarnation
    reason: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """`consumed`, by producer: up to there the stage will never read again, whatever happens to it short of a
    restore."""

    stage: NodeId
    incarnation: Incarnation
    snapshot: SnapshotId
    part: StagePart
    consumed: Mapping[NodeId, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decline:
    stage: NodeId
    incarnation: Incarnation
    snapshot: SnapshotId
    reason: str


ToCoordinator: TypeAlias = StageReady | StageLost | Acknowledge | Decline
