"""A long run: `python -m tests.hostile --cases 50000 --seed 7 --jobs 2`. Stops at the first violation."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.hostile.cases import Violation, run_case
from tests.hostile.frames import run_frame_case
from tests.hostile.homes import run_home_case
from tests.hostile.world import build

KINDS = {"snapshots": run_case, "homes": run_home_case, "frames": run_frame_case}
_BLOCK = 20  # cases that a process takes at a time
_TOLD = 30.0  # seconds between two lines, at least
_roots: list[Path] = []  # that of this process: paths in the snapshots lead there


@dataclass(frozen=True)
class _Block:
    kind: str
    seed: int
    first: int
    cases: int


def run() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="which (default: 1)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one (default: 0)")
    parser.add_argument("--kind", choices=KINDS, default="snapshots", help="of what (default: snapshots)")
    parser.add_argument("--jobs", type=int, default=1, help="in how many processes (default: 1)")
    parser.add_argument("--go-on", action="store_true", help="report all violations, not only the first")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    end = options.first + options.cases
    blocks = [
        _Block(options.kind, options.seed, first, min(_BLOCK, end - first))
        for first in range(options.first, end, _BLOCK)
    ]
    began, done, bad = time.monotonic(), 0, 0
    told = began
    for block, violations in zip(blocks, _carry_out(blocks, options.jobs), strict=True):
        for number, violation in violations:
            bad += 1
            print(f"--kind {options.kind} --seed {options.seed} --first {number} --cases 1\n{violation}\n", flush=True)
            if not options.go_on:
                return 1
        done += block.cases
        if time.monotonic() - told >= _TOLD:
            told = time.monotonic()
            print(f"{done:,} cases, {bad} violations, {told - began:.0f} s", flush=True)
    seconds = time.monotonic() - began
    print(f"{options.cases:,} {options.kind} of seed {options.seed}: {bad} violations, {seconds:.0f} s")
    return 1 if bad else 0


def _carry_out(blocks: list[_Block], jobs: int) -> Iterator[list[tuple[int, str]]]:
    with _scratch() as scratch:
        if jobs == 1:
            _prepare(scratch)
            yield from map(_run_block, blocks)
            return
        with multiprocessing.get_context("fork").Pool(jobs, _prepare, (scratch,)) as pool:
            yield from pool.imap(_run_block, blocks)


@contextmanager
def _scratch() -> Iterator[str]:
    """In memory, where there is such a place: thousands of small files come and go."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="strobe-hostile-", dir=memory if memory.is_dir() else None) as scratch:
        yield str(Path(scratch).resolve())


def _prepare(scratch: str) -> None:
    """Each process has snapshots, homes and canaries of its own."""
    root = Path(scratch) / str(os.getpid())
    root.mkdir()
    build(root)
    _roots.append(root)


def _run_block(block: _Block) -> list[tuple[int, str]]:
    """Which cases, and what they violated."""
    (root,) = _roots
    found = []
    for number in range(block.first, block.first + block.cases):
        try:
            KINDS[block.kind](block.seed, number, root)
        except Violation as violation:
            found.append((number, str(violation)))
    return found


if __name__ == "__main__":
    sys.exit(run())
