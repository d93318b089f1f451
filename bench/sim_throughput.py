"""How many simulated events a second on one core, with the journal off.

    .venv/bin/python bench/sim_throughput.py [--events N] [--repeat R] [--protocol P] [--least RATE] [--quick]

Events are sends, receipts, internal actions, records and markers, as a journal would list them. Every message goes
through the protocol machine's `step`, snapshot or not. CPU time is what counts: other work on the machine does not
change it; wall-clock time is shown beside it. The best of the repetitions is the figure.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time

from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, SimResult, run


def measure(protocol: str, nodes: int, events: int) -> tuple[float, float, SimResult]:
    """CPU and wall-clock seconds of one run: three events for each transfer."""
    transfers = events // (3 * nodes)
    config = SimConfig(
        "bank",
        {"transfers": transfers, "balance": 1_000_000},
        nodes=nodes,
        protocol=protocol,
        seed=1,
        snapshots=10,
        journal=False,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    result = run(config)
    return time.process_time() - cpu, time.perf_counter() - wall, result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=600_000)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--protocol", choices=[*PROTOCOLS, "all"], default="chandy-lamport")
    parser.add_argument("--least", type=int, default=0, help="exit with 1 when slower than this")
    parser.add_argument("--quick", action="store_true", help="a short run: 150,000 events, once")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.events, arguments.repeat = 150_000, 1
    names = list(PROTOCOLS) if arguments.protocol == "all" else [arguments.protocol]
    print(
        f"{platform.python_implementation()} {platform.python_version()}, bank, {arguments.nodes} nodes, 10 snapshots"
    )
    slow = False
    for name in names:
        runs = [measure(name, arguments.nodes, arguments.events) for _ in range(arguments.repeat)]
        cpu, wall, result = min(runs, key=lambda r: r[0])
        if PROTOCOLS[name].is_correct and not result.ok:
            print(f"{name}: the run went wrong: {result.end} {result.incomplete} {result.refused}", file=sys.stderr)
            return 1
        rate = int(result.events / cpu)
        slow |= rate < arguments.least
        print(f"{name:22} {result.events:>9,} events  {cpu:6.2f} s CPU ({wall:6.2f} s wall)  {rate:>9,} events/s")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
