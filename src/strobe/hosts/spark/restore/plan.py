"""What a restore would do, as data: read by people before they say yes, and by the code that does it.

A plan is made without touching anything. It names what is laid out, cut back, rebuilt, repartitioned and dropped, what
becomes of each sink, and every reason why it cannot be done. A plan without problems is carried out as it stands, so
`--dry-run` shows exactly what a run would do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from strobe.hosts.spark.channel.columns import Columns
from strobe.hosts.spark.connectors.base import Sink, SinkFate
from strobe.hosts.spark.snapshot.savepoint_content import ContentCommit
from strobe.model.cut import Json
from strobe.model.errors import Misuse, StrobeError
from strobe.model.ids import ChannelId, NodeId, SnapshotId, Timeline
from strobe.store.check import check_root
from strobe.store.manifest import ChannelRecord, NodeRecord
from strobe.store.signing import wanted_signer

__all__ = [
    "ChannelAction", "ChannelPlan", "ClaimMode", "How", "RestoreOptions", "RestorePlan", "SinkStep", "StageAction",
    "StagePlan",
]  # fmt: skip


class ClaimMode(Enum):
    """Who owns the snapshot afterwards. Flink's words."""

    NO_CLAIM = "no-claim"  # it stays for ever: Strobe never deletes it
    CLAIM = "claim"  # it is the job's own, and goes by retention


@dataclass(frozen=True)
class RestoreOptions:
    """What the user has asked of a start. `snapshot` as `locate` takes it; None resumes.

    `partitions` is for every stage with state, `stage_partitions` for single ones, by uid. `root` is the Merkle root
    that the snapshot must have. `sinks_from` are places outside their own from which sinks may begin as a copy.
    `allow_changed_state` names the stages that may go on with a state that means something else. `verify`: read every
    byte of the snapshot first. `signed_by` is the key that it must be signed by.
    """

    snapshot: str | None = None
    claim_mode: str = ClaimMode.NO_CLAIM.value
    allow_non_restored_state: bool = False
    partitions: int | None = None
    stage_partitions: Mapping[str, int] = field(default_factory=dict)
    root: str | None = None
    sinks_from: tuple[str, ...] = ()
    allow_changed_state: tuple[str, ...] = ()
    verify: bool = False
    signed_by: str | None = None

    def signer(self) -> str | None:
        """The key that a snapshot must be signed by; the environment's, if none was named."""
        return wanted_signer(self.signed_by)

    def resuming(self) -> RestoreOptions:
        """The options that still count once the restore has begun and the job finishes it by itself."""
        return RestoreOptions(partitions=self.partitions, stage_partitions=self.stage_partitions)

    def __post_init__(self) -> None:
        if self.root is not None:
            check_root(self.root, "root")
            if self.snapshot is None:
                raise Misuse(
                    "A root was given, but no snapshot that it could be the root of.",
                    untouched="Nothing was started.",
                    next="Name the snapshot too: -s SNAPSHOT --root HASH.",
                )
        if self.claim_mode not in {m.value for m in ClaimMode}:
            known = ", ".join(m.value for m in ClaimMode)
            raise Misuse(f"claim mode {self.claim_mode!r} is not one of {known}.")
        for whose, count in (("", self.partitions), *self.stage_partitions.items()):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise Misuse(
                    f"{count!r} partitions{f' for stage {whose!r}' if whose else ''} are not possible.",
                    untouched="Nothing was started.",
                    next="Give a whole number of at least 1.",
                )


class How(Enum):
    ROLLBACK = "rollback"  # in place: channels are cut back to the snapshot's barriers
    REBUILD = "rebuild"  # in place, from a savepoint: channels are emptied and filled from it
    FORK = "fork"  # into a job that does not exist yet


class StageAction(Enum):
    RESTORED = "restored"
    UNBEGUN = "restored, had not begun"
    REPLACING = "takes the place"
    UNCHAINED = "restored, gets a query of its own"
    NEW = "new"
    DROPPED = "dropped"


@dataclass(frozen=True)
class Division:
    """What a query takes from the checkpoint of the query that computed its stages before. `offsets`: for each place in
    its plan that reads a stream, the line in that checkpoint, or the channel that is read instead. `logs`: for each of
    its sources, the number of the source's directory there; None if there is none. `whole`: it is that same query, and
    keeps its state."""

    offsets: tuple[int | NodeId, ...]
    logs: tuple[int | None, ...]
    whole: bool


@dataclass(frozen=True)
class StagePlan:
    """What becomes of one stage. `partitions` is (before, after) if the state is repartitioned. `starts`: where it
    begins on each channel, in the snapshot's positions, if it has no batch yet that says so."""

    uid: NodeId
    action: StageAction
    record: NodeRecord | None = None
    partitions: tuple[int, int] | None = None
    starts: Mapping[NodeId, int] = field(default_factory=dict)
    earliest: bool = False
    sources: tuple[NodeId, ...] | None = None  # the channels in its plan's order, if that has changed
    moved: Mapping[str, str] = field(default_factory=dict)  # directories that it reads, by old and new path
    replaces: NodeId | None = None  # REPLACING: whose record this is
    host: NodeId | None = None  # UNCHAINED: whose record this is, the stage whose query computed it
    division: Division | None = None  # what it takes over from that query, or from its own former one

    @property
    def laid_out(self) -> bool:
        """Whether it starts from the snapshot's checkpoint. A stage that replaces another needs it only for its
        sources: positions on channels are noted elsewhere."""
        if self.action is StageAction.REPLACING:
            return self.record is not None and not self.record.inputs
        return self.action in (StageAction.RESTORED, StageAction.UNCHAINED)

    @property
    def bytes(self) -> int:
        files = {} if self.record is None else self.record.files
        kept = self.action not in (StageAction.REPLACING, StageAction.UNCHAINED)
        return sum(ref.size for path, ref in files.items() if kept or not path.startswith("state/"))


class ChannelAction(Enum):
    CUT = "cut back"
    REFILLED = "rebuilt"
    EMPTIED = "emptied"
    NEW = "new"


@dataclass(frozen=True)
class ChannelPlan:
    name: ChannelId
    action: ChannelAction
    record: ChannelRecord | None = None
    to: int = 0  # CUT: the version that it reads as again
    behind: int = 0  # CUT: commits that are left behind
    content: tuple[ContentCommit, ...] = ()
    source: str = ""  # REFILLED: the original's channel directory; empty if the snapshot holds the rows
    held: Columns | None = None  # of the rows at the cut; None: there are none
    changes: tuple[str, ...] = ()  # what is new about its columns

    @property
    def rows(self) -> int:
        return sum(c.rows for c in self.content)

    @property
    def bytes(self) -> int:
        return sum(size for c in self.content for _, _, size in c.files)


@dataclass(frozen=True)
class SinkStep:
    """What becomes of one sink. `position` is what it said at the snapshot."""

    name: str
    stage: NodeId
    sink: Sink
    fate: SinkFate
    detail: str
    position: Json = None


@dataclass(frozen=True)
class RestorePlan:
    snapshot: SnapshotId
    kind: str
    job: str
    where: str
    root: str
    how: How
    into: str
    home: str
    timeline: Timeline
    claim: ClaimMode
    stages: tuple[StagePlan, ...]
    channels: tuple[ChannelPlan, ...]
    sinks: tuple[SinkStep, ...]
    warnings: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()  # what the plan does not know
    problems: tuple[StrobeError, ...] = ()
    chained: Mapping[NodeId, NodeId] = field(default_factory=dict)  # and whose query computes each
    kept: Mapping[NodeId, str] = field(default_factory=dict)  # stages that a new job would chain, and why this does not

    @property
    def exit_code(self) -> int:
        return max((p.exit_code for p in self.problems), default=0)

    @property
    def bytes(self) -> int:
        """What the restore writes, about."""
        return sum(s.bytes for s in self.stages if s.action is not StageAction.DROPPED) + sum(
            c.bytes for c in self.channels
        )

    def check(self) -> None:
        if self.problems:
            raise self.problems[0]

    def as_json(self) -> dict[str, Any]:
        return {
            "snapshot": self.snapshot,
            "kind": self.kind,
            "job": self.job,
            "where": self.where,
            "root": self.root,
            "how": self.how.value,
            "into": self.into,
            "home": self.home,
            "timeline": self.timeline,
            "claim_mode": self.claim.value,
            "bytes": self.bytes,
            "stages": [_stage_json(s) for s in self.stages],
            "chained": dict(self.chained),
            "keep_their_channels": dict(self.kept),
            "channels": [
                {"channel": c.name, "action": c.action.value, "to": c.to, "commits_left_behind": c.behind,
                 "commits": len(c.content), "rows": c.rows, "bytes": c.bytes, "changes": list(c.changes)}
                for c in self.channels
            ],
            "sinks": [{"sink": s.name, "stage": s.stage, "fate": s.fate.value, "detail": s.detail} for s in self.sinks],
            "warnings": list(self.warnings),
            "unchecked": list(self.unchecked),
            "problems": [
                {"what": p.what, "untouched": p.untouched, "next": p.next, "exit_code": p.exit_code}
                for p in self.problems
            ],
            "would_succeed": not self.problems,
        }  # fmt: skip


def _stage_json(stage: StagePlan) -> dict[str, Any]:
    record = stage.record
    return {
        "stage": stage.uid,
        "action": stage.action.value,
        "batch": None if record is None else record.batch,
        "state_rows": None if record is None else record.state_rows,
        "bytes": stage.bytes,
        "partitions": None if stage.partitions is None else list(stage.partitions),
        "starts": dict(stage.starts),
        "replaces": stage.replaces,
        "unchained_from": stage.host,
    }
