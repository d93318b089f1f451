"""`python -m chaos`: the ledger under faults. Closes with `lost N, duplicated N, kills N`; `make chaos` runs it.

python -m chaos --kills 200 --seed 7                   a long run
python -m chaos --faults 6 --seed 3 --no-audit         a short one
python -m chaos --seed 7 --only "kill broker"          one kind of fault
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from chaos.plan import CLOSING_POINTS, KINDS, WORKING_POINTS
from chaos.run import Options, Outcome, Run
from chaos.world import World
from tests.services import NoServer


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    options, work = _arguments()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that nothing is left running
    folder = Path(tempfile.mkdtemp(prefix="chaos-")) if work is None else work
    if work is not None and work.exists() and any(work.iterdir()):
        say(f"{work} is not empty: another run was there.")
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    say(f"chaos: seed {options.seed}, {options.kills} kills; work in {folder}")
    try:
        world = World(folder, options.seed, options.rate, options.store)
    except NoServer as error:
        say(str(error))
        return 1
    try:
        for reason in world.missing:
            say(f"left out: {reason}")
        outcome = Run(options, world, say).go()
        if not outcome.good:
            world.keep(folder / "kept")
    finally:
        world.close()
    report(outcome, folder, options)
    if outcome.good and work is None:
        shutil.rmtree(folder, ignore_errors=True)
    say(f"lost {outcome.lost}, duplicated {outcome.duplicated}, kills {outcome.kills}")
    return 0 if outcome.good else 1


def report(outcome: Outcome, folder: Path, options: Options) -> None:
    say("")
    say(f"{'':28}{'expected':>10}{'found':>10}{'lost':>8}{'twice':>8}{'wrong':>8}")
    for v in outcome.verdicts:
        say(f"{v.what:28}{v.expected:>10}{v.found:>10}{v.lost:>8}{v.duplicated:>8}{v.wrong:>8}")
        for sample in v.samples:
            say(f"    {sample}")
    say("")
    say("faults: " + (", ".join(f"{name} {n}" for name, n in sorted(outcome.faults.items())) or "none"))
    known = {*WORKING_POINTS, *CLOSING_POINTS}
    say(f"crash points visited: {len(outcome.points)} of {len(known)}: {', '.join(sorted(outcome.points)) or 'none'}")
    say(f"not visited: {', '.join(sorted(known - set(outcome.points))) or 'none'}")
    say(f"checkpoints held against the truth: {outcome.audits}; looks at Postgres meanwhile: {outcome.looks}")
    for problem in outcome.problems:
        say(f"PROBLEM: {problem}")
    if not outcome.good:
        say(f"kept: {folder}; once more with: make chaos KILLS={options.kills} SEED={options.seed}")


def _arguments() -> tuple[Options, Path | None]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Options()
    parser.add_argument("--kills", type=int, default=default.kills, help="how many to survive (%(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000, help="what decides the faults (drawn)")
    parser.add_argument("--rate", type=int, default=default.rate, help="transfers a second (%(default)s)")
    parser.add_argument("--store", choices=("disk", "s3"), default=default.store, help="where checkpoints go")
    parser.add_argument("--minutes", type=float, help="no more faults after this many")
    parser.add_argument("--faults", type=int, help="no more than this many")
    parser.add_argument("--closing", type=int, default=default.closing, help="kills during the drain (%(default)s)")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="this kind of fault; may be repeated")
    parser.add_argument("--no-audit", action="store_true", help="do not look into checkpoints")
    parser.add_argument("--work", type=Path, help="a directory to work in, which is kept (a temporary one)")
    given = parser.parse_args()
    options = Options(
        kills=given.kills, seed=given.seed, rate=given.rate, store=given.store, minutes=given.minutes,
        closing=given.closing, audit=not given.no_audit, faults=given.faults,
        kinds=tuple(given.only) if given.only else tuple(KINDS),
    )  # fmt: skip
    return options, given.work


if __name__ == "__main__":
    sys.exit(main())
