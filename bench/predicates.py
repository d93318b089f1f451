"""How long predicates take: deadlock in a snapshot, `possibly` of a conjunction, the lattice of cuts.

    python bench/predicates.py             each at a tenth of its size, at its size, and at ten times it
    python bench/predicates.py --quick     the smallest of each

- Deadlock: 1,000 processes with 10,000 waits, from a snapshot that is in memory as bytes: states are decoded into
  instances of the user's class, each is asked whom it waits for, the graph is reduced. Half of them are stuck. At most
  100 ms.
- Conjunctive `possibly`: 10^6 events of 10 nodes, one condition for each node; they hold together only at the end.
  The time includes evaluating the conditions in every state. At most 5 s.
- Enumeration: every consistent cut once, with 4 and with 8 nodes, at least 300,000 a second.

Seconds are CPU time of one core. The exit code is 1 if a figure at the size above misses its target.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from strobe.hosts.live import NodeSpec, Process, Topology, Wait, all_of, joined
from strobe.hosts.live.api.codec import encode_state
from strobe.hosts.live.snapshot.checks import Check
from strobe.hosts.live.snapshot.snapshots import Loaded, stored_states
from strobe.model.ids import NodeId, SnapshotId
from strobe.predicates.computation import Computation, Positions
from strobe.predicates.condition import read_condition
from strobe.predicates.conjunctive import possibly_all
from strobe.predicates.lattice import Bounds, possibly

T = TypeVar("T")

WAITS = 10  # of each process


@dataclass
class Waiter(Process):
    waits: list[str] = field(default_factory=list)

    def waits_for(self) -> Wait | None:
        return all_of(*self.waits) if self.waits else None


def timed(work: Callable[[], T], times: int = 1) -> tuple[T, float]:
    """The quickest of several runs: other work on the machine can only add time."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return result, best


def deadlock(processes: int) -> float:
    """The first half wait for each other, in a ring and beyond; the second half wait for later ones, and can end."""
    names = [f"p{i}" for i in range(processes)]
    half = processes // 2
    waits = {
        name: [names[(i + k) % half] for k in range(1, WAITS + 1)]
        if i < half
        else names[i + 1 : i + 1 + WAITS]
        for i, name in enumerate(names)
    }  # fmt: skip
    channels = joined(*((giver, name) for name, givers in waits.items() for giver in givers))
    topology = Topology("bench", tuple(NodeSpec(NodeId(name), Waiter) for name in names), channels)
    states = stored_states({NodeId(n): encode_state({"waits": w}, n) for n, w in waits.items()})
    loaded = Loaded(SnapshotId(1), states)
    finding, took = timed(lambda: Check("deadlock")(loaded, topology.graph, topology), 3)
    assert len(finding.facts["processes"]) == half
    print(f"deadlock       {processes:>9,} processes {sum(map(len, waits.values())):>9,} waits {took * 1000:12.1f} ms")
    return took


def conjunctive(events: int, nodes: int = 10) -> float:
    """Each node sends round the ring. The first node's condition holds only at the very end, so every step is read."""
    steps, messages = events // nodes, {}
    names = [f"n{i}" for i in range(nodes)]
    for step in range(2, steps + 1, 2):
        for i, name in enumerate(names):
            messages[name, step] = (names[i - 1], step - 1)
    run = Computation.of(dict.fromkeys(names, steps), messages)
    dice = random.Random(1)
    some = [{"x": number, "tag": "a"} for number in range(10)]
    states = [[*(dice.choice(some) for _ in range(steps - 1)), some[0], some[0]] for _ in names]
    states[0] = [some[9]] * steps + [some[0]]
    condition = read_condition(" and ".join(f"{name}.x < 2" for name in names), run.nodes)

    def decide() -> Positions | None:
        assert condition.conjuncts is not None
        parts = {names.index(part.node): part for part in condition.conjuncts}
        return possibly_all(run, {node: [bool(part.of(s)) for s in states[node]] for node, part in parts.items()})

    witness, took = timed(decide)
    assert witness is not None
    assert witness[0] == steps, witness
    print(f"possibly       {events:>9,} events {nodes:>12} nodes {took:15.2f} s  {events / took:12,.0f} events/s")
    return took


def enumeration(nodes: int, cuts: int) -> float:
    """Random runs with some messages, as many as needed for this number of cuts."""
    dice = random.Random(nodes)
    names = [f"n{i}" for i in range(nodes)]
    steps = max(100, cuts * (20 if nodes == 4 else 1) // 10_000)
    counts, messages = dict.fromkeys(names, 0), {}
    for _ in range(nodes * steps):
        name = dice.choice([n for n in names if counts[n] < steps])
        counts[name] += 1
        sender = dice.choice([n for n in names if n != name])
        if counts[sender] and dice.random() < 0.3:
            messages[name, counts[name]] = (sender, counts[sender])
    run = Computation.of(counts, messages)
    walk, took = timed(lambda: possibly(run, lambda cut: False, Bounds(cuts=cuts, width=cuts)))
    rate = walk.cuts / took
    print(f"lattice        {walk.cuts:>9,} cuts {nodes:>14} nodes {took:15.2f} s  {rate:12,.0f} cuts/s")
    return rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    scales = (0.1,) if parser.parse_args().quick else (0.1, 1.0, 10.0)
    well = True
    for scale in scales:
        well &= deadlock(round(1_000 * scale)) < 0.1 or scale > 1
    for scale in scales:
        well &= conjunctive(round(1_000_000 * scale)) < 5 or scale > 1
    for nodes in (4, 8):
        for scale in scales:
            well &= enumeration(nodes, round(1_000_000 * scale)) >= 300_000 or scale > 1
    print(f"memory         {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MB at most")
    print("every figure meets its mark" if well else "A FIGURE MISSES ITS MARK")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
