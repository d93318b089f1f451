"""Deaths inside Spark, and between two of its batches, where no line of Strobe's could stand: nothing is lost.

One job lives through all of it: it dies while Spark writes its very first entry, behind a batch that makes another one
due, and while that one waits in the log. Then it ends, and each stage has counted every window once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from strobe.hosts.spark.checkpoint import files as spark_checkpoint
from strobe.hosts.spark.pipeline.loading import load_pipeline
from tests.hosts.spark.stage.test_due_batch import write_events
from tests.support.spark.jobs import run_to_the_end

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PIPELINE = Path(__file__).parents[3] / "support" / "spark" / "pipelines" / "due_job.py"
CASES = {"due": ["due.added"]}
STATEFUL = ("windows", "own")
EXPECTED = [["2031-05-17 09:00:00", "a", 2], ["2031-05-17 09:00:00", "b", 1]]
PATIENCE = 180


def strobe_run(root: Path, **env: str) -> subprocess.Popen[str]:
    """In a group of its own, with its JVM."""
    return subprocess.Popen(
        [sys.executable, "-m", "strobe.cli.main", "run", str(PIPELINE), "--home", str(root / "home")],
        env={**os.environ, "DUE_DATA": str(root / "in"), "DUE_OUT": str(root / "out"), **env},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def resume(root: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """To its end, in the session that the tests share."""
    monkeypatch.setenv("DUE_DATA", str(root / "in"))
    monkeypatch.setenv("DUE_OUT", str(root / "out"))
    run_to_the_end(load_pipeline(str(PIPELINE)), root / "home", spark)


def checkpoint(root: Path, uid: str) -> Path:
    """Of the newest generation: there is a new one after each death."""
    stage = root / "home/jobs/due/stages" / uid
    return max(stage.glob("t1*/spark"), key=lambda path: int(path.parent.name[3:] or 0), default=stage / "t1/spark")


def output(root: Path, uid: str) -> list[list[object]]:
    batches = sorted((root / "out" / uid).glob("*.json"))
    return sorted(row for path in batches for row in json.loads(path.read_text()))


def kill_in_the_first_entry(root: Path) -> None:
    """SIGKILL to driver and JVM as soon as Spark begins to write offsets/0 of a stage with state. If it is faster, it
    dies a moment later: that must do no harm either."""
    run = strobe_run(root)
    offsets = [checkpoint(root, uid) / "offsets" for uid in STATEFUL]
    deadline = time.monotonic() + PATIENCE
    while not any(path.is_dir() and os.listdir(path) for path in offsets):
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()
    for path in (p for p in offsets if p.is_dir() and not (p / "0").exists()):
        (path / f".0.{uuid.uuid4()}.tmp").touch()  # in case that it was another stage's entry


def die_behind_the_rows(root: Path, uid: str) -> None:
    """Bring a stage back to where it was when its last batch with rows was committed, as if it had died there."""
    place = checkpoint(root, uid)
    last = spark_checkpoint.last_committed(place)
    assert last is not None
    assert spark_checkpoint.read_offsets(place, last).sources == spark_checkpoint.read_offsets(place, last - 1).sources
    gone = [place / "offsets" / str(last), place / "commits" / str(last), root / "out" / uid / f"{last}.json"]
    for path in (*gone, *place.glob(f"state/0/*/{last + 1}.*")):
        path.unlink()


def test_a_job_that_dies_inside_spark_and_between_its_batches_loses_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_events(tmp_path / "in")
    kill_in_the_first_entry(tmp_path)
    resume(tmp_path, spark, monkeypatch)
    for uid in STATEFUL:
        assert output(tmp_path, uid) == EXPECTED
        die_behind_the_rows(tmp_path, uid)
        assert output(tmp_path, uid) == []
    for point in CASES["due"]:
        run = strobe_run(tmp_path, STROBE_CRASH_AT=f"{point}@own")
        said = run.communicate(timeout=PATIENCE)
        assert run.returncode == -signal.SIGKILL, said
    resume(tmp_path, spark, monkeypatch)
    for uid in STATEFUL:
        assert output(tmp_path, uid) == EXPECTED
