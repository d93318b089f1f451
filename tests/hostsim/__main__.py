"""A long run: `python -m tests.hostsim --runs 100000 --seed 7`. Stops at the first violation, and makes it small.

`--first N --runs 1 --trace` shows one schedule step by step.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pprint import pformat

from tests.hostsim.plans import plan_of, shrink
from tests.hostsim.world import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostsim", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="how many schedules (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="which (default: 1)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one (default: 0)")
    parser.add_argument("--go-on", action="store_true", help="report all violations, and make none small")
    parser.add_argument("--trace", action="store_true", help="print every step of each schedule")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # else sets, and with them schedules, differ from run to run
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.hostsim", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    began, bad, steps = time.monotonic(), 0, 0
    for number in range(options.first, options.first + options.runs):
        outcome = run(plan_of(options.seed, number), trace=options.trace)
        steps += outcome.steps
        if options.trace:
            print("\n".join(outcome.trace))
        if outcome.violation:
            bad += 1
            print(f"--seed {options.seed} --first {number} --runs 1\n{outcome.violation}", flush=True)
            if not options.go_on:
                print(_small(outcome.plan), flush=True)
                return 1
        done = number + 1 - options.first
        if done % 250 == 0 or done == options.runs:
            seconds = time.monotonic() - began
            print(
                f"{done:,} schedules of seed {options.seed}, {steps:,} steps, {bad} violations, {seconds:.0f} s: "
                f"{60 * done / seconds:,.0f} schedules a minute",
                flush=True,
            )
    return 1 if bad else 0


def _small(plan: Plan) -> str:
    def fails(plan: Plan) -> bool:
        return bool(run(plan).violation)

    small = shrink(plan, fails)
    last = run(small, trace=True)
    return "\n".join(("As small as it gets:", pformat(small), last.violation, *last.trace[-30:], ""))


if __name__ == "__main__":
    sys.exit(main())
