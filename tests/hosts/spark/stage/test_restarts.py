"""Snapshots of a job that is killed, and whose stages fail, at any point: none is inconsistent, none is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from strobe.hosts.spark.channel import writer as channel
from strobe.hosts.spark.snapshot.manifests import snapshot_before
from strobe.hosts.spark.stage.inputs import Reach, StageInputs
from strobe.model.graph import Graph
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.protocol.barriers import BarrierMode
from strobe.store.manifest import Manifest, NodeRecord
from tests.support.spark import restart_world
from tests.support.spark.restart_world import TIME, RestartWorld
from tests.support.spark.shapes import SHAPES, run_world


def run(root: Path, monkeypatch: pytest.MonkeyPatch, shape: str, mode: BarrierMode, seed: int) -> RestartWorld:
    return run_world(RestartWorld, root, monkeypatch, shape, mode, seed, steps=500)


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine itself does not fail here."""
    monkeypatch.setattr(channel, "fsync", lambda path: None)


@pytest.mark.parametrize("mode", list(BarrierMode))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_killed_when_every_snapshot_is_a_consistent_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, mode: BarrierMode, seed: int
) -> None:
    world = run(tmp_path, monkeypatch, shape, mode, seed)
    assert world.complete


# ── mutants: the driver finds what it is there to find ──────────────────────────────────────────────────────────────


def walks_one_input_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way over old entries is not walked on every input before something is recorded."""
    walk = StageInputs.walk
    monkeypatch.setattr(
        StageInputs, "walk", lambda self, machine, reach: () if reach is Reach.SETTLED else walk(self, machine, reach)
    )


def compares_with_a_later_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(manifest: Manifest, complete: Iterable[Manifest]) -> Manifest | None:
        return max(complete, key=lambda m: m.snapshot, default=None)

    monkeypatch.setattr(restart_world, "snapshot_before", newest)


@pytest.mark.parametrize("mutate", [walks_one_input_at_a_time, compares_with_a_later_snapshot])
def test_a_mutant_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutate(monkeypatch)
    for seed in range(40):
        try:
            run(tmp_path / str(seed), monkeypatch, "fed-back", BarrierMode.UNALIGNED, seed)
        except AssertionError as caught:
            if "Snapshot" in str(caught):  # the law of cuts, not the schedule
                return
            raise
    pytest.fail("no schedule has shown it")


# ── what a snapshot is compared with ────────────────────────────────────────────────────────────────────────────────


def manifest(snapshot: int, timeline: int = 1) -> Manifest:
    node = NodeId("a")
    return Manifest(
        SnapshotId(snapshot), Kind.CHECKPOINT, "j", "spark", Timeline(timeline), Incarnation(1), "aligned", TIME, TIME,
        Graph((node,), ()), {node: NodeRecord()},
    )  # fmt: skip


def test_a_snapshot_is_compared_with_the_newest_that_was_begun_before_it() -> None:
    complete = [manifest(3), manifest(5), manifest(9), manifest(6, timeline=2)]
    assert snapshot_before(manifest(7), complete) == manifest(5), "9 was begun later, and was faster"
    assert snapshot_before(manifest(2), complete) is None
    assert snapshot_before(replace(manifest(8), timeline=Timeline(2)), complete) == manifest(6, timeline=2)
