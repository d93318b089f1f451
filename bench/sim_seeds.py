"""Random experiments over all protocols and graphs: no violation. With a mutant in place: a violation, and soon.

    .venv/bin/python bench/sim_seeds.py [--seeds 100000] [--start N] [--protocol P] [--jobs J] [--proof] [--quick]
    .venv/bin/python bench/sim_seeds.py --mutants [--seeds 1000]

`strobe.hosts.sim.seeds` describes what a seed decides. Each run is judged by the host, which sees everything, and by
the verifier, which sees only the journal; with --proof each snapshot is also proved by the paper's theorem.
Repeat a failing seed alone with --start N --seeds 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing import Pool

from strobe.hosts.sim.mutants import MUTANTS, Mutant
from strobe.hosts.sim.protocols import PROTOCOLS
from strobe.hosts.sim.seeds import Trial, try_seed

CHUNK = 250


@dataclass
class Tally:
    seeds: Counter[str] = field(default_factory=Counter)  # by protocol
    snapshots: int = 0
    events: int = 0
    cpu: float = 0.0
    failed: list[Trial] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.seeds += other.seeds
        self.snapshots += other.snapshots
        self.events += other.events
        self.cpu += other.cpu
        self.failed += other.failed


def try_chunk(work: tuple[int, int, str | None, bool]) -> Tally:
    start, end, protocol, proof = work
    tally, cpu = Tally(), time.process_time()
    for seed in range(start, end):
        trial = try_seed(seed, protocol, proof=proof)
        tally.seeds[trial.protocol] += 1
        tally.snapshots += trial.snapshots
        tally.events += trial.events
        if trial.failures:
            tally.failed.append(trial)
    tally.cpu = time.process_time() - cpu
    return tally


def tallies(work: list[tuple[int, int, str | None, bool]], jobs: int) -> Iterator[Tally]:
    if jobs == 1:
        yield from map(try_chunk, work)
    else:
        with Pool(jobs) as pool:
            yield from pool.imap(try_chunk, work)


def all_seeds(start: int, seeds: int, protocol: str | None, jobs: int, proof: bool) -> int:
    work = [(s, min(s + CHUNK, start + seeds), protocol, proof) for s in range(start, start + seeds, CHUNK)]
    total, began = Tally(), time.perf_counter()
    for tally in tallies(work, jobs):
        for trial in tally.failed:
            print(f"seed {trial.seed}: {trial.protocol}, {trial.what}: {trial.failures[0]}", flush=True)
        total.add(tally)
        done = sum(total.seeds.values())
        if sys.stderr.isatty():
            print(f"\r{done} of {seeds} seeds", end="", file=sys.stderr, flush=True)
    took = time.perf_counter() - began
    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    for name, count in sorted(total.seeds.items()):
        print(f"{name:22} {count:9,} seeds")
    proved = ", each proved" if proof else ""
    print(f"{total.snapshots:,} snapshots checked{proved}, {total.events:,} events")
    print(f"{took:.1f} s, {seeds / max(total.cpu, 1e-9):,.0f} seeds a second of CPU time")
    print(f"seeds {seeds}, violations {len(total.failed)}")
    return 1 if total.failed else 0


def first_failure(mutant: Mutant, protocol: str, start: int, seeds: int) -> Trial | None:
    trials = (try_seed(seed, protocol, mutant.machine) for seed in range(start, start + seeds))
    return next((trial for trial in trials if trial.failures), None)


def all_mutants(start: int, seeds: int) -> int:
    missed = 0
    for mutant in MUTANTS.values():
        for protocol in mutant.protocols:
            trial = first_failure(mutant, protocol, start, seeds)
            if trial is None:
                missed += 1
                print(f"{mutant.name:26} {protocol:22} NOT CAUGHT: {mutant.rule}", flush=True)
            else:
                failure = trial.failures[0]
                print(f"{mutant.name:26} {protocol:22} seed {trial.seed:4}  {failure.kind}: {failure}", flush=True)
    print(f"mutants {len(MUTANTS)}, not caught within {seeds} seeds {missed}")
    return 1 if missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, help="how many; 100000, or 1000 for each mutant")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--protocol", choices=[n for n, s in PROTOCOLS.items() if s.is_correct])
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--proof", action="store_true", help="prove every snapshot as well")
    parser.add_argument("--mutants", action="store_true", help="the first seed that shows each mutant")
    parser.add_argument("--quick", action="store_true", help="2000 seeds")
    arguments = parser.parse_args()
    if arguments.mutants:
        return all_mutants(arguments.start, arguments.seeds or 1_000)
    seeds = arguments.seeds or (2_000 if arguments.quick else 100_000)
    return all_seeds(arguments.start, seeds, arguments.protocol, arguments.jobs, arguments.proof)


if __name__ == "__main__":
    sys.exit(main())
