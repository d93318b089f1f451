"""Stages that Spark, or Strobe, cannot run: found out when the job starts, with the stage's name, and nothing left."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.model.errors import Failed, Misuse
from strobe.store.holding import is_held
from strobe.store.runtime import read_runtime
from tests.hosts.spark.pipeline.test_pipeline import ledger
from tests.support.spark.ledger_data import delta_rows, expected_balances, read_transfers, write_transfers

pytestmark = pytest.mark.spark

Function = Callable[[DataFrame], Any]


def rate(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").option("rowsPerSecond", 10).load()


def chain(function: Function, **options: Any) -> strobe.Pipeline:
    """An endless source, and behind it a stage `b` with this function."""
    pipeline = strobe.Pipeline("p")
    pipeline.stage("a")(rate)
    options.setdefault("to", strobe.DeltaSink("out"))

    @pipeline.stage("b", reads="a", **options)
    def b(a: DataFrame) -> Any:
        return function(a)

    return pipeline


def raises(a: DataFrame) -> DataFrame:
    raise RuntimeError("no such luck\nsecond line")


def batch(a: DataFrame) -> DataFrame:
    return a.sparkSession.range(3)


@pytest.fixture
def check_nothing_runs(spark: SparkSession, tmp_path: Path) -> Callable[[], None]:
    """That nothing of a job that did not start is left. Threads that other tests left before are none of its."""
    others = set(threading.enumerate())

    def check() -> None:
        assert spark.streams.active == []
        assert not is_held(tmp_path / "home", "p")
        runtime = read_runtime(tmp_path / "home", "p")
        assert runtime is not None
        assert runtime.state == "failed"
        assert "it did not start: " in runtime.error
        ours = ("stage-", "agent-", "coordinator", "heartbeat", "gate", "control", "watch")
        left = set(threading.enumerate()) - others
        assert [t.name for t in left if t.name.startswith(ours)] == []

    return check


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (raises, {}, "Stage 'b': its function raised RuntimeError: no such luck"),
        (lambda a: sys.exit(3), {}, "Stage 'b': its function raised SystemExit: 3"),
        (lambda a: a.select("no_such_column"), {}, "Stage 'b': its function raised AnalysisException"),
        (lambda a: None, {}, "Stage 'b' returned nothing, not a DataFrame"),
        (lambda a: [a], {}, "Stage 'b' returned list, not a DataFrame"),
        (batch, {}, "Stage 'b' returned a batch DataFrame: it has no stream in it"),
        (lambda a: a.groupBy("value").count(), {}, "Stage 'b' (output_mode 'append'): Spark refuses the query"),
        (lambda a: a, {"output_mode": "complete", "to": strobe.ConsoleSink()}, "Spark refuses the query"),
        (lambda a: a, {"to": strobe.DeltaSink("out", key="nobody")}, "but it has no column nobody"),
        (lambda a: a, {"trigger": {"processingTime": "soon"}}, "Spark refuses the query"),
        (lambda a: a.select("value", F.col("value").alias("VALUE")), {}, "'value' and 'VALUE' of its output differ"),
    ],
)
def test_a_stage_that_cannot_run_is_misuse_and_nothing_is_left_running(
    spark: SparkSession, tmp_path: Path, function: Function, options: dict[str, Any], says: str,
    check_nothing_runs: Callable[[], None],
) -> None:  # fmt: skip
    with pytest.raises(Misuse) as refused:
        start_job(chain(function, **options), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    assert says in str(refused.value)
    assert "\n" not in refused.value.what
    check_nothing_runs()


def test_what_spark_says_of_an_expression_is_said_once(spark: SparkSession, tmp_path: Path) -> None:
    """pyspark prints it, too: one line of JSON with a hundred frames."""
    said: list[logging.LogRecord] = []
    printer = logging.Handler()
    printer.emit = said.append  # type: ignore[method-assign, assignment]
    logger = PySparkLogger.getLogger("DataFrameQueryContextLogger")
    logger.addHandler(printer)
    pipeline = chain(lambda a: a.select(F.struct("value").alias("pair")).select(F.col("pair.none")))
    try:
        with pytest.raises(Misuse, match="FIELD_NOT_FOUND"):
            start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    finally:
        logger.removeHandler(printer)
    assert said == []


def test_the_job_can_be_started_once_the_stage_is_mended(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Misuse):
        start_job(chain(batch), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    job = start_job(chain(lambda a: a), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    job.cancel()
    assert job.state is strobe.JobState.CANCELED


def test_a_feedback_schema_that_does_not_fit_is_misuse(
    spark: SparkSession, tmp_path: Path, check_nothing_runs: Callable[[], None]
) -> None:
    def looped(schema: str) -> strobe.Pipeline:
        pipeline = strobe.Pipeline("p")
        pipeline.stage("a")(rate)

        @pipeline.stage("b", reads=["a", strobe.feedback("c", schema)])
        def b(a: DataFrame, c: DataFrame) -> DataFrame:
            return a.select("value").union(c.select("value"))

        @pipeline.stage("c", reads="b")
        def c(b: DataFrame) -> DataFrame:
            return b.where("value < 0")

        return pipeline

    for schema, says in (("value STRING", "Stage 'c' returns struct<value:bigint>"), ("what is", "cannot be read")):
        with pytest.raises(Misuse) as refused:
            start_job(looped(schema), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
        assert says in str(refused.value)
        check_nothing_runs()


@pytest.mark.filterwarnings("ignore:Cannot infer the eval type")
def test_a_stage_that_fails_in_every_batch_fails_the_job_with_its_own_words_and_a_mended_one_resumes(
    spark: SparkSession, tmp_path: Path
) -> None:
    data = write_transfers(tmp_path / "in", files=2, rows=50)

    @F.udf("bigint")
    def explode(amount: int) -> int:
        raise ValueError(f"cannot take {amount}")

    def failing() -> strobe.Pipeline:
        pipeline = ledger(data)
        broken = strobe.Pipeline("ledger", restart=strobe.RestartPolicy(attempts=3, first_pause=0.1))
        broken.stage("transfers", trigger={"availableNow": True})(lambda spark: read_transfers(spark, data))
        original = pipeline.stages["postings"]  # type: ignore[index]

        @broken.stage("postings", reads="transfers", to=strobe.DeltaSink("out/postings"))
        def postings(transfers: DataFrame) -> DataFrame:
            return original.function(transfers.withColumn("amount", explode("amount")))

        return broken

    job = start_job(failing(), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    assert job.wait(180)
    assert job.state is strobe.JobState.FAILED
    assert "stage 'postings' failed for good: ValueError: cannot take " in job.error
    assert spark.streams.active == []
    job = start_job(ledger(data), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    assert job.wait(180)
    assert job.state is strobe.JobState.FINISHED, job.error
    balances = delta_rows(tmp_path / "out/balances", "select account, balance::BIGINT from t order by 1")
    assert balances == expected_balances(data)


def test_a_second_run_of_a_live_job_is_refused_and_the_first_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    job = start_job(chain(lambda a: a), home=home, base=tmp_path, spark=spark)
    try:
        with pytest.raises(Misuse, match="Job 'p' is already running"):
            start_job(chain(lambda a: a), home=home, base=tmp_path, spark=spark)
        assert job.checkpoint(120) >= 1
    finally:
        job.cancel()
    with pytest.raises(Failed, match="Job 'p' is canceled"):
        job.checkpoint()


def test_a_sink_that_another_home_has_written_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Its batches have the numbers of the new ones, which would be taken for written."""
    data = write_transfers(tmp_path / "in", files=1, rows=20)
    first = start_job(ledger(data), home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    assert first.wait(180)
    with pytest.raises(Misuse, match=r"belongs to stage .* of job .ledger. in the home .*home: two jobs never write"):
        start_job(ledger(data), home=str(tmp_path / "other"), base=tmp_path, spark=spark)


FILE = """\
import strobe

pipeline = strobe.Pipeline("p")

@pipeline.stage("a")
def a(spark):
    return spark.readStream.format("rate").load()

@pipeline.stage("b", reads="a", to=strobe.ConsoleSink())
def b(a):
    return a.groupBy("value").count()
"""


@pytest.mark.slow
def test_on_the_command_line_it_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(FILE)
    done = subprocess.run(
        [sys.executable, "-m", "strobe.cli.main", "run", "p.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: Stage 'b' (output_mode 'append'): Spark refuses the query: ")
    assert lines[-1] == "next:  Change the stage, or its output_mode, and run again."
    assert len(lines) == 3
