"""What `strobe checkpoints` says of sinks, whatever kind they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strobe.hosts.spark.restore.restorable import why_not_restorable
from strobe.model.graph import Graph
from strobe.model.ids import NodeId
from strobe.store.manifest import NodeRecord, SinkRecord
from tests.store.snapshot_samples import manifest


def why_not(home: Path, position: Any) -> str | None:
    graph = Graph((NodeId("out"),), ())
    sinks = {"out/0": SinkRecord(position)}
    nodes = {NodeId("out"): NodeRecord(batch=8)}
    return why_not_restorable(manifest(1, {}, graph=graph, nodes=nodes, channels={}, sinks=sinks), home)


def test_a_directory_of_files_is_there_or_gone(tmp_path: Path) -> None:
    position = {"path": str(tmp_path / "out"), "lineage": [[1, 4]]}
    assert why_not(tmp_path, position) == f"The files in {tmp_path / 'out'} are gone."
    (tmp_path / "out").mkdir()
    assert why_not(tmp_path, position) is None


@pytest.mark.parametrize("position", [None, "a word", {"path": "/x"}, {"path": "/x", "version": 3}, {"version": 1}])
def test_positions_of_other_peoples_sinks_are_theirs(tmp_path: Path, position: Any) -> None:
    assert why_not(tmp_path, position) is None
