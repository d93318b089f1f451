"""A long run: `python -m tests.hostile --cases 50000 --seed 7`. Stops at the first violation."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.hostile.cases import Violation, run_case
from tests.hostile.frames import run_frame_case
from tests.hostile.homes import run_home_case
from tests.hostile.world import build

KINDS = {"snapshots": run_case, "homes": run_home_case, "frames": run_frame_case}


def run() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="which (default: 1)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one (default: 0)")
    parser.add_argument("--kind", choices=KINDS, default="snapshots", help="of what (default: snapshots)")
    parser.add_argument("--go-on", action="store_true", help="report all violations, not only the first")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began, bad = time.monotonic(), 0
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="strobe-hostile-", dir=memory if memory.is_dir() else None) as scratch:
        root = Path(scratch).resolve()
        build(root)
        for number in range(options.first, options.first + options.cases):
            try:
                KINDS[options.kind](options.seed, number, root)
            except Violation as violation:
                bad += 1
                print(
                    f"--kind {options.kind} --seed {options.seed} --first {number} --cases 1\n{violation}\n", flush=True
                )
                if not options.go_on:
                    return 1
            if (number + 1) % 1000 == 0:
                print(f"{number + 1:,} cases, {bad} violations, {time.monotonic() - began:.0f} s", flush=True)
    seconds = time.monotonic() - began
    print(f"{options.cases:,} {options.kind} of seed {options.seed}: {bad} violations, {seconds:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(run())
