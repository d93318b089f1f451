"""Walking through a run, forwards and backwards, from one consistent cut to another.

Theory
------
The consistent cuts of a run form a lattice (Mattern 1989): of all consistent cuts that have a step there is a smallest,
its clock, and of all that lack it there is a largest. So every move has one right answer. To have a step, the cut takes
along what caused it, and nothing else; to be without a step, it gives up what the step caused, and nothing else.

A run was recorded in one order of its steps. `forwards` adds the first step of that order which the cut lacks,
`backwards` takes away the last one which it has. Both are always possible: causes come before effects in the order. On
a *prefix* of the order the two are inverse, and they pass through the states as the journal saw them. Elsewhere they
need not be, which is why whoever shows a walk also keeps where it has been (`Trail`).

>>> from strobe.predicates.computation import Computation
>>> ping = Computation.of({"a": 1, "b": 2}, {("b", 2): ("a", 1)})  # b's second step receives what a's first one sent
>>> walk = Walk(ping, ((1, 1), (0, 1), (1, 2)))
>>> walk.forwards((0, 0)), walk.forwards((0, 1)), walk.backwards((1, 2))
((0, 1), (1, 1), (1, 1))
>>> walk.with_step((0, 0), 1, 2)  # the sender comes along
(1, 2)
>>> walk.without_step((1, 2), 0, 1)  # the receipt goes away, b's first step stays
(0, 1)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from strobe.model.ids import SnapshotId
from strobe.predicates.computation import Computation, Positions, Step
from strobe.predicates.replay import Run

__all__ = ["Stop", "Trail", "Walk", "walk_through"]


@dataclass(frozen=True)
class Stop:
    """A consistent cut at which snapshots were recorded. `exact` is False if what they recorded is not consistent: then
    `at` is the smallest one that has all of it."""

    at: Positions
    snapshots: tuple[SnapshotId, ...]
    exact: bool = True


@dataclass(frozen=True)
class Walk:
    """All ways from cut to cut. `order` has every step once, causes before effects; cuts that are handed in must be
    consistent, and so are those that come out."""

    computation: Computation
    order: tuple[Step, ...]
    stops: tuple[Stop, ...] = ()

    # ── one step ────────────────────────────────────────────────────────────────────────────────────────────────────

    def forwards(self, cut: Positions) -> Positions:
        """The cut with the next step of the recorded order; the same cut at the end."""
        due = [row[count] for row, count in zip(self._places, cut, strict=True) if count < len(row)]
        return _moved(cut, self.order[min(due)][0], +1) if due else cut

    def backwards(self, cut: Positions) -> Positions:
        """The cut without the last step of the recorded order; the same cut at the start."""
        done = [row[count - 1] for row, count in zip(self._places, cut, strict=True) if count]
        return _moved(cut, self.order[max(done)][0], -1) if done else cut

    def forwards_at(self, cut: Positions, node: int) -> Positions:
        """The cut with the node's next step, and with what caused it."""
        return self.with_step(cut, node, min(cut[node] + 1, self.computation.lengths[node]))

    def backwards_at(self, cut: Positions, node: int) -> Positions:
        """The cut without the node's last step, and without what it caused."""
        return self.without_step(cut, node, cut[node]) if cut[node] else cut

    def with_step(self, cut: Positions, node: int, number: int) -> Positions:
        """The smallest consistent cut that has all of this one, and the step."""
        return _join(cut, self.computation.clocks(node)[number])

    def without_step(self, cut: Positions, node: int, number: int) -> Positions:
        """The largest consistent cut inside this one that lacks the step. A node keeps its states that know nothing of
        it: knowledge only grows along a node, so these are its first ones."""
        return tuple(
            bisect_left(self.computation.clocks(other), number, 0, count + 1, key=lambda clock: clock[node]) - 1
            for other, count in enumerate(cut)
        )

    def at_step(self, cut: Positions, node: int, number: int) -> Positions:
        """The nearest consistent cut in which this is the node's last step: further on, or further back."""
        if number >= cut[node]:
            return self.with_step(cut, node, number)
        return self.without_step(cut, node, number + 1)

    # ── along causes ────────────────────────────────────────────────────────────────────────────────────────────────

    def to_cause(self, cut: Positions, node: int) -> tuple[Positions, int] | None:
        """Back to when the message that the node's last step received was just sent, and who sent it. Its receipt is
        not in the cut: the message is in flight. None if that step received nothing that was sent in this run."""
        need = self.computation.needs[node][cut[node] - 1] if cut[node] else None
        if need is None:
            return None
        sender, sent = need
        return self.without_step(self.without_step(cut, sender, sent + 1), node, cut[node]), sender

    def to_effect(self, cut: Positions, node: int) -> tuple[Positions, int] | None:
        """On to when a message that the node's last step sent is received, and by whom: the first one that is still in
        flight. None if there is none."""
        for receiver, received in self._receipts.get((node, cut[node]), ()):
            if received > cut[receiver]:
                return self.with_step(cut, receiver, received), receiver
        return None

    # ── further ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_change(self, cut: Positions, holds: Callable[[Positions], bool]) -> Positions | None:
        """Forwards, the first cut at which the condition starts or stops to hold."""
        before = holds(cut)
        return next((later for later in self._later(cut) if holds(later) != before), None)

    def previous_change(self, cut: Positions, holds: Callable[[Positions], bool]) -> Positions | None:
        """Backwards, the last cut before this one at which the condition has just started or stopped to hold."""
        later: Positions | None = None
        truth = False
        for earlier in self._earlier(cut):
            now = holds(earlier)
            if later is not None and now != truth:
                return later
            later, truth = earlier, now
        return None

    def next_stop(self, cut: Positions) -> Stop | None:
        return next((stop for stop in self.stops if _rank(stop.at) > _rank(cut)), None)

    def previous_stop(self, cut: Positions) -> Stop | None:
        return next((stop for stop in reversed(self.stops) if _rank(stop.at) < _rank(cut)), None)

    def prefix(self, length: int) -> Positions:
        """The cut after the first steps of the recorded order."""
        return tuple(bisect_left(row, length) for row in self._places)

    def place(self, node: int, number: int) -> int:
        """Where the step stands in the recorded order, from 0."""
        return self._places[node][number - 1]

    def front(self, cut: Positions) -> int:
        """How far the recorded order must be followed until it has all of the cut."""
        return max((row[count - 1] + 1 for row, count in zip(self._places, cut, strict=True) if count), default=0)

    def last_node(self, cut: Positions) -> int:
        """The node whose step in the cut was recorded last."""
        front = self.front(cut)
        return self.order[front - 1][0] if front else 0

    def _later(self, cut: Positions) -> Iterator[Positions]:
        while cut != self.computation.last:
            cut = self.forwards(cut)
            yield cut

    def _earlier(self, cut: Positions) -> Iterator[Positions]:
        while cut != self.computation.first:
            cut = self.backwards(cut)
            yield cut

    @cached_property
    def _places(self) -> list[list[int]]:
        places: list[list[int]] = [[] for _ in self.computation.nodes]
        for place, (node, _) in enumerate(self.order):
            places[node].append(place)
        return places

    @cached_property
    def _receipts(self) -> Mapping[Step, list[Step]]:
        """By sending step, the steps that received, as they were recorded."""
        found: dict[Step, list[Step]] = {}
        for node, number in self.order:
            need = self.computation.needs[node][number - 1]
            if need is not None:
                found.setdefault(need, []).append((node, number))
        return found


@dataclass(frozen=True)
class Trail:
    """Where a walk has been: `here`, the cuts before it, and those that were left by going back."""

    here: Positions
    behind: tuple[Positions, ...] = ()
    ahead: tuple[Positions, ...] = ()

    def to(self, cut: Positions) -> Trail:
        return self if cut == self.here else Trail(cut, (*self.behind[-999:], self.here))

    def undo(self) -> Trail:
        if not self.behind:
            return self
        return replace(self, here=self.behind[-1], behind=self.behind[:-1], ahead=(*self.ahead, self.here))

    def redo(self) -> Trail:
        if not self.ahead:
            return self
        return replace(self, here=self.ahead[-1], behind=(*self.behind, self.here), ahead=self.ahead[:-1])


def walk_through(run: Run) -> Walk:
    index = {node: i for i, node in enumerate(run.computation.nodes)}
    order = tuple((index[node], number) for node, number in run.order)
    return Walk(run.computation, order, _stops(run))


def _stops(run: Run) -> tuple[Stop, ...]:
    found: dict[Positions, Stop] = {}
    for snapshot, recorded in run.snapshots.items():
        at = recorded
        for node, number in enumerate(recorded):
            at = _join(at, run.computation.clocks(node)[number])
        known = found.get(at, Stop(at, ()))
        found[at] = Stop(at, (*known.snapshots, snapshot), known.exact and at == recorded)
    return tuple(sorted(found.values(), key=lambda stop: _rank(stop.at)))


def _rank(cut: Positions) -> tuple[int, Positions]:
    """A total order of cuts that puts a cut before those that have more of the run."""
    return sum(cut), cut


def _join(one: Iterable[int], other: Iterable[int]) -> Positions:
    return tuple(a if a > b else b for a, b in zip(one, other, strict=True))


def _moved(cut: Positions, node: int, by: int) -> Positions:
    return (*cut[:node], cut[node] + by, *cut[node + 1 :])
