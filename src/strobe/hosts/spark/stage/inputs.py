"""The channels that a stage reads, and how far it has come on each.

Two positions for each channel. The *offset* is Spark's own: how far the query's committed batches have read. The
*logical position* is the last entry that the stage's machine has seen as delivered: it runs ahead of the offset by
entries that carry no rows, since barriers need no batch.

Here is decided in which order the machine gets to know what is in the channels. An entry is *settled* if it asks for
nothing: what was read, and barriers that are recorded or given up at this stage. All that is settled, on every input,
comes before the next barrier. Otherwise a stage that starts again, whose offsets are behind old barriers, would record
at a new one with a position behind the one that an earlier snapshot has.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from pathlib import Path

from strobe.hosts.spark.channel.admission import Limits, Span, plan_end, rows_in
from strobe.hosts.spark.channel.log import ChannelLog, Commit
from strobe.hosts.spark.channel.pace import Pace
from strobe.hosts.spark.checkpoint.stage_files import channel_positions
from strobe.model.ids import ChannelId, NodeId, SnapshotId
from strobe.protocol.barriers import Barriers
from strobe.protocol.events import BarrierArrived, MessageArrived

__all__ = ["Reach", "StageInputs"]

Arrival = BarrierArrived | MessageArrived


class Reach(enum.Enum):
    """How far to go beyond what the query has read: nowhere, over what is settled, or to one barrier more."""

    READ = 0
    SETTLED = 1
    BARRIER = 2


class StageInputs:
    def __init__(self, logs: Mapping[NodeId, ChannelLog], limits: Limits, pace: Pace | None = None) -> None:
        """`pace`: how many rows are a batch of the right length; None: that is not limited."""
        self._logs = dict(logs)
        self._limits = limits
        self._pace = pace
        self._took: float | None = None  # seconds that the last batch took
        self._offsets = dict.fromkeys(self._logs, 0)
        self._logical = dict(self._offsets)
        # Barriers beyond the logical position that the machine has already: they have overtaken unread rows.
        self._early: dict[NodeId, set[int]] = {producer: set() for producer in self._logs}

    def start(self, checkpoint: Path, batch: int) -> None:
        """A new life, after `batch`. Raises before anything is changed."""
        self._offsets = channel_positions(checkpoint, batch, self._logs)
        self._logical = dict(self._offsets)
        self._early = {producer: set() for producer in self._logs}

    def ran(self, seconds: float) -> None:
        """A batch has taken so long. What it has read is known when it is committed."""
        self._took = seconds

    def committed(self, checkpoint: Path, batch: int) -> None:
        """The query has committed `batch`."""
        before, self._offsets = self._offsets, channel_positions(checkpoint, batch, self._logs)
        if self._pace is not None and self._took is not None:
            read = {producer: Span(before[producer], self._offsets[producer]) for producer in self._logs}
            self._pace.took(sum(rows_in(self._logs[p], span) for p, span in read.items()), self._took)
        self._took = None

    def refresh(self) -> None:
        for log in self._logs.values():
            log.refresh()

    @property
    def positions(self) -> dict[NodeId, int]:
        """The logical ones."""
        return dict(self._logical)

    @property
    def offsets(self) -> dict[NodeId, int]:
        """Spark's own: the query will never read before them again, whatever happens short of a restore."""
        return dict(self._offsets)

    @property
    def exhausted(self) -> bool:
        """Whether no rows wait."""
        return all(
            plan_end(self._logical[p], self._ahead(p), lambda snapshot: True, Limits()) == self._logical[p]
            for p in self._logs
        )

    def lag(self) -> tuple[int, int]:
        """Rows and commits that wait."""
        waiting = [self.lag_of(producer) for producer in self._logs]
        return sum(rows for rows, _ in waiting), sum(commits for _, commits in waiting)

    def lag_of(self, producer: NodeId) -> tuple[int, int]:
        """Rows and commits that wait in one of the channels."""
        waiting = [commit for commit in self._ahead(producer) if commit.files]
        return sum(commit.rows for commit in waiting), len(waiting)

    def plan(self, machine: Barriers) -> dict[NodeId, int]:
        """How far the next batch may read each channel."""
        return {producer: self._plan(machine, producer, limits) for producer, limits in self._paced().items()}

    def _paced(self) -> dict[NodeId, Limits]:
        """What each channel may give to the next batch: of the stage's pace as much as it has of what waits."""
        if self._pace is None or not self._logs:
            return dict.fromkeys(self._logs, self._limits)
        waiting = dict.fromkeys(self._logs, 1)
        if len(self._logs) > 1:
            waiting = {producer: self.lag_of(producer)[0] for producer in self._logs}
        share = self._pace.rows / max(sum(waiting.values()), 1)
        return {producer: self._limits.at_most(share * rows) for producer, rows in waiting.items()}

    def _plan(self, machine: Barriers, producer: NodeId, limits: Limits) -> int:
        if ChannelId(producer) in machine.held:
            return self._offsets[producer]
        position = max(self._offsets[producer], self._logical[producer])
        end = plan_end(position, self._ahead(producer), machine.passed, limits)
        return end if end > position else self._offsets[producer]

    # ── what the machine gets to know; it is stepped between two arrivals ───────────────────────────────────────────

    def walk(self, machine: Barriers, reach: Reach) -> Iterator[Arrival]:
        """What is within `reach`, in order, on every input."""
        for producer in self._logs:
            channel = ChannelId(producer)
            for commit in self._ahead(producer):
                if channel in machine.held or not self._within(machine, reach, producer, commit):
                    break
                before, self._logical[producer] = self._logical[producer], commit.version
                # No rows lie between; the span says how far the channel's content reaches if it is open.
                span = Span(before, commit.version)
                if commit.version in self._early[producer]:
                    self._early[producer].discard(commit.version)
                elif commit.barrier is not None:
                    yield BarrierArrived(channel, commit.barrier, overtaken=(span,), options=commit.options)
                elif not commit.ended:  # an ended producer's agent goes on passing barriers: its end changes nothing
                    yield MessageArrived(channel, span)
                if reach is Reach.BARRIER:
                    return

    def _within(self, machine: Barriers, reach: Reach, producer: NodeId, commit: Commit) -> bool:
        if commit.version <= self._offsets[producer]:
            return True
        settled = commit.barrier is None or machine.passed(commit.barrier)
        return not commit.files and (reach is Reach.BARRIER or (reach is Reach.SETTLED and settled))

    def look_ahead(self, machine: Barriers, *, recorded: bool = False) -> Iterator[Arrival]:
        """Barriers that need not wait for the rows before them: all if unaligned, else those that are recorded here.
        With `recorded` only the latter."""
        for producer in self._logs:
            for commit in self._ahead(producer):
                if commit.barrier is None or commit.version in self._early[producer]:
                    continue
                passed = machine.passed(commit.barrier)
                unaligned = machine.overtakes(commit.options) and not passed and not recorded
                if commit.barrier in machine.recording or unaligned:
                    yield from self._overtake(producer, commit)
                elif not passed:
                    break  # barriers of one channel are taken in order

    def overtaken_by(self, producer: NodeId, snapshot: SnapshotId) -> Iterator[Arrival]:
        """The barrier of `snapshot`, if it waits behind unread rows."""
        commit = self._logs[producer].find_barrier(snapshot)
        if commit is not None and commit.version > self._logical[producer]:
            yield from self._overtake(producer, commit)

    def _overtake(self, producer: NodeId, barrier: Commit) -> Iterator[Arrival]:
        """A barrier that waits behind unread rows, and before it those in front of it, which are stale."""
        for commit in self._ahead(producer):
            if commit.version > barrier.version:
                break
            if commit.barrier is not None and commit.version not in self._early[producer]:
                self._early[producer].add(commit.version)
                content = (Span(self._logical[producer], commit.version),)
                yield BarrierArrived(
                    ChannelId(producer), commit.barrier, overtook=True, overtaken=content, options=commit.options
                )

    def _ahead(self, producer: NodeId) -> tuple[Commit, ...]:
        return self._logs[producer].commits(self._logical[producer])
