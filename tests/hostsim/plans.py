"""Plans from seeds, and smaller plans that still fail."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from strobe.hosts.spark.crash_points import POINTS
from tests.hostsim.world import SHAPES, Break, Fault, Plan

__all__ = ["plan_of", "shrink"]

_KINDS = (
    (Break.KILL, 6), (Break.POWER, 4), (Break.STATE, 1), (Break.SUSPEND, 4), (Break.RIVAL, 2), (Break.ROOM, 2),
    (Break.DISK, 1), (Break.SINK, 2), (Break.STOP, 1), (Break.BUCKET, 2), (Break.LATE, 2), (Break.STALL, 3),
    (Break.SAVEPOINT, 3), (Break.STOP_SAVING, 2), (Break.DRAIN, 2),
)  # fmt: skip
_PLACES = (
    *(f"[{name}" for name in POINTS),
    "link",
    "rename",
    "fsync",
    "unlink",
    "sink: commit",
    "sink: prepare",
    "manifest.json",
    "bucket: put",
    "bucket: copy",
)
_SPAN = 1200  # steps within which faults come; a job without any takes about 700


def plan_of(seed: int, number: int) -> Plan:
    dice = random.Random(seed * 1_000_003 + number)
    count = dice.choice((0, 1, 1, 1, 2, 2, 3, 4))
    bucket = dice.random() < 0.25
    kinds, weights = zip(*(k for k in _KINDS if bucket or k[0] not in (Break.BUCKET, Break.LATE)), strict=True)
    faults = []
    for kind in dice.choices(kinds, weights, k=count):
        at = dice.choice(_PLACES) if dice.random() < 0.4 else ""
        faults.append(Fault(dice.randrange(1, _SPAN // 2 if at else _SPAN), kind, _size(dice, kind), at))
    return Plan(
        seed=dice.randrange(2**31),
        shape=dice.choice(("line", "line", "line", *SHAPES)),
        bucket=bucket,
        mode=dice.choice(("aligned", "aligned", "unaligned", "aligned-with-timeout")),
        rows=dice.choice((3, 5, 8)),
        retained=dice.choice((1, 1, 2)),
        concurrent=dice.choice((1, 1, 2)),
        interval=dice.choice((0.05, 0.1, 0.2)),
        switching=dice.choice((0.02, 0.1, 0.3, 0.6)),
        faults=tuple(sorted(faults, key=lambda f: f.step)),
    )


def _size(dice: random.Random, kind: Break) -> int:
    if kind in (Break.SUSPEND, Break.STALL):
        return dice.choice((1, 30, 100, 300, 1000))
    return dice.choice((1, 1, 2, 5))


def shrink(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """The smallest plan on the way that still fails: fewer faults, fewer rows, a plainer job, fewer hand-overs."""
    found = True
    while found:
        found = False
        for smaller in _smaller(plan):
            if fails(smaller):
                plan, found = smaller, True
                break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    for i in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:i] + plan.faults[i + 1 :])
    if plan.bucket:
        yield replace(plan, bucket=False)
    if plan.shape != "line":
        yield replace(plan, shape="line")
    if plan.rows > 1:
        yield replace(plan, rows=plan.rows // 2)
    for plain in (
        replace(plan, mode="aligned"), replace(plan, retained=1), replace(plan, concurrent=1),
        replace(plan, interval=0.1),
    ):  # fmt: skip
        if plain != plan:
            yield plain
    if plan.quiet_after is None:
        yield replace(plan, quiet_after=_SPAN)
    elif plan.quiet_after > 0:
        yield replace(plan, quiet_after=plan.quiet_after // 2)
        yield replace(plan, quiet_after=plan.quiet_after - 1)
