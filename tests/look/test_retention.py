"""A job lets go of no snapshot that somebody is looking at, and does once they are done."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from strobe.hosts.spark.snapshot.manifests import ManifestWriter
from strobe.look.cut import open_snapshot
from strobe.model.ids import SnapshotId
from tests.look.world import JOB, World


def test_what_is_looked_at_stays_until_the_next_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(3):
        world.take({1: number})
    checkpoint = SimpleNamespace(retained=1, retained_age=None)
    home = SimpleNamespace(
        home=world.home, job=JOB, record=SimpleNamespace(pinned=()), layout=world.layout,
        path=lambda key: world.home / key, check_owner=lambda: None,
    )  # fmt: skip
    pipeline, stores = SimpleNamespace(checkpoint=checkpoint, invariants=()), SimpleNamespace(checkpoints=world.store)
    writer = ManifestWriter(cast(Any, pipeline), cast(Any, home), cast(Any, stores), {})
    with open_snapshot(f"{JOB}/1", world.home) as cut:
        writer.dispose(SnapshotId(1))
        assert world.store.list() == (1, 3)
        assert cut.sql("select balance from state.balances").to_pylist() == [{"balance": 0}]
    writer.settled()
    assert world.store.list() == (3,)
