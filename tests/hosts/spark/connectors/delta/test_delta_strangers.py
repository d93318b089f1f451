"""Others write to the table of a Delta sink: OPTIMIZE, DELETE, MERGE, VACUUM, an append, a log that was cleaned up.

What the table held at the snapshot's version is what a rollback and a fork begin with: no row twice, no deleted row
back. Where that cannot be known or read any more, the restore is refused before it touches anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from strobe.hosts.spark.connectors.base import Part, SinkContext, SinkFate
from strobe.hosts.spark.connectors.delta.sink import DeltaSink
from strobe.hosts.spark.stage.local_frame import local_frame
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline

pytestmark = pytest.mark.spark

COLUMNS = "k BIGINT, v STRING"
Change = Callable[[Path], Any]


def _merge(table: Path) -> None:
    rows = pa.table({"k": pa.array([1, 50], pa.int64()), "v": ["merged", "merged"]})
    merge = DeltaTable(str(table)).merge(rows, "t.k = s.k", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _append(table: Path) -> None:
    write_deltalake(str(table), pa.table({"k": pa.array([99], pa.int64()), "v": ["foreign"]}), mode="append")


def _by_hand(table: Path) -> None:
    """Spark's OPTIMIZE as it looks in the log: one new file without statistics, the old ones removed, no new rows."""
    held = DeltaTable(str(table))
    pq.write_table(held.to_pyarrow_table(), table / f"part-{held.version()}.parquet")
    size = (table / f"part-{held.version()}.parquet").stat().st_size
    fresh = {"path": f"part-{held.version()}.parquet", "partitionValues": {}, "size": size, "modificationTime": 1}
    names = pa.table(held.get_add_actions(flatten=True))["path"].to_pylist()
    lines = [
        {"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE", "operationParameters": {}, "isolationLevel": "x"}},
        {"add": {**fresh, "dataChange": False}},
        *({"remove": {"path": name, "deletionTimestamp": 1, "dataChange": False}} for name in names),
    ]
    entry = table / "_delta_log" / f"{held.version() + 1:020d}.json"
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))


CHANGES: dict[str, Change] = {
    "by-hand": _by_hand,
    "optimize": lambda t: DeltaTable(str(t)).optimize.compact(),
    "z-order": lambda t: DeltaTable(str(t)).optimize.z_order(["k"]),
    "delete": lambda t: DeltaTable(str(t)).delete("k = 1"),
    "update": lambda t: DeltaTable(str(t)).update(updates={"v": "'changed'"}, predicate="k = 0"),
    "merge": _merge,
    "append": _append,
    "checkpoint": lambda t: DeltaTable(str(t)).create_checkpoint(),
}


class World:
    """A sink in `root`, driven batch by batch."""

    def __init__(self, root: Path, spark: SparkSession, **options: Any) -> None:
        self.root, self.spark, self.options = root, spark, options
        self.table = root / "out"
        self.on_snapshot = options.get("delivery") == "on_snapshot"
        self.sink = self.opened(self.context(1, 1))

    def context(self, timeline: int, incarnation: int, *, base: Path | None = None) -> SinkContext:
        schema = local_frame(self.spark, [], COLUMNS).schema
        return SinkContext(
            "j", NodeId("s"), "s/0", Timeline(timeline), Incarnation(incarnation), schema, "append",
            base or self.root, self.root / f"home/t{timeline}",
        )  # fmt: skip

    def opened(self, context: SinkContext) -> DeltaSink:
        sink = DeltaSink("out", **self.options)
        sink.open(context)
        return sink

    def write(self, *batches: int, sink: DeltaSink | None = None) -> None:
        sink = sink or self.sink
        for batch in batches:
            sink.write(local_frame(self.spark, [(batch, f"b{batch}"), (batch + 10, f"b{batch}")], COLUMNS), batch)
            if self.on_snapshot:
                part = Part(f"h{batch}", SnapshotId(batch + 1), sink._context.timeline, batch - 1, batch)
                sink.commit(part, sink.prepare(part))

    def rows(self, table: Path | None = None) -> list[tuple[int, str]]:
        found = DeltaTable(str(table or self.table)).to_pyarrow_table().to_pydict()
        return sorted(zip(found["k"], found["v"], strict=True))

    def rolled_back(self, position: Any) -> DeltaSink:
        self.sink.close()
        context, sink = self.context(2, 2), DeltaSink("out", **self.options)
        outlook = sink.outlook(position, context, fork=False, again=False)
        if outlook.problem is not None:
            raise outlook.problem
        assert outlook.fate is SinkFate.ROLLED_BACK
        for _ in range(2):  # doing it again changes nothing
            sink.restore(position, context, SinkFate.ROLLED_BACK)
        return self.opened(context)

    def forked(self, position: Any) -> Path:
        other = self.root / "fork"
        other.mkdir()
        context = replace(self.context(2, 1, base=other), job="f")
        sink = DeltaSink("out", **self.options)
        outlook = sink.outlook(position, context, fork=True, again=False)
        if outlook.problem is not None:
            raise outlook.problem
        assert outlook.fate is SinkFate.COPIED
        sink.restore(position, context, SinkFate.COPIED)
        self.opened(context).close()
        return other / "out"


DELIVERY = [pytest.param({}, id="on-batch"), pytest.param({"delivery": "on_snapshot"}, id="on-snapshot")]


@pytest.mark.parametrize(
    ("options", "change"),
    [
        *(pytest.param({}, change, id=f"on-batch-{change}") for change in CHANGES),
        *(pytest.param({"delivery": "on_snapshot"}, change, id=f"on-snapshot-{change}") for change in CHANGES),
        *(pytest.param({"key": "k"}, change, id=f"keyed-{change}") for change in ("delete", "by-hand")),
    ],
)
def test_a_restore_goes_to_what_the_table_held_whoever_has_changed_it(
    tmp_path: Path, spark: SparkSession, options: dict[str, Any], change: str
) -> None:
    """The change comes before the snapshot, and once more behind it."""
    world = World(tmp_path, spark, **options)
    world.write(0, 1)
    CHANGES[change](world.table)
    world.write(2)
    position, held = world.sink.position(SnapshotId(3)), world.rows()
    world.write(3)
    CHANGES[change](world.table)
    world.write(4)
    fork = world.forked(position)
    assert world.rows(fork) == held
    sink = world.rolled_back(position)
    assert world.rows() == held
    world.write(3, sink=sink)
    assert world.rows() == sorted([*held, (3, "b3"), (13, "b3")])
    assert world.rows(fork) == held


@pytest.mark.parametrize("options", DELIVERY)
def test_files_that_vacuum_took_are_missed_only_by_a_restore_that_needs_them(
    tmp_path: Path, spark: SparkSession, options: dict[str, Any]
) -> None:
    world = World(tmp_path, spark, **options)
    world.write(0, 1)
    early = world.sink.position(SnapshotId(1))
    DeltaTable(str(world.table)).optimize.compact()
    world.write(2)
    late, held = world.sink.position(SnapshotId(2)), world.rows()
    DeltaTable(str(world.table)).vacuum(0, enforce_retention_duration=False, dry_run=False)
    world.write(3)
    world.sink.close()
    world.sink = world.opened(world.context(1, 2))  # a plain restart
    world.write(4)
    with pytest.raises(Failed, match=r"cannot be read as it was at version \d+: .* is gone"):
        world.rolled_back(early)
    world.rolled_back(late)
    assert world.rows() == held


@pytest.mark.parametrize("entries", ["older", "all"])
@pytest.mark.parametrize("options", DELIVERY)
def test_a_log_that_was_cleaned_up_costs_no_row_and_no_file(
    tmp_path: Path, spark: SparkSession, options: dict[str, Any], entries: str
) -> None:
    world = World(tmp_path, spark, **options)
    world.write(0, 1)
    early = world.sink.position(SnapshotId(1))
    world.write(2)
    late, held = world.sink.position(SnapshotId(2)), world.rows()
    world.sink.close()
    DeltaTable(str(world.table)).create_checkpoint()
    newest = DeltaTable(str(world.table)).version()
    for entry in (world.table / "_delta_log").glob("*.json"):
        if entries == "all" or int(entry.stem) < newest:
            entry.unlink()
    world.sink = world.opened(world.context(1, 2))
    assert world.sink.last_batch() == 2
    world.write(2, 3)  # Spark repeats its last batch
    assert world.rows() == sorted([*held, (3, "b3"), (13, "b3")])
    with pytest.raises(Failed, match="cannot be read as it was at version"):
        world.rolled_back(early)
    world.rolled_back(late)
    assert world.rows() == held


def test_a_plan_names_what_others_did_after_the_snapshot(tmp_path: Path, spark: SparkSession) -> None:
    world = World(tmp_path, spark)
    world.write(0)
    position = world.sink.position(SnapshotId(1))
    world.write(1)
    CHANGES["delete"](world.table)
    CHANGES["append"](world.table)
    outlook = DeltaSink("out").outlook(position, world.context(2, 2), fork=False, again=False)
    assert outlook.problem is None
    assert "DELETE" in outlook.warning
    assert "WRITE" in outlook.warning
    assert "undone" in outlook.warning


@pytest.mark.parametrize(
    ("properties", "word"),
    [({"delta.enableDeletionVectors": "true"}, "deletion vectors"), ({"delta.columnMapping.mode": "name"}, "column")],
)
@pytest.mark.parametrize("key", ["", "k"])
def test_a_table_whose_files_do_not_say_what_it_holds_is_refused(
    tmp_path: Path, spark: SparkSession, properties: dict[str, str], word: str, key: str
) -> None:
    """With deletion vectors or column mapping, as Spark turns them on, a file is not what the table reads as."""
    world = World(tmp_path, spark, **({"key": key} if key else {}))
    position = world.sink.position(SnapshotId(1))
    world.sink.close()
    redefine(world.table, properties)
    with pytest.raises(Misuse, match=word):
        world.opened(world.context(1, 2))
    with pytest.raises(Misuse, match=word):
        world.rolled_back(position)


def test_a_table_that_is_redefined_while_the_job_runs_gets_no_more_files(tmp_path: Path, spark: SparkSession) -> None:
    world = World(tmp_path, spark)
    world.write(0)
    redefine(world.table, {"delta.enableDeletionVectors": "true"})
    before = DeltaTable(str(world.table)).version()
    with pytest.raises(Failed, match="changed the definition"):
        world.write(1)
    assert DeltaTable(str(world.table)).version() == before


def redefine(table: Path, properties: dict[str, str]) -> None:
    """A commit as Spark's ALTER TABLE … SET TBLPROPERTIES makes it: a new protocol and new metadata."""
    log, now = table / "_delta_log", DeltaTable(str(table))
    first = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    about = next(action["metaData"] for action in first if "metaData" in action)
    about["configuration"] |= properties
    protocol: dict[str, Any] = {"minReaderVersion": 2, "minWriterVersion": 5}
    if "delta.enableDeletionVectors" in properties:
        features = ["deletionVectors"]
        protocol = {
            "minReaderVersion": 3, "minWriterVersion": 7,
            "readerFeatures": features, "writerFeatures": [*features, "appendOnly", "invariants"],
        }  # fmt: skip
    else:
        schema = json.loads(about["schemaString"])
        for number, field in enumerate(schema["fields"], 1):
            field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
        about["schemaString"] = json.dumps(schema)
        about["configuration"]["delta.columnMapping.maxColumnId"] = str(len(schema["fields"]))
    info = {"timestamp": 0, "operation": "SET TBLPROPERTIES", "operationParameters": {}}
    lines = ({"commitInfo": info}, {"protocol": protocol}, {"metaData": about})
    entry = log / f"{now.version() + 1:020d}.json"
    entry.write_text("".join(json.dumps(line) + "\n" for line in lines))
