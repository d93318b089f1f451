"""What a sink is.

A stage hands each micro-batch to its sinks inside `foreachBatch`, after its channel has it and before Spark commits
the batch. So after a crash the last batch comes again, with the same id and, if the stage is deterministic, the same
rows: a sink writes a batch id once per timeline, whatever happens. What a sink says at a snapshot goes into the
manifest and comes back at a restore.

Two ways of delivery. A plain `Sink` delivers *on batch*: rows are visible after each micro-batch. A `TransactionalSink`
delivers *on snapshot*: `write` stages rows, durably and invisibly, and they become visible when a snapshot of the whole
graph that contains them is complete. When a part becomes visible is decided by two-phase commit
(`strobe.protocol.two_phase_commit`), never by the sink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from strobe.model.cut import Json
from strobe.model.errors import Failed, Fenced, Misuse, StrobeError
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline, check_uid
from strobe.store.layout import JobLayout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = [
    "NO_SNAPSHOT", "Delivery", "Part", "Sink", "SinkContext", "SinkFate", "SinkOutlook", "TransactionalSink",
    "Unreachable", "checked_schema", "column_names", "fenced_off", "steady", "whole_results",
]  # fmt: skip

NO_SNAPSHOT: Final = SnapshotId(0)
_STEADY: Final = "strobe_steady"
Position = TypeVar("Position", bound=Callable[..., Json])


class Unreachable(Failed):
    """The system behind a sink does not answer now, and may later. Raised by `prepare`, it is tried again for as long
    as the snapshot waits; any other error of `prepare` refuses the snapshot."""


@dataclass(frozen=True)
class Part:
    """What one snapshot makes visible of one sink: its batches after `after` up to `through`. Parts of a timeline
    follow each other without a gap; an empty one is never prepared."""

    handle: str  # job/stage/sink/timeline/snapshot: never used twice
    snapshot: SnapshotId
    timeline: Timeline
    after: int  # -1 before the first batch
    through: int


@dataclass(frozen=True)
class SinkContext:
    """For whom the sink writes. `name` is the sink's identity within the job: the stage's uid and the sink's own, or
    its place in `to=[…]` if it has none."""

    job: str
    stage: NodeId
    name: str
    timeline: Timeline
    incarnation: Incarnation
    schema: StructType
    output_mode: str
    base: Path  # relative paths of sinks are below this directory: where the job was started
    staging: Path  # a directory of this sink's own in the job's home, for this timeline; made when first used
    named: tuple[Part, ...] = ()  # at a restore: the parts that the snapshot names; all are visible by then
    copies_from: tuple[Path, ...] | None = None  # at a restore: places that it may copy from; None: any
    settling: bool = False  # opened at a restore to settle what earlier runs left: `schema` is not that of these rows
    identity: Path | None = None  # the file with the identity of this job, not shared by jobs of its name elsewhere

    def of_timeline(self, timeline: int) -> SinkContext:
        """The same sink in another timeline: what it has staged there."""
        staging = self.staging.with_name(JobLayout.staging_name(timeline))
        return replace(self, timeline=Timeline(timeline), staging=staging)

    @property
    def identity_file(self) -> Path:
        return self.staging.parent / "identity" if self.identity is None else self.identity


class Delivery(Enum):
    """When rows become visible: after each micro-batch, or when a snapshot that contains them is complete."""

    ON_BATCH = "on_batch"
    ON_SNAPSHOT = "on_snapshot"

    @classmethod
    def of(cls, value: str | Delivery, where: str) -> Delivery:
        """The delivery that the user has given to the sink `where`."""
        try:
            return cls(value)
        except ValueError:
            raise Misuse(f"{where}: delivery={value!r} is not one of {', '.join(d.value for d in cls)}.") from None


class SinkFate(Enum):
    """What a restore does to a sink."""

    ROLLED_BACK = "rolled back"
    COPIED = "copied"
    EMPTY = "starts empty"
    KEPT = "cannot be undone"


@dataclass(frozen=True)
class SinkOutlook:
    """What a restore would do to a sink, in words, and the problem if it cannot."""

    fate: SinkFate
    detail: str
    problem: StrobeError | None = None
    warning: str = ""


def steady(position: Position) -> Position:
    """For a sink's `position` that depends on the batches that were written, and on nothing else. It is asked before
    each batch, too, with `NO_SNAPSHOT`: then a snapshot that begins while the batch runs need not wait for its end."""
    setattr(position, _STEADY, True)
    return position


class Sink(ABC):
    uid: str | None = None
    rows_taken: int | None = None  # what it has taken so far, for the status; None if it does not count
    trouble: str = ""  # why `write` does not come to an end, while it tries again; shown in the stage's status

    def named(self, uid: str) -> Self:
        """Give the sink a uid, unique within its stage: it is then found again by that, and not by its place in
        `to=[…]`, when a file is changed. `strobe.DeltaSink("out/gold").named("gold")`."""
        if check_uid(uid, "sink").isdigit():
            raise Misuse(f"A sink cannot be named {uid!r}: numbers are the names of those without a uid.")
        self.uid = uid
        return self

    @property
    def delivery(self) -> Delivery:
        """How it delivers. A class that offers both ways overrides this. Asked once, before `open`."""
        return Delivery.ON_BATCH

    @property
    def rejected(self) -> int:
        """Rows in its dead-letter table, for the status. A sink that keeps its `Letters` as `_letters` need not
        override this."""
        return int(getattr(getattr(self, "_letters", None), "count", 0))

    @abstractmethod
    def describe(self) -> str:
        """Where it writes, for people."""

    def open(self, context: SinkContext) -> None:  # noqa: B027  (most sinks need nothing here)
        """Before the stage's first batch, at each start. Raise Misuse for what can never work."""

    def check_columns(self, context: SinkContext) -> str | None:
        """At a start without a restore, and for its plan, before anything is touched; the sink is not open. Raise
        Misuse if what is there can never take the columns that the stage returns now. Returns a sentence about what
        the start will change there, for people, if anything."""
        return None

    @abstractmethod
    def write(self, batch: DataFrame, batch_id: int) -> None:
        """Write the batch, once per (timeline, batch id)."""

    def check_stage(self, stage: NodeId, output_mode: str) -> None:  # noqa: B027
        """Before anything starts, Spark included. Raise Misuse for what the stage's declaration shows can never work;
        `whole_results` is the one for a sink that cannot have `output_mode="complete"`."""

    def place(self) -> str | None:
        """What it writes to, if nobody else may."""
        return None

    def place_in(self, base: Path) -> str | None:
        """What it writes to, if nobody else may; relative paths begin at `base`."""
        return self.place()

    def last_batch(self) -> int | None:
        """The newest batch of this job and timeline that it has, if it can tell. Called after `open`."""
        return None

    @steady
    def position(self, snapshot: SnapshotId) -> Json:
        """At a snapshot, between two batches: what a restore needs to take this sink back to here."""
        return None

    @property
    def has_steady_position(self) -> bool:
        return getattr(type(self).position, _STEADY, False)

    def outlook(self, position: Json, context: SinkContext, *, fork: bool, again: bool) -> SinkOutlook:
        """What a restore to `position` would do here; touches nothing. `position` is None for a sink that the snapshot
        does not know. A `fork` must leave the original's place alone. `again`: an earlier attempt may have begun."""
        if fork:
            return SinkOutlook(SinkFate.KEPT, "it gets every batch after the snapshot, as the original's does")
        return SinkOutlook(SinkFate.KEPT, "what it got after the snapshot stays there, and comes once more")

    def restore(self, position: Json, context: SinkContext, fate: SinkFate) -> None:  # noqa: B027
        """Do what `outlook` said, before `open`. Doing it again changes nothing."""

    def close(self) -> None:  # noqa: B027
        """The stage has ended."""


def checked_schema(where: str, schema: object) -> bool:
    """Whether the table gets the columns that a stage returns."""
    if schema not in ("fixed", "evolve"):
        raise Misuse(f"{where}: schema={schema!r} is not one of fixed, evolve.")
    return schema == "evolve"


def column_names(where: str, option: str, given: object) -> tuple[str, ...]:
    """The columns that a user has named, one or several; Misuse if these are not names of columns."""
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (given,)
    names = () if given is None else names
    for name in names:
        if not isinstance(name, str) or not name:
            raise Misuse(f"{where}: {option} is the name of a column or several names, not {name!r}.")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise Misuse(f"{where}: {option} has the column {twice[0]!r} twice.", next="Name each column once.")
    return names


def whole_results(sink: Sink, stage: NodeId, instead: str) -> Misuse:
    """The error for a sink that adds rows to what is there, if its stage gives the whole result with each batch."""
    return Misuse(
        f"Stage {stage!r} has output_mode 'complete', which gives the whole result again with each batch, but "
        f"{sink.describe()} keeps what earlier batches gave.",
        untouched="Nothing was started.",
        next=f"{instead}, or a sink that gets the whole result: ForeachBatchSink, MemorySink, ConsoleSink.",
    )


def fenced_off(what: str, context: SinkContext, newest: int) -> Fenced:
    """The error for a driver that finds the mark of a newer one at the place of its sink."""
    return Fenced(
        f"{what} of stage {context.stage!r}: incarnation {context.incarnation} of job {context.job} is fenced off by "
        f"incarnation {newest}.",
        untouched="Nothing was written.",
        next="A newer run of this job has taken over; this one must stop.",
    )


class TransactionalSink(Sink):
    """A sink whose rows become visible when a snapshot is complete.

    `write` stages a batch: durably, invisibly, and so that writing it again replaces it. Batches of a part are never
    written again once the part is prepared. `prepare`, `commit`, `abort` and `recover` are called one at a time, from a
    thread of their own, while `write` may be staging later batches. Parts are committed in order.
    """

    _delivery = Delivery.ON_SNAPSHOT  # a class that offers both sets its own

    @property
    def delivery(self) -> Delivery:
        return self._delivery

    def outlook(self, position: Json, context: SinkContext, *, fork: bool, again: bool) -> SinkOutlook:
        if fork:
            return SinkOutlook(SinkFate.KEPT, "it gets every batch after the snapshot, as the original's does")
        return SinkOutlook(SinkFate.KEPT, "what later snapshots made visible stays there, and comes once more")

    @abstractmethod
    def prepare(self, part: Part) -> Json:
        """Make sure that `commit` cannot fail for a reason in the rows; nothing becomes visible. What is returned is in
        the snapshot's manifest, and is given to `commit`. Raise Failed to refuse: the snapshot fails, the rows stay
        staged, and the next snapshot's part contains them. An earlier part may be prepared and not yet committed."""

    @abstractmethod
    def commit(self, part: Part, prepared: Json) -> None:
        """Make the part visible at once as a whole, and delete what was staged. The snapshot is complete, so this is
        tried until it succeeds. A part that is visible already is not an error: doing it again changes nothing."""

    @abstractmethod
    def abort(self, part: Part, prepared: Json) -> None:
        """Throw the part away; only at a restore to a snapshot that does not contain it. A part that is gone is not an
        error. `prepared` is None if a crash came before it was noted."""

    def withdraw(self, part: Part, prepared: Json) -> None:
        """The part was just prepared, and no snapshot will name it: release what it holds in the system outside, such
        as locks. Its rows stay staged, and the next part has them."""

    def visible(self, part: Part, prepared: Json, context: SinkContext) -> bool | None:
        """Whether the part is visible, if the sink can tell without touching anything; asked before a restore, when the
        part is in doubt and what was staged of it is gone. The sink is not open."""
        return None

    def by_hand(self, part: Part) -> str:
        """How a person would make the part visible, or find out whether it is: shown by `strobe transactions`."""
        return ""

    def recover(self, parts: Iterable[Part]) -> None:
        """At each start, after `open` and before the first `write`. `parts` are those in doubt that will be committed
        or named by the next snapshot. Nothing else that is found prepared by this job and sink is needed."""
