"""How long `strobe --help` and `strobe list` take: processor time from the start of the process to its end.

    python bench/command_line.py             20 times each, in turn
    python bench/command_line.py --quick     3 times

Compared with a Python that does nothing: no command can be faster than that. The home has three jobs with five
checkpoints each.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench._report import figure


def processor_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    rounds = 3 if args.quick else args.rounds
    with tempfile.TemporaryDirectory(prefix="strobe-bench-") as home:
        for job in ("bronze", "silver", "gold"):
            for number in range(1, 6):
                snapshot = Path(home, "jobs", job, "snapshots", f"chk-{number:06}")
                snapshot.mkdir(parents=True)
                (snapshot / "manifest.json").write_text("{}")
        strobe = [sys.executable, "-m", "strobe.cli.main"]
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "strobe --help": [*strobe, "--help"],
            "strobe list": [*strobe, "list", "--home", home],
        }
        found: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                found[name].append(processor_seconds(command))
    print(f"{'seconds of processor time':<28}{'best':>8}{'median':>8}")
    for name, seconds in found.items():
        print(f"{name:<28}{min(seconds):>8.3f}{statistics.median(seconds):>8.3f}")
    for name, most in (("strobe --help", 0.15), ("strobe list", 0.25)):
        figure("command_line.py", f"{name}, processor time", statistics.median(found[name]), at_most=most, unit=" s")


if __name__ == "__main__":
    main()
