"""From SIGKILL of a live process until every process runs again, from the last snapshot.

    python bench/live_recovery.py            20 kills each of 3, 10 and 20 nodes
    python bench/live_recovery.py --quick    3 kills of 3 nodes

Most of the time goes to a new Python process that imports what it needs; that part alone is shown beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._live import bank, money, running, verified


async def measure(nodes: int, kills: int) -> list[float]:
    took = []
    async with running(bank(nodes, burst=max(1, 60 // nodes), seconds=0.01)) as system:
        for number in range(kills):
            await system.snapshot()
            incarnation, begun = system.incarnation, perf_counter()
            system.kill(f"n{number % nodes + 1}")
            await system.incarnation_after(incarnation)
            took.append(perf_counter() - begun)
        if money(verified(system, await system.snapshot())) != nodes * 1_000_000:
            raise AssertionError("money was lost")
    return took


def import_seconds() -> float:
    begun = perf_counter()
    subprocess.run([sys.executable, "-c", "import strobe.hosts.live.node.main"], check=True)
    return perf_counter() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    counts = [3, 10, 20]
    if arguments.quick:
        counts, arguments.kills = [3], 3
    print(f"a new process alone: {statistics.median(import_seconds() for _ in range(3)) * 1000:.0f} ms")
    for nodes in counts:
        took = sorted(asyncio.run(measure(nodes, arguments.kills)))
        print(
            f"{nodes:3} nodes: median {statistics.median(took) * 1000:.0f} ms, longest {took[-1] * 1000:.0f} ms",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
