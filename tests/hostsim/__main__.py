"""A long run: `python -m tests.hostsim --runs 100000 --seed 7 --jobs 2`.

It stops at the first violation, and makes it small. `--first N --runs 1 --trace` shows one schedule step by step.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pprint import pformat

from tests.hostsim.plans import plan_of, shrink
from tests.hostsim.world import Plan, run

_BLOCK = 50  # schedules that a process takes at a time


@dataclass(frozen=True)
class _Block:
    seed: int
    first: int
    runs: int
    trace: bool = False


@dataclass(frozen=True)
class _Ran:
    runs: int
    steps: int
    violations: tuple[tuple[int, str], ...]  # which schedule, and what it broke


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostsim", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many schedules (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="which (default: 1)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="in how many processes (default: 1)")
    parser.add_argument("--go-on", action="store_true", help="report all violations, and make none small")
    parser.add_argument("--trace", action="store_true", help="print every step of each schedule")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # else sets, and with them schedules, differ from run to run
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.hostsim", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    end = options.first + options.runs
    blocks = [
        _Block(options.seed, first, min(_BLOCK, end - first), options.trace)
        for first in range(options.first, end, _BLOCK)
    ]
    began, done, steps, bad = time.monotonic(), 0, 0, 0
    for ran in _carry_out(blocks, options.jobs):
        done, steps, bad = done + ran.runs, steps + ran.steps, bad + len(ran.violations)
        for number, violation in ran.violations:
            print(f"--seed {options.seed} --first {number} --runs 1\n{violation}", flush=True)
            if not options.go_on:
                print(_small(plan_of(options.seed, number)), flush=True)
                return 1
        if done % (5 * _BLOCK) == 0 or done == options.runs:
            seconds = time.monotonic() - began
            print(
                f"{done:,} schedules of seed {options.seed}, {steps:,} steps, {bad} violations, {seconds:.0f} s: "
                f"{60 * done / seconds:,.0f} schedules a minute",
                flush=True,
            )
    return 1 if bad else 0


def _carry_out(blocks: list[_Block], jobs: int) -> Iterator[_Ran]:
    if jobs == 1:
        yield from map(_run_block, blocks)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(_run_block, blocks)


def _run_block(block: _Block) -> _Ran:
    gc.collect()
    gc.freeze()  # what is loaded stays; the collector need not look at it after every schedule
    steps, violations = 0, []
    for number in range(block.first, block.first + block.runs):
        outcome = run(plan_of(block.seed, number), trace=block.trace)
        steps += outcome.steps
        if block.trace:
            print("\n".join(outcome.trace))
        if outcome.violation:
            violations.append((number, outcome.violation))
    return _Ran(block.runs, steps, tuple(violations))


def _small(plan: Plan) -> str:
    def fails(plan: Plan) -> bool:
        return bool(run(plan).violation)

    small = shrink(plan, fails)
    last = run(small, trace=True)
    return "\n".join(("As small as it gets:", pformat(small), last.violation, *last.trace[-30:], ""))


if __name__ == "__main__":
    sys.exit(main())
