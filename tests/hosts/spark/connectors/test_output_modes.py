"""Output modes, sinks and deliveries crossed: each combination gives the right rows, or is refused before Spark starts.

The table below is the specification; `docs/reference/sinks.md` has it for people.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job import job as spark_job
from strobe.hosts.spark.job.job import start_job
from strobe.model.errors import Misuse
from tests.support.spark.jobs import finish

MODES = ("append", "update", "complete")
DELIVERIES = ("on_batch", "on_snapshot")
DSN = "postgresql://nobody@localhost:1/none"

# What a sink must show, of the batches that the stage gave.
EVERY_ROW = "every row"  # those of all batches
NEWEST_OF_KEY = "the newest row of each key"
NEWEST_RESULT = "the newest batch"
REFUSED = "refused"

MAKE: dict[str, Callable[..., strobe.Sink]] = {
    "Delta": strobe.DeltaSink,
    "Delta, partitioned": lambda path, **how: strobe.DeltaSink(path, partition_by="rest", **how),
    "Delta, key": lambda path, **how: strobe.DeltaSink(path, key="rest", **how),
    "Delta, key, partitioned": lambda path, **how: strobe.DeltaSink(path, key="rest", partition_by="rest", **how),
    "files, parquet": strobe.FileSink,
    "files, json": lambda path, **how: strobe.FileSink(path, format="json", **how),
    "files, csv": lambda path, **how: strobe.FileSink(path, format="csv", **how),
    "memory": strobe.MemorySink,
    "function": lambda path, **how: strobe.ForeachBatchSink(Calls(path), **how),
    "Kafka": lambda path, **how: strobe.KafkaSink("localhost:1", path, **how),
    "Postgres": lambda path, **how: strobe.PostgresSink(DSN, "t", **how),
    "Postgres, key": lambda path, **how: strobe.PostgresSink(DSN, "t", key="rest", **how),
}
TABLE: dict[str, tuple[str, str, str]] = {  # by mode
    "Delta": (EVERY_ROW, EVERY_ROW, REFUSED),
    "Delta, partitioned": (EVERY_ROW, EVERY_ROW, REFUSED),
    "Delta, key": (NEWEST_OF_KEY, NEWEST_OF_KEY, REFUSED),
    "Delta, key, partitioned": (NEWEST_OF_KEY, NEWEST_OF_KEY, REFUSED),
    "files, parquet": (EVERY_ROW, EVERY_ROW, REFUSED),
    "files, json": (EVERY_ROW, EVERY_ROW, REFUSED),
    "files, csv": (EVERY_ROW, EVERY_ROW, REFUSED),
    "memory": (EVERY_ROW, EVERY_ROW, NEWEST_RESULT),
    "function": (EVERY_ROW, EVERY_ROW, NEWEST_RESULT),
    "Kafka": (EVERY_ROW, EVERY_ROW, REFUSED),
    "Postgres": (EVERY_ROW, EVERY_ROW, REFUSED),
    "Postgres, key": (NEWEST_OF_KEY, NEWEST_OF_KEY, REFUSED),
}
SERVERS = ("Kafka", "Postgres")  # their rows are checked where the servers are
CROSSED = list(itertools.product(TABLE, DELIVERIES, MODES))

Row = tuple[int, int]


class Calls:
    """A function that notes what it was given, call by call."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.calls: list[list[Row]] = []

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.calls.append([(row.rest, row.n) for row in batch.collect()])


def told(kind: str, mode: str) -> str:
    return TABLE[kind][MODES.index(mode)]


def pipeline(*stages: tuple[str, Iterable[strobe.Sink]], data: Path = Path("in")) -> strobe.Pipeline:
    """A stage for each mode and its sinks. In append mode rows as they come, in the others how many there were."""
    made = strobe.Pipeline("modes", checkpoint=strobe.CheckpointConfig(interval=None))
    for mode, sinks in stages:

        def stage(spark: SparkSession, mode: str = mode) -> DataFrame:
            files = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(data))
            rows = files.select((F.col("id") % 5).alias("rest"), F.col("id").alias("n"))
            return rows if mode == "append" else rows.groupBy("rest").agg(F.count("n").alias("n"))

        made.stage(f"of-{mode}", output_mode=mode, to=tuple(sinks), trigger={"availableNow": True})(stage)
    return made


@pytest.mark.parametrize(("kind", "delivery", "mode"), CROSSED)
def test_what_cannot_be_right_is_refused_before_spark_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, delivery: str, mode: str
) -> None:
    class Started(Exception):
        pass

    def start(*_: Any, **__: Any) -> None:
        raise Started

    monkeypatch.setattr(spark_job, "job_session", start)
    sink = MAKE[kind]("out", delivery=delivery)
    made = pipeline((mode, [sink]))
    if told(kind, mode) != REFUSED:
        with pytest.raises(Started):
            start_job(made, home=str(tmp_path / "home"), base=tmp_path)
        return
    with pytest.raises(Misuse) as refused:
        start_job(made, home=str(tmp_path / "home"), base=tmp_path)
    assert refused.value.what.startswith(f"Stage 'of-{mode}' has output_mode 'complete'")
    assert sink.describe() in refused.value.what
    assert "Nothing was started" in refused.value.untouched
    assert "Use output_mode='" in refused.value.next
    assert list(tmp_path.iterdir()) == []


FILES = ([0, 1, 2, 3, 4], [5, 6], [12, 8])


def given(mode: str) -> list[list[Row]]:
    """What the stage gives, batch by batch."""
    if mode == "append":
        return [[(n % 5, n) for n in ids] for ids in FILES]
    counts: dict[int, int] = {}
    batches = []
    for ids in FILES:
        for n in ids:
            counts[n % 5] = counts.get(n % 5, 0) + 1
        batches.append(sorted((k, v) for k, v in counts.items() if mode == "complete" or k in {n % 5 for n in ids}))
    return batches


def expected(kind: str, mode: str) -> list[Row]:
    batches, how = given(mode), told(kind, mode)
    if how == NEWEST_OF_KEY:
        return sorted({row[0]: row for batch in batches for row in batch}.values())
    return sorted(batches[-1] if how == NEWEST_RESULT else itertools.chain(*batches))


def shown(kind: str, sink: strobe.Sink, mode: str, place: Path) -> list[Row]:
    if isinstance(sink, strobe.MemorySink):
        return sorted((row["rest"], row["n"]) for row in sink.rows())
    if isinstance(sink, strobe.ForeachBatchSink):
        calls: list[list[Row]] = sink.function.calls  # type: ignore[attr-defined]
        return sorted(calls[-1] if mode == "complete" else itertools.chain(*calls))
    if kind.startswith("Delta"):
        rows = DeltaTable(str(place)).to_pyarrow_table().to_pylist()
        return sorted((row["rest"], row["n"]) for row in rows)
    ending = kind.removeprefix("files, ")
    return duckdb.execute(f"SELECT rest, n FROM read_{ending}('{place}/*/*.{ending}') ORDER BY ALL").fetchall()


@pytest.mark.spark
def test_what_is_not_refused_gives_the_right_rows(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "in").mkdir()
    for number, ids in enumerate(FILES):
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), tmp_path / f"in/{number}.parquet")
        os.utime(tmp_path / f"in/{number}.parquet", (number, number))  # Spark reads files in the order of their age
    sinks: dict[tuple[str, str, str], strobe.Sink] = {
        (kind, delivery, mode): MAKE[kind](f"{mode} {delivery} {kind}", delivery=delivery)
        for kind, delivery, mode in CROSSED
        if told(kind, mode) != REFUSED and not kind.startswith(SERVERS)
    }
    stages = [(mode, [s for (_, _, m), s in sinks.items() if m == mode]) for mode in MODES]
    job = start_job(
        pipeline(*stages, data=tmp_path / "in"), home=str(tmp_path / "home"), base=tmp_path, spark=spark
    )  # fmt: skip
    finish(job)
    wrong = {
        (kind, delivery, mode): (found, expected(kind, mode))
        for (kind, delivery, mode), sink in sinks.items()
        if (found := shown(kind, sink, mode, tmp_path / f"{mode} {delivery} {kind}")) != expected(kind, mode)
    }
    assert wrong == {}
    each = sinks["function", "on_batch", "complete"]
    assert isinstance(each, strobe.ForeachBatchSink)
    assert [sorted(call) for call in each.function.calls] == given("complete"), "each batch is the whole result"  # type: ignore[attr-defined]
