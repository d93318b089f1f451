"""Which system a scenario's `protocol` line makes. A new protocol is one line here and one module beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.scenarios.commits import CommitWorld
from tests.scenarios.coordinator import CoordinatorWorld
from tests.scenarios.harness import Setup, World
from tests.scenarios.restores import RestoreWorld
from tests.scenarios.snapshots import MACHINES, SnapshotWorld
from tests.scenarios.terminations import TerminationWorld

__all__ = ["WORLDS"]

WORLDS: dict[str, Callable[[Setup], World]] = {
    **{name: partial(SnapshotWorld, make=make) for name, make in MACHINES.items()},
    "coordinator": CoordinatorWorld,
    "two-phase-commit": CommitWorld,
    "restore": RestoreWorld,
    "dijkstra-scholten": TerminationWorld,
}
