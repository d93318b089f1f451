"""What a batch that is run again must give again, and the warnings about what does not."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.channel.gate import Gate, GateHandler
from strobe.hosts.spark.home.job_home import JobHome
from strobe.hosts.spark.stage.assemble import draft_stages
from strobe.model.errors import Misuse
from tests.support.spark.ledger_data import read_transfers, write_transfers

pytestmark = pytest.mark.spark


def test_stable_random_depends_on_the_keys_and_the_seed_alone(spark: SparkSession) -> None:
    rows = spark.range(1000).withColumn("half", F.col("id") % 500)
    drawn = {r.id: r.x for r in rows.withColumn("x", strobe.stable_random("half")).collect()}
    again = {r.id: r.x for r in rows.repartition(7).withColumn("x", strobe.stable_random(F.col("half"))).collect()}
    assert drawn == again
    assert all(drawn[n] == drawn[n + 500] for n in range(500)), "equal keys, equal numbers"
    assert len(set(drawn.values())) == 500, "other keys, other numbers"
    other = {r.id: r.x for r in rows.withColumn("x", strobe.stable_random("half", seed=1)).collect()}
    assert sum(other[n] == drawn[n] for n in range(500)) == 0
    with pytest.raises(Misuse, match="at least one column"):
        strobe.stable_random()


def test_stable_random_is_spread_evenly_over_0_to_1(spark: SparkSession) -> None:
    numbers = [r.x for r in spark.range(20_000).select(strobe.stable_random("id").alias("x")).collect()]
    assert all(0 <= x < 1 for x in numbers)
    tenths = Counter(int(x * 10) for x in numbers)
    # Of 20,000 each tenth has 2,000 with a standard deviation of 42.
    assert all(1750 < tenths[n] < 2250 for n in range(10)), tenths


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate(cast(GateHandler, None)) as opened:  # nobody asks: only plans are made here
        yield opened


def warnings_about(
    pipeline: strobe.Pipeline, spark: SparkSession, gate: Gate, root: Path, caplog: pytest.LogCaptureFixture
) -> list[str]:
    home = JobHome(root / "home", pipeline.name)
    home.claim(pytest.fail)
    try:
        with caplog.at_level(logging.WARNING, "strobe"):
            draft_stages(pipeline, spark, gate, home)
    finally:
        home.release()
    return [record.getMessage() for record in caplog.records]


def test_a_source_that_cannot_be_read_again_is_warned_about(
    spark: SparkSession, gate: Gate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = strobe.Pipeline("p")

    @pipeline.stage(uid="lines", output_mode="update", to=strobe.ConsoleSink())
    def lines(spark: SparkSession) -> DataFrame:
        socket = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 9).load()
        return socket.where("value <> ''").groupBy("value").count()

    (warning,) = warnings_about(pipeline, spark, gate, tmp_path, caplog)
    assert warning.startswith("lines reads from a socket, which cannot be read again")


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (F.rand, "rand"),
        (lambda: F.floor(F.abs(F.rand()) * 10) + F.col("id"), "rand"),
        (lambda: F.expr("uuid()"), "uuid"),
        (lambda: F.udf(drawn_number, "long").asNondeterministic()("id"), "drawn_number"),
        (lambda: F.udf(drawn_number, "long")("id"), None),
        (lambda: strobe.stable_random("id"), None),
        (F.current_timestamp, None),
        (F.input_file_name, None),
    ],
    ids=["rand", "inside", "uuid", "udf", "deterministic-udf", "stable_random", "current_timestamp", "file"],
)
def test_a_stage_that_gives_another_result_when_run_again_is_warned_about(
    spark: SparkSession, gate: Gate, tmp_path: Path, caplog: pytest.LogCaptureFixture, column: object, named: str | None
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=1)
    pipeline = strobe.Pipeline("p")

    @pipeline.stage(uid="source")
    def source(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data)

    @pipeline.stage(uid="drawn", reads="source", to=strobe.ConsoleSink())
    def drawn(source: DataFrame) -> DataFrame:
        return source.withColumn("x", column())  # type: ignore[operator]

    warnings = warnings_about(pipeline, spark, gate, tmp_path, caplog)
    assert [w.split(" ")[0] for w in warnings] == (["drawn"] if named else [])
    assert all("strobe.stable_random" in w and f"({named})" in w for w in warnings)


def drawn_number(number: int) -> int:
    return 4


class Halves:
    def eval(self, number: int) -> Iterator[tuple[int]]:
        yield (number // 2,)
        yield (number - number // 2,)


@pytest.mark.parametrize("told", [True, False])
def test_a_table_function_is_random_until_it_says_that_it_is_not(
    spark: SparkSession, gate: Gate, tmp_path: Path, caplog: pytest.LogCaptureFixture, told: bool
) -> None:
    data = write_transfers(tmp_path / "in", files=1, rows=1)
    halves: Any = F.udtf(Halves, returnType="half BIGINT")
    halves = halves.asDeterministic() if told else halves
    pipeline = strobe.Pipeline("p")

    @pipeline.stage(uid="split", to=strobe.ConsoleSink())
    def split(spark: SparkSession) -> DataFrame:
        return read_transfers(spark, data).lateralJoin(halves(F.col("id").outer()))

    warnings = warnings_about(pipeline, spark, gate, tmp_path, caplog)
    assert len(warnings) == (0 if told else 1)
    assert all(w.startswith("split uses Halves:") and "udtf(Halves, …).asDeterministic()" in w for w in warnings)
