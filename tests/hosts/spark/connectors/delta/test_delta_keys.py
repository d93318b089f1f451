"""A Delta table with a key has the newest row of each key: whatever the key's types, names and partitions are.

Without Spark: what it would compute is given to the sink as Arrow tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from strobe.hosts.spark.connectors import staging
from strobe.hosts.spark.connectors.base import Part, SinkContext
from strobe.hosts.spark.connectors.delta import writing
from strobe.hosts.spark.connectors.delta.restore import why_unreachable
from strobe.hosts.spark.connectors.delta.sink import DeltaSink
from strobe.model.errors import Failed, Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline

NAN, INF = math.nan, math.inf


def at(*when: int) -> datetime:
    return datetime(*when, tzinfo=UTC)  # type: ignore[misc, arg-type]


WINDOW = StructType([StructField("start", TimestampType()), StructField("end", TimestampType())])
HOUR = {"start": at(2024, 3, 31, 0), "end": at(2024, 3, 31, 1)}
TEXTS = [
    "a",
    "A",
    "it's",
    'a "quoted" one',
    "back`tick",
    "\\",
    "%41",
    "a/b",
    "..",
    "=",
    "ключ",
    "é",
    "e\u0301",
    "😀",
    " ",
]

# Of each type that a channel holds and a key may have: values that are all different keys.
KINDS: dict[str, tuple[DataType, list[Any]]] = {
    "boolean": (BooleanType(), [True, False, None]),
    "tinyint": (ByteType(), [-128, 0, 127, None]),
    "smallint": (ShortType(), [-(2**15), 0, 7, None]),
    "int": (IntegerType(), [-(2**31), 0, 2**31 - 1, None]),
    "bigint": (LongType(), [-(2**63), 0, 2**53 + 1, 2**53, 2**63 - 1, None]),
    "float": (FloatType(), [0.0, 1.5, NAN, INF, -INF, None]),
    "double": (DoubleType(), [0.0, 0.1, 1e-200, NAN, INF, -INF, None]),
    "decimal": (DecimalType(38, 18), [Decimal("0.000000000000000001"), Decimal("-1.5"), Decimal(0), None]),
    "string": (StringType(), [*TEXTS, "", "\n", None]),
    "binary": (BinaryType(), [b"", b"\x00", b"\x00\xff", b"'", None]),
    "date": (DateType(), [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31), None]),
    "timestamp": (TimestampType(), [at(1, 1, 1), at(1970, 1, 1), at(2024, 3, 31, 1, 30, 0, 1), None]),
    "timestamp_ntz": (TimestampNTZType(), [datetime(1970, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None]),
    "struct": (WINDOW, [HOUR, {**HOUR, "end": at(2025, 1, 1)}, {"start": None, "end": None}, None]),
    "array": (ArrayType(DoubleType()), [[], [None], [0.0], [NAN, 1.0], [1.0, NAN], None]),
    "nested": (
        StructType(
            [StructField("a", ArrayType(WINDOW)), StructField("b", StructType([StructField("c", FloatType())]))]
        ),
        [{"a": [HOUR], "b": {"c": 0.0}}, {"a": [HOUR], "b": None}, {"a": [None], "b": {"c": None}}, None],
    ),
}
OTHERS: dict[str, tuple[DataType, list[Any]]] = {
    "map": (MapType(StringType(), WINDOW), [[("a", HOUR), ("", None)], [], None]),
    "maps": (
        ArrayType(MapType(IntegerType(), ArrayType(TimestampType()))),
        [[[(1, [at(2024, 1, 1), None])]], [], None],
    ),
}
PARTITIONS = [kind for kind in KINDS if kind not in ("binary", "decimal", "struct", "array", "nested")]
# What stands beside the key, in each row.
BESIDE = {f"beside {name}": found for name, found in {**KINDS, **OTHERS}.items()}


class Frame:
    """What a stage has computed, as Spark hands it over if its session has the time zone `zone`."""

    def __init__(self, schema: StructType, rows: Sequence[Mapping[str, Any]], zone: str) -> None:
        stored = pa.Table.from_pylist([dict(row) for row in rows], schema=to_arrow_schema(schema, timezone="UTC"))
        self.stored = stored
        self.shown = stored.cast(to_arrow_schema(schema, timezone=zone))

    def toArrow(self) -> pa.Table:
        return self.shown


@pytest.fixture(autouse=True)
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark stages Parquet files, in UTC whatever the session's time zone is."""

    def write_parquet(frame: Any, place: Path, **_: Any) -> None:
        place.mkdir(parents=True)
        half = frame.stored.num_rows // 2
        for number, rows in enumerate((frame.stored.slice(0, half), frame.stored.slice(half))):
            pq.write_table(rows, place / f"part-{number}.parquet")

    monkeypatch.setattr(staging, "write_parquet", write_parquet)
    monkeypatch.setattr(writing, "plan_size", lambda _: 0)


class World:
    """A table, the sink that writes it, and what it must hold."""

    def __init__(self, root: Path, kinds: Mapping[str, DataType], zone: str = "UTC", **options: Any) -> None:
        self.root = root
        self.schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
        self.options = options
        self.zone = zone
        self.key = (options["key"],) if isinstance(options["key"], str) else tuple(options["key"])
        self.expected: dict[str, str] = {}
        self.batch = 0
        self.parts = 0
        self.open(1)

    def open(self, incarnation: int) -> None:
        self.sink = DeltaSink("t", **self.options)
        self.sink.open(context(self.root, self.schema, incarnation))

    def write(self, *rows: Mapping[str, Any]) -> None:
        frame = cast(DataFrame, Frame(self.schema, rows, self.zone))
        self.sink.write(frame, self.batch)
        self.batch += 1
        for row in rows:
            self.expected[same([row[k] for k in self.key])] = same({name: row[name] for name in self.schema.names})

    def commit(self) -> None:
        """On snapshot: everything since the last time becomes visible."""
        if self.options.get("delivery") == "on_snapshot":
            part = Part("h", SnapshotId(self.batch), Timeline(1), self.parts - 1, self.batch - 1)
            self.sink.commit(part, self.sink.prepare(part))
            self.parts = self.batch

    def check(self) -> None:
        table = DeltaTable(str(self.root / "t")).to_pyarrow_table()
        rows = [{name: row[name] for name in self.schema.names} for row in table.to_pylist()]
        assert sorted(same(row) for row in rows) == sorted(self.expected.values())


def context(root: Path, schema: StructType, incarnation: int = 1) -> SinkContext:
    life = Incarnation(incarnation)
    return SinkContext("j", NodeId("s"), "s/0", Timeline(1), life, schema, "update", root, root / "home/t1")


def same(value: Any) -> str:
    """Text that is the same for values that are."""
    if isinstance(value, Mapping):
        return repr({name: same(item) for name, item in value.items()})
    if isinstance(value, list | tuple):
        return repr([same(item) for item in value])
    if isinstance(value, datetime) and value.tzinfo is not None:
        return repr(value.astimezone(UTC).replace(tzinfo=None)) + "Z"
    if isinstance(value, Decimal):
        return str(value.normalize())
    return repr(value + 0.0) if isinstance(value, float) else repr(value)


def rows(key: str, values: Iterable[Any], turn: int) -> list[dict[str, Any]]:
    """One row for each value of the key; what stands beside it changes from turn to turn."""
    return [
        {key: value, **{name: found[(number + turn) % len(found)] for name, (_, found) in BESIDE.items()}}
        for number, value in enumerate(values)
    ]


def types(**kinds: DataType) -> dict[str, DataType]:
    return {**kinds, **{name: kind for name, (kind, _) in BESIDE.items()}}


@pytest.mark.parametrize("delivery", ["on_batch", "on_snapshot"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_is_a_key_with_every_type_beside_it(tmp_path: Path, kind: str, delivery: str) -> None:
    zone = "America/New_York" if delivery == "on_batch" else "UTC"
    world = World(tmp_path, types(k=KINDS[kind][0]), zone, key="k", delivery=delivery)
    for turn in range(3):
        world.write(*rows("k", KINDS[kind][1], turn))
    world.commit()
    world.open(2)
    world.write(*rows("k", KINDS[kind][1], 3)[::2])
    world.commit()
    world.check()


@pytest.mark.parametrize("kind", PARTITIONS)
def test_a_key_may_be_a_partition_too(tmp_path: Path, kind: str) -> None:
    values = [value for value in KINDS[kind][1] if value != ""]
    world = World(tmp_path, types(k=KINDS[kind][0], n=LongType()), key=["k", "n"], partition_by="k")
    for turn in range(2):
        world.write(*({**row, "n": number % 2} for number, row in enumerate(rows("k", values, turn))))
    world.check()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_of_one_to_four_keys_the_newest_row_counts(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    named = {f"k{i}": KINDS[kind] for i, kind in enumerate(kinds)}
    delivery = data.draw(st.sampled_from(["on_batch", "on_snapshot"]))
    root = tmp_path_factory.mktemp("keys")
    world = World(
        root, {**{n: kind for n, (kind, _) in named.items()}, "v": LongType()}, key=list(named), delivery=delivery
    )
    keys = st.fixed_dictionaries({name: st.sampled_from(values) for name, (_, values) in named.items()})
    for turn in range(data.draw(st.integers(2, 4))):
        batch = data.draw(st.lists(keys, min_size=1, max_size=6, unique_by=lambda row: same([row[n] for n in named])))
        world.write(*({**row, "v": turn * 10 + number} for number, row in enumerate(batch)))
    world.commit()
    world.check()


NAMES = [
    "a b", "a.b", "a`b", "a``b", "t.`k`", 'a"b', '"', "it's", "select", "order", "ключ", "Upper", "1st", "a\\b", "a%b",
    "a,b", "(x)", "a;b", "{x}", "=", "s", "t", "*", "a/b", "null",
]  # fmt: skip


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_column_may_have_any_name(tmp_path: Path, name: str, partitioned: bool) -> None:
    kinds = {name: LongType(), f"{name} too": StringType(), f"not {name}": LongType()}
    world = World(tmp_path, kinds, key=[name, f"{name} too"], partition_by=name if partitioned else ())
    for turn in range(2):
        world.write(*({name: k, f"{name} too": "x", f"not {name}": turn} for k in (1, 2, None)))
    world.check()


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("delivery", ["on_batch", "on_snapshot"])
def test_minus_zero_is_zero(tmp_path: Path, kind: str, delivery: str) -> None:
    world = World(tmp_path, {"k": KINDS[kind][0], "v": LongType()}, key="k", delivery=delivery)
    for turn, zero in enumerate((0.0, -0.0, 0.0)):
        world.write({"k": zero, "v": turn})
    world.commit()
    table = DeltaTable(str(tmp_path / "t")).to_pyarrow_table()
    assert table["v"].to_pylist() == [2]


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        (DoubleType(), 0.0, -0.0),
        (StringType(), None, None),
        (WINDOW, HOUR, HOUR),
        (ArrayType(DoubleType()), [-0.0], [0.0]),
        (TimestampType(), at(2024, 1, 1), at(2024, 1, 1)),
    ],
)
def test_different_rows_of_one_key_in_a_batch_are_refused(tmp_path: Path, kind: DataType, one: Any, other: Any) -> None:
    world = World(tmp_path, {"k": kind, "v": LongType()}, key="k")
    with pytest.raises(Failed, match=r"another row of the batch has the same key \(k\)"):
        world.write({"k": one, "v": 1}, {"k": other, "v": 2})
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == 0


def test_an_empty_string_in_a_partition_is_the_null_that_readers_find(tmp_path: Path) -> None:
    world = World(tmp_path, {"p": StringType(), "v": LongType()}, key="p", partition_by="p")
    for turn, text in enumerate(("", None, "")):
        world.write({"p": text, "v": turn})
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist() == [{"p": None, "v": 2}]
    with pytest.raises(Failed, match=r"the same key \(p\); an empty string in p, a partition, is a null"):
        world.write({"p": "", "v": 1}, {"p": None, "v": 2})


@pytest.mark.parametrize(("kind", "value"), [(StringType(), "é" * 50), (DoubleType(), 1e-300)])
def test_a_partition_whose_name_is_too_long_is_refused_with_its_row(tmp_path: Path, kind: DataType, value: Any) -> None:
    world = World(tmp_path, {"p": kind, "v": LongType()}, key="v", partition_by="p")
    with pytest.raises(Failed, match="the text of column p, a partition, is longer than 253 bytes"):
        world.write({"p": value, "v": 1})


def test_a_row_outside_of_pythons_calendar_is_refused_like_any_other(tmp_path: Path) -> None:
    world = World(tmp_path, {"k": LongType(), "t": TimestampType()}, key="k")
    late = pa.table(
        [pa.array([1, 1], pa.int64()), pa.array([253402300800000000, 0]).cast(pa.timestamp("us", "UTC"))],
        names=["k", "t"],
    )
    frame = Frame(world.schema, [], "UTC")
    frame.shown = late
    with pytest.raises(Failed, match=r"10000-01-01.*and 1 more"):
        world.sink.write(cast(DataFrame, frame), 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": "m"}, "maps cannot be compared"),
        ({"key": "deep"}, "maps cannot be compared"),
        ({"key": "K"}, "it has no column K"),
        ({"partition_by": "b"}, "cannot be partitioned by b, which is binary"),
        ({"partition_by": "deep"}, "cannot be partitioned by deep"),
        ({"partition_by": "d"}, r"cannot be partitioned by d, which is decimal\(5,2\)"),
        ({"partition_by": "tab\tbed"}, "cannot be part of a directory's name"),
        ({"partition_by": ["b", "k"], "key": "k"}, "cannot be partitioned by b"),
    ],
)
def test_a_column_that_cannot_do_it_is_refused_when_the_job_starts(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    kinds = {
        "k": LongType(), "b": BinaryType(), "m": MapType(StringType(), LongType()),
        "deep": ArrayType(MapType(StringType(), LongType())), "tab\tbed": LongType(),
        "d": DecimalType(5, 2),
    }  # fmt: skip
    schema = StructType([StructField(name, kind) for name, kind in kinds.items()])
    with pytest.raises(Misuse, match=says):
        DeltaSink("t", **options).open(context(tmp_path, schema))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("options", [{"key": "k"}, {"partition_by": "k"}, {}])
@pytest.mark.parametrize("kind", [DayTimeIntervalType(), VariantType(), StringType("UTF8_LCASE")])
def test_a_type_that_delta_does_not_have_is_refused_with_its_column(
    tmp_path: Path, options: dict[str, Any], kind: DataType
) -> None:
    schema = StructType([StructField("k", LongType()), StructField("x", kind)])
    with pytest.raises(Misuse, match="column 'x' has type"):
        DeltaSink("t", **options).open(context(tmp_path, schema))
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"key": ["a", "a"]}, "key has the column 'a' twice"),
        ({"key": 5}, "not 5"),
        ({"key": ["a", None]}, "not None"),
        ({"key": ""}, "not ''"),
        ({"partition_by": ["a", "b", "a"]}, "partition_by has the column 'a' twice"),
        ({"key": "a", "properties": {"delta.appendOnly": "true"}}, "never changes a row"),
    ],
)
def test_what_cannot_be_meant_is_refused_where_it_is_said(options: dict[str, Any], says: str) -> None:
    with pytest.raises(Misuse, match=says):
        DeltaSink("t", **options)


def test_a_path_that_delta_reads_as_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="stand for another character"):
        DeltaSink("a%20b").open(context(tmp_path, StructType([StructField("k", LongType())])))
    assert list(tmp_path.iterdir()) == []
    DeltaSink("100% a b").open(context(tmp_path, StructType([StructField("k", LongType())])))


@pytest.mark.parametrize("kind", PARTITIONS)
def test_a_version_of_a_partitioned_table_is_found_again(tmp_path: Path, kind: str) -> None:
    """Whatever its directories are called, below a directory with a space in its name."""
    (tmp_path / "a b").mkdir()
    world = World(tmp_path / "a b", {"p": KINDS[kind][0], "v": LongType()}, key="v", partition_by="p")
    world.write(*({"p": value, "v": number} for number, value in enumerate(KINDS[kind][1])))
    version = DeltaTable(str(tmp_path / "a b/t")).version()
    of_version = next((tmp_path / "a b/t").glob("p=*/*.parquet"))
    world.write({"p": None, "v": 0})
    assert why_unreachable(tmp_path / "a b/t", version) is None
    of_version.unlink()
    assert why_unreachable(tmp_path / "a b/t", version) is not None


def test_a_key_on_a_table_that_never_changes_a_row_is_refused(tmp_path: Path) -> None:
    schema = StructType([StructField("k", LongType())])
    DeltaSink("t", properties={"delta.appendOnly": "true"}).open(context(tmp_path, schema))
    with pytest.raises(Misuse, match=r"has the property delta\.appendOnly"):
        DeltaSink("t", key="k").open(context(tmp_path, schema, 2))


def test_a_table_of_the_job_does_not_remember_what_belongs_to_the_query(tmp_path: Path) -> None:
    """A watermark, and that a count is never null, are of the query and not of the data."""
    fields = [
        StructField("k", TimestampType(), True, {"spark.watermarkDelayMs": 1000}),
        StructField("n", LongType(), False),
    ]
    DeltaSink("t", key="k").open(context(tmp_path, StructType(fields)))
    there = DeltaTable(str(tmp_path / "t")).schema().fields
    assert [(field.nullable, field.metadata) for field in there] == [(True, {})] * 2
