"""Every schedule of three fully connected nodes with four messages and one snapshot, counted and judged.

    .venv/bin/python bench/sim_explore.py [--protocol P ...] [--every-system] [--quick]

The system is the bank's script `four-transfers`. A schedule is a complete order of all that happens: who sends when,
what arrives when, when the snapshot starts. Each distinct state is visited once, the schedules are counted exactly.
Seconds are of CPU time.

--every-system goes through all systems with three fully connected nodes, four messages and one snapshot: every way to
distribute four messages over the six channels, in every order at a node, and every initiator; of systems that differ
only in the names of the nodes, one is explored. --quick explores the smaller two-node script instead.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from itertools import permutations, product

from strobe.hosts.sim.explore import ExploreConfig, ExploreReport, explore, explore_system
from strobe.hosts.sim.network import Order
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.system import System, scripted
from strobe.hosts.sim.workloads import workload
from strobe.model.ids import SnapshotId

Sends = tuple[tuple[int, ...], ...]  # for each node, the receivers of its messages, in order


def told(name: str, order: Order, report: ExploreReport, took: float) -> str:
    return (
        f"{name:22} {order:8} {report.schedules:>15,} schedules {report.states:>9,} states "
        f"{report.transitions:>10,} transitions {report.cuts:>6,} snapshots {report.failing:>3} failing {took:5.1f} s"
    )


def every_system() -> Iterator[tuple[int, Sends]]:
    """Initiator and sends, one of each kind."""
    seen = set[tuple[int, Sends]]()
    others = {n: [m for m in range(3) if m != n] for n in range(3)}
    for lengths in product(range(5), repeat=3):
        if sum(lengths) != 4:
            continue
        for sends in product(*(product(others[n], repeat=lengths[n]) for n in range(3))):
            for initiator in range(3):
                if (initiator, sends) not in seen:
                    yield initiator, sends
                    for names in permutations(range(3)):
                        renamed: list[tuple[int, ...]] = [(), (), ()]
                        for n in range(3):
                            renamed[names[n]] = tuple(names[m] for m in sends[n])
                        seen.add((names[initiator], tuple(renamed)))


def system_of(name: str, order: Order, initiator: int, sends: Sends) -> System:
    spec, load = PROTOCOLS[name], workload("bank", 3)
    graph = spec.prepare(load.graph)
    nodes = graph.nodes
    scripts = {
        nodes[n]: tuple([f"{nodes[n]}-{nodes[m]}", 10 ** (i + 1) + n] for i, m in enumerate(to))
        for n, to in enumerate(sends)
    }
    plan = ((SnapshotId(1), spec.initiators(graph, 1 + initiator)),)
    return System(load, graph, spec, order, scripts, plan)


def explore_every_system(name: str, order: Order) -> bool:
    began, systems, schedules, states, failing = time.process_time(), 0, 0, 0, 0
    for initiator, sends in every_system():
        report = explore_system(system_of(name, order, initiator, sends))
        systems += 1
        schedules += report.schedules
        states += report.states
        failing += report.failing
        if not report.ok:
            print(f"  initiator {initiator + 1}, sends {sends}: {report.counterexamples[:1]}")
        if sys.stderr.isatty():
            print(f"\r{systems} systems", end="", file=sys.stderr, flush=True)
    took = time.process_time() - began
    counts = f"{systems} systems, {schedules:,} schedules, {states:,} states, {failing} failing"
    print(f"{name}, {order}: {counts}, {took:.0f} s", flush=True)
    return failing == 0


def main() -> int:
    correct = [name for name, spec in PROTOCOLS.items() if spec.is_correct]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", action="append", choices=correct, help="all that are correct by default")
    parser.add_argument("--every-system", action="store_true")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    script = "two-transfers" if arguments.quick else "four-transfers"
    well = True
    if not arguments.every_system:
        system = scripted("bank", script)
        sends = ", ".join(f"{node}: {[to for to, _ in actions]}" for node, actions in system.scripts.items())
        print(f"{len(system.graph.nodes)} nodes, {len(system.graph.channels)} channels, one snapshot; sends {sends}")
    for name in arguments.protocol or correct:
        orders: tuple[Order, ...] = ("fifo",) if PROTOCOLS[name].needs_fifo else ("fifo", "reorder")
        for order in orders:
            if arguments.every_system:
                well &= explore_every_system(name, order)
                continue
            began = time.process_time()
            report = explore(ExploreConfig(script=script, protocol=name, channels=order))
            print(told(name, order, report, time.process_time() - began), flush=True)
            well &= report.ok
            for example in report.counterexamples:
                print(f"  {example.failure}: {', '.join(example.names)}")
    print("every snapshot in every schedule is a consistent cut" if well else "VIOLATIONS")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
