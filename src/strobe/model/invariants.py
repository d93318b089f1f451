"""What must hold in every consistent cut of a system, and what was found when it was asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from strobe.model.cut import Json
from strobe.model.errors import Misuse
from strobe.model.ids import SnapshotId

__all__ = ["Invariant", "OnViolation", "Outcome", "Verdict"]

_LONGEST = 200


class OnViolation(StrEnum):
    REPORT = "report"
    FAIL = "fail"
    HOLD = "hold"  # what sinks deliver on snapshot waits until it holds


class Outcome(StrEnum):
    HOLDS = "holds"
    VIOLATED = "violated"
    SKIPPED = "skipped"  # a stage that it asks about has no state yet
    FAILED = "failed"  # it could not be evaluated


@dataclass(frozen=True)
class Invariant:
    """`sql` gives the rows that must not exist; `function` gets the cut, and returns such rows, or whether it holds.
    It is asked of every `every`-th snapshot, from the first
    on in which there is something to ask about."""

    name: str
    sql: str | None = None
    function: Callable[[Any], Any] | None = None
    every: int = 1
    on_violation: OnViolation = OnViolation.REPORT

    def __post_init__(self) -> None:
        where = f"Invariant {self.name!r}"
        if not isinstance(self.name, str) or not self.name.strip() or len(self.name) > _LONGEST:
            raise Misuse(f"{where} has no name that people could use.", next=f"Give it 1 to {_LONGEST} characters.")
        if (self.sql is None) == (self.function is None):
            raise Misuse(
                f"{where} needs a query or a function, and not both.",
                next='pipeline.invariant("name", sql="select …"), or @pipeline.invariant("name") above a function.',
            )
        if self.sql is not None and (not isinstance(self.sql, str) or not self.sql.strip()):
            raise Misuse(f"{where} has an empty query.", next="Select the rows that must not exist.")
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise Misuse(f"{where}: every={self.every!r} is not a whole number from 1 up.")
        if self.on_violation is OnViolation.HOLD and self.every != 1:
            raise Misuse(
                f"{where}: every={self.every} and on_violation='hold' do not go together: rows of a snapshot that was "
                "not asked would become visible.",
                next="Leave every= away. To deliver less often, take checkpoints less often.",
            )


@dataclass(frozen=True, slots=True)
class Verdict:
    """`rows` are the first of `count` that must not be there; `why` it could not be evaluated."""

    invariant: str
    snapshot: SnapshotId
    outcome: Outcome
    at: str = ""
    seconds: float = 0.0
    count: int = 0
    rows: tuple[Mapping[str, Json], ...] = field(default=())
    why: str = ""

    @property
    def sentence(self) -> str:
        named = f"invariant {self.invariant!r}"
        if self.outcome is Outcome.HOLDS:
            return f"{named} holds in snapshot {self.snapshot}"
        if self.outcome is Outcome.SKIPPED:
            return f"{named} was not asked in snapshot {self.snapshot}: {self.why}"
        if self.outcome is Outcome.FAILED:
            return f"{named} could not be evaluated in snapshot {self.snapshot}: {self.why}"
        count = "1 row" if self.count == 1 else f"{self.count:,} rows"
        shown = "; ".join(", ".join(f"{key} {value}" for key, value in row.items()) for row in self.rows[:3])
        more = "" if self.count <= 3 else "; …"
        found = f" ({count} that must not be there: {shown}{more})" if self.rows else ""
        return f"{named} is violated in snapshot {self.snapshot}{found}"
