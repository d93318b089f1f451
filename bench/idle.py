"""What a job costs that has nothing to do: processor time, processes, memory. A chain of 3 stages, and one of 20.

    python bench/idle.py                     both lengths, under Strobe and as plain queries chained by hand, 30 s each
    python bench/idle.py --stages 3 --sides strobe
    python bench/idle.py --settle 15         count earlier: Java's compiler is still at work, and pauses are still short
    python bench/idle.py --quick             3 stages, 5 s

A file goes through the whole chain first; then nothing comes, and after a minute the processor time of all processes is
counted. Cores: seconds of processor time in a second. Memory is Pss: pages that several processes share count once.
Strobe's defaults, so the job takes a checkpoint every 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._chain import SIDES, Process, chain, processes, put_file
from bench._report import figure

TARGETS = {3: 0.02, 20: 0.1}  # cores
ROLES = ("driver", "JVM", "worker", "reader")


def measure(side: str, stages: int, settle: float, seconds: float, work: Path) -> dict[str, float]:
    with chain(side, stages, work / "data", work) as running:
        put_file(work / "data", 0)
        while running.rows() < 10:
            time.sleep(0.05)
        time.sleep(settle)
        before, began = by_role(processes(memory=False)), time.perf_counter()
        time.sleep(seconds)
        passed, used = time.perf_counter() - began, by_role(processes(memory=False))
        after = processes()  # later: asking for memory costs processor time in the driver
        # Spark ends a worker that was idle for a minute, and its use is no longer counted: so no less than 0.
        figures = {f"{role} cores": max(0.0, used[role] - before[role]) / passed for role in ROLES}
        figures |= {f"{role} MB": sum(p.memory for p in after if p.role == role) for role in ROLES}
        return {
            "cores": sum(figures[f"{r} cores"] for r in ROLES),
            "processes": len(after),
            "MB": sum(p.memory for p in after),
            **figures,
        }


def by_role(found: list[Process]) -> dict[str, float]:
    return {role: sum(p.processor for p in found if p.role == role) for role in ROLES}


def run(side: str, stages: int, settle: float, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="strobe-bench-idle-") as work:
        command = [sys.executable, __file__, "--side", side, "--stages", str(stages)]
        done = subprocess.run(
            [*command, "--settle", str(settle), "--seconds", str(seconds), "--work", work],
            capture_output=True,
            text=True,
            check=False,
            cwd=work,
        )
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="3,20")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--settle", type=float, default=60, help="seconds after the last row, before it counts")
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        print(json.dumps(measure(args.side, int(args.stages), args.settle, args.seconds, args.work)))
        return
    if args.quick:
        args.stages, args.settle, args.seconds, args.sides = "3", 5.0, 5.0, "strobe"
    sides = args.sides.split(",")
    for stages in map(int, args.stages.split(",")):
        found = {side: run(side, stages, args.settle, args.seconds) for side in sides}
        print(f"{stages} stages{'':<16}" + "".join(f"{side:>10}" for side in sides))
        for name in found[sides[0]]:
            print(f"{name:<24}" + "".join(f"{found[s][name]:>10.{3 if 'cores' in name else 0}f}" for s in sides))
        if len(sides) == 2:
            more = found[sides[0]]["MB"] - found[sides[1]]["MB"]
            print(f"{'MB more per channel':<24}{more / (stages - 1):>10.0f}")
        print(flush=True)
        if "strobe" in found and stages in TARGETS:
            figure("idle.py", f"{stages} stages, cores", found["strobe"]["cores"], at_most=TARGETS[stages])
            if len(sides) == 2:
                what = f"{stages} stages, memory beyond plain Spark, a channel"
                figure("idle.py", what, more / (stages - 1), at_most=40, unit=" MB")


if __name__ == "__main__":
    main()
