"""Real snapshots to be mutated, built once through the store and without Spark, and what lies around them.

`template/` holds a savepoint and a checkpoint of a pipeline (state files, a channel, Delta and file sinks) and a
snapshot of live processes. `canary/` holds what nobody may touch: a key, another savepoint, a table, a store at work.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

import strobe
from strobe.hosts.spark.channel.log import DataFile
from strobe.hosts.spark.channel.writer import ChannelWriter
from strobe.hosts.spark.stage.assemble import DraftStage
from strobe.model.graph import Channel, Graph
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.base import Data
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import JobLayout, SavepointLayout
from strobe.store.manifest import BlobRef, ChannelRecord, InFlight, Manifest, NodeRecord, Prepared, SinkRecord
from strobe.store.snapshots import SnapshotStore

JOB = "ledger"
SCHEMA = StructType([StructField("a", LongType())])
POSTINGS, BALANCES = NodeId("postings"), NodeId("balances")
CHANNEL = ChannelId("postings")
GRAPH = Graph((POSTINGS, BALANCES), (Channel(ChannelId("e"), POSTINGS, BALANCES),))
AGGREGATE = {"kind": "aggregate", "keys": [{"name": "a", "type": "BIGINT"}], "values": []}
DESCRIPTIONS: Mapping[NodeId, Any] = {
    POSTINGS: {"operators": [], "sources": ["FileStreamSource"], "schema": "struct<a:bigint>"},
    BALANCES: {"operators": [AGGREGATE], "sources": ["channel postings"], "schema": "struct<a:bigint>"},
}


@dataclass(frozen=True)
class Frame:
    """All that a plan asks of a stage's DataFrame: its schema, and the sources in its plan, of which it has none."""

    schema: StructType

    @property
    def _jdf(self) -> Any:
        leaves = SimpleNamespace(size=lambda: 0)
        analyzed = SimpleNamespace(collectLeaves=lambda: leaves)
        return SimpleNamespace(queryExecution=lambda: SimpleNamespace(analyzed=lambda: analyzed))


def pipeline() -> strobe.Pipeline:
    made = strobe.Pipeline(JOB, checkpoint=strobe.CheckpointConfig(interval=None), chain=False)

    @made.stage(uid="postings", to=strobe.FileSink("out/files"))
    def postings(spark: Any) -> Any: ...

    @made.stage(uid="balances", reads="postings", to=strobe.DeltaSink("out/table"))
    def balances(postings: Any) -> Any: ...

    return made


def drafts(of: strobe.Pipeline) -> list[DraftStage]:
    return [DraftStage(spec, cast(DataFrame, Frame(SCHEMA))) for spec in of.stages.values()]


def world_of(root: Path) -> Path:
    """Where the copy of the template is that a case works on: positions of sinks lead there."""
    return root / "case" / "world"


def build(root: Path) -> None:
    """Everything below `root`: `template/` and `canary/`."""
    template = root / "template"
    _channel(template / "theirs" / "table", BALANCES, commits=2)
    shown = template / "theirs" / "files" / "batch=1-00000001"
    shown.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1, 2]}), shown / "x.parquet")
    (template / "theirs" / "escaped").write_text("this is to be copied to where nobody expects it")
    theirs = world_of(root) / "theirs"
    table = {"path": str(theirs / "table"), "version": 2, "letters": {"timeline": 1, "batch": 1}}
    files = {"path": str(theirs / "files"), "lineage": [[1, 1]]}
    part = {"snapshot": 4, "timeline": 1, "after": 0, "through": 1, "where": "files", "prepared": {"path": "x"}}
    sinks = {
        "balances/0": SinkRecord(table),
        "postings/0": SinkRecord(files, (Prepared(f"{JOB}/postings/0/1/4", part),)),
    }
    _savepoint(template / "savepoint", sinks)
    _checkpoint(template / "home", sinks)
    _live(template / "live")
    _canary(root / "canary")


def state_files() -> dict[str, Data]:
    names = {"localSstFileName": "1.sst", "dfsSstFileName": "1-ab.sst", "sizeBytes": 3}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("metadata", b"v1\n" + json.dumps({"sstFiles": [names], "numKeys": 1}).encode())
        made.writestr("CURRENT", b"x")
    head = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {"spark.sql.shuffle.partitions": "2"}})
    schema = "file:/old/state/0/_stateSchema/default/0_1"
    metadata = {"operatorInfo": {"operatorId": 0}, "stateStoreInfo": [{"stateSchemaFilePaths": [schema]}]}
    return {
        "metadata": b'{"id":"0d2b1f3c-0000-0000-0000-000000000001"}',
        "offsets/0": f'v1\n{head}\n{{"channel":"postings","version":1}}'.encode(),
        "offsets/1": f'v1\n{head}\n{{"channel":"postings","version":2}}'.encode(),
        "commits/0": b'v1\n{"nextBatchWatermarkMs":0}',
        "commits/1": b'v1\n{"nextBatchWatermarkMs":0}',
        "state/0/0/2.zip": archive.getvalue(),
        "state/0/0/SSTs/1-ab.sst": b"sst",
        "state/0/_metadata/v2/0": b"v2\n" + json.dumps(metadata).encode(),
        "state/0/_stateSchema/default/0_1": b"\0\2v3\0\0\0\0",
        **_readable_state(),
    }


def _readable_state() -> dict[str, Data]:
    """Of a second operator, as Spark writes it: what is looked at without Spark."""
    import struct

    import lz4.block

    def changes(*numbers: int) -> bytes:
        row = [b"\0" + struct.pack("<Qq", 0, n) for n in numbers]
        raw = b"\0\2v2" + b"".join(b"\1" + 2 * (struct.pack(">i", len(r)) + r) for r in row) + b"\0"
        packed: bytes = lz4.block.compress(raw, store_size=False)
        return struct.pack("<8sBiii", b"LZ4Block", 0x25, len(packed), len(raw), 0) + packed

    text = SCHEMA.json().encode()
    schema = b"\0\2v2" + 2 * (struct.pack(">iH", 1, len(text)) + text)
    operator = {"operatorInfo": {"operatorId": 1, "operatorName": "stateStoreSave"}}
    stores = {"stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 1}]}
    return {
        "state/1/_metadata/metadata": b"v1\n" + json.dumps({**operator, **stores}).encode(),
        "state/1/0/_metadata/schema": schema,
        **full_copy({b"\0" + struct.pack("<Qq", 0, n): b"\0" + struct.pack("<Qq", 0, n) for n in (1, 2)}),
        "state/1/0/2.changelog": changes(2, 3),
    }


def full_copy(
    entries: Mapping[bytes, Any], *, raw: bool = True, also: Mapping[str, bytes] | None = None, **metadata: Any
) -> dict[str, Data]:
    """Version 1 of that operator's store as RocksDB keeps it: small files in an archive, and the large ones beside it.
    Not `raw`: as the library that reads it here would write it by itself, which is with pickles."""
    from rocksdict import Options, Rdict

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        db = Rdict(str(directory / "db"), options=Options(raw_mode=raw))
        for key, value in entries.items():
            db[key] = value
        db.flush(True)
        db.close()
        found = {file.name: file.read_bytes() for file in (directory / "db").iterdir()}
    tables = {name: data for name, data in found.items() if name.endswith(".sst")}
    listed = [{"localFileName": name, "dfsSstFileName": f"x-{name}"} for name in tables]
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        small = {n: d for n, d in found.items() if n.startswith(("CURRENT", "MANIFEST", "OPTIONS"))}
        if not raw:
            small["rocksdict-config.json"] = found["rocksdict-config.json"]
        for name, data in {**small, **(also or {})}.items():
            packed.writestr(name, data)
        packed.writestr("metadata", "v1\n" + json.dumps({"sstFiles": listed, **metadata}))
    stored: dict[str, Data] = {f"state/1/0/SSTs/x-{name}": data for name, data in tables.items()}
    return {**stored, "state/1/0/1.zip": archive.getvalue()}


def _channel(path: Path, producer: NodeId, commits: int) -> Path:
    writer = ChannelWriter(
        path, SCHEMA, job=JOB, producer=producer, timeline=Timeline(1), incarnation=Incarnation(1)
    )  # fmt: skip
    for batch in range(commits):
        name = f"data/1/{batch}-ab/x.parquet"
        (path / name).parent.mkdir(parents=True)
        pq.write_table(pa.table({"a": [batch]}), path / name)
        writer.append([DataFile(name, 1, (path / name).stat().st_size)], batch)
    writer.close()
    return path


def _manifest(kind: Kind, files: Any, channel: ChannelRecord, sinks: Any, snapshot: int) -> Manifest:
    return Manifest(
        snapshot=SnapshotId(snapshot), kind=kind, job=JOB, host="spark", timeline=Timeline(1),
        incarnation=Incarnation(1), mode="aligned", started="2031-05-17T09:30:00Z", completed="2031-05-17T09:30:01Z",
        graph=GRAPH, nodes={
            POSTINGS: NodeRecord(files=_source_files(files), batch=1, output=3, offsets={"logOffset": 1},
                                 extra=DESCRIPTIONS[POSTINGS]),
            BALANCES: NodeRecord(files=files, batch=1, inputs={CHANNEL: 2}, partitions=2, state_rows=2,
                                 extra=DESCRIPTIONS[BALANCES]),
        },
        channels={CHANNEL: channel}, sinks=sinks, writer="strobe", format=1 if kind is Kind.CHECKPOINT else 2,
    )  # fmt: skip


def _source_files(files: Mapping[str, BlobRef]) -> dict[str, BlobRef]:
    return {name: ref for name, ref in files.items() if not name.startswith("state/")}


def _savepoint(place: Path, sinks: Any) -> None:
    store = SnapshotStore(FilesystemStore(place), SavepointLayout("", SnapshotId(7)), JOB)
    name, rows = f"{3:020d}/x.parquet", io.BytesIO()
    pq.write_table(pa.table({"a": [5]}), rows)
    with store.begin(SnapshotId(7)) as session:
        content = session.put_files({name: rows.getvalue()}).files
        files = [{"path": name, "rows": 1, "size": content[name].size}]
        record = ChannelRecord(
            POSTINGS, None, 3, {BALANCES: InFlight(2, 3, 1)}, content,
            {"commits": [{"version": 3, "batch": 2, "files": files}], "schema": json.loads(SCHEMA.json())},
        )  # fmt: skip
        upload = session.put_files(state_files()).files
        session.complete(_manifest(Kind.SAVEPOINT, upload, record, sinks, 7))
    _close(store)


def _checkpoint(home: Path, sinks: Any) -> None:
    layout = JobLayout(JOB)
    _channel(home / layout.channel(POSTINGS), POSTINGS, commits=3)
    store = SnapshotStore(FilesystemStore(home), layout, JOB)
    for snapshot in (4, 5):
        with store.begin(SnapshotId(snapshot)) as session:
            record = ChannelRecord(POSTINGS, layout.channel(POSTINGS), 3, {BALANCES: InFlight(2, 3, 1)})
            upload = session.put_files({**state_files(), "extra": b"%d" % snapshot}).files
            session.complete(_manifest(Kind.CHECKPOINT, upload, record, sinks, snapshot))
    memory = {"incarnation": 1, "timeline": 1, "snapshot": 5, "generation": 0}
    (home / layout.incarnation).write_text(json.dumps(memory))
    _close(store)


def _live(place: Path) -> None:
    encode = msgspec.msgpack.encode
    store = SnapshotStore(FilesystemStore(place), SavepointLayout("", SnapshotId(3)), "bank")
    a, b, e = NodeId("a"), NodeId("b"), ChannelId("e")
    with store.begin(SnapshotId(3)) as session:
        files = session.put_files(
            {"a": encode({"balance": 3, "names": ["x"]}), "b": encode({"balance": 4}), "m": encode([["Pay", {"n": 1}]])}
        ).files
        offsets = {"timers": [["tick", 0.5, 1.0]], "step": 4}
        session.complete(
            Manifest(
                snapshot=SnapshotId(3), kind=Kind.SAVEPOINT, job="bank", host="live", timeline=Timeline(1),
                incarnation=Incarnation(1), mode="chandy-lamport", started="2031-05-17T09:30:00Z",
                completed="2031-05-17T09:30:01Z", graph=Graph((a, b), (Channel(e, a, b),)),
                nodes={
                    a: NodeRecord(files={"state.msgpack": files["a"]}, offsets=offsets),
                    b: NodeRecord(files={"state.msgpack": files["b"]}, inputs={e: 1}, offsets=offsets),
                },
                channels={e: ChannelRecord(a, None, 2, {b: InFlight(1, 2, 1)}, {"messages.msgpack": files["m"]})},
            )
        )  # fmt: skip
    _close(store)


def _canary(place: Path) -> None:
    _savepoint(place / "savepoint", {})
    (place / "work" / "ab12").mkdir(parents=True)
    (place / "work" / "ab12" / "1").write_bytes(b"half written")
    (place / "empty").mkdir()
    (place / "key").write_text("secret")
    (place / "p.py").write_text("the pipeline")
    write_deltalake(str(place / "table"), pa.table({"a": [1]}))


def _close(store: SnapshotStore) -> None:
    objects = store.objects
    assert isinstance(objects, FilesystemStore)
    objects.close()


def picture(directory: Path) -> list[tuple[str, int, int, int, int]]:
    """Every name below a directory with what changes when somebody writes there. Nothing is followed or opened."""
    seen = []
    todo = [str(directory)]
    while todo:
        above = todo.pop()
        with os.scandir(above) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                seen.append((entry.path, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ino))
                if entry.is_dir(follow_symlinks=False):
                    todo.append(entry.path)
    return sorted(seen)
