"""Small snapshots for the tests of this directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.manifest import BlobRef, ChannelRecord, InFlight, Manifest, NodeRecord, Prepared, SinkRecord
from strobe.store.points import OnPoint, no_point
from strobe.store.snapshots import SnapshotStore

JOB = "ledger"
POSTINGS, BALANCES = NodeId("postings"), NodeId("balances")
CHANNEL = ChannelId("postings")
GRAPH = Graph((POSTINGS, BALANCES), (Channel(ChannelId("postings-balances"), POSTINGS, BALANCES),))


def manifest(snapshot: int, files: Mapping[str, BlobRef], **changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "snapshot": SnapshotId(snapshot),
        "kind": Kind.CHECKPOINT,
        "job": JOB,
        "host": "spark",
        "timeline": Timeline(1),
        "incarnation": Incarnation(2),
        "mode": "unaligned",
        "started": "2031-05-17T09:30:00.250Z",
        "completed": "2031-05-17T09:30:01Z",
        "graph": GRAPH,
        "nodes": {
            POSTINGS: NodeRecord(batch=8, output=12, offsets={"logOffset": 8}),
            BALANCES: NodeRecord(files=files, batch=5, inputs={CHANNEL: 10}, partitions=2, state_rows=77),
        },
        "channels": {
            CHANNEL: ChannelRecord(
                POSTINGS, location="channels/postings", barrier=12, in_flight={BALANCES: InFlight(10, 12, 900)}
            )
        },
        "sinks": {"balances": SinkRecord({"path": "/out"}, (Prepared("txn-5", {"version": 3}),))},
        "writer": "strobe 0.1.0",
    }
    return Manifest(**(fields | changes))


def filesystem_store(home: Path, on_point: OnPoint = no_point) -> SnapshotStore:
    return SnapshotStore(FilesystemStore(home, on_point=on_point), JobLayout(JOB), JOB, on_point=on_point)


def take(store: SnapshotStore, snapshot: int, files: Mapping[str, bytes | Path]) -> Manifest:
    """A complete snapshot whose node `balances` has these files."""
    with store.begin(SnapshotId(snapshot)) as session:
        made = manifest(snapshot, session.put_files(files).files)
        session.complete(made)
    return made


def tree(directory: Path) -> dict[str, bytes]:
    """All files below a directory and their bytes, leaving out temporary ones."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and ".tmp" not in path.parts
    }
