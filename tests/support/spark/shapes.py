"""Graphs of stages of every shape, and one run of a world over one of them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest

from strobe.hosts.spark import crash_points
from strobe.hosts.spark.channel import writer as channel
from strobe.hosts.spark.channel.admission import Limits
from strobe.protocol.barriers import BarrierMode
from tests.support.spark.agent_world import Reads
from tests.support.spark.restart_world import RestartWorld

__all__ = ["DIAMOND", "FED_BACK", "FEEDBACK", "LOOP", "SHAPES", "TWO", "run_world"]

TWO: Reads = {"fast": (), "slow": (), "join": ("fast", "slow")}
DIAMOND: Reads = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
LOOP: Reads = {"a": (), "b": ("a", "c"), "c": ("b",), "d": ("b",)}
FED_BACK: Reads = {"a": ("b",), "b": ("a",)}  # a source stage that reads what comes of its rows
SHAPES = {"two": TWO, "diamond": DIAMOND, "loop": LOOP, "fed-back": FED_BACK}
FEEDBACK = {"loop": "b<c", "fed-back": "a<b"}

W = TypeVar("W", bound=RestartWorld)


def run_world(
    make: type[W],
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    mode: BarrierMode,
    seed: int,
    *,
    steps: int,
) -> W:
    """`steps` steps, and then until everything has settled. The machine itself does not fail: nothing is synced."""
    print(f"shape {shape}, {mode.value}, seed {seed}")  # pytest shows it if the test fails
    monkeypatch.setattr(channel, "fsync", lambda path: None)
    world = make(
        root,
        SHAPES[shape],
        mode=mode,
        seed=seed,
        feedback=frozenset({FEEDBACK[shape]} if shape in FEEDBACK else ()),
        limits=Limits(rows=(None, 1, 7)[seed % 3]),
        max_concurrent=(1, 3)[seed // 3 % 2],
    )
    monkeypatch.setattr(crash_points, "point", world.point)
    try:
        world.run(steps)
        world.settle()
    finally:
        world.close()
    return world
