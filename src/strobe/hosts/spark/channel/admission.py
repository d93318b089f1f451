"""How far a stage's next micro-batch may read: whole commits, never across a barrier that it may not cross.

A consumer's batch is a whole number of producer commits, because a batch is judged by the watermark of the batch
before: splitting a commit changes event-time results downstream. Limits therefore round up to one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from strobe.hosts.spark.channel.log import ChannelLog, Commit
from strobe.model.ids import SnapshotId

__all__ = ["Limits", "Span", "merge", "plan_end", "rows_in"]


@dataclass(frozen=True, slots=True)
class Limits:
    rows: float | None = None
    bytes: int | None = None

    def at_most(self, rows: float) -> Limits:
        return Limits(rows if self.rows is None else min(self.rows, rows), self.bytes)


@dataclass(frozen=True, slots=True)
class Span:
    """What a channel carries at the positions (after, through]. To the protocol's machines it is an opaque message."""

    after: int
    through: int


def merge(spans: Iterable[Span], *, start: int) -> Span:
    """The content of a channel for a recording that was at `start`: everything from there to where the last span ends.
    Positions that no span covers are barriers of other snapshots: they carry no rows.
    """
    return Span(start, max((span.through for span in spans), default=start))


def rows_in(log: ChannelLog, span: Span) -> int:
    return sum(c.rows for c in log.commits(span.after, span.through)) if span.after < span.through else 0


def plan_end(position: int, ahead: Iterable[Commit], may_pass: Callable[[SnapshotId], bool], limits: Limits) -> int:
    """The version at which the next batch ends: `position` itself if there is nothing to read.

    It is the version of a data commit: barriers need no batch of their own, the agent walks over them.
    """
    end, rows, size = position, 0, 0
    for commit in ahead:
        if commit.barrier is not None:
            if not may_pass(commit.barrier):
                break
        elif commit.files:
            rows += commit.rows
            size += commit.bytes
            full = (limits.rows is not None and rows > limits.rows) or (
                limits.bytes is not None and size > limits.bytes
            )
            if full and end > position:
                break
            end = commit.version
            if full:
                break
    return end
