"""A source stage that has never run begins where `start=` says, once; from then on it goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import strobe
from strobe.hosts.spark.connectors.kafka import source as kafka_source
from strobe.hosts.spark.job.rehearse import dry_run
from strobe.hosts.spark.restore.plan import RestoreOptions
from strobe.model.errors import Misuse
from tests.support.spark.jobs import finish
from tests.support.spark.kafka_world import new_topic
from tests.support.spark.ledger_data import delta_rows
from tests.support.spark.restoring import BOUNDED, start

CONFIG = strobe.CheckpointConfig(interval=None, retained=100)
Read = Callable[[SparkSession], DataFrame]


def put(directory: Path, name: str, *numbers: int, at: float | None = None) -> None:
    directory.mkdir(exist_ok=True)
    hidden = directory / f".{name}"
    hidden.write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
    if at is not None:
        os.utime(hidden, (at, at))
    hidden.rename(directory / name)


def files(directory: Path) -> Read:
    return lambda spark: spark.readStream.schema("n BIGINT").option("maxFilesPerTrigger", 1).json(str(directory))


def counts(read: Read, *, uid: str = "counts", begin: Any = "latest") -> strobe.Pipeline:
    """How often each number has come: a source and state in one query."""
    pipeline = strobe.Pipeline("starts", checkpoint=CONFIG, partitions=3)
    add_counts(pipeline, read, uid, begin)
    return pipeline


def add_counts(pipeline: strobe.Pipeline, read: Read, uid: str, begin: Any) -> None:

    @pipeline.stage(uid=uid, start=begin, output_mode="update", trigger=BOUNDED, to=strobe.DeltaSink(uid, key="n"))
    def count(spark: SparkSession) -> DataFrame:
        return read(spark).groupBy("n").count()


def found(root: Path, uid: str = "counts") -> list[tuple[Any, ...]]:
    return delta_rows(root / uid, 'select n, "count" from t order by 1')


@pytest.mark.spark
def test_at_the_latest_only_what_comes_later_is_read_and_a_restore_does_not_begin_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "in"
    put(data, "a", 1, 2)
    put(data, "b", 3)
    pipeline = counts(files(data))
    job = start(pipeline, tmp_path, spark)
    finish(job)
    put(data, "c", 3, 4)
    finish(start(pipeline, tmp_path, spark))
    assert found(tmp_path) == [(3, 1), (4, 1)]
    put(data, "d", 4)
    restored = start(pipeline, tmp_path, spark, snapshot="starts/1", partitions=2)
    finish(restored)
    assert found(tmp_path) == [(3, 1), (4, 2)]


@pytest.mark.spark
def test_a_source_that_had_nothing_gives_everything_that_comes_then(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "in"
    data.mkdir()
    pipeline = counts(files(data))
    finish(start(pipeline, tmp_path, spark))
    put(data, "a", 1)
    # Neither a restore nor a resume begins at the latest once more: then this row would be lost.
    finish(start(pipeline, tmp_path, spark, snapshot="starts"))
    assert found(tmp_path) == [(1, 1)]


@pytest.mark.spark
def test_a_source_that_had_nothing_gives_everything_that_comes_after_a_resume(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "in"
    data.mkdir()
    pipeline = counts(files(data))
    finish(start(pipeline, tmp_path, spark))
    put(data, "a", 1)
    finish(start(pipeline, tmp_path, spark))
    assert found(tmp_path) == [(1, 1)]


@pytest.mark.spark
def test_files_are_read_as_of_a_time(spark: SparkSession, tmp_path: Path) -> None:
    data, noon = tmp_path / "in", datetime(2026, 3, 1, 12, tzinfo=UTC)
    put(data, "before", 1, at=noon.timestamp() - 60)
    put(data, "then", 2, at=noon.timestamp())
    put(data, "after", 3, at=noon.timestamp() + 60)
    finish(start(counts(files(data), begin="2026-03-01T13:00:00+01:00"), tmp_path, spark))
    assert found(tmp_path) == [(2, 1), (3, 1)]
    young = counts(files(data), uid="all", begin=noon - timedelta(hours=1))
    finish(start(young, tmp_path, spark, home="all"))
    finish(start(young, tmp_path, spark, home="all"))
    assert found(tmp_path, "all") == [(1, 1), (2, 1), (3, 1)]


@pytest.mark.spark
def test_a_source_under_a_new_uid_begins_at_the_latest_and_the_plan_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = tmp_path / "in"
    put(data, "a", 1)
    finish(start(counts(files(data), uid="old", begin="snapshot"), tmp_path, spark))
    both = counts(files(data), uid="old", begin="snapshot")
    add_counts(both, files(data), "new", "latest")
    options = RestoreOptions(snapshot="starts")
    plan = dry_run(both, restore=options, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    (said,) = (w for w in plan.warnings if "new source stage" in w)
    assert "from now on" in said
    assert "again" not in said
    finish(start(both, tmp_path, spark))
    put(data, "b", 2)
    finish(start(both, tmp_path, spark))
    assert found(tmp_path, "new") == [(2, 1)]
    assert found(tmp_path, "old") == [(1, 1), (2, 1)]


class Lines(DataSource):
    """A Python source that knows of no place to begin but its first line."""

    @classmethod
    def name(cls) -> str:
        return "lines_of_numbers"

    def schema(self) -> str:
        return "n BIGINT"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return LineReader(self.options["path"])


class Span(InputPartition):
    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last


class LineReader(DataSourceStreamReader):
    def __init__(self, path: str) -> None:
        self.path = path

    def initialOffset(self) -> dict[str, int]:
        return {"line": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"line": len(Path(self.path).read_text().splitlines())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Span]:
        return [Span(start["line"], end["line"])]

    def read(self, partition: Span) -> Any:  # type: ignore[override]
        for line in Path(self.path).read_text().splitlines()[partition.first : partition.last]:
            yield (int(line),)


@pytest.mark.spark
def test_a_source_in_python_begins_at_the_latest_without_knowing_it(spark: SparkSession, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("1\n2\n")

    def read(spark: SparkSession) -> DataFrame:
        spark.dataSource.register(Lines)
        return spark.readStream.format("lines_of_numbers").option("path", str(lines)).load()

    refused = counts(read, begin="2026-03-01T12:00:00+00:00")
    with pytest.raises(Misuse, match="only the times of files are known"):
        start(refused, tmp_path, spark, home="refused")
    finish(start(counts(read), tmp_path, spark))
    lines.write_text("1\n2\n3\n")
    finish(start(counts(read), tmp_path, spark))
    assert found(tmp_path) == [(3, 1)]


@pytest.mark.parametrize(
    ("begin", "reads", "wrong"),
    [
        ("newest", None, "start 'newest' is not one of snapshot, earliest, latest, nor a time"),
        ("2026-03-01T12:00:00", None, "has no time zone"),
        ("latest", "other", "'latest' is for stages that read a source only"),
        (datetime(2026, 3, 1, tzinfo=UTC), "other", "is for stages that read a source only"),
    ],
)
def test_a_start_that_cannot_be_is_refused(begin: Any, reads: str | None, wrong: str) -> None:
    with pytest.raises(Misuse, match=wrong):
        strobe.Pipeline("p").stage("s", start=begin, reads=reads)


@pytest.mark.spark
@pytest.mark.services("kafka")
def test_kafka_is_read_from_offsets_from_a_time_and_from_the_latest(
    spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    topic, noon = new_topic(kafka, "starts", partitions=1), datetime(2026, 3, 1, 12, tzinfo=UTC)
    produce_at(kafka, topic, {n: noon + timedelta(minutes=n) for n in range(4)})
    pipeline = strobe.Pipeline("starts", checkpoint=CONFIG)
    places: dict[str, Any] = {"offsets": {0: 3}, "time": noon + timedelta(minutes=2), "latest": "earliest"}
    for uid, place in places.items():

        def read(spark: SparkSession, place: Any = place) -> DataFrame:
            return strobe.read_kafka(spark, kafka, topic, starting=place).selectExpr(
                "cast(cast(value as string) as int) n"
            )

        begin = "latest" if uid == "latest" else "snapshot"
        pipeline.stage(uid, start=begin, trigger=BOUNDED, to=strobe.DeltaSink(uid))(read)
    finish(start(pipeline, tmp_path, spark))
    produce_at(kafka, topic, {9: noon + timedelta(hours=1)})
    finish(start(pipeline, tmp_path, spark))
    tables = {uid: [n for (n,) in delta_rows(tmp_path / uid, "select n from t order by 1")] for uid in places}
    assert tables == {"offsets": [3, 9], "time": [2, 3, 9], "latest": [9]}


def produce_at(servers: str, topic: str, numbers: dict[int, datetime]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number, time in numbers.items():
        producer.produce(topic, str(number), timestamp=int(time.timestamp() * 1000))
    assert producer.flush(60) == 0


@pytest.mark.parametrize(
    ("starting", "wrong"),
    [
        (datetime(2026, 3, 1), "has no time zone"),
        ({}, "where each topic begins"),
        ({0: 3}, "where each topic begins"),
        (7, "is not a start"),
    ],
)
def test_a_place_in_topics_that_cannot_be_is_refused(starting: Any, wrong: str) -> None:
    with pytest.raises(Misuse, match=wrong):
        kafka_source._starting(starting, ("a", "b"), "read_kafka")
