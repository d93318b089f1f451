"""One contract for every host that runs processes: the same workload, parameters and seed, in the simulator and live.

Each run must give a journal in which every snapshot is a consistent cut, in which the workload's own invariant holds in
every cut, and which has come to the right end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from strobe.hosts.live.api.codec import decode_plain
from strobe.hosts.live.api.topology import NodeSpec, Topology
from strobe.hosts.live.journal.merge import merge
from strobe.hosts.live.snapshot.snapshots import load
from strobe.hosts.live.system.system import System
from strobe.hosts.sim.runner import SimConfig
from strobe.hosts.sim.runner import run as simulate
from strobe.hosts.sim.workloads.bank import Bank
from strobe.model.events import Completed
from strobe.protocol.coordinator.messages import CoordinatorSettings
from strobe.verify.consistency import check_journal
from strobe.verify.journal import Journal
from tests.contract.workload_process import BankProcess

NODES, SNAPSHOTS = 3, 4
PARAMS: dict[str, Any] = {"transfers": 150, "balance": 1000}


@dataclass(frozen=True)
class Outcome:
    journal: Journal
    states: dict[Any, Any]


def in_simulator(seed: int, protocol: str, home: Path) -> Outcome:
    order: Any = "reorder" if protocol == "lai-yang" else "fifo"
    result = simulate(
        SimConfig("bank", PARAMS, nodes=NODES, protocol=protocol, order=order, seed=seed, snapshots=SNAPSHOTS)
    )
    assert result.journal is not None
    return Outcome(result.journal, dict(result.states))


def live(seed: int, protocol: str, home: Path) -> Outcome:
    graph = Bank(NODES, PARAMS).graph
    params = {"nodes": NODES, "params": PARAMS, "seed": seed}
    nodes = tuple(NodeSpec(node, BankProcess, params=params) for node in graph.nodes)
    topology = Topology("bank", nodes, graph.channels, protocol)

    async def work() -> Outcome:
        settings = CoordinatorSettings(timeout=60_000, tolerable_failures=0, retained=1000)
        async with System(topology, home=home, settings=settings, journal=True) as system, asyncio.timeout(60):
            taken, at_rest = 0, False
            while not (at_rest and taken >= SNAPSHOTS):
                loaded = load(system.store, await system.snapshot(), graph)
                left = sum(decode_plain(state)["left"] for state in loaded.states.values())
                taken, at_rest = taken + 1, not left and not any(loaded.contents.values())
            assert system.journal is not None
            directory = system.journal
        journal = merge(directory, graph, "bank", protocol)
        last = [event for event in journal.events if isinstance(event, Completed)][-1]
        return Outcome(journal, dict(last.cut.states))

    return asyncio.run(work())


HOSTS: dict[str, Callable[[int, str, Path], Outcome]] = {"sim": in_simulator, "live": live}


@pytest.mark.parametrize("protocol", ["chandy-lamport", "lai-yang"])
@pytest.mark.parametrize("host", HOSTS)
def test_every_snapshot_is_consistent_and_conserves_money(host: str, protocol: str, tmp_path: Path) -> None:
    seed = 5
    outcome, workload = HOSTS[host](seed, protocol, tmp_path), Bank(NODES, PARAMS)
    report = check_journal(outcome.journal)
    assert report.ok, f"seed {seed}: {report.sentence}"
    cuts = [event.cut for event in outcome.journal.events if isinstance(event, Completed)]
    assert len(cuts) == len(report.snapshots) >= SNAPSHOTS
    for cut in cuts:
        assert workload.check(cut) is None, f"seed {seed}"
    assert workload.check_end(outcome.states) is None, f"seed {seed}"
    assert outcome.journal.header.graph == workload.graph
