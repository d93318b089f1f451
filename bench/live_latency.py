"""How long a snapshot of live processes takes, and for how long a handler could not run.

    python bench/live_latency.py             2 to 50 nodes; states of 0 to 100 MB
    python bench/live_latency.py --quick     2 and 5 nodes; 0 and 5 MB

The time from the request until the manifest is durable, under a steady load. The gap is the longest time at any node
in which no handler could run because of the snapshot.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._live import Ballast, bank, running
from strobe.hosts.live.api.topology import Topology


async def measure(topology: Topology, snapshots: int) -> tuple[float, float, float, int]:
    """Milliseconds: median and longest latency, longest gap; bytes of one snapshot."""
    async with running(topology) as system:
        await system.snapshot()
        took, gaps, size = [], [], 0
        for _ in range(snapshots):
            begun = perf_counter()
            snapshot = await system.snapshot()
            took.append((perf_counter() - begun) * 1000)
            nodes = system.store.load(snapshot).nodes.values()
            gaps.append(max(node.sync_ms for node in nodes))
            size = sum(node.bytes_total for node in nodes)
        return statistics.median(took), max(took), max(gaps), size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    counts, sizes = [2, 5, 10, 20, 35, 50], [0.0, 1.0, 10.0, 50.0, 100.0]
    if arguments.quick:
        counts, sizes, arguments.snapshots = [2, 5], [0.0, 5.0], 5
    print(f"{'nodes':>6} {'channels':>9} {'median ms':>10} {'longest':>9} {'gap ms':>8}")
    for count in counts:
        topology = bank(count, burst=max(1, 40 // count), seconds=0.01)
        median, longest, gap, _ = asyncio.run(measure(topology, arguments.snapshots))
        print(f"{count:6} {len(topology.channels):9} {median:10.1f} {longest:9.1f} {gap:8.2f}", flush=True)
    print(f"\n{'MB':>6} {'bytes':>13} {'median ms':>10} {'longest':>9} {'gap ms':>8}   (two nodes)")
    for megabytes in sizes:
        topology = bank(2, Ballast, burst=5, seconds=0.005, megabytes=megabytes)
        median, longest, gap, size = asyncio.run(measure(topology, max(3, arguments.snapshots // 4)))
        print(f"{megabytes:6.0f} {size:13,} {median:10.1f} {longest:9.1f} {gap:8.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
