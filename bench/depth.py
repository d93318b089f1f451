"""How long a chain of stages takes to start, and a small file to go through it, against queries chained by hand.

    python bench/depth.py                    20 stages, three rounds, both sides alternately
    python bench/depth.py --stages 3
    python bench/depth.py --sides strobe-chained,plain
                                             as Strobe runs it by default, in one query; else each stage is a query
    python bench/depth.py --quick            3 stages, one round

Start: from a session that is up until every query has looked at its source. Through: from a new file of ten rows until
they are in the last table, the median of five files, one after the other. Both in seconds of wall time, and of
processor time of all processes, which is more reliable on a shared machine. Below 1, Strobe is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._chain import CHAINED, SIDES, chain, put_file, spent
from bench._report import figure

FILES = 5
TARGETS = {"start": 1.0, "through": 0.7}  # at most this share of what plain queries take


def measure(side: str, stages: int, work: Path) -> dict[str, float]:
    with chain(side, stages, work / "data", work) as running:
        put_file(work / "data", 0)  # the first compiles the plans
        _await(running.rows, 10)
        passed = []
        for number in range(1, FILES + 1):
            time.sleep(1)
            began = spent()
            put_file(work / "data", number)
            _await(running.rows, 10 * (number + 1))
            passed.append(spent() - began)
        return {
            "start": running.started.wall,
            "start, processor": running.started.processor,
            "through": statistics.median(p.wall for p in passed),
            "through, processor": statistics.median(p.processor for p in passed),
        }


def _await(rows: Callable[[], int], wanted: int) -> None:
    while rows() < wanted:
        time.sleep(0.01)


def run(side: str, stages: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="strobe-bench-depth-") as work:
        command = [sys.executable, __file__, "--side", side, "--stages", str(stages), "--work", work]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=work)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", choices=(*SIDES, CHAINED), help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        print(json.dumps(measure(args.side, args.stages, args.work)))
        return
    if args.quick:
        args.stages, args.rounds = 3, 1
    sides = args.sides.split(",")
    found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for number in range(args.rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            found[side].append(run(side, args.stages))
    print(f"{f'{args.stages} stages, seconds':<28}" + "".join(f"{s:>10}" for s in sides) + f"{'ratio':>8}")
    for name in found[sides[0]][0]:
        medians = [statistics.median(f[name] for f in found[side]) for side in sides]
        ratio = f"{medians[0] / medians[1]:>8.2f}" if len(medians) == 2 else ""
        print(f"{name:<28}" + "".join(f"{m:>10.2f}" for m in medians) + ratio)
        if len(medians) == 2 and name in TARGETS:
            what = f"{name}, {args.stages} stages{', chained' if sides[0] == CHAINED else ''}, against plain queries"
            figure("depth.py", what, medians[0] / medians[1], at_most=TARGETS[name])


if __name__ == "__main__":
    main()
