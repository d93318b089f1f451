"""A snapshot that somebody crafted, with every hash and the root right: what it may not do to whoever restores it."""

from __future__ import annotations

import io
import json
import os
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql.types import LongType, StructField, StructType

import strobe
from strobe.hosts.spark.channel.log import ChannelLog
from strobe.hosts.spark.checkpoint.layout import check_laid_out, lay_out_stage
from strobe.hosts.spark.connectors.base import Sink, SinkContext, SinkFate
from strobe.hosts.spark.connectors.delta.restore import copy_appended, why_unreachable
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.hosts.spark.snapshot.savepoint_content import content_of, schema_of
from strobe.model.errors import Damaged, Failed, Misuse, StrobeError
from strobe.model.ids import ChannelId, Incarnation, NodeId, SnapshotId, Timeline
from strobe.model.kind import Kind
from strobe.store.codec import root_of
from strobe.store.filesystem import FilesystemStore
from strobe.store.layout import SavepointLayout
from strobe.store.locate import locate
from strobe.store.manifest import BlobRef, ChannelRecord, InFlight
from strobe.store.snapshots import SnapshotStore
from tests.store.snapshot_samples import BALANCES, JOB, manifest

SCHEMA = StructType([StructField("a", LongType())])
CHANNEL = ChannelId("postings")
UP = "../" * 8


def context(base: Path, copies_from: tuple[Path, ...] | None = ()) -> SinkContext:
    return SinkContext(
        "ledger", NodeId("balances"), "balances/0", Timeline(2), Incarnation(1), SCHEMA, "append", base,
        base / "staging", copies_from=copies_from,
    )  # fmt: skip


# ── paths of a Delta log ────────────────────────────────────────────────────────────────────────────────────────────


def crafted_table(table: Path, path: str, **fields: Any) -> Path:
    """A table whose log, as a sink's plain table has it, names `path`."""
    log = table / "_delta_log"
    log.mkdir(parents=True)
    meta = {"id": "x", "format": {"provider": "parquet", "options": {}}, "schemaString": SCHEMA.json(),
            "partitionColumns": [], "configuration": {}, "createdTime": 0}  # fmt: skip
    first: list[dict[str, Any]] = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": meta}]
    info = {"strobe.kind": "data", "strobe.incarnation": 1, "strobe.timeline": 1, "strobe.batch": 0}
    add = {"path": path, "partitionValues": {}, "size": 10, "modificationTime": 0, "dataChange": True,
           "stats": json.dumps({"numRecords": 1})} | fields  # fmt: skip
    for version, lines in enumerate((first, [{"commitInfo": info}, {"add": add}])):
        (log / f"{version:020d}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return table


@pytest.mark.parametrize(
    "path",
    [
        "../../p.py", "%2E%2E/%2e%2e/p.py", "..%2F..%2Fp.py", "/etc/hostname", "%2Fetc/hostname", "file:///etc/hostname",
        "s3://bucket/x", "a//b", "a/./b", "", "a\\..\\b", "a%00b", "a%1b[2Jb", "%ud800", "%", "a\u202eb", "%ff",
        "x" * 300, "/".join(["x" * 200] * 9), 7, None, ["a"],
    ],
)  # fmt: skip
def test_a_table_whose_log_leads_out_of_it_is_not_read(path: Any, tmp_path: Path) -> None:
    table = crafted_table(tmp_path / "evil", path)
    with pytest.raises(Damaged, match="Entry 1 of the log"):
        ChannelLog(table)


@pytest.mark.parametrize(
    "path", ["data/1/0-ab/part.parquet", "p=a%20b/x.parquet", "p=%C3%BC/x", "p=a%252Fb/x", "a=b c/x"]
)
def test_a_table_whose_log_stays_in_it_is_read(path: str, tmp_path: Path) -> None:
    assert len(ChannelLog(crafted_table(tmp_path / "t", path)).files_at(1)) == 1


@pytest.mark.parametrize(
    "fields", [{"size": -1}, {"size": "1"}, {"stats": "{}"}, {"stats": "[" * 10_000}, {"size": 1e3}]
)
def test_a_log_whose_numbers_are_none_is_damage(fields: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="Entry 1 of the log"):
        ChannelLog(crafted_table(tmp_path / "evil", "x", **fields))


def test_the_copy_of_a_table_does_not_replace_a_file_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "p.py").write_text("the pipeline")
    table = crafted_table(tmp_path / "evil" / "deep" / "table", "../../p.py")
    (tmp_path / "evil" / "p.py").write_text("print('owned')")
    with pytest.raises(Damaged):
        copy_appended(table, 1, tmp_path / "job" / "out" / "t", context(tmp_path / "job"))
    assert (tmp_path / "job" / "p.py").read_text() == "the pipeline"


@pytest.mark.parametrize("linked", ["file", "directory"])
def test_a_link_in_a_table_is_not_copied(linked: str, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "x").write_text("key")
    table = crafted_table(tmp_path / "evil", "data/x")
    if linked == "file":
        (table / "data").mkdir()
        (table / "data" / "x").symlink_to(tmp_path / "secret" / "x")
    else:
        (table / "data").symlink_to(tmp_path / "secret")
    assert why_unreachable(table, 1) is not None
    with pytest.raises(Failed, match="leads out of the table"):
        copy_appended(table, 1, tmp_path / "out", context(tmp_path))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("version", [2, 10**6, (1 << 53) - 1])
def test_a_version_that_never_was_is_said_at_once(version: int, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"a": [1]}))
    problem = why_unreachable(tmp_path / "t", version)
    assert problem is not None
    assert "has no version" in problem.what


# ── positions of sinks ──────────────────────────────────────────────────────────────────────────────────────────────

SINKS: dict[str, tuple[Sink, dict[str, Any]]] = {
    "delta": (strobe.DeltaSink("out"), {"version": 0, "letters": None}),
    "on snapshot": (
        strobe.DeltaSink("out", delivery="on_snapshot"),
        {"version": 0, "letters": None, "app": "x", "through": 1},
    ),
    "upsert": (strobe.DeltaSink("out", key="a"), {"version": 0, "letters": None}),
    "file": (strobe.FileSink("out"), {"lineage": [[1, 3]]}),
}


def place_of(kind: str, where: Path) -> None:
    if kind == "file":
        (where / "batch=1-00000001").mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), where / "batch=1-00000001" / "x.parquet")
    else:
        write_deltalake(str(where), pa.table({"a": [1]}))


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("fork", [True, False], ids=["fork", "in place"])
def test_a_sink_begins_as_a_copy_of_another_place_only_if_a_person_says_so(
    kind: str, fork: bool, tmp_path: Path
) -> None:
    sink, more = SINKS[kind]
    there = tmp_path / "theirs" / "out"
    place_of(kind, there)
    position = {"path": str(there), **more}

    def ask(copies_from: tuple[Path, ...] | None) -> StrobeError | None:
        outlook = sink.outlook(position, context(tmp_path / "job", copies_from), fork=fork, again=False)
        assert outlook.fate is SinkFate.COPIED
        return outlook.problem

    refused = ask(())
    assert isinstance(refused, Misuse)
    assert f"--sinks-from {there}" in refused.next
    assert isinstance(ask((tmp_path / "theirs" / "ou",)), Misuse)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    for allowed in (there, tmp_path / "theirs", tmp_path / "link"):
        problem = ask((allowed,))
        assert problem is None or "not visible there yet" in problem.what
    sly = tmp_path / "ok" / "out"
    sly.parent.mkdir()
    sly.symlink_to(there)
    position["path"] = str(sly)
    assert isinstance(ask((tmp_path / "ok",)), Misuse)


def test_nothing_is_read_at_a_place_that_nobody_has_named(tmp_path: Path) -> None:
    log = tmp_path / "evil" / "_delta_log"
    log.mkdir(parents=True)
    os.mkfifo(log / f"{1:020d}.json")  # who reads it waits for ever
    sink, more = SINKS["on snapshot"]
    position = {"path": str(tmp_path / "evil"), **more}
    outlook = sink.outlook(position, context(tmp_path / "job"), fork=True, again=False)
    assert isinstance(outlook.problem, Misuse)
    with pytest.raises(Damaged, match="named pipe"):
        sink.outlook(position, context(tmp_path / "job", None), fork=True, again=False)


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize(
    "changes",
    [
        {"path": "out"}, {"path": "../out"}, {"path": "/a/../etc"}, {"path": "s3://bucket/out"}, {"path": 5},
        {"path": "file:///etc"}, {"path": "/a\0b"}, {"path": "/a\x1b[2J"}, {"path": []},
        {"version": -2, "lineage": [[1]]}, {"version": 1 << 70, "lineage": [[1 << 70, 0]]},
        {"version": "1", "lineage": "x"}, {"version": True, "lineage": [["1", 2]]}, {"version": 1.0, "lineage": {}},
    ],
    ids=str,
)  # fmt: skip
def test_a_position_that_no_sink_would_write_is_refused(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    sink, more = SINKS[kind]
    position = {"path": str(tmp_path / "job" / "out"), **more, **changes}
    with pytest.raises(Damaged, match="a position that no sink has written"):
        sink.outlook(position, context(tmp_path / "job", None), fork=False, again=False)


# ── the rows that a savepoint holds ─────────────────────────────────────────────────────────────────────────────────

PATH = f"{3:020d}/x.parquet"
COMMITS = [{"version": 3, "batch": 1, "files": [{"path": PATH, "rows": 2, "size": 5}]}]


def record(commits: Any = COMMITS, schema: Any = None) -> ChannelRecord:
    return ChannelRecord(
        NodeId("postings"), barrier=12, in_flight={BALANCES: InFlight(2, 12, 2)},
        content={PATH: BlobRef("ab" * 32, 5)}, extra={"commits": commits, "schema": schema},
    )  # fmt: skip


def test_the_content_of_a_channel_is_decoded() -> None:
    (commit,) = content_of(CHANNEL, record(), "there")
    assert (commit.version, commit.files) == (3, ((PATH, 2, 5),))
    assert schema_of(CHANNEL, record(schema=json.loads(SCHEMA.json())), "there") == SCHEMA
    assert schema_of(CHANNEL, record(schema=SCHEMA.json()), "there") == SCHEMA


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("path", p) for p in ("/etc/key", "../key", f"{UP}etc/key", "other", "", 5, None, f"{PATH}/../x")],
        *[("rows", r) for r in (-1, "2", 1.5, 1 << 70, True, None)],
        *[("size", s) for s in (-1, 4, "5", 1 << 64)],
        *[("version", v) for v in (-1, 13, "3", 1 << 64, None)],
        ("files", {}), ("files", [[]]), ("files", [{}]), ("files", 3),
    ],
)  # fmt: skip
def test_content_that_is_no_file_of_the_channel_is_damage(field: str, value: Any) -> None:
    commits = json.loads(json.dumps(COMMITS))
    (commits[0] if field in commits[0] else commits[0]["files"][0])[field] = value
    with pytest.raises(Damaged, match="does not say what channel postings holds"):
        content_of(CHANNEL, record(commits), "there")


@pytest.mark.parametrize("commits", [{}, "x", 1, [1], [COMMITS[0], COMMITS[0]], [{"version": 4}], [None]])
def test_commits_that_are_none_are_damage(commits: Any) -> None:
    with pytest.raises(Damaged):
        content_of(CHANNEL, record(commits), "there")


def test_no_class_is_imported_because_a_schema_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evil_type.py").write_text("import pathlib; pathlib.Path(__file__).with_name('ran').touch()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    udt = {"type": "udt", "class": "x", "pyClass": "evil_type.Evil", "sqlType": "long"}
    for kind in (udt, {"type": "array", "elementType": udt, "containsNull": True}):
        schema = {"type": "struct", "fields": [{"name": "a", "type": kind, "nullable": True, "metadata": {}}]}
        for value in (schema, json.dumps(schema)):
            with pytest.raises(Damaged, match="names a class"):
                schema_of(CHANNEL, record(schema=value), "there")
    assert not (tmp_path / "ran").exists()
    assert "evil_type" not in sys.modules


@pytest.mark.parametrize(
    "schema", [1, [], {}, "x", "{", {"type": "struct"}, {"type": "struct", "fields": [{"name": 1}]}]
)
def test_a_schema_that_is_none_is_damage(schema: Any) -> None:
    with pytest.raises(Damaged):
        schema_of(CHANNEL, record(schema=schema), "there")


# ── the metadata of states ──────────────────────────────────────────────────────────────────────────────────────────


def archive(names: dict[str, str] | None = None, entries: tuple[str, ...] = (), metadata: bytes | None = None) -> bytes:
    file = {"localSstFileName": "1.sst", "dfsSstFileName": "1-ab.sst", "sizeBytes": 3} | (names or {})
    body = json.dumps({"sstFiles": [file], "numKeys": 1}).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("metadata", b"v1\n" + body if metadata is None else metadata)
        for name in ("CURRENT", *entries):
            made.writestr(name, "x")
    return out.getvalue()


def first_entry(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        return data[: made.infolist()[1].header_offset]


def with_an_entry_that_is_not_listed(data: bytes, hidden: bytes) -> bytes:
    """Behind the others, where whoever reads from the beginning finds it last."""
    with zipfile.ZipFile(io.BytesIO(data)) as made:
        at = made.start_dir
    assert at is not None
    return data[:at] + hidden + data[at:-6] + (at + len(hidden)).to_bytes(4, "little") + data[-2:]


class _Streamed(io.RawIOBase):
    """As Java writes an archive: sizes come after the entries."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(bytes(data))


def streamed_archive() -> bytes:
    out = _Streamed()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("metadata", b'v1\n{"sstFiles":[],"numKeys":1}')
        made.writestr("MANIFEST-000004", bytes(range(256)) * 999)
        made.writestr("CURRENT", b"")
    return out.data


def tws_metadata(path: str) -> bytes:
    stores = [{"storeName": "default", "stateSchemaFilePaths": [path]}]
    return b"v2\n" + json.dumps({"operatorInfo": {"operatorId": 0}, "stateStoreInfo": stores}).encode()


def java_text(text: str, size: int = 60_000) -> bytes:
    """As Java writes a long text: pieces, and how many."""
    pieces = [text[at : at + size].encode() for at in range(0, len(text), size)]
    return struct.pack(">i", len(pieces)) + b"".join(struct.pack(">H", len(each)) + each for each in pieces)


def state_schema(key: str, value: str = SCHEMA.json(), size: int = 60_000) -> bytes:
    return b"\0\2v2" + java_text(key, size) + java_text(value, size)


def families_schema(key: str, value: str = SCHEMA.json(), of_map: str = "") -> bytes:
    """As a transformWithState has it."""
    spec = json.dumps({"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"})
    head = b"\0\2v3" + struct.pack(">iH", 1, 1) + b"f"
    return head + b"\0\0" + java_text(key) + b"\0\0" + java_text(value) + java_text(spec) + java_text(of_map)


def typed(kind: Any) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": "a", "type": kind, "nullable": True, "metadata": {}}]})


UDT = {"type": "udt", "class": "evil.Type", "pyClass": None, "sqlType": "long"}
HARMLESS = {
    "state/0/0/1.zip": archive(),
    "state/0/_metadata/v2/0": tws_metadata("file:/old/home/state/0/_stateSchema/default/0_1"),
    "state/0/_metadata/metadata": b'v1\n{"operatorInfo":{"operatorName":"agg/regate"}}',
    "state/0/0/right-keyWithIndexToValue/_metadata/schema": state_schema(SCHEMA.json()),
    "state/0/_stateSchema/default/0_1": families_schema(SCHEMA.json()),
    "offsets/0": b'v1\n{"batchWatermarkMs":0,"conf":{"spark.sql.streaming.stateStore.providerClass":'
    b'"org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}}\n-',
}


def laid_out(place: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    return place


def test_a_checkpoint_of_sparks_own_passes(tmp_path: Path) -> None:
    check_laid_out(laid_out(tmp_path, HARMLESS), BALANCES)
    check_laid_out(laid_out(tmp_path, {"state/0/0/1.zip": streamed_archive()}), BALANCES)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *[("state/0/0/1.zip", archive({field: text})) for field in ("localSstFileName", "dfsSstFileName")
          for text in ("../../../key", "/etc/key", "..", "", "a/b", "a\\b")],
        ("state/0/0/left/1.zip", archive({"localSstFileName": f"{UP}key"})),
        ("state/0/0/1.zip", archive(entries=(f"{UP}key",))),
        ("state/0/0/1.zip", archive(entries=("/etc/key",))),
        ("state/0/0/1.zip", archive(metadata=b"v1\n" + b"[" * 100_000)),
        ("state/0/0/1.zip", archive(metadata=b"v1\n" + b" " * (65 << 20))),
        ("state/0/0/1.zip", archive(metadata=b"v1\n[]")),
        ("state/0/0/1.zip", b"not an archive"),
        ("state/0/0/1.zip", with_an_entry_that_is_not_listed(
            archive(), first_entry(archive({"localFileName": f"{UP}key"})))),
        ("state/0/0/1.zip", with_an_entry_that_is_not_listed(
            streamed_archive(), first_entry(archive({"localFileName": f"{UP}key"})))),
        ("state/0/0/1.zip", with_an_entry_that_is_not_listed(archive(), b"PK\3\4")),
        ("state/0/0/1.zip", first_entry(archive({"localFileName": f"{UP}key"})) + archive()),
        ("state/0/0/1.zip", b"#!/bin/sh\n" + archive()),
        ("state/0/0/1.zip", archive(entries=("CURRENT",))),
        *[("state/0/_metadata/v2/0", tws_metadata(path)) for path in (
            "file:/etc/key", "/etc/key", "s3://bucket/state/0/_stateSchema/x", "hdfs://h/x",
            f"file:/x/state/0/_stateSchema/{UP}etc/key", "etc/key", f"{UP}etc/key", "")],
        *[("state/0/_metadata/v2/0", tws_metadata("/etc/key").replace(b"\n", between)) for between in (
            b"\n ", b"\n\n", b"\n\t", b"\r", b"\r\n")],
        ("state/0/_metadata/v2/0", b"v2\n{}\n" + tws_metadata("/etc/key")[3:]),
        ("state/0/_metadata/metadata", b'v1\n{"a":" [\\"/etc/key\\"]"}'),
        *[("state/0/_metadata/metadata", b'v1\n{"stateStoreInfo":[{"storeName":"%s"}]}' % name.encode())
          for name in (f"{UP}key", "..", "a/b", "")],
        *[("state/0/0/_metadata/schema", data) for data in (
            state_schema(typed(UDT)), state_schema(SCHEMA.json(), typed(UDT)), state_schema(typed(UDT), size=3),
            state_schema(typed({"type": "array", "elementType": UDT, "containsNull": True})),
            state_schema(typed({"type": "map", "keyType": "long", "valueType": UDT, "valueContainsNull": True})),
            state_schema(typed(UDT).replace("udt", "\\u0075dt")), b"\0\2v1" + java_text(typed(UDT))[2:] * 2,
            state_schema(typed(UDT | {"class": "org.apache.spark.evil.Type"})), state_schema(SCHEMA.json())[:-1],
            b"\0\2v2\x7f\xff\xff\xff", b"\0\2v9" + state_schema(SCHEMA.json())[4:], b"")],
        *[("state/0/_stateSchema/default/0_1", data) for data in (
            families_schema(typed(UDT)), families_schema(SCHEMA.json(), typed(UDT)),
            families_schema(SCHEMA.json(), of_map=typed(UDT)))],
        *[("offsets/0", b'v1\n{"conf":{"spark.sql.streaming.stateStore.compression.codec":%s}}\n-' % codec)
          for codec in (b'"evil.Codec"', b'"Evil"', b'["lz4"]', b'"org.apache.spark.io.evil.Codec"')],
        ("offsets/0", b'v1\n{"conf":{"spark.sql.streaming.stateStore.providerClass":"evil.Provider"}}\n-'),
        ("offsets/0", b'v1\r{"conf":{"spark.sql.streaming.stateStore.providerClass":"evil.Provider"}}\n{}\n-'),
        ("offsets/0", b"v1\n" + b"[" * 100_000),
    ],
)  # fmt: skip
def test_metadata_that_would_lead_spark_elsewhere_are_damage(name: str, data: bytes, tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="is not what Spark wrote"):
        check_laid_out(laid_out(tmp_path, HARMLESS | {name: data}), BALANCES)


@pytest.mark.parametrize(
    "path", [r"file:\/old\/state\/0\/_stateSchema\/default\/0_1", r"file:/a\"b/state/0/_stateSchema/x"]
)
def test_a_schema_that_would_still_be_read_elsewhere_is_damage(path: str, tmp_path: Path) -> None:
    metadata = b'v2\n{"stateStoreInfo":[{"storeName":"default","stateSchemaFilePaths":["%s"]}]}' % path.encode()
    store = SnapshotStore(FilesystemStore(tmp_path / "sav"), SavepointLayout("", SnapshotId(7)), JOB)
    with store.begin(SnapshotId(7)) as session:
        files = HARMLESS | {"state/0/_metadata/v2/0": metadata}
        session.complete(manifest(7, session.put_files(dict(files)).files, kind=Kind.SAVEPOINT))
    found = locate(str(tmp_path / "sav"), tmp_path)
    with pytest.raises(Damaged, match="leads elsewhere"):
        lay_out_stage(found, found.load(), BALANCES, tmp_path / "place")


@pytest.mark.parametrize("kind", ["org.apache.spark.ml.linalg.VectorUDT", "org.apache.spark.mllib.linalg.MatrixUDT"])
def test_sparks_own_types_may_be_in_a_state(kind: str, tmp_path: Path) -> None:
    schema = {"state/0/0/_metadata/schema": state_schema(typed(UDT | {"class": kind}))}
    check_laid_out(laid_out(tmp_path, HARMLESS | schema), BALANCES)


def test_a_crafted_savepoint_passes_verify_and_is_stopped_before_spark_opens_it(tmp_path: Path) -> None:
    store = SnapshotStore(FilesystemStore(tmp_path / "sav"), SavepointLayout("", SnapshotId(7)), JOB)
    files = HARMLESS | {"state/0/0/1.zip": archive({"localSstFileName": f"{UP}key"})}
    with store.begin(SnapshotId(7)) as session:
        made = manifest(7, session.put_files(dict(files)).files, kind=Kind.SAVEPOINT)
        session.complete(made)
    found = locate(str(tmp_path / "sav"), tmp_path)
    assert found.store.verify(found.snapshot) == ()
    with pytest.raises(Damaged, match=r"state/0/0/1\.zip of stage balances is not what Spark wrote"):
        lay_out_stage(found, found.load(), BALANCES, tmp_path / "place")


def test_paths_of_schemas_are_made_to_lead_to_the_new_place(tmp_path: Path) -> None:
    store = SnapshotStore(FilesystemStore(tmp_path / "sav"), SavepointLayout("", SnapshotId(7)), JOB)
    with store.begin(SnapshotId(7)) as session:
        session.complete(manifest(7, session.put_files(dict(HARMLESS)).files, kind=Kind.SAVEPOINT))
    found = locate(str(tmp_path / "sav"), tmp_path)
    lay_out_stage(found, found.load(), BALANCES, tmp_path / "place")
    moved = (tmp_path / "place" / "state/0/_metadata/v2/0").read_text()
    assert f'"file:{tmp_path}/place/state/0/_stateSchema/default/0_1"' in moved


# ── the root ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_snapshot_is_located_by_its_root_or_not_at_all(tmp_path: Path) -> None:
    store = SnapshotStore(FilesystemStore(tmp_path / "sav"), SavepointLayout("", SnapshotId(7)), JOB)
    with store.begin(SnapshotId(7)) as session:
        made = manifest(7, session.put_files({"a": b"x"}).files, kind=Kind.SAVEPOINT)
        session.complete(made)
    assert locate(str(tmp_path / "sav"), tmp_path, root_of(made).upper()).snapshot == 7
    with pytest.raises(Damaged, match="is not the snapshot that was meant"):
        locate(str(tmp_path / "sav"), tmp_path, "0" * 64)
    with pytest.raises(Misuse, match="64 hex digits"):
        RestoreOptions("x", root="5f2c")
    with pytest.raises(Misuse, match="no snapshot that it could be the root of"):
        RestoreOptions(root="0" * 64)
