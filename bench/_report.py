"""One table for all benchmarks: each reports its figures with their targets, `make bench` prints them at its end.

    from bench._report import figure
    figure("depth.py", "a small file through 20 stages, against queries chained by hand", 0.65, at_most=0.7)

That one call is all a benchmark needs. It prints nothing: a benchmark prints what it has found itself. Where
the environment variable STROBE_BENCH_REPORT names a file, the figure is added to it, as a line of JSON.

    python bench/_report.py FILE             the figures in that file, as a table
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

__all__ = ["figure", "table"]

VARIABLE = "STROBE_BENCH_REPORT"


def figure(
    bench: str, what: str, found: float, *, at_least: float | None = None, at_most: float | None = None, unit: str = ""
) -> None:
    """A figure that has a target: `at_least` or `at_most`."""
    if (at_least is None) == (at_most is None):
        raise ValueError(f"{what}: a figure has one target, at_least or at_most.")
    place = os.environ.get(VARIABLE)
    if place:
        line = {"bench": bench, "what": what, "found": found, "at_least": at_least, "at_most": at_most, "unit": unit}
        with Path(place).open("a") as file:
            file.write(json.dumps(line) + "\n")


def table(lines: list[str]) -> str:
    """`of the target` is above 1 where the figure is better than wanted, whichever way that is."""
    rows = [("benchmark", "figure", "found", "target", "of the target", "")]
    for line in lines:
        one = json.loads(line)
        found, least, most, unit = one["found"], one["at_least"], one["at_most"], one["unit"]
        target, sign, met = (least, "≥", found >= least) if most is None else (most, "≤", found <= most)
        better = (found / target if most is None else target / found) if found and target else float("inf")
        rows.append(
            (one["bench"], one["what"], f"{found:,.3g}{unit}" if abs(found) < 1000 else f"{found:,.0f}{unit}",
             f"{sign} {target:,g}{unit}", f"{better:.2f}", "met" if met else "missed")
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = (False, False, True, True, True, False)
    texts = [
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([texts[0], "─" * len(texts[0]), *texts[1:]])


if __name__ == "__main__":
    print(table(Path(sys.argv[1]).read_text().splitlines()))
