"""One contract for all hosts: money moves while snapshots are taken, in the simulator, in processes and on Spark.

Every snapshot must be a consistent cut, no cut may have more or less money than the bank, and the run must come to the
right end. Hosts differ in what they can: a host says with which protocols it takes snapshots, and whether it keeps a
journal, by which the verifier can judge the whole run and not only its snapshots.
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
    """What a run leaves. `money_lost`: what is wrong with the money of a cut, for each cut in which something is."""

    snapshots: int
    violations: list[str]
    money_lost: list[str]
    right_end: bool
    journal: Journal | None = None


def judged(journal: Journal, states: dict[Any, Any]) -> Outcome:
    """By the journal: the run, every snapshot in it, and the workload's own invariant in every cut."""
    report, workload = check_journal(journal), Bank(NODES, PARAMS)
    cuts = [event.cut for event in journal.events if isinstance(event, Completed)]
    lost = [wrong for cut in cuts if (wrong := workload.check(cut)) is not None]
    assert len(cuts) == len(report.snapshots)
    return Outcome(
        len(cuts), [v.sentence for v in report.violations], lost, workload.check_end(states) is None, journal
    )


def in_simulator(seed: int, protocol: str, home: Path, _: pytest.FixtureRequest) -> Outcome:
    order: Any = "reorder" if protocol == "lai-yang" else "fifo"
    result = simulate(
        SimConfig("bank", PARAMS, nodes=NODES, protocol=protocol, order=order, seed=seed, snapshots=SNAPSHOTS)
    )
    assert result.journal is not None
    return judged(result.journal, dict(result.states))


def live(seed: int, protocol: str, home: Path, _: pytest.FixtureRequest) -> Outcome:
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
        return judged(journal, dict(last.cut.states))

    return asyncio.run(work())


def on_spark(seed: int, protocol: str, home: Path, request: pytest.FixtureRequest) -> Outcome:
    from tests.contract.spark_bank import run_bank  # only where there is a Java

    run = run_bank(home, protocol, seed, request.getfixturevalue("spark"))
    lost = [f"{total} in a cut, not 0" for total in run.totals() if total != 0]
    return Outcome(len(run.manifests), run.violations(), lost, run.right)


@dataclass(frozen=True)
class Host:
    """`journal`: a run leaves one. `at_least`: snapshots of one run, where the test decides how many there are."""

    run: Callable[[int, str, Path, pytest.FixtureRequest], Outcome]
    protocols: tuple[str, ...]
    journal: bool = True
    at_least: int = SNAPSHOTS
    marks: tuple[pytest.MarkDecorator, ...] = ()


HOSTS = {
    "sim": Host(in_simulator, ("chandy-lamport", "lai-yang", "aligned", "unaligned")),
    "live": Host(live, ("chandy-lamport", "lai-yang")),
    "spark": Host(on_spark, ("aligned", "unaligned"), journal=False, at_least=1, marks=(pytest.mark.spark,)),
}
CASES = [
    pytest.param(host, protocol, marks=host.marks, id=f"{name}-{protocol}")
    for name, host in HOSTS.items()
    for protocol in host.protocols
]


@pytest.mark.parametrize(("host", "protocol"), CASES)
def test_every_snapshot_is_consistent_and_conserves_money(
    host: Host, protocol: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = 5
    outcome = host.run(seed, protocol, tmp_path, request)
    assert outcome.violations == [], f"seed {seed}"
    assert outcome.money_lost == [], f"seed {seed}"
    assert outcome.right_end, f"seed {seed}"
    assert outcome.snapshots >= host.at_least
    assert (outcome.journal is not None) == host.journal
    if outcome.journal is not None:
        ran, asked = outcome.journal.header.graph, Bank(NODES, PARAMS).graph
        assert ran.nodes == asked.nodes
        assert [c.id for c in ran.channels] == [c.id for c in asked.channels]
