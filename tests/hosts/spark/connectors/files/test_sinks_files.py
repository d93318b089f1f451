"""The file sink keeps the contract of sinks in each format, and others read its directory as one table."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import SparkSession

from strobe.hosts.spark.connectors.base import Sink, SinkContext
from strobe.hosts.spark.connectors.files import restore as file_restore
from strobe.hosts.spark.connectors.files import sink as file
from strobe.hosts.spark.connectors.files.sink import FileSink
from strobe.hosts.spark.stage.local_frame import local_frame
from strobe.model.errors import Damaged, Misuse
from strobe.model.ids import Incarnation, NodeId, SnapshotId, Timeline
from strobe.testing import SinkContract

pytestmark = pytest.mark.spark

SCHEMA = "k BIGINT, v STRING"


class FileContract(SinkContract):
    options: ClassVar[dict[str, Any]] = {}
    fenced = True
    ordered = True
    points = 4

    @pytest.fixture(autouse=True)
    def _session(self, spark: SparkSession) -> None:
        self.session = spark

    def spark(self) -> SparkSession:
        return self.session

    def make_sink(self, where: Path) -> Sink:
        return FileSink("out", **self.options)

    def visible(self, where: Path) -> Iterable[tuple[Any, ...]]:
        for path in sorted(where.glob("out/batch=*/*")):
            yield from self.read(path)

    def read(self, path: Path) -> Iterable[tuple[Any, ...]]:
        rows = pq.read_table(path, partitioning=None)
        return list(zip(*(rows[name].to_pylist() for name in ("k", "v")), strict=True))

    def sources(self, sink: Sink) -> set[str]:
        return {str(file.__file__), str(file_restore.__file__)}


class TestParquetOnBatch(FileContract):
    """The default."""


class TestJsonOnBatch(FileContract):
    options: ClassVar[dict[str, Any]] = {"format": "json"}

    def read(self, path: Path) -> Iterable[tuple[Any, ...]]:
        return [tuple(json.loads(line).values()) for line in path.read_text().splitlines()]


class TestCsvOnSnapshot(FileContract):
    """How a part becomes visible does not depend on its format: one stands for all."""

    options: ClassVar[dict[str, Any]] = {"format": "csv", "delivery": "on_snapshot"}
    ordered = False  # within a part, which Spark writes as a whole

    def read(self, path: Path) -> Iterable[tuple[Any, ...]]:
        with path.open(newline="") as text:
            return [(int(row["k"]), row["v"] or None) for row in csv.DictReader(text)]


def opened(root: Path, sink: FileSink, spark: SparkSession, *, mode: str = "append") -> FileSink:
    schema = local_frame(spark, [], SCHEMA).schema
    sink.open(SinkContext("j", NodeId("s"), "s/0", Timeline(1), Incarnation(1), schema, mode, root, root / "staging"))
    return sink


@pytest.mark.parametrize("format", file.FORMATS)
def test_others_read_the_directory_as_one_table(tmp_path: Path, spark: SparkSession, format: str) -> None:
    sink = opened(tmp_path, FileSink("out", format=format), spark)
    for batch in range(3):
        sink.write(local_frame(spark, [(batch, "x"), (batch, 'a "b", c')], SCHEMA), batch)
    expected = [(k, v) for k in range(3) for v in ('a "b", c', "x")]
    reader = spark.read.schema(SCHEMA).option("header", "true").option("escape", '"').format(format)
    assert sorted(map(tuple, reader.load(str(tmp_path / "out")).select("k", "v").collect())) == expected
    was = file_restore.recorded(sink.position(SnapshotId(1)))
    assert was is not None
    file_restore.take_back(was, 2)  # what Strobe notes beside the batches is not for them
    found = duckdb.execute(f"SELECT k, v FROM read_{format}('{tmp_path}/out/*/*.{format}') ORDER BY ALL")
    assert found.fetchall() == expected


def test_files_are_compressed_and_named_as_asked(tmp_path: Path, spark: SparkSession) -> None:
    sink = opened(tmp_path, FileSink("out", format="csv", compression="gzip", header=False), spark)
    sink.write(local_frame(spark, [(1, "x")], SCHEMA), 0)
    (path,) = (tmp_path / "out").glob("batch=1-00000000/*")
    assert path.name.endswith(".csv.gz")
    assert duckdb.execute(f"SELECT * FROM read_csv('{path}', header=false, hive_partitioning=false)").fetchall() == [
        (1, "x")
    ]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FileSink("out", format="xml"),
        lambda: FileSink("out", delivery="sometimes"),
        lambda: FileSink("out", header=True),
        lambda: FileSink("s3://bucket/out"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any) -> None:
    with pytest.raises(Misuse):
        make()


@pytest.mark.parametrize("said", ["", "{", "[[0]]", '[["a", 1]]', "7"])
def test_a_damaged_record_of_its_batches_is_named(tmp_path: Path, spark: SparkSession, said: str) -> None:
    sink = FileSink("out", format="json")
    opened(tmp_path, sink, spark).close()
    lineage = tmp_path / "out" / file_restore.HIDDEN / file_restore.LINEAGE
    lineage.write_text(said)
    with pytest.raises(Damaged, match="does not say which batches belong to the sink"):
        opened(tmp_path, FileSink("out", format="json"), spark)
    assert lineage.read_text() == said


@pytest.mark.parametrize("codec", ["zstdd", "", 5, "ZSTD "])
@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_a_compression_that_spark_does_not_know_is_refused_when_the_sink_is_made(format: str, codec: Any) -> None:
    with pytest.raises(Misuse, match=f"is not one that Spark knows for {format}: none, uncompressed, "):
        FileSink("out", format=format, options={"Compression": codec})
    with pytest.raises(Misuse, match=rf"FileSink\('out'\): compression={codec!r} is not one"):
        FileSink("out", format=format, compression=codec)


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_the_compressions_are_those_that_spark_names(tmp_path: Path, spark: SparkSession, format: str) -> None:
    with pytest.raises(IllegalArgumentException) as unknown:
        local_frame(spark, [(1, "a")], SCHEMA).write.format(format).option("compression", "x").save(f"{tmp_path}/out")
    names = str(unknown.value).partition("Available codecs are ")[2].partition(". ")[0].split(", ")
    assert set(names) == set(file._CODECS[format])
    for name in names:
        FileSink("out", format=format, compression=name.upper())
    if format != "parquet":
        FileSink("out", format=format, compression="org.apache.hadoop.io.compress.GzipCodec")


def test_nested_columns_in_csv_are_refused_with_their_name(tmp_path: Path, spark: SparkSession) -> None:
    schema = local_frame(spark, [], "k BIGINT, tags ARRAY<STRING>").schema
    life, staging = Incarnation(1), tmp_path / "home/t1"
    context = SinkContext("j", NodeId("s"), "s/0", Timeline(1), life, schema, "append", tmp_path, staging)
    with pytest.raises(Misuse, match=r"column tags is array<string>, and CSV has no such values"):
        FileSink("out", format="csv").open(context)
    FileSink("out", format="json").open(context)


@pytest.mark.parametrize(
    ("kind", "formats"),
    [
        ("VARIANT", ["csv"]),
        ("VOID", ["csv"]),
        ("INTERVAL", ["csv", "json", "parquet"]),
        ("ARRAY<STRUCT<x: INTERVAL>>", ["csv", "json", "parquet"]),
        ("INTERVAL DAY TO SECOND", []),
        ("INTERVAL YEAR", []),
        ("STRUCT<interval: INT>", ["csv"]),
    ],
)
def test_a_type_that_spark_does_not_write_is_refused_before_the_first_batch(
    tmp_path: Path, spark: SparkSession, kind: str, formats: list[str]
) -> None:
    """Spark itself says which these are: with the first batch."""
    frame = spark.range(1).selectExpr("id", f"CAST(NULL AS {kind}) AS x")
    life, staging = Incarnation(1), tmp_path / "home/t1"
    context = SinkContext("j", NodeId("s"), "s/0", Timeline(1), life, frame.schema, "append", tmp_path, staging)
    refused: dict[str, list[str]] = {"Spark": [], "Strobe": []}
    for format in ("csv", "json", "parquet"):
        try:
            frame.write.format(format).save(str(tmp_path / "spark" / format))
        except AnalysisException:
            refused["Spark"].append(format)
        try:
            FileSink("out", format=format).open(context)
        except Misuse as misuse:
            refused["Strobe"] += [format] if "column x is " in misuse.what else []
    assert refused == {"Spark": formats, "Strobe": formats}


def test_a_result_that_is_replaced_at_each_batch_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    with pytest.raises(Misuse, match="complete"):
        opened(tmp_path, FileSink("out"), spark, mode="complete")
