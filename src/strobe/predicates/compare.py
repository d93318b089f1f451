"""Where two runs of the same nodes part.

Two steps are the same if they had the same cause and did the same: the same action, or the same message from the same
step of its sender, and the same sends. A node's steps are the same up to its first one that is not. The largest
consistent cut among these is where the runs part: up to it the two runs are the same, and because causes are compared,
too, it is a consistent cut of both.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from strobe.model.cut import canonical
from strobe.model.errors import Misuse
from strobe.model.events import Internal
from strobe.model.ids import NodeId
from strobe.predicates.computation import Positions
from strobe.predicates.replay import Run
from strobe.predicates.walk import Walk, walk_through

__all__ = ["Difference", "compare"]


@dataclass(frozen=True)
class Difference:
    """`at` is the last cut that both runs have. `first` is the step after it, with which the first run, in its own
    order, leaves the second; None if it never does. `steps` is how many each node takes in the two runs."""

    at: Positions
    first: tuple[NodeId, int] | None
    steps: tuple[tuple[int, int], ...]
    same_states: tuple[bool, ...]  # by node: does it end in the same state?

    @property
    def none(self) -> bool:
        return all(ours == theirs == same for (ours, theirs), same in zip(self.steps, self.at, strict=True))


def compare(ours: Run, theirs: Run) -> Difference:
    nodes = ours.computation.nodes
    if nodes != theirs.computation.nodes:
        odd = sorted(set(nodes) ^ set(theirs.computation.nodes))
        raise Misuse(
            f"The two runs are of different systems: {', '.join(odd) or 'the order of nodes'} is only in one of them.",
            untouched="Nothing was compared.",
            next="Compare runs of the same nodes: with another seed, other delays or another protocol.",
        )
    walk = walk_through(ours)
    at = ours.computation.last
    for index, node in enumerate(nodes):
        same = _same_steps(ours, theirs, node)
        if same < at[index]:
            at = walk.without_step(at, index, same + 1)
    lengths = zip(ours.computation.lengths, theirs.computation.lengths, strict=True)
    ends = tuple(canonical(ours.states(n)[-1]) == canonical(theirs.states(n)[-1]) for n in nodes)
    return Difference(at, _first_after(walk, at, nodes), tuple(lengths), ends)


def _first_after(walk: Walk, at: Positions, nodes: tuple[NodeId, ...]) -> tuple[NodeId, int] | None:
    after = walk.forwards(at)
    return next((
        (node, now) for node, before, now in zip(nodes, at, after, strict=True) if now > before
    ), None)  # fmt: skip


def _same_steps(ours: Run, theirs: Run, node: NodeId) -> int:
    index = ours.computation.nodes.index(node)
    if canonical(ours.states(node)[0]) != canonical(theirs.states(node)[0]):
        return 0
    most = min(ours.computation.lengths[index], theirs.computation.lengths[index])
    return next((n - 1 for n in range(1, most + 1) if _label(ours, node, n) != _label(theirs, node, n)), most)


def _label(run: Run, node: NodeId, number: int) -> Hashable:
    event = run.event(node, number)
    sends = tuple((sent.channel, sent.seq, canonical(sent.payload)) for sent in run.sends(node, number))
    if isinstance(event, Internal):
        return canonical(event.action), sends
    payload = canonical(run.history.payload(run.epoch, event.channel, event.seq))
    return event.channel, event.seq, payload, run.cause(node, number), sends
