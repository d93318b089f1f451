"""How long the verifier takes for a journal: read it, check every snapshot in it, prove one of them.

    python bench/verify_journal.py [--quick] [--events 1000000] [--nodes 10] [--snapshots 8] [--order fifo]
                                   [--keep FILE]

The journal is that of a simulated bank on a complete graph, written to disk first; only what follows is timed, each
part by itself, in seconds of one core (other load on the machine does not count).
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from strobe.hosts.sim.runner import SimConfig, run, workload_of
from strobe.verify.causality import Causality
from strobe.verify.consistency import check_journal
from strobe.verify.history import History
from strobe.verify.journal import Journal, JournalWriter, read_journal
from strobe.verify.reachability import prove

T = TypeVar("T")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--events", type=int, default=1_000_000)
    arguments.add_argument("--nodes", type=int, default=10)
    arguments.add_argument("--snapshots", type=int, default=8)
    arguments.add_argument("--order", choices=["fifo", "reorder"], default="fifo")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--keep", type=Path, help="leave the journal in this file")
    arguments.add_argument("--quick", action="store_true", help="fifty thousand events, whatever --events says")
    args = arguments.parse_args()
    if args.quick:
        args.events = 50_000
    with tempfile.TemporaryDirectory() as directory:
        path = args.keep or Path(directory) / "run.journal"
        write(path, args)
        return verify(path)


def write(path: Path, args: argparse.Namespace) -> None:
    # A transfer is three events: the action, the send, the receipt.
    config = SimConfig(
        workload="bank",
        nodes=args.nodes,
        params={"transfers": max(1, args.events // (3 * args.nodes) + 1), "balance": 1_000_000},
        protocol="chandy-lamport" if args.order == "fifo" else "lai-yang",
        order=args.order,
        seed=args.seed,
        snapshots=args.snapshots,
    )
    result = run(config)
    assert result.journal is not None
    with JournalWriter(path, result.journal.header) as writer:
        for event in result.journal.events:
            writer.write(event)


def verify(path: Path) -> int:
    (header, events), reading = timed(lambda: read_journal(path))
    journal = Journal(header, events)
    report, checking = timed(lambda: check_journal(journal))
    history = History(journal)
    *_, (_, cut, _) = history.cuts()
    proof, proving = timed(lambda: prove(history, cut, workload_of(header)))
    last = history.epochs[0].steps[-1]
    _, clock = timed(lambda: Causality(history).clock(last))
    count = len(events)
    print(f"journal     {count} events, {path.stat().st_size / 1e6:.1f} MB, {len(header.graph.nodes)} nodes, "
          f"{len(header.graph.channels)} channels, {len(report.snapshots)} snapshots")  # fmt: skip
    for what, seconds in (("read", reading), ("check", checking), ("read+check", reading + checking)):
        print(f"{what:11} {seconds:6.2f} s  {count / seconds:10,.0f} events/s")
    print(f"{'prove one':11} {proving:6.2f} s  {proof.moved} steps moved, {proof.swaps} exchanges")
    print(f"{'one clock':11} {clock:6.2f} s")
    print(f"{'memory':11} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:6.0f} MB at most")
    print(f"verdict     {report.sentence}")
    print(f"            {proof.sentence}")
    return 0 if report.ok and proof.holds else 1


def timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start


if __name__ == "__main__":
    sys.exit(main())
