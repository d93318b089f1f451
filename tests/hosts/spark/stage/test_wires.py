"""Stages and coordinator behind connections that delay, repeat, break and resume: snapshots are as sound as without."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from strobe.hosts.spark.channel import writer as channel
from strobe.hosts.spark.channel.log import Commit
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.snapshot.coordinator import CoordinatorHost
from strobe.hosts.spark.snapshot.messages import StageReady, StageRegistered
from strobe.hosts.spark.stage.life import StageLife
from strobe.hosts.spark.stage.recorder import Recorder
from strobe.model.ids import Incarnation, SnapshotId
from strobe.protocol.barriers import BarrierMode
from strobe.protocol.coordinator.messages import NodeReady
from strobe.protocol.events import BarrierOptions
from tests.support.spark.shapes import SHAPES, run_world
from tests.support.spark.wired_world import WiredWorld

STEPS = 700


def run(root: Path, monkeypatch: pytest.MonkeyPatch, shape: str, mode: BarrierMode, seed: int) -> WiredWorld:
    return run_world(WiredWorld, root, monkeypatch, shape, mode, seed, steps=STEPS)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine itself does not fail here."""
    monkeypatch.setattr(channel, "fsync", lambda path: None)


@pytest.mark.parametrize("mode", list(BarrierMode))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", [0, 106, 121])
def test_whatever_the_connections_do_every_snapshot_is_a_consistent_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, mode: BarrierMode, seed: int
) -> None:
    world = run(tmp_path, monkeypatch, shape, mode, seed)
    assert world.complete
    assert world.jobs_ended


# ── mutants ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def barriers_do_not_say_that_they_are_last(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ChannelWriter.place_barrier

    def silent(self: ChannelWriter, snapshot: SnapshotId, options: BarrierOptions) -> Commit:
        return place(self, snapshot)

    monkeypatch.setattr(ChannelWriter, "place_barrier", silent)


def a_stage_that_comes_back_knows_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    register = Recorder.register
    monkeypatch.setattr(Recorder, "register", lambda self, answer: register(self, replace(answer, last=None)))


def a_batch_begins_before_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StageLife, "_is_known", True)


def the_answer_comes_behind_the_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: CoordinatorHost, ready: StageReady) -> None:
        if ready.incarnation > self._lost.get(ready.stage, Incarnation(-1)):
            self._lives[ready.stage] = max(ready.incarnation, self._lives.get(ready.stage, ready.incarnation))
            self._step(NodeReady(ready.stage, ready.incarnation))
            self._tell(ready.stage, StageRegistered(ready.incarnation, self._newest, self._last))

    monkeypatch.setattr(CoordinatorHost, "_register", late)


@pytest.mark.parametrize(
    ("mutate", "shape", "mode", "symptom"),
    [
        (
            barriers_do_not_say_that_they_are_last,
            "diamond",
            BarrierMode.UNALIGNED,
            "went on after the last",
        ),
        (
            a_stage_that_comes_back_knows_nothing_of_it,
            "two",
            BarrierMode.ALIGNED,
            "went on after the last",
        ),
        (a_batch_begins_before_the_answer, "two", BarrierMode.ALIGNED, "went on after the last"),
        (the_answer_comes_behind_the_snapshot, "two", BarrierMode.ALIGNED, "waits for ever|went on after"),
    ],
)
def test_a_mutant_is_caught(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mutate: Callable[[pytest.MonkeyPatch], None],
    shape: str,
    mode: BarrierMode,
    symptom: str,
) -> None:
    mutate(monkeypatch)
    for seed in range(40):
        try:
            run(tmp_path / str(seed), monkeypatch, shape, mode, seed)
        except AssertionError as caught:
            if re.search(symptom, str(caught)):
                return
            raise
    pytest.fail("no schedule has shown it")
