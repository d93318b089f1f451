"""A snapshot of a pipeline as Spark and Strobe write it, made without either: for tests of what can be asked of it."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import lz4.block
import pyarrow as pa
import pyarrow.parquet as pq

from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.base import Data
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout
from strobe.store.manifest import ChannelRecord, InFlight, Manifest, NodeRecord, SinkRecord
from strobe.store.places import settle
from strobe.store.snapshots import SnapshotStore

JOB = "ledger"
POSTINGS, BALANCES = NodeId("postings"), NodeId("balances")
CHANNEL = ChannelId("postings")
GRAPH = Graph((POSTINGS, BALANCES), (Channel(ChannelId("e"), POSTINGS, BALANCES),))
_KEY = '{"type":"struct","fields":[{"name":"account","type":"long","nullable":true,"metadata":{}}]}'
_VALUE = '{"type":"struct","fields":[{"name":"sum","type":"long","nullable":true,"metadata":{}}]}'
_NOTES = {
    "kind": "aggregate",
    "keys": [{"name": "account", "type": "BIGINT"}],
    "values": [{"name": "sum(delta)", "type": "sum(BIGINT)"}],
    "names": {"sum(delta)": "balance"},
}


def row(value: int) -> bytes:
    return b"\0" + struct.pack("<Qq", 0, value)


def changelog(changes: dict[int, int | None]) -> bytes:
    """As Spark writes one: LZ4 blocks of records; None deletes."""
    raw = b"\0\2v2"
    for key, value in changes.items():
        body = row(key)
        raw += (b"\x10" if value is None else b"\1") + struct.pack(">i", len(body)) + body
        raw += struct.pack(">i", -1) if value is None else struct.pack(">i", len(row(value))) + row(value)
    raw += b"\0"
    packed: bytes = lz4.block.compress(raw, store_size=False)
    return struct.pack("<8sBiii", b"LZ4Block", 0x25, len(packed), len(raw), 0) + packed


def state(*changes: dict[int, int | None]) -> dict[str, Data]:
    schema = b"\0\2v2" + b"".join(struct.pack(">iH", 1, len(t)) + t.encode() for t in (_KEY, _VALUE))
    stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}]
    operator = {"operatorInfo": {"operatorId": 0, "operatorName": "stateStoreSave"}, "stateStoreInfo": stores}
    return {
        "state/0/_metadata/metadata": b"v1\n" + json.dumps(operator).encode(),
        "state/0/0/_metadata/schema": schema,
        **{f"state/0/0/{n}.changelog": changelog(each) for n, each in enumerate(changes, 1)},
    }


class World:
    """A home with a job, its channel and its snapshots; `take` adds one. `store`: where snapshots go, if elsewhere."""

    def __init__(self, root: Path, store: str | None = None) -> None:
        self.home = root / "home"
        self.layout = JobLayout(JOB)
        objects = FilesystemStore(self.home) if store is None else settle(self.home, JOB, store)
        self.store = SnapshotStore(objects, self.layout, JOB)
        self._taken = 0
        (self.home / self.layout.root).mkdir(parents=True, exist_ok=True)
        (self.home / self.layout.incarnation).write_text("{}")
        self._log = self.home / self.layout.channel(POSTINGS) / "_delta_log"
        self._log.mkdir(parents=True)
        columns = [("account", "long"), ("delta", "long")]
        fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns]
        schema = json.dumps({"type": "struct", "fields": fields})
        self._entry(0, {"metaData": {"schemaString": schema, "configuration": {}}}, kind=None)
        for version, delta in enumerate((5, 7, 9), 1):
            name = f"data/{version} x.parquet"
            path = self._log.parent / name
            path.parent.mkdir(exist_ok=True)
            pq.write_table(pa.table({"account": [version], "delta": [delta]}), path)
            self._entry(version, {"add": {"path": name.replace(" ", "%20"), "partitionValues": {}}})
        self._entry(4, {}, kind="barrier")

    def _entry(self, version: int, action: dict[str, object], kind: str | None = "data") -> None:
        info = {"commitInfo": {"strobe.kind": kind} if kind else {}}
        (self._log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, (info, action))))

    def take(self, *changes: dict[int, int | None], read_up_to: int = 1) -> str:
        """Snapshot JOB/N, whose state is what the changes leave. Rows after `read_up_to` are in flight."""
        self._taken += 1
        snapshot = SnapshotId(self._taken)
        sink = self.home.parent / "out"
        flight = {BALANCES: InFlight(read_up_to, 4, 3 - read_up_to)}
        with self.store.begin(snapshot) as session:
            files = session.put_files(state(*changes)).files
            session.complete(
                Manifest(
                    snapshot=snapshot, kind=Kind.CHECKPOINT, job=JOB, host="spark", timeline=Timeline(1),
                    incarnation=Incarnation(1), mode="aligned", started="2031-05-17T09:30:00Z",
                    completed="2031-05-17T09:30:01Z", graph=GRAPH,
                    nodes={
                        POSTINGS: NodeRecord(batch=1, output=4, offsets=[{"logOffset": 1}]),
                        BALANCES: NodeRecord(files=files, batch=len(changes), inputs={CHANNEL: read_up_to},
                                             extra={"operators": [_NOTES]}),
                    },
                    channels={
                        CHANNEL: ChannelRecord(POSTINGS, self.layout.channel(POSTINGS), 4, flight)
                    },
                    sinks={
                        "balances/0": SinkRecord({"path": str(sink), "lineage": [[1, 1]]}),
                        "postings/0": SinkRecord(),
                    },
                )
            )  # fmt: skip
        shown = sink / "batch=1-00000001"
        shown.mkdir(parents=True, exist_ok=True)
        rows = io.BytesIO()
        pq.write_table(pa.table({"account": [1], "balance": [5]}), rows)
        (shown / "x.parquet").write_bytes(rows.getvalue())
        return f"{JOB}/{snapshot}"

    def blob(self, snapshot: int, path: str) -> Path:
        ref = self.store.load(SnapshotId(snapshot)).nodes[BALANCES].files[path]
        return self.home / self.layout.blob(ref.sha256)
