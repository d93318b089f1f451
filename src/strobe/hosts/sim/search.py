"""The shortest schedule after which a stable predicate holds: breadth first, each state once.

The explorer goes deep, because it judges complete runs. Here one moment is looked for, and what comes after it does not
matter. The search goes level by level, so that the first state in which the predicate holds is at the end of a shortest
schedule. The world itself is asked, not a snapshot of it: what is found is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from strobe.hosts.sim.checks import Check, cut_of
from strobe.hosts.sim.explore import ExploreProgress, Identify
from strobe.hosts.sim.sites import Choice
from strobe.hosts.sim.system import Schedule, System
from strobe.hosts.sim.world import World
from strobe.predicates.stable import Finding

__all__ = ["Shortest", "shortest"]


@dataclass(frozen=True)
class Shortest:
    """`finding` is the last one made: of the state that `schedule` leads to, if it is found. Otherwise `complete` says
    whether all states were looked at."""

    system: System
    finding: Finding
    schedule: Schedule
    states: int
    transitions: int
    complete: bool

    @property
    def found(self) -> bool:
        return self.finding.found


def shortest(
    system: System,
    check: Check,
    on_progress: Callable[[ExploreProgress], None] | None = None,
    *,
    max_states: int = 5_000_000,
) -> Shortest:
    """Search without snapshots, which would only make the schedule longer."""
    system = replace(system, plan=(), aborts=frozenset(), missed=frozenset())
    identify = Identify()
    world = system.world()
    finding = check(system.workload, cut_of(world))
    if finding.found:
        return Shortest(system, finding, (), 1, 0, True)
    ways: dict[bytes, tuple[bytes, Choice] | None] = {identify(world): None}  # how each state was reached first
    level: list[tuple[bytes, World]] = [(next(iter(ways)), world)]
    transitions = 0
    while level:
        further: list[tuple[bytes, World]] = []
        for before, at in level:
            for choice in system.enabled(at):
                transitions += 1
                new = at.fork()
                system.perform(new, choice)
                state = identify(new)
                if state in ways:
                    continue
                ways[state] = (before, choice)
                finding = check(system.workload, cut_of(new))
                if finding.found:
                    return Shortest(system, finding, _way_to(state, ways), len(ways), transitions, True)
                if len(ways) >= max_states:
                    return Shortest(system, finding, (), len(ways), transitions, False)
                further.append((state, new))
        if on_progress is not None:
            on_progress(ExploreProgress(len(ways), transitions, 0.0))
        level = further
    return Shortest(system, finding, (), len(ways), transitions, True)


def _way_to(state: bytes, ways: dict[bytes, tuple[bytes, Choice] | None]) -> Schedule:
    schedule: list[Choice] = []
    step = ways[state]
    while step is not None:
        before, choice = step
        schedule.append(choice)
        step = ways[before]
    return tuple(reversed(schedule))
