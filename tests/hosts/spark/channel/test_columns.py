"""The rules by which a channel's columns may change, and how old files are read. Spark is here to read DDL."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from strobe.hosts.spark.channel.columns import Columns, Renamed, evolve
from strobe.hosts.spark.channel.old_files import Known, arranged, known_columns, note_columns, places_of
from strobe.model.errors import Misuse

pytestmark = pytest.mark.usefixtures("spark")


def schema(ddl: str) -> StructType:
    found = StructType.fromDDL(ddl)
    assert isinstance(found, StructType)
    return found


def columns(ddl: str) -> Columns:
    return Columns.of(schema(ddl))


def change(was: str | Columns, now: str, renamed: Renamed | None = None) -> Columns:
    held = columns(was) if isinstance(was, str) else was
    return evolve(held, schema(now), renamed or {}, "s").columns


def refused(was: str | Columns, now: str, renamed: Renamed | None = None) -> Misuse:
    with pytest.raises(Misuse) as error:
        change(was, now, renamed)
    assert error.value.next
    assert "Nothing was changed" in error.value.untouched
    return error.value


def numbers(found: Columns) -> dict[str, int]:
    return {c.name: c.number for c in found.columns}


def test_a_column_keeps_its_number_whatever_its_place_and_name() -> None:
    found = change("a INT, b STRING, c DATE", "c DATE, x BOOLEAN, B STRING, n INT", {"a": "n"})
    assert numbers(found) == {"c": 3, "x": 4, "B": 2, "n": 1}


def test_a_number_is_never_given_twice() -> None:
    dropped = change("a INT, b STRING", "a INT")
    assert numbers(change(dropped, "a INT, b STRING")) == {"a": 1, "b": 3}


def test_a_schema_says_its_numbers_and_one_that_never_changed_has_none() -> None:
    found = change("a INT, b STRING", "b STRING, x INT", {"a": None})
    assert Columns.of(StructType.fromJson(found.numbered.jsonValue())) == found
    assert Columns.from_json(found.json) == found
    assert columns("a INT, b STRING").numbered == schema("a INT, b STRING")


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("TINYINT", "SMALLINT"), ("INT", "BIGINT"), ("SMALLINT", "DOUBLE"), ("INT", "DOUBLE"), ("FLOAT", "DOUBLE"),
        ("INT", "DECIMAL(12,2)"), ("BIGINT", "DECIMAL(20,1)"), ("DECIMAL(10,2)", "DECIMAL(12,4)"),
        ("DATE", "TIMESTAMP_NTZ"), ("ARRAY<INT>", "ARRAY<BIGINT>"), ("MAP<STRING,INT>", "MAP<STRING,BIGINT>"),
        ("STRUCT<a: INT>", "STRUCT<b: STRING, a: BIGINT>"), ("STRUCT<a: INT, b: STRING>", "STRUCT<a: INT>"),
        ("ARRAY<STRUCT<a: INT>>", "ARRAY<STRUCT<a: INT, b: ARRAY<STRING>>>"),
    ],
)  # fmt: skip
def test_a_type_may_become_wider(was: str, now: str) -> None:
    found = evolve(columns(f"x {was}"), schema(f"x {now}"), {}, "s")
    assert numbers(found.columns) == {"x": 1}
    assert len(found.changes) == 1


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("BIGINT", "INT"), ("BIGINT", "DOUBLE"), ("DOUBLE", "FLOAT"), ("INT", "FLOAT"), ("INT", "STRING"),
        ("STRING", "INT"), ("DECIMAL(10,2)", "DECIMAL(12,6)"), ("DECIMAL(10,2)", "DECIMAL(10,1)"),
        ("BIGINT", "DECIMAL(18,0)"), ("DATE", "TIMESTAMP"), ("TIMESTAMP", "TIMESTAMP_NTZ"), ("TIMESTAMP", "DATE"),
        ("MAP<INT,STRING>", "MAP<BIGINT,STRING>"), ("ARRAY<BIGINT>", "ARRAY<INT>"), ("INT", "STRUCT<a: INT>"),
    ],
)  # fmt: skip
def test_a_type_may_not_become_narrower_or_another(was: str, now: str) -> None:
    error = refused(f"k INT, x {was}", f"k INT, x {now}")
    assert "'x" in error.what
    assert "SNAPSHOT" in error.next


def test_a_narrower_field_inside_a_column_is_named() -> None:
    assert "'x.element.n'" in refused("x ARRAY<STRUCT<n: BIGINT>>", "x ARRAY<STRUCT<n: INT>>").what


def test_whether_a_column_was_renamed_is_for_the_user_to_say() -> None:
    error = refused("k INT, region STRING", "k INT, area STRING")
    assert "renamed={'region': 'area'}" in error.next
    assert "renamed={'region': None}" in error.next
    assert numbers(change("k INT, region STRING", "k INT, area STRING", {"region": "area"})) == {"k": 1, "area": 2}
    assert numbers(change("k INT, region STRING", "k INT, area STRING", {"region": None})) == {"k": 1, "area": 3}
    assert numbers(change("k INT, region STRING", "k INT, at DATE")) == {"k": 1, "at": 3}  # that cannot be the same


def test_a_rename_may_widen_too() -> None:
    assert numbers(change("n INT", "m BIGINT", {"n": "m"})) == {"m": 1}
    assert "'m'" in refused("n BIGINT", "m INT", {"n": "m"}).what


def test_what_was_renamed_in_an_earlier_run_may_stay_in_the_file() -> None:
    once = change("k INT, region STRING", "k INT, area STRING", {"region": "area"})
    assert change(once, "k INT, area STRING", {"region": "area"}) == once
    twice = change(once, "k INT, place STRING", {"region": "area", "area": "place"})
    assert numbers(twice) == {"k": 1, "place": 2}
    # The same file finds rows from before both renames.
    told: Renamed = {"region": "area", "area": "place"}
    assert numbers(change("k INT, region STRING", "k INT, place STRING", told)) == {"k": 1, "place": 2}


def test_a_name_that_was_given_away_may_come_back() -> None:
    once = change("a INT", "b INT", {"a": "b"})
    back = change(once, "b INT, a INT", {"a": "b"})
    assert numbers(back) == {"b": 1, "a": 2}


@pytest.mark.parametrize(
    ("was", "now", "renamed"),
    [
        ("a INT, b INT", "b INT", {"a": "b"}),
        ("a INT", "a INT, b INT", {"a": "b"}),
        ("a INT, x INT", "x INT, y INT", {"a": "z"}),
        ("a INT, b INT", "c INT", {"a": "c", "b": "c"}),
    ],
)
def test_a_rename_that_cannot_be_meant_is_refused(was: str, now: str, renamed: Renamed) -> None:
    assert "renamed=" in refused(was, now, renamed).what


def test_fields_inside_a_column_cannot_be_renamed_by_chance() -> None:
    error = refused("after STRUCT<id: INT, name: STRING>", "after STRUCT<id: INT, title: STRING>")
    assert "'after.name'" in error.what
    change("after STRUCT<id: INT, name: STRING>", "after STRUCT<id: INT, title: STRING>", {"after.name": None})


def test_names_that_columns_had_are_found_by_number() -> None:
    before = columns("a INT, b INT")
    after = change(before, "c INT, b INT", {"a": "c"})
    assert before.renamed_in(after) == {"a": "c"}
    assert after.renamed_in(after) == {}


# ── old files ───────────────────────────────────────────────────────────────────────────────────────────────────────


def file_schema(**fields: tuple[int | None, pa.DataType]) -> pa.Schema:
    return pa.schema(
        [
            pa.field(name, kind, metadata=None if n is None else {"PARQUET:field_id": str(n)})
            for name, (n, kind) in fields.items()
        ]
    )


def test_columns_of_a_file_are_found_by_their_numbers() -> None:
    known = (Known(4, "x"), Known(1, "a"), Known(2, "b"))
    assert places_of(file_schema(b=(1, pa.int32()), a=(2, pa.int32()), c=(3, pa.int32())), known) == [None, 0, 1]


def test_a_file_without_numbers_has_the_first_names() -> None:
    assert places_of(file_schema(a=(None, pa.int32())), (Known(2, "b"), Known(1, "a"))) == [None, 0]


def test_old_rows_are_cast_and_filled_with_null() -> None:
    batch = pa.record_batch({"n": pa.array([1, None], pa.int32()), "s": pa.array([{"a": 1}, None])})
    inner = pa.struct([("a", pa.int64()), ("b", pa.string())])
    target = pa.schema([("new", pa.string()), ("m", pa.int64()), ("s", inner)])
    rows = arranged(batch, [None, 0, 1], target)
    assert rows.schema == target
    assert rows.to_pylist() == [{"new": None, "m": 1, "s": {"a": 1, "b": None}}, {"new": None, "m": None, "s": None}]


def test_a_column_with_another_name_in_the_same_place_is_read() -> None:
    rows = arranged(pa.record_batch({"old": pa.array([1], pa.int32())}), [0], pa.schema([("new", pa.int64())]))
    assert rows.to_pylist() == [{"new": 1}]


def test_numbers_are_noted_beside_the_table(tmp_path: Path) -> None:
    assert known_columns(str(tmp_path), ["a", "b"]) == (Known(1, "a"), Known(2, "b"))
    note_columns(tmp_path, [Known(2, "b"), Known(3, "x")])
    assert known_columns(str(tmp_path), ["b", "x"]) == (Known(2, "b"), Known(3, "x"))
    note_columns(tmp_path, None)
    note_columns(tmp_path, None)
    assert known_columns(str(tmp_path), ["a"]) == (Known(1, "a"),)
