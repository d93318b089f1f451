"""Puts things into an order in which each comes after what it needs, and otherwise into the order that they have."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

__all__ = ["in_causal_order"]


def in_causal_order(points: range, needs: Sequence[Sequence[int]]) -> Iterable[int]:
    """`needs[p]` are those that come before p. What lies outside `points` is taken to have come already."""
    if all(need < at for at in points for need in needs[at]):
        return points
    open_needs = {at: sum(need in points for need in needs[at]) for at in points}
    followers: dict[int, list[int]] = {at: [] for at in points}
    for at in points:
        for need in needs[at]:
            if need in points:
                followers[need].append(at)
    ready = [at for at in points if open_needs[at] == 0]
    done = dict[int, None]()
    while len(done) < len(points):
        if not ready:  # a loop of causes: no real run has one, but it is drawn, too
            ready.append(min(at for at in points if at not in done))
        at = heapq.heappop(ready)
        if at in done:
            continue
        done[at] = None
        for follower in followers[at]:
            open_needs[follower] -= 1
            if open_needs[follower] == 0:
                heapq.heappush(ready, follower)
    return tuple(done)
