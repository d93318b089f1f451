"""Philosophers who deadlock after a while, checked by one snapshot after the other: found once, and never falsely.

    python bench/live_deadlock.py             1,000 snapshots of the diners, 1,000 of those who never deadlock
    python bench/live_deadlock.py --quick     30 of each

A deadlock that is found must be real: nobody eats after the first snapshot that shows it. The philosophers who follow
Chandy and Misra wait for each other all the time, and must never be reported as stuck.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1]))

from strobe.hosts.live import System, Topology, read_cut
from strobe.hosts.live.api.loading import load_topology
from strobe.protocol.coordinator.messages import CoordinatorSettings

EXAMPLES = Path(__file__).parents[1] / "examples" / "live"


async def asked(topology: Topology, snapshots: int) -> list[tuple[bool, int, float]]:
    """For each snapshot: whether it shows a deadlock, the meals eaten, and how many milliseconds it took."""
    seen = []
    with tempfile.TemporaryDirectory() as home:
        async with System(topology, home=Path(home), settings=CoordinatorSettings(retained=3)) as system:
            for _ in range(snapshots):
                begun = perf_counter()
                finding = await system.check("deadlock")
                took = (perf_counter() - begun) * 1000
                cut = read_cut(topology.name, Path(home))
                seen.append((finding.found, sum(state["meals"] for state in cut.states.values()), took))
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=int, default=1_000)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    snapshots = 30 if arguments.quick else arguments.snapshots
    dining = load_topology(str(EXAMPLES / "dining.toml"))
    if not arguments.quick:  # so that a good part of the snapshots comes before the deadlock
        slow = tuple(replace(node, params={**node.params, "thinking": 8.0}) for node in dining.nodes)
        dining = replace(dining, nodes=slow)
    well = True
    for topology in (dining, load_topology(str(EXAMPLES / "philosophers.toml"))):
        seen = asyncio.run(asked(topology, snapshots))
        first = next((number for number, (found, _, _) in enumerate(seen) if found), len(seen))
        after = seen[first:]
        false_alarms = sum(not found or meals != after[0][1] for found, meals, _ in after)
        if topology.name == "philosophers":
            false_alarms = len(after)
        shown = f"first found in snapshot {first + 1}" if after else "none found"
        print(
            f"{topology.name:13} {len(seen):5} snapshots, {shown}, {seen[-1][1]} meals, {false_alarms} false alarms, "
            f"{statistics.median(took for _, _, took in seen):.0f} ms each",
            flush=True,
        )
        well &= false_alarms == 0
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
