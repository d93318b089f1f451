"""What `strobe run` makes of its options, with the start of the job itself left out."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import strobe.cli.run
from strobe.hosts.spark.pipeline.pipeline import Pipeline
from strobe.model.errors import Failed
from tests.cli.conftest import Strobe

FILE = """
import strobe

pipeline = strobe.Pipeline("kept", checkpoint=strobe.CheckpointConfig(store="as-the-file-says", interval=7))


@pipeline.stage(uid="rows", to=strobe.DeltaSink("out"))
def rows(spark):
    return spark.readStream.format("rate").load()
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pipeline]]:
    """The pipelines that were to be started. None is: it fails, and says so in the log."""
    (tmp_path / "pipeline.py").write_text(FILE)
    found: list[Pipeline] = []

    def start_job(pipeline: Pipeline, **_: Any) -> None:
        found.append(pipeline)
        (tmp_path / ".strobe/jobs/kept/logs").mkdir(parents=True, exist_ok=True)
        logging.getLogger("strobe.job").error("the roof is on fire")
        raise Failed("It did not start.")

    monkeypatch.setattr(strobe.cli.run, "start_job", start_job)
    before = signal.getsignal(signal.SIGHUP)
    yield found
    signal.signal(signal.SIGHUP, before)


def test_store_says_where_checkpoints_go_and_leaves_the_other_settings(strobe: Strobe, started: list[Pipeline]) -> None:
    assert strobe("run", "pipeline.py").code == 1
    assert strobe("run", "pipeline.py", "--store", "s3://bucket/prefix").code == 1
    assert [p.checkpoint.store for p in started] == ["as-the-file-says", "s3://bucket/prefix"]
    assert [p.checkpoint.interval for p in started] == [7, 7]
    refused = strobe("run", "pipeline.py", "--store", " ")
    assert (refused.code, "s3://bucket/prefix" in refused.err) == (2, True)


def test_an_error_is_once_in_the_log_of_a_detached_job_and_shown_to_who_waits_for_another(
    strobe: Strobe, started: list[Pipeline], tmp_path: Path
) -> None:
    log = tmp_path / ".strobe/jobs/kept/logs/driver.log"
    attended = strobe("run", "pipeline.py")
    assert attended.err.count("the roof is on fire") == log.read_text().count("the roof is on fire") == 1
    log.unlink()
    told, tell = os.pipe()
    # What a job in the background prints goes to its log, too.
    detached = strobe("run", "-d", "pipeline.py", "--starter-pipe", str(tell))
    os.close(told)
    assert (log.read_text() + detached.out + detached.err).count("the roof is on fire") == 1
