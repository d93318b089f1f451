"""Rows that Spark takes into a Delta table: the same table as if they had gone through the driver, and none of them
does. Thresholds are set so that every batch counts as large.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from strobe.hosts.spark.connectors.base import Part, SinkContext
from strobe.hosts.spark.connectors.dead_letters import DeadLetters
from strobe.hosts.spark.connectors.delta import actions, upsert, writing
from strobe.hosts.spark.connectors.delta.sink import DeltaSink
from strobe.hosts.spark.connectors.starts import STARTS
from strobe.model.errors import Failed, Fenced
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from tests.hosts.spark.connectors.delta.test_delta_keys import BESIDE, KINDS, PARTITIONS, same

pytestmark = pytest.mark.spark

Row = dict[str, Any]


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is a large one, and a row of one in Python is an error."""
    monkeypatch.setattr(writing, "PLANNED", -1)
    monkeypatch.setattr(writing, "FEW_ROWS", -1)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("rows of the batch came to the driver")

    monkeypatch.setattr(writing.TableWriting, "_write_few", refuse)
    monkeypatch.setattr(writing.TableWriting, "_batches", refuse)


class World:
    def __init__(self, root: Path, spark: SparkSession, schema: StructType, **options: Any) -> None:
        self.root, self.spark, self.schema, self.options = root, spark, schema, options
        self.batch, self.parts = 0, 0
        self.open(1)

    def open(self, incarnation: int) -> DeltaSink:
        self.sink = DeltaSink("t", **self.options)
        life = Incarnation(incarnation)
        self.sink.open(
            SinkContext(
                "j", NodeId("s"), "s/0", Timeline(1), life, self.schema, "update", self.root, self.root / "home/t1"
            )
        )
        return self.sink

    def frame(self, rows: Sequence[Row]) -> DataFrame:
        names = self.schema.names
        values = [tuple(_spark_value(row[name], self.schema[name].dataType) for name in names) for row in rows]
        return self.spark.createDataFrame(values, self.schema)

    def write(self, *rows: Row, sink: DeltaSink | None = None) -> None:
        (sink or self.sink).write(self.frame(rows), self.batch)
        self.batch += 1

    def commit(self) -> Any:
        part = Part("h", SnapshotId(self.batch), Timeline(1), self.parts - 1, self.batch - 1)
        prepared = self.sink.prepare(part)
        self.sink.commit(part, prepared)
        self.parts = self.batch
        return prepared

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(str(self.root / "t"))

    def rows(self) -> list[str]:
        found = self.table.to_pyarrow_table().to_pylist()
        return sorted(same({name: row[name] for name in sorted(row)}) for row in found)

    def entries(self) -> list[list[dict[str, Any]]]:
        log = sorted((self.root / "t/_delta_log").glob("*.json"))
        return [[json.loads(line) for line in entry.read_text().splitlines()] for entry in log]


def _spark_value(value: Any, kind: DataType) -> Any:
    """A value as `createDataFrame` wants it: maps are dictionaries."""
    match kind.typeName(), value:
        case _, None:
            return None
        case "map", list():
            return {k: _spark_value(v, kind.valueType) for k, v in value}  # type: ignore[attr-defined]
        case "array", list():
            return [_spark_value(item, kind.elementType) for item in value]  # type: ignore[attr-defined]
        case "struct", dict():
            return tuple(_spark_value(value[f.name], f.dataType) for f in kind.fields)  # type: ignore[attr-defined]
        case _:
            return value


def expected(batches: Sequence[Sequence[Row]], key: Sequence[str]) -> list[str]:
    newest: dict[str, str] = {}
    for batch in batches:
        for row in batch:
            newest[same([row[k] for k in key])] = same({name: row[name] for name in sorted(row)})
    return sorted(newest.values())


def schema_of(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_a_key_with_every_type_beside_it(
    tmp_path: Path, spark: SparkSession, large: None, kind: str
) -> None:
    values = KINDS[kind][1]
    # A map of several entries has them in any order.
    beside = {name: found for name, (found, _) in BESIDE.items() if name != "beside map"}
    fields = beside if kind in ("bigint", "string") else {}
    world = World(tmp_path, spark, StructType([StructField("k", KINDS[kind][0]), *(StructField(n, t) for n, t in
                  fields.items()), StructField("turn", LongType())]), key="k")  # fmt: skip
    batches = []
    for turn, chosen in enumerate((values, values[::2])):
        rows = [
            {"k": value, "turn": turn, **{n: BESIDE[n][1][(i + turn) % len(BESIDE[n][1])] for n in fields}}
            for i, value in enumerate(chosen)
        ]
        world.write(*rows)
        batches.append(rows)
    assert world.rows() == expected(batches, ["k"])


@pytest.mark.parametrize("kind", PARTITIONS)
def test_a_key_may_be_a_partition_too(tmp_path: Path, spark: SparkSession, large: None, kind: str) -> None:
    values = [value for value in KINDS[kind][1] if value not in ("", "\n")]
    world = World(tmp_path, spark, schema_of(k=KINDS[kind][0], n=LongType(), v=LongType()), key=["k", "n"],
                  partition_by="k")  # fmt: skip
    batches = [
        [{"k": value, "n": number % 2, "v": turn} for number, value in enumerate(values)][turn:] for turn in range(2)
    ]
    for rows in batches:
        world.write(*rows)
    assert world.rows() == expected(batches, ["k", "n"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("delivery", ["on_batch", "on_snapshot"])
def test_both_ways_leave_the_same_table(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int, delivery: str
) -> None:
    rng = random.Random(seed)
    kinds = {f"k {i}": KINDS[kind] for i, kind in enumerate(rng.choices(sorted(KINDS), k=rng.randint(1, 4)))}
    schema = schema_of(**{name: kind for name, (kind, _) in kinds.items()}, v=LongType())
    key, partition = list(kinds), ()
    batches: list[list[Row]] = []
    for turn in range(4):
        rows = {}
        for number in range(rng.randint(1, 30)):
            row = {name: rng.choice(values) for name, (_, values) in kinds.items()}
            rows[same(list(row.values()))] = {**row, "v": turn * 100 + number}
        batches.append([*rows.values(), *list(rows.values())[:1]])  # one of them twice, the same
    found = []
    for way in ("driver", "spark"):
        monkeypatch.setattr(writing, "PLANNED", -1)
        monkeypatch.setattr(writing, "FEW_ROWS", 10**9 if way == "driver" else -1)
        monkeypatch.setattr(upsert, "_KEYS_A_TASK", 7)
        world = World(tmp_path / way, spark, schema, key=key, partition_by=partition, delivery=delivery)
        for number, rows_of in enumerate(batches):
            world.write(*rows_of)
            if delivery == "on_snapshot" and number % 2:
                world.commit()
        found.append(world.rows())
    assert found[0] == found[1] == expected(batches, key), f"seed {seed}, keys {kinds}"


def test_one_entry_of_the_log_has_the_new_files_those_that_go_and_the_mark(
    tmp_path: Path, spark: SparkSession, large: None
) -> None:
    world = World(tmp_path, spark, schema_of(k=LongType(), v=StringType()), key="k")
    world.write(*({"k": k, "v": "old"} for k in range(10)))
    before = world.table.file_uris()
    world.write(*({"k": k, "v": "new"} for k in range(3, 15)))
    entry = world.entries()[-1]
    gone = [line["remove"]["path"] for line in entry if "remove" in line]
    assert sorted(str(tmp_path / "t" / path) for path in gone) == sorted(before)
    assert [line["txn"]["version"] for line in entry if "txn" in line] == [1]
    added = [json.loads(line["add"]["stats"]) for line in entry if "add" in line]
    assert sum(stats["numRecords"] for stats in added) == 15
    assert min(stats["minValues"]["k"] for stats in added) == 0
    assert max(stats["maxValues"]["k"] for stats in added) == 14
    assert all(stats["nullCount"] == {"k": 0, "v": 0} for stats in added)


def test_files_whose_keys_are_elsewhere_are_not_even_read(
    tmp_path: Path, spark: SparkSession, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, spark, schema_of(k=LongType(), v=LongType()), key="k")
    for start in (0, 100, 200):
        world.write(*({"k": k, "v": 0} for k in range(start, start + 10)))
    kept = set(world.table.file_uris())
    seen: list[int] = []
    real = upsert.Upsert._count

    def count(self: Any, version: int, files: Any, rows: Any) -> Any:
        seen.append(sum(f.rows for f in files))
        return real(self, version, files, rows)

    monkeypatch.setattr(upsert.Upsert, "_count", count)
    world.write(*({"k": k, "v": 1} for k in range(100, 110)))
    assert seen == [10]
    assert len(kept - set(world.table.file_uris())) == len(
        [f for f in kept if any(k in range(100, 110) for k in pq.read_table(f)["k"].to_pylist())]
    )


def test_a_file_that_is_replaced_as_a_whole_is_not_written_again(
    tmp_path: Path, spark: SparkSession, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, spark, schema_of(k=LongType(), v=LongType()), key="k")
    world.write(*({"k": k, "v": 0} for k in range(10)))

    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is left to write")

    monkeypatch.setattr(upsert.Upsert, "_survivors", refuse)
    monkeypatch.setattr(upsert.Upsert, "_write", refuse)  # the staged files become the table's
    world.write(*({"k": k, "v": 1} for k in range(12)))
    assert world.rows() == expected([[{"k": k, "v": 1} for k in range(12)]], ["k"])


# ── others at the table ─────────────────────────────────────────────────────────────────────────────────────────────


def meanwhile(monkeypatch: pytest.MonkeyPatch, what: Callable[[], Any]) -> None:
    """It happens once, right before the commit is tried."""
    real, left = actions.commit, [what]

    def late(*args: Any) -> bool:
        while left:
            left.pop()()
        return real(*args)

    monkeypatch.setattr(upsert, "commit", late)


CHANGES: dict[str, Callable[[Path], Any]] = {
    "optimize": lambda t: DeltaTable(str(t)).optimize.compact(),
    "delete": lambda t: DeltaTable(str(t)).delete("k = 1"),
    "update": lambda t: DeltaTable(str(t)).update(updates={"v": "77"}, predicate="k = 2"),
    "append": lambda t: write_deltalake(str(t), pa.table({"k": pa.array([7, 50], pa.int64()), "v": pa.array(
        [7, 50], pa.int64())}), mode="append"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_others_do_while_rows_are_written_is_seen_and_kept(
    tmp_path: Path, spark: SparkSession, large: None, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    world = World(tmp_path, spark, schema_of(k=LongType(), v=LongType()), key="k")
    world.write(*({"k": k, "v": 0} for k in range(3)))
    world.write(*({"k": k, "v": 0} for k in range(3, 5)))
    meanwhile(monkeypatch, lambda: CHANGES[change](tmp_path / "t"))
    world.write({"k": 0, "v": 1}, {"k": 7, "v": 1})
    rows = {0: 1, 1: 0, 2: 0, 3: 0, 4: 0, 7: 1}
    match change:
        case "delete":
            del rows[1]
        case "update":
            rows[2] = 77
        case "append":
            rows[50] = 50
    assert {r["k"]: r["v"] for r in world.table.to_pyarrow_table().to_pylist()} == rows
    assert world.table.to_pyarrow_table().num_rows == len(rows)
    # Only files that the log names are left of it.
    named = {line["add"]["path"] for entry in world.entries() for line in entry if "add" in line}
    there = {f.relative_to(tmp_path / "t").as_posix() for f in (tmp_path / "t/data").rglob("*.parquet")}
    assert there <= named
    assert not [f for f in (tmp_path / "t/_strobe").iterdir() if f.name not in ("owner", STARTS)]


def test_a_driver_that_was_given_up_commits_nothing(
    tmp_path: Path, spark: SparkSession, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, spark, schema_of(k=LongType(), v=LongType()), key="k")
    world.write({"k": 1, "v": 0})
    before, old = world.rows(), world.sink
    meanwhile(monkeypatch, lambda: world.open(2))
    with pytest.raises(Fenced):
        world.write({"k": 1, "v": 1}, sink=old)
    assert world.rows() == before
    assert world.sink.last_batch() == 0


def test_a_file_that_the_log_spells_in_its_own_way_is_removed(tmp_path: Path, spark: SparkSession, large: None) -> None:
    world = World(tmp_path, spark, schema_of(k=LongType(), v=LongType()), key="k")
    place = tmp_path / "t" / "a=ключ"
    place.mkdir()
    pq.write_table(
        pa.table({"k": pa.array([1, 2], pa.int64()), "v": pa.array([0, 0], pa.int64())}), place / "x.parquet"
    )
    added = {"path": "a%3D%D0%BA%D0%BB%D1%8E%D1%87/x.parquet", "partitionValues": {}, "modificationTime": 1,
             "size": (place / "x.parquet").stat().st_size, "dataChange": True}  # fmt: skip
    entry = tmp_path / "t/_delta_log" / f"{world.table.version() + 1:020d}.json"
    entry.write_text(json.dumps({"add": added}) + "\n")
    world.write({"k": 1, "v": 1})
    assert world.rows() == expected([[{"k": 1, "v": 1}, {"k": 2, "v": 0}]], ["k"])


def test_of_a_key_that_others_have_put_there_several_times_one_row_is_left(
    tmp_path: Path, spark: SparkSession, large: None
) -> None:
    world = World(tmp_path, spark, schema_of(k=LongType(), v=LongType()), key="k")
    for _ in range(4):
        rows = pa.table({"k": pa.array([1, 2], pa.int64()), "v": pa.array([0, 0], pa.int64())})
        write_deltalake(str(tmp_path / "t"), rows, mode="append")
    world.write({"k": 1, "v": 1})
    assert sorted(world.table.to_pyarrow_table()["k"].to_pylist()) == [1, 2, 2, 2, 2]


# ── rows that the table does not take ───────────────────────────────────────────────────────────────────────────────


def test_rejected_rows_are_named_and_replace_nothing(tmp_path: Path, spark: SparkSession, large: None) -> None:
    world = World(tmp_path, spark, schema_of(k=LongType(), v=LongType()), key="k", dead_letters=DeadLetters("dead"))
    world.write({"k": 1, "v": 0}, {"k": 2, "v": 0})
    world.write({"k": 1, "v": 1}, {"k": 1, "v": 2}, {"k": 3, "v": 3}, {"k": 3, "v": 3})
    assert world.rows() == expected([[{"k": 1, "v": 0}, {"k": 2, "v": 0}, {"k": 3, "v": 3}]], ["k"])
    letters = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table().to_pylist()
    assert sorted(letter["row"] for letter in letters) == ['{"k": 1, "v": 1}', '{"k": 1, "v": 2}']
    assert {letter["reason"] for letter in letters} == {"another row of the batch has the same key (k)"}
    assert world.sink.rejected == 2


@pytest.mark.parametrize("delivery", ["on_batch", "on_snapshot"])
def test_types_nulls_and_constraints_of_a_table_hold(
    tmp_path: Path, spark: SparkSession, large: None, delivery: str
) -> None:
    there = pa.schema([
        pa.field("k", pa.int16()), pa.field("v", pa.decimal128(5, 2), nullable=False), pa.field("t", pa.string()),
        pa.field("more", pa.string()),
    ])  # fmt: skip
    DeltaTable.create(str(tmp_path / "t"), there)
    DeltaTable(str(tmp_path / "t")).alter.add_constraint({"short": "t < 'b'"})
    world = World(tmp_path, spark, schema_of(k=LongType(), v=IntegerType(), t=StringType()), key="k",
                  delivery=delivery, dead_letters=DeadLetters("dead"))  # fmt: skip
    rows = pa.table({"k": pa.array([1, 9], pa.int16()), "v": pa.array([0, 0]).cast(pa.decimal128(19, 0)).cast(
        pa.decimal128(5, 2)), "t": ["a", "a"], "more": ["stays", "too"]})  # fmt: skip
    write_deltalake(str(tmp_path / "t"), rows, mode="append")
    world.write({"k": 1, "v": 2, "t": "abc"}, {"k": 2, "v": 3, "t": "abc"}, {"k": 70000, "v": 1, "t": "a"},
                {"k": 3, "v": None, "t": "a"}, {"k": 4, "v": 1, "t": "bcd"},
                {"k": 5, "v": 99999, "t": "a"})  # fmt: skip
    if delivery == "on_snapshot":
        assert world.commit() == {"rejected": 4}
    found = {r["k"]: (int(r["v"]), r["t"], r["more"]) for r in world.table.to_pyarrow_table().to_pylist()}
    assert found == {1: (2, "abc", "stays"), 2: (3, "abc", None), 9: (0, "a", "too")}
    letters = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table().to_pylist()
    whys = {json.loads(letter["row"])["k"]: letter["reason"] for letter in letters}
    assert whys.keys() == {70000, 3, 4, 5}
    assert "column k does not fit" in whys[70000]
    assert whys[3] == "column v must not be null"
    assert whys[4] == "it violates the constraint short: t < 'b'"
    assert "column v does not fit" in whys[5]


def test_without_a_place_for_them_rejected_rows_fail_the_batch(
    tmp_path: Path, spark: SparkSession, large: None
) -> None:
    world = World(tmp_path, spark, schema_of(p=StringType(), v=LongType()), key="v", partition_by="p")
    with pytest.raises(Failed, match=r"the text of column p, a partition, is longer than 253 bytes.*and 1 more"):
        world.write({"p": "é" * 50, "v": 1}, {"p": "ü" * 50, "v": 2}, {"p": "a", "v": 3})
    assert world.table.to_pyarrow_table().num_rows == 0
    world.write({"p": "", "v": 1}, {"p": "a b/c=d%20", "v": 2}, {"p": None, "v": 3})
    assert world.rows() == expected([[{"p": None, "v": 1}, {"p": "a b/c=d%20", "v": 2}, {"p": None, "v": 3}]], ["v"])


# ── a death ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("committed", [False, True])
def test_what_a_dead_driver_has_written_goes_unless_the_log_names_it(
    tmp_path: Path, spark: SparkSession, large: None, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    world = World(tmp_path, spark, schema_of(k=LongType(), v=LongType()), key="k")
    world.write({"k": 1, "v": 0}, {"k": 2, "v": 0})
    real = actions.commit

    def die(*args: Any) -> bool:
        if committed:
            assert real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(upsert, "commit", die)
    with pytest.raises(KeyboardInterrupt):
        world.write({"k": 1, "v": 1})
    monkeypatch.undo()
    monkeypatch.setattr(writing, "PLANNED", -1)
    monkeypatch.setattr(writing, "FEW_ROWS", -1)
    files = set((tmp_path / "t/data").rglob("*.parquet"))
    world.open(2)
    assert (set((tmp_path / "t/data").rglob("*.parquet")) == files) is committed
    world.batch = 1
    world.write({"k": 1, "v": 1})
    assert world.rows() == expected([[{"k": 1, "v": 1}, {"k": 2, "v": 0}]], ["k"])
    assert not [f for f in (tmp_path / "t/_strobe").iterdir() if f.name not in ("owner", STARTS)]


def test_ranges_meet_where_a_value_or_a_null_may_be_in_both() -> None:
    some, other, nulls = actions.Range(1, 5, False), actions.Range(6, 9, False), actions.Range(6, 9, True)
    assert not some.meets(other)
    assert some.meets(actions.Range(5, 5, False))
    assert not some.meets(nulls)
    assert nulls.meets(actions.Range(1, 2, True))
    assert some.meets(actions.Range())
