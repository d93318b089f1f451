"""Errors in a user's code: with the stage, the file and the line, and not tried again when that is hopeless."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from pyspark.sql import SparkSession

import strobe
from strobe.hosts.spark.job.job import start_job
from strobe.hosts.spark.pipeline.loading import load_pipeline
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.model.errors import Misuse

pytestmark = pytest.mark.spark

HEAD = """\
import strobe
from pyspark.sql import functions as F

pipeline = strobe.Pipeline("p", restart=strobe.RestartPolicy(attempts=3, first_pause=0.1))

def rows(spark):
    return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()

"""


def load(directory: Path, body: str) -> Pipeline:
    directory.mkdir(exist_ok=True)
    file = directory / "pipe.py"
    file.write_text(HEAD + dedent(body))
    return load_pipeline(str(file))


def line_of(directory: Path, text: str, file: str = "pipe.py") -> str:
    lines = (directory / file).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, 1) if text in line]
    return f"{directory / file}, line {number}"


AT_ASSEMBLY = {
    "an error": (
        """
        @pipeline.stage("s", to=strobe.ConsoleSink())
        def s(spark):
            return rows(spark).select(1 / 0)  # here
        """,
        "raised ZeroDivisionError: division by zero (",
    ),
    "an analysis error": (
        """
        @pipeline.stage("s", to=strobe.ConsoleSink())
        def s(spark):
            return rows(spark).select("gone")  # here
        """,
        "raised AnalysisException: [UNRESOLVED_COLUMN",
    ),
    "nothing returned": (
        """
        @pipeline.stage("s", to=strobe.ConsoleSink())  # here
        def s(spark):
            rows(spark)
        """,
        "returned nothing, not a DataFrame (",
    ),
    "a lock": (
        """
        import threading
        lock = threading.Lock()

        def guarded(n):
            with lock:
                return n

        @pipeline.stage("s", to=strobe.ConsoleSink())
        def s(spark):
            return rows(spark).select(F.udf(guarded, "long")("value"))  # here
        """,
        "It uses lock → a _thread.lock, which cannot be sent to Spark's workers",
    ),
    "the session": (
        """
        from pyspark.sql import SparkSession
        session = SparkSession.builder.getOrCreate()

        @F.udf("long")
        def count(n):
            return session.range(n).count()

        @pipeline.stage("s", to=strobe.ConsoleSink())
        def s(spark):
            return rows(spark).select(count("value"))  # here
        """,
        "It uses session → a pyspark.sql.session.SparkSession, which cannot be sent to Spark's workers",
    ),
    "the pipeline": (
        """
        @F.udf("string")
        def tag(n):
            return pipeline.name

        @pipeline.stage("s", to=strobe.ConsoleSink())
        def s(spark):
            return rows(spark).select(tag("value"))  # here
        """,
        "PicklingError: pipeline 'p' cannot be used in a function that runs on Spark's workers",
    ),
}


@pytest.mark.parametrize("case", AT_ASSEMBLY)
def test_what_fails_in_a_stages_function_names_the_line(
    spark: SparkSession, tmp_path: Path, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    body, says = AT_ASSEMBLY[case]
    pipeline = load(tmp_path / "code", body)
    with pytest.raises(Misuse) as refused:
        start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    assert refused.value.what.startswith("Stage 's'")
    assert says in refused.value.what
    assert line_of(tmp_path / "code", "# here") in refused.value.what
    assert "\n" not in refused.value.what
    assert "Traceback" not in capfd.readouterr().err


def test_an_error_in_a_helper_names_its_line_and_the_caller(spark: SparkSession, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "helper_of_lines.py").write_text("def broken(frame):\n    return frame.select(1 / 0)\n")
    pipeline = load(
        code,
        """
        from helper_of_lines import broken

        @pipeline.stage("s", to=strobe.ConsoleSink())
        def s(spark):
            return broken(rows(spark))  # here
        """,
    )
    with pytest.raises(Misuse) as refused:
        start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    where = f"({code / 'helper_of_lines.py'}, line 2, called from {line_of(code, '# here')})"
    assert refused.value.what == f"Stage 's': its function raised ZeroDivisionError: division by zero {where}"


ON_WORKERS = {
    "a module that is not there": (
        """
        import sys, types
        ghost = types.ModuleType("ghost")
        exec("def f(n): return n", ghost.__dict__)
        sys.modules["ghost"] = ghost
        ghost.f.__module__ = "ghost"

        @pipeline.stage("s", to=strobe.MemorySink())
        def s(spark):
            return rows(spark).select(F.udf(ghost.f, "long")("value"))
        """,
        "ModuleNotFoundError: No module named 'ghost'. Spark's workers cannot import it: put it beside",
        0,
    ),
    "an error of a class in the file": (
        """
        class BadRow(Exception):
            pass

        def check(n):
            raise BadRow("no such row")  # here

        @pipeline.stage("s", to=strobe.MemorySink())
        def s(spark):
            return rows(spark).select(F.udf(check, "long")("value"))
        """,
        "failed for good: BadRow: no such row (",
        3,
    ),
    "a Python source": (
        """
        from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

        class Broken(DataSource):
            @classmethod
            def name(cls): return "broken"
            def schema(self): return "n long"
            def simpleStreamReader(self, schema): return Reader()

        class Reader(SimpleDataSourceStreamReader):
            def initialOffset(self): return {"at": 0}
            def read(self, start): return missing_name  # here

        @pipeline.stage("s", to=strobe.MemorySink())
        def s(spark):
            spark.dataSource.register(Broken)
            return spark.readStream.format("broken").load()
        """,
        "NameError: name 'missing_name' is not defined (",
        0,
    ),
    "a function for batches": (
        """
        def each(batch, batch_id):
            raise ValueError("no such luck")  # here

        @pipeline.stage("s", to=strobe.ForeachBatchSink(each))
        def s(spark):
            return rows(spark)
        """,
        "ValueError: no such luck (",
        3,
    ),
    "a processor": (
        """
        from pyspark.sql.streaming.stateful_processor import StatefulProcessor

        class Broken(StatefulProcessor):
            def init(self, handle):
                import no_such_module  # here
            def handleInputRows(self, key, rows, timers):
                yield from ()
            def close(self): pass

        @pipeline.stage("s", output_mode="update", to=strobe.MemorySink())
        def s(spark):
            return rows(spark).groupBy("value").transformWithStateInPandas(Broken(), "n long", "Update", "None")
        """,
        "ModuleNotFoundError: No module named 'no_such_module' (",
        0,
    ),
}


@pytest.mark.parametrize("case", ON_WORKERS)
def test_what_fails_on_workers_names_the_line_and_what_is_hopeless_is_not_tried_again(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    body, says, restarts = ON_WORKERS[case]
    pipeline = load(tmp_path / "code", body)
    job = start_job(pipeline, home=str(tmp_path / "home"), base=tmp_path, spark=spark)
    assert job.wait(180)
    assert job.state is strobe.JobState.FAILED
    assert job.error.startswith("stage 's' failed for good: ")
    assert says in job.error
    if "# here" in body:
        assert line_of(tmp_path / "code", "# here") in job.error
    assert job.runners[next(iter(job.runners))].restarts == restarts
