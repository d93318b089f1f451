"""Spark's own process dies under a job: no stage can come back in this driver, so it ends at once and says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext

from strobe.hosts.spark.jvm.session import spark_ended
from strobe.store.runtime import UNKNOWN, read_runtime
from tests.support.processes import children, command
from tests.support.spark.jobs import eventually
from tests.support.spark.ledger_data import delta_rows, expected_balances, write_transfers

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = Path(__file__).parents[3] / "support" / "spark" / "pipelines" / "ledger_job.py"


def start(root: Path, **env: str) -> subprocess.Popen[bytes]:
    with (root / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "strobe.cli.main", "run", PIPELINE, "--home", root / "home"],
            env={**os.environ, "LEDGER_DATA": str(root / "in"), "LEDGER_OUT": str(root / "out"), **env},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )


class Gateway:
    def __init__(self, proc: subprocess.Popen[bytes]) -> None:
        self.proc = proc


@pytest.mark.parametrize(
    "hung_up",
    [
        Py4JNetworkError("Error while sending or receiving"),
        Py4JError("An error occurred while calling o288.isActive"),
        ConnectionResetError("reset by peer"),
    ],
)
def test_a_jvm_that_hangs_up_is_given_the_moment_that_its_end_takes(
    monkeypatch: pytest.MonkeyPatch, hung_up: Exception
) -> None:
    """The kernel closes what a killed process had open before its parent can see it gone."""
    with subprocess.Popen(["/bin/sh", "-c", "read -r word; kill -9 $$"], stdin=subprocess.PIPE) as proc:
        assert proc.stdin is not None
        monkeypatch.setattr(SparkContext, "_gateway", Gateway(proc))
        assert spark_ended(ValueError("of a stage, which says nothing of the JVM")) is None
        assert spark_ended(Py4JError("An error occurred while calling o1.x. Trace:\njava.lang.X")) is None
        threading.Timer(0.3, proc.stdin.close).start()
        ended = spark_ended(hung_up)
    assert ended is not None
    assert ended.what == "Spark's JVM was killed by signal 9."


def test_a_driver_whose_jvm_is_killed_ends_at_once_and_the_next_run_resumes(tmp_path: Path) -> None:
    data = write_transfers(tmp_path / "in", files=3, rows=100)
    run = start(tmp_path)
    try:
        eventually(lambda: run.poll() is not None or (tmp_path / "out/balances/_delta_log").exists(), "some work")
        eventually(lambda: (read_runtime(tmp_path / "home", "ledger") or UNKNOWN).state == "running", "it runs")
        (jvm,) = [c for c in children(run.pid) if "SparkSubmit" in command(c)]
        os.kill(jvm, signal.SIGKILL)
        assert run.wait(120) == 1
    finally:
        run.kill()
        run.wait()
    said = (tmp_path / "said").read_text()
    assert "error: Job 'ledger' failed: Spark's JVM was killed by signal 9." in said, said  # no stage is blamed
    assert "Traceback" not in said
    assert "starts again" not in said
    run = start(tmp_path, BOUNDED="1")
    assert run.wait(300) == 0, (tmp_path / "said").read_text()
    balances = delta_rows(tmp_path / "out/balances", "select account, balance::BIGINT from t order by 1")
    assert balances == expected_balances(data)
