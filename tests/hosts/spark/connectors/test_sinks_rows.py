"""Which rows a Delta table takes, and what becomes of the others: letters that are there once, whoever brings them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql.types import LongType, StringType, StructField, StructType

from strobe.hosts.spark.connectors.base import Part, SinkContext
from strobe.hosts.spark.connectors.dead_letters import DeadLetters, Letters, Rejected
from strobe.hosts.spark.connectors.delta.rows import RowRules, newest_by_key
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline

SCHEMA = StructType([StructField("k", LongType()), StructField("v", StringType())])


def context(root: Path, *, timeline: int = 1, incarnation: int = 1, name: str = "s/0") -> SinkContext:
    return SinkContext(
        "j", NodeId("s"), name, Timeline(timeline), Incarnation(incarnation), SCHEMA, "append", root,
        root / f"home/t{timeline}",
    )  # fmt: skip


def rules(root: Path, *fields: Field, key: tuple[str, ...] = ()) -> RowRules:
    DeltaTable.create(str(root / "t"), Schema(list(fields)))
    return RowRules(DeltaTable(str(root / "t")), context(root), key, "Delta table t")


def field(name: str, kind: str, *, nullable: bool = True) -> Field:
    return Field(name, PrimitiveType(kind), nullable=nullable)


def rows(*values: tuple[int | None, str | None]) -> pa.Table:
    return pa.table({"k": pa.array([k for k, _ in values], pa.int64()), "v": pa.array([v for _, v in values])})


def split(of: RowRules, table: pa.Table) -> tuple[list[Mapping[str, Any]], list[tuple[Any, str]]]:
    good, bad = of.split(table, 4)
    assert {r.batch for r in bad} <= {4}
    return good.to_pylist(), [(r.row["k"], r.reason) for r in bad]


def test_a_value_that_does_not_fit_is_rejected_and_the_others_are_cast(tmp_path: Path) -> None:
    of = rules(tmp_path, field("k", "integer"), field("v", "string"))
    good, bad = split(of, rows((1, "a"), (2**40, "b"), (None, "c")))
    assert good == [{"k": 1, "v": "a"}, {"k": None, "v": "c"}]
    assert [k for k, _ in bad] == [2**40]
    assert "column k does not fit into int32" in bad[0][1]


def test_a_null_where_none_may_be_is_rejected(tmp_path: Path) -> None:
    of = rules(tmp_path, field("k", "long", nullable=False), field("v", "string"))
    good, bad = split(of, rows((1, "a"), (None, "b")))
    assert good == [{"k": 1, "v": "a"}]
    assert bad == [(None, "column k must not be null")]


def test_different_rows_with_one_key_are_all_rejected_and_equal_ones_are_one(tmp_path: Path) -> None:
    of = rules(tmp_path, field("k", "long"), field("v", "string"), key=("k",))
    good, bad = split(of, rows((1, "a"), (1, "b"), (2, "c"), (2, "c"), (3, "d")))
    assert good == [{"k": 2, "v": "c"}, {"k": 3, "v": "d"}]
    assert bad == [(1, "another row of the batch has the same key (k)")] * 2


def test_columns_that_the_stage_does_not_have_are_null(tmp_path: Path) -> None:
    of = rules(tmp_path, field("k", "long"), field("v", "string"), field("more", "double"))
    assert split(of, rows((1, "a")))[0] == [{"k": 1, "v": "a", "more": None}]


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ([field("k", "long")], "the table has no column v"),
        ([field("k", "string"), field("v", "string")], "column k is bigint here and string in the table"),
        ([field("k", "long"), field("v", "string"), field("x", "long", nullable=False)], "has no column x"),
    ],
)
def test_a_table_of_another_shape_is_refused(tmp_path: Path, fields: list[Field], what: str) -> None:
    with pytest.raises(Misuse, match=what):
        rules(tmp_path, *fields)


def test_of_several_batches_the_newest_row_of_each_key_counts() -> None:
    newest = newest_by_key([rows((1, "a"), (2, "a")), rows((2, "b"), (3, "b")), rows((1, "c"))], ("k",))
    assert newest.to_pylist() == [{"k": 2, "v": "b"}, {"k": 3, "v": "b"}, {"k": 1, "v": "c"}]


# ── letters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def letters(root: Path, **who: Any) -> Letters:
    return Letters(DeadLetters("dead"), context(root, **who), "a sink")


def held(root: Path) -> list[tuple[str, int, int, Any]]:
    table = DeltaTable(str(root / "dead")).to_pyarrow_table().to_pylist()
    return sorted((r["sink"], r["timeline"], r["batch"], json.loads(r["row"])["k"]) for r in table)


def bad(*keys: int) -> list[Rejected]:
    return [Rejected({"k": k, "v": None}, "bad") for k in keys]


def test_letters_of_a_batch_that_comes_again_are_replaced(tmp_path: Path) -> None:
    first = letters(tmp_path)
    first.put(bad(1), 0)
    first.put(bad(2, 3), 1)
    second = letters(tmp_path, incarnation=2)
    second.put(bad(3), 1)
    assert held(tmp_path) == [("s/0", 1, 0, 1), ("s/0", 1, 1, 3)]
    assert second.count == 2


def test_sinks_that_share_a_table_leave_each_others_letters_alone(tmp_path: Path) -> None:
    one, other = letters(tmp_path), letters(tmp_path, name="s/1")
    one.put(bad(1), 0)
    other.put(bad(2), 0)
    other.put([], 0)
    one.put(bad(3), 0)
    assert held(tmp_path) == [("s/0", 1, 0, 3)]
    assert (one.count, other.count) == (1, 0)


def test_letters_of_a_part_wait_for_its_commit_and_survive_a_restart(tmp_path: Path) -> None:
    part = Part("h", SnapshotId(7), Timeline(1), 1, 4)
    letters(tmp_path).hold(part, [Rejected({"k": 1}, "bad", 3)])
    assert held(tmp_path) == []
    again = letters(tmp_path, incarnation=2)
    for _ in range(2):
        again.release(part)
    assert held(tmp_path) == [("s/0", 1, 3, 1)]
    assert DeltaTable(str(tmp_path / "dead")).to_pyarrow_table()["snapshot"].to_pylist() == [7]


def test_letters_of_a_part_that_never_came_to_be_are_those_of_the_next(tmp_path: Path) -> None:
    mine = letters(tmp_path)
    mine.hold(Part("h1", SnapshotId(1), Timeline(1), -1, 2), bad(1))
    longer = Part("h2", SnapshotId(2), Timeline(1), -1, 4)
    mine.hold(longer, bad(1, 2))
    mine.release(Part("h1", SnapshotId(1), Timeline(1), -1, 2))
    assert held(tmp_path) == []
    mine.release(longer)
    assert [k for *_, k in held(tmp_path)] == [1, 2]


def test_an_aborted_part_leaves_no_letters(tmp_path: Path) -> None:
    part, mine = Part("h", SnapshotId(1), Timeline(1), -1, 2), letters(tmp_path)
    mine.hold(part, bad(1))
    mine.drop(part)
    mine.release(part)
    assert held(tmp_path) == []


def test_a_restore_takes_back_letters_from_after_the_snapshot(tmp_path: Path) -> None:
    first = letters(tmp_path)
    first.put(bad(1), 0)
    position = first.position(0)
    first.put(bad(2), 1)
    second = letters(tmp_path, timeline=2, incarnation=2)
    second.roll_back(position)
    second.put(bad(2), 1)
    assert held(tmp_path) == [("s/0", 1, 0, 1), ("s/0", 2, 1, 2)]


def test_without_a_table_a_rejected_row_is_an_error_that_names_it(tmp_path: Path) -> None:
    none = Letters(None, context(tmp_path), "Delta table t")
    none.put([], 3)
    with pytest.raises(Failed) as caught:
        none.put(bad(1, 2), 3)
    assert 'cannot be written to Delta table t: bad: {"k": 1, "v": null}, and 1 more' in caught.value.what
    with pytest.raises(Failed, match="Batches 2 to 4"):
        none.hold(Part("h", SnapshotId(1), Timeline(1), 1, 4), bad(1))


def test_every_kind_of_value_becomes_json(tmp_path: Path) -> None:
    row = {
        "d": Decimal("1.50"), "t": datetime(2026, 1, 2, tzinfo=UTC), "day": date(2026, 1, 2), "b": b"\x00\xff",
        "n": float("nan"), "m": [("a", 1)], "l": [1, None], "s": {"x": [b"a"]},
    }  # fmt: skip
    letters(tmp_path).put([Rejected(row, "bad")], 0)
    (kept,) = DeltaTable(str(tmp_path / "dead")).to_pyarrow_table()["row"].to_pylist()
    assert json.loads(kept) == {
        "d": "1.50", "t": "2026-01-02T00:00:00+00:00", "day": "2026-01-02", "b": "AP8=", "n": "NaN", "m": {"a": 1},
        "l": [1, None], "s": {"x": ["YQ=="]},
    }  # fmt: skip


def test_a_table_of_something_else_takes_no_letters(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "dead"), Schema([field("k", "long")]))
    with pytest.raises(Misuse, match="a table of something else"):
        letters(tmp_path)
