"""Snapshots of a bank of live processes under full load: each is verified, and each holds all the money.

    python bench/live_bank.py                                         1,000 snapshots of 10 processes
    python bench/live_bank.py --kills 30 --partitions 10 --seed 7     with kills and a network that splits
    python bench/live_bank.py --protocol lai-yang                     over UDP
    python bench/live_bank.py --quick                                 40 snapshots of four, two kills, one partition

A kill is SIGKILL of a random node; the system goes back to its last snapshot. In a partition, a proxy in front of each
node lets nothing through between two random groups for a while (it carries all messages, which is slower).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._live import bank, money, running, verified
from strobe.hosts.live.system.system import System
from strobe.model.errors import Failed
from tests.support.live.proxies import Network, network


async def trouble(system: System, between: Network | None, kills: int, partitions: int, dice: random.Random) -> None:
    """Each at a random moment, one after the other."""
    names = list(system.topology.graph.nodes)
    for kind in dice.sample(["kill"] * kills + ["partition"] * partitions, kills + partitions):
        await asyncio.sleep(dice.uniform(0.2, 1.5))
        if kind == "kill":
            incarnation, victim = system.incarnation, dice.choice(names)
            system.kill(victim)
            await system.incarnation_after(incarnation)
        elif between is not None:
            side = dice.sample(names, dice.randint(1, len(names) - 1))
            between.partition(side)
            await asyncio.sleep(dice.uniform(0.2, 1.0))
            between.heal()


async def prove(arguments: argparse.Namespace) -> int:
    dice = random.Random(arguments.seed)
    topology = bank(arguments.nodes, protocol=arguments.protocol, burst=arguments.burst)
    total = arguments.nodes * 1_000_000
    async with contextlib.AsyncExitStack() as stack:
        between = None
        if arguments.partitions:
            between = await stack.enter_async_context(network(topology, arguments.seed))
            topology = between.topology
        system = await stack.enter_async_context(running(topology, max_concurrent=2))
        troubling = asyncio.ensure_future(trouble(system, between, arguments.kills, arguments.partitions, dice))
        good, given_up, in_flight, took = 0, 0, 0, []
        start = time.perf_counter()
        while good < arguments.snapshots or not troubling.done():
            begun = time.perf_counter()
            try:
                snapshot = await system.snapshot()
            except Failed:
                given_up += 1
                await system.running()
                continue
            took.append(time.perf_counter() - begun)
            loaded = verified(system, snapshot)
            if money(loaded) != total:
                print(f"snapshot {snapshot} holds {money(loaded):,} of {total:,}: seed {arguments.seed}")
                return 1
            good += 1
            in_flight += sum(map(len, loaded.contents.values()))
            if good % 100 == 0:
                print(f"  {good} verified, {time.perf_counter() - start:.0f} s", flush=True)
        await troubling
        seconds = time.perf_counter() - start
        status = await system.status()
        received = sum(sum(figures.received.values()) for figures in status.nodes.values())
    print(
        f"{good} snapshots of {arguments.nodes} processes over {arguments.protocol}, all verified, "
        f"each with {total:,}; "
        f"{in_flight / good:,.0f} messages in flight in each; {given_up} given up and taken again\n"
        f"{arguments.kills} kills, {arguments.partitions} partitions, {status.restores - 1} restores, "
        f"seed {arguments.seed}; "
        f"{seconds:.0f} s, {received / seconds:,.0f} messages/s since the last restore at least; latency median "
        f"{statistics.median(took) * 1000:.0f} ms, longest {max(took) * 1000:.0f} ms"
    )
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=10)
    parser.add_argument("--burst", type=int, default=20, help="messages of one node each 2 ms")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--partitions", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--protocol", choices=["chandy-lamport", "lai-yang"], default="chandy-lamport")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.snapshots, arguments.kills, arguments.partitions = 40, 2, 1
        arguments.nodes, arguments.burst = 4, 5
    print(f"seed {arguments.seed}")
    return asyncio.run(prove(arguments))


if __name__ == "__main__":
    sys.exit(main())
