"""Real systems for tests: nodes as operating-system processes on loopback, and what a snapshot of a bank holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from strobe.hosts.live.api.codec import decode_plain
from strobe.hosts.live.api.process import Process
from strobe.hosts.live.api.topology import NodeSpec, Topology, complete
from strobe.hosts.live.snapshot.snapshots import Loaded, load
from strobe.hosts.live.system.system import System
from strobe.model.ids import NodeId, SnapshotId
from strobe.protocol.coordinator.messages import CoordinatorSettings
from strobe.store.consistency import check_manifest
from tests.support.live.apps import Account

__all__ = ["bank", "money", "run", "settings", "system", "verified"]


def bank(names: str = "abc", cls: type[Process] = Account, **params: Any) -> Topology:
    nodes = tuple(NodeSpec(NodeId(name), cls, params=params) for name in names)
    return Topology("bank", nodes, complete(names))


def settings(**changes: Any) -> CoordinatorSettings:
    return CoordinatorSettings(**{"timeout": 60_000, "tolerable_failures": 100, "retained": 1000, **changes})


def system(topology: Topology, home: Path, **options: Any) -> System:
    return System(topology, **{"home": home, "settings": settings(), **options})


def verified(live: System, snapshot: SnapshotId) -> Loaded:
    """The snapshot, once every byte of it and law 1 have been checked."""
    assert live.store.verify(snapshot) == ()
    assert check_manifest(live.store.load(snapshot)) == ()
    return load(live.store, snapshot, live.topology.graph)


def money(loaded: Loaded) -> int:
    at_nodes: int = sum(decode_plain(state)["balance"] for state in loaded.states.values())
    in_flight: int = sum(decode_plain(item)[1]["amount"] for items in loaded.contents.values() for item in items)
    return at_nodes + in_flight


def run(work: Callable[[], Awaitable[None]], seconds: float = 60) -> None:
    async def main() -> None:
        async with asyncio.timeout(seconds):
            await work()

    asyncio.run(main())
