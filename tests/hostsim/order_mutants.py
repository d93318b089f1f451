"""Hosts that break one rule of savepoints and stops each, with the plan that leads to where the rule stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import strobe
from strobe.hosts.spark.snapshot import checkpoints, targets
from strobe.hosts.spark.snapshot.coordinator import CoordinatorHost
from strobe.hosts.spark.snapshot.savepoints import SnapshotStores
from strobe.model.ids import SnapshotId
from strobe.protocol.coordinator.messages import CoordinatorSettings
from strobe.store.manifest import ChannelRecord
from tests.hostsim.mutants import Mutant
from tests.hostsim.world import Break, Fault, Plan

__all__ = ["ORDER_MUTANTS"]


def _name_of_the_directory_is_not_synced() -> list[Any]:
    def make(path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    return [mock.patch.object(targets, "_make", make)]


def _stages_go_on_after_a_stop() -> list[Any]:
    real = CoordinatorHost.snapshot

    def snapshot(self: CoordinatorHost, kind: Any, timeout: float | None = None, *, last: bool = False) -> SnapshotId:
        return real(self, kind, timeout)

    return [mock.patch.object(CoordinatorHost, "snapshot", snapshot)]


def _rows_in_flight_are_left_behind() -> list[Any]:
    real = SnapshotStores.with_content

    def with_content(self: SnapshotStores, record: ChannelRecord, *args: Any) -> ChannelRecord:
        whole = real(self, record, *args)
        commits = whole.extra["commits"]
        assert isinstance(commits, list)
        return replace(whole, extra={**whole.extra, "commits": commits[1:]})

    # So that there are any: savepoints overtake rows where alignment takes too long.
    settings = strobe.CheckpointConfig.coordinator

    def overtaking(self: strobe.CheckpointConfig) -> CoordinatorSettings:
        return replace(settings(self), everywhere=False)

    return [
        mock.patch.object(SnapshotStores, "with_content", with_content),
        mock.patch.object(strobe.CheckpointConfig, "coordinator", overtaking),
    ]


def _place_is_not_shut_at_a_takeover() -> list[Any]:
    return [mock.patch.object(checkpoints, "fence_target")]


_ZOMBIE = 500  # steps: another driver has taken over, and come up

ORDER_MUTANTS: dict[str, tuple[Mutant, Plan]] = {
    "the name of a savepoint's directory is not synced": (
        _name_of_the_directory_is_not_synced, Plan(0, faults=(Fault(200, Break.SAVEPOINT),)),
    ),
    "stages go on after the savepoint that ends the job": (
        _stages_go_on_after_a_stop, Plan(0, faults=(Fault(200, Break.STOP_SAVING),)),
    ),
    "a savepoint leaves rows in flight behind": (
        _rows_in_flight_are_left_behind,
        Plan(
            0, shape="chain", mode="unaligned", rows=20,
            faults=(Fault(250, Break.SAVEPOINT, at="[batch.in-channel@a]"),),
        ),
    ),
    "the place of a savepoint is not shut at a takeover": (
        _place_is_not_shut_at_a_takeover,
        Plan(
            0,
            faults=(
                Fault(200, Break.SAVEPOINT),
                Fault(201, Break.SUSPEND, _ZOMBIE, at="to /base/savepoint-1/manifest.json"),
            ),
        ),
    ),
    "the place of a savepoint in a bucket is not shut at a takeover": (
        _place_is_not_shut_at_a_takeover,
        Plan(
            0, bucket=True,
            faults=(
                Fault(200, Break.SAVEPOINT, size=2),
                Fault(201, Break.SUSPEND, _ZOMBIE, at="bucket: put manifest.json"),
            ),
        ),
    ),
}  # fmt: skip
