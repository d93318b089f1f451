"""A system of 1,000 nodes and 10,000 channels takes snapshots: exactly one marker for each channel and snapshot.

    .venv/bin/python bench/sim_scale.py [--nodes N] [--channels C] [--snapshots K] [--protocol P] [--quick]

The graph is random and strongly connected, parallel channels included. Every snapshot is checked against law 1 by the
host and against the workload's invariant; the markers are counted channel by channel.
"""

from __future__ import annotations

import argparse
import sys
import time

from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.runner import SimConfig, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--channels", type=int, default=10_000)
    parser.add_argument("--snapshots", type=int, default=3)
    parser.add_argument("--transfers", type=int, default=20, help="for each node")
    parser.add_argument(
        "--protocol", choices=[n for n, s in PROTOCOLS.items() if s.is_correct], default="chandy-lamport"
    )
    parser.add_argument("--quick", action="store_true", help="one snapshot, two transfers for each node")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.snapshots, arguments.transfers = 1, 2
    config = SimConfig(
        "bank",
        {"transfers": arguments.transfers, "graph": "random", "channels": arguments.channels},
        nodes=arguments.nodes,
        protocol=arguments.protocol,
        seed=1,
        snapshots=arguments.snapshots,
        journal=False,
    )
    start = time.process_time()
    result = run(config)
    seconds = time.process_time() - start
    print(f"{len(result.graph.nodes):,} nodes, {len(result.graph.channels):,} channels, {arguments.protocol}")
    print(f"{result.events:,} events in {seconds:.2f} s CPU ({int(result.events / seconds):,} a second)")
    wrong = 0
    for verdict in result.verdicts:
        snapshot = verdict.cut.snapshot
        in_flight = sum(len(messages) for messages in verdict.cut.channels.values())
        markers = result.markers.get(snapshot, {})
        counts = [markers.get(channel.id, 0) for channel in result.graph.channels]
        expected = 0 if arguments.protocol == "lai-yang" else 1
        off = sum(count != expected for count in counts)
        wrong += off
        print(
            f"snapshot {snapshot}: {sum(counts):,} markers, {off} channels without exactly {expected}, "
            f"{in_flight:,} messages in flight, law 1: {verdict.law or 'holds'}, "
            f"invariant: {verdict.invariant or 'holds'}"
        )
    if arguments.protocol == "lai-yang":
        print(f"{result.counts:,} counts off the data path")
    ok = result.ok and not wrong and len(result.verdicts) == arguments.snapshots
    print("ok" if ok else "WRONG")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
